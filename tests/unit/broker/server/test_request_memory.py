"""queued.max.request.bytes: whose turn it is, and connections that wait for it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.unit.broker.server.peers import Peer, Script, frame_of, run, until

from mainstem_broker.server import connection as module
from mainstem_broker.server.connection import LARGE_FRAME_BYTES
from mainstem_broker.server.request_memory import RequestMemory

MIB = 1024 * 1024


class Frame:
    """A frame of `total` bytes that gets memory unit by unit, as often as it `comes`."""

    def __init__(self, memory: RequestMemory, total: int) -> None:
        self.memory = memory
        self.left = total
        self.held = 0
        self.is_waiting = False
        self.privileges = 0

    def comes(self) -> None:
        if self.is_waiting or self.left == 0:
            return
        if self.memory.may_grow(self):
            self._grow()
        else:
            self.is_waiting = True
            self.memory.wait(self)

    def _grow(self) -> None:
        self.left -= 1
        self.held += 1
        self.memory.change(1)
        if self.left == 0:
            self.end()

    def end(self) -> None:
        held, self.held, self.left, self.is_waiting = self.held, 0, 0, False
        self.memory.frame_ended(self, held)

    def take_memory(self, *, is_privileged: bool) -> None:
        assert self.is_waiting
        self.is_waiting = False
        self.privileges += is_privileged
        self._grow()


def test_frames_get_memory_up_to_the_limit_and_then_one_at_a_time() -> None:
    memory = RequestMemory(4)
    first, second, third = (Frame(memory, 5) for _ in range(3))
    for frame in (first, second) * 2:
        frame.comes()
    assert (memory.used_bytes, memory.waiting) == (4, 0)
    second.comes()
    assert second.privileges == 1
    first.comes()
    third.comes()
    assert (first.is_waiting, third.is_waiting) == (True, True)
    second.comes()
    second.comes()
    assert second.left == 0
    assert not first.is_waiting, "the one that has waited longest goes on"
    assert memory.used_bytes <= 4 + 1


@given(
    limit=st.integers(1, 20),
    totals=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    leaves=st.booleans(),
)
def test_every_frame_is_completed_whoever_stalls_or_leaves(
    limit: int, totals: list[int], order: object, leaves: bool
) -> None:
    memory = RequestMemory(limit)
    frames = [Frame(memory, total) for total in totals]
    for _ in range(sum(totals) * 2):
        frame = order.choice(frames)  # type: ignore[attr-defined]  # hypothesis' Random
        if leaves and order.random() < 0.05:  # type: ignore[attr-defined]
            frame.end()
        else:
            frame.comes()
        held = sum(one.held for one in frames)
        assert memory.used_bytes == held
        assert held <= limit + max(totals), "over the limit by one frame only"
        assert sum(one.is_waiting for one in frames) == memory.waiting
    for _ in range(sum(totals)):  # all of them send what is left
        for frame in frames:
            frame.comes()
    assert all(frame.left == 0 for frame in frames)
    assert (memory.used_bytes, memory.waiting) == (0, 0)


# --- Connections ---


async def test_large_requests_take_turns_and_all_are_answered() -> None:
    """R11: 20 clients send 1 MiB each, where 1 MiB is allowed."""
    memory = RequestMemory(MIB)
    request = b"echo " + b"x" * MIB
    largest = 0
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(Script().handle, memory=memory)) for _ in range(20)]
        sending = [asyncio.create_task(peer.send(request, "echo small")) for peer in peers]
        answers = [asyncio.create_task(peer.receive(2)) for peer in peers]
        while not all(task.done() for task in answers):
            largest = max(largest, memory.used_bytes)
            await asyncio.sleep(0)
        for task in answers:
            assert [len(answer) for answer in task.result()] == [MIB, 5]
        await asyncio.gather(*sending)
        await until(lambda: memory.used_bytes == 0)
    assert largest <= 2 * MIB + len(peers) * 2 * LARGE_FRAME_BYTES * 8
    assert memory.waiting == 0


async def test_small_requests_go_on_while_large_ones_stall() -> None:
    memory = RequestMemory(100_000)
    large = frame_of(b"echo " + b"x" * MIB)
    with ExitStack() as stack:
        stalled = [stack.enter_context(Peer(Script().handle, memory=memory)) for _ in range(5)]
        for peer in stalled:
            await peer.send_raw(large[: MIB // 2])
        # One has memory for its whole frame; the others have filled what they got, and wait.
        await until(lambda: memory.waiting == 4 and memory.used_bytes > len(large) + 4 * MIB // 5)
        used = memory.used_bytes
        small = stack.enter_context(Peer(Script().handle, memory=memory))
        await small.send(*[f"echo {number}" for number in range(100)], b"echo " + b"y" * 60_000)
        answers = await small.receive(101)
        assert len(answers[-1]) == 60_000
        assert memory.used_bytes == used
        # The stalled ones complete theirs after all.
        for peer in stalled:
            await asyncio.gather(peer.send_raw(large[MIB // 2 :]), peer.receive(1))
    assert memory.used_bytes == 0


def test_a_client_that_keeps_others_waiting_and_sends_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.05)

    async def test() -> None:
        memory = RequestMemory(100_000)
        large = frame_of(b"echo " + b"x" * MIB)
        with Peer(Script().handle, memory=memory) as stalled, Peer(Script().handle, memory=memory) as other:
            await stalled.send_raw(large[: MIB // 2])
            await until(lambda: stalled.connection._progress is not None or stalled.connection.is_closed)
            monkeypatch.setattr(module, "PROGRESS_S", 600.0)  # of the other one, whose frame may come slowly
            sending = asyncio.create_task(other.send_raw(large))
            (answer,) = await other.receive()
            await sending
            assert len(answer) == MIB
            assert stalled.connection.is_closed
            await until(lambda: memory.used_bytes == 0)

    with capture_logs() as lines:
        run(test())
    assert [line["reason"] for line in lines] == [
        "a large request comes too slowly, and keeps others waiting (queued.max.request.bytes)"
    ]


async def test_requests_that_are_held_count_until_they_are_handled() -> None:
    memory = RequestMemory(10 * MIB)
    script = Script()
    with Peer(script.handle, memory=memory) as peer:
        await peer.send("hold gate", b"echo " + b"x" * 5_000, "echo last")
        await until(lambda: script.gates)
        await peer.settle()
        assert memory.used_bytes == len("hold gate") + 5_005 + len("echo last")
        script.let_go("gate")
        assert len(await peer.receive(3)) == 3
        assert memory.used_bytes == 0


async def test_a_connection_that_closes_gives_its_memory_back() -> None:
    memory = RequestMemory(10 * MIB)
    with Peer(Script().handle, memory=memory) as peer:
        await peer.send_raw(frame_of(b"echo " + b"x" * MIB)[: MIB // 2])
        await until(lambda: memory.used_bytes > MIB // 4)
        peer.connection.close()
        assert memory.used_bytes == 0


async def test_a_connection_that_closes_gives_back_the_memory_of_requests_that_wait() -> None:
    """R40: or clients that hang up would hold up the large requests of all others in the end."""
    memory = RequestMemory(10 * MIB)
    script = Script()
    with Peer(script.handle, memory=memory) as peer:
        await peer.send("hold gate", b"echo " + b"x" * 5_000)
        await until(lambda: script.gates)
        await peer.settle()
        assert memory.used_bytes > 5_000
        peer.connection.close()
        assert memory.used_bytes == 0
