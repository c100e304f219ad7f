"""`python -m bench.groups`: what heartbeats of very many members cost one broker, and how long they take.

Groups of five members join over a hundred connections, then every member heartbeats each three seconds, as
clients do by default. The broker's CPU is that of its process; the time of a heartbeat is
measured by a process of its own, one after another on one more connection, so that this one's time does not
count.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import socket
import struct
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

from bench.mainstem_stack import Mainstem
from bench.processes import cpu_seconds
from mainstem_broker.protocol.codec import decode_response, encode_request

MEMBERS_PER_GROUP: Final = 5
CONNECTIONS: Final = 100
HEARTBEAT_INTERVAL_SECONDS: Final = 3.0
SECONDS: Final = 15.0
PROBE_PAUSE_SECONDS: Final = 0.004

FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = (10, 3), (11, 3), (12, 3), (14, 1)


class Connection:
    """Requests of which many are under way; answers come in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[Any], tuple[int, int]]] = deque()

    async def open(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
            future, (key, version) = self._waiting.popleft()
            future.set_result(decode_response(key, version, memoryview(answer))[1])

    def ask(self, api: tuple[int, int], body: dict[str, Any]) -> asyncio.Future[Any]:
        return self.send(api, encode_request(*api, 1, "bench", body))

    def send(self, api: tuple[int, int], frame: bytes) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((future, api))
        self._writer.write(frame)
        return future

    def close(self) -> None:
        self._task.cancel()
        self._writer.close()


async def form_group(connection: Connection, group: str) -> list[bytes]:
    """Bring a group to a stable generation; the frames of its members' heartbeats."""
    join = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0" * 50}],
    }
    joined = await asyncio.gather(*[connection.ask(JOIN_GROUP, join) for _ in range(MEMBERS_PER_GROUP)])
    leader = joined[0].leader
    assignments = [{"member_id": one.member_id, "assignment": b"\0" * 50} for one in joined]
    synced = await asyncio.gather(
        *[
            connection.ask(
                SYNC_GROUP,
                {
                    "group_id": group,
                    "generation_id": one.generation_id,
                    "member_id": one.member_id,
                    "assignments": assignments if one.member_id == leader else [],
                },
            )
            for one in joined
        ]
    )
    assert not any(one.error_code for one in [*joined, *synced]), "a group was not formed"
    return [
        encode_request(
            *HEARTBEAT,
            1,
            "bench",
            {
                "group_id": group,
                "generation_id": one.generation_id,
                "member_id": one.member_id,
                "group_instance_id": None,
            },
        )
        for one in joined
    ]


def probe(address: tuple[str, int], frame: bytes, seconds: float, answer: Pipe) -> None:
    """Heartbeat one after another; how many seconds each took."""
    taken = []
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            connection.sendall(frame)
            connection.recv(4096)
            taken.append(time.perf_counter() - began)
            time.sleep(PROBE_PAUSE_SECONDS)
    answer.send(sorted(taken))


async def measure(system: Mainstem, group_count: int) -> None:
    host, port = system.bootstrap_servers.split(":")
    connections = [Connection() for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.open(host, int(port))
    # The first one has the topic of offsets made, and waits for it.
    coordinator = await connections[0].ask(FIND_COORDINATOR, {"key": "bench", "key_type": 0})
    assert not coordinator.error_code, "the broker found no coordinator"
    began = time.perf_counter()
    formed = await asyncio.gather(
        *[
            form_group(connection, f"group-{number}")
            for number, connection in zip(range(group_count), itertools.cycle(connections), strict=False)
        ]
    )
    print(f"{group_count} groups formed in {time.perf_counter() - began:.1f} s")
    heartbeats = [
        (connection, frame)
        for frames, connection in zip(formed, itertools.cycle(connections), strict=False)
        for frame in frames
    ]
    ours, theirs = multiprocessing.Pipe()
    prober = multiprocessing.get_context("spawn").Process(
        target=probe, args=((host, int(port)), heartbeats[0][1], SECONDS - 2, theirs)
    )
    prober.start()
    rate = len(heartbeats) / HEARTBEAT_INTERVAL_SECONDS
    waiting: list[asyncio.Future[Any]] = []
    cpu_before = cpu_seconds(system.broker_pid)
    began = time.perf_counter()
    turns = itertools.cycle(heartbeats)
    while (passed := time.perf_counter() - began) < SECONDS:
        for _ in range(int(passed * rate) - len(waiting)):
            connection, frame = next(turns)
            waiting.append(connection.send(HEARTBEAT, frame))
        await asyncio.sleep(0.002)
    answers = await asyncio.gather(*waiting)
    cpu = cpu_seconds(system.broker_pid) - cpu_before
    assert not any(answer.error_code for answer in answers), "a heartbeat was refused"
    taken = await asyncio.to_thread(ours.recv)
    prober.join()
    print(f"{len(heartbeats)} members, {len(answers) / SECONDS:.0f} heartbeats a second")
    print(f"broker CPU: {100 * cpu / SECONDS:.1f} % of a core, {1e6 * cpu / len(answers):.0f} us a heartbeat")
    for share in (0.5, 0.99, 0.999):
        print(f"p{100 * share:g}: {1e3 * taken[int(len(taken) * share)]:.2f} ms")
    for connection in connections:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description="Measure heartbeats.")
    parser.add_argument("--groups", type=int, default=2_000, help="groups of five members each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-groups-") as directory:
        system = Mainstem(Path(directory))
        system.start()
        try:
            asyncio.run(measure(system, arguments.groups))
        finally:
            system.stop()


if __name__ == "__main__":
    main()
