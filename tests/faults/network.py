"""Wires that can be cut: small TCP proxies between a broker and ZooKeeper, and between brokers.

Proxies and not network namespaces, because these need rights that a machine which runs tests seldom gives.
A cut acts like a switch that drops everything: nobody is notified (no FIN, no RST). Both ends
keep their connections and hear nothing; new connections come about and stay silent. When the wire is whole
again, what was sent meanwhile arrives, late, as TCP would send it again.

A proxy tells which broker calls by the process that owns the other end of the connection, so that a single
listening port per broker is enough to cut any pair of them. And it is as dead as what is behind it: if that
ends, callers are reset, and then refused, until it listens again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

import psutil
from tests.support.waiting import let_pass_async

CHUNK_BYTES: Final = 65_536
LOOK_SECONDS: Final = 0.02

Link = frozenset[str]
"""Two ends by name, such as {"broker 1", "zookeeper"}."""


class Network:
    """All wires of a cluster, served by one event loop in a thread of its own.

    `process_of` answers the process id of a caller by its name; only callers that it knows can be cut off.
    """

    def __init__(self, process_of: Callable[[], dict[str, int]]) -> None:
        self._process_of = process_of
        self._whole: dict[Link, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- Called by tests, in their thread ---

    def lay(self, name: str, port: int, target_port: Callable[[], int], caller: str | None = None) -> None:
        """Have connections to `port` go on to `target_port()`, where `name` listens.

        `caller` says who alone calls there; if it is None, the callers' processes tell.
        """

        async def begin() -> None:
            self._spawn(self._serve(name, port, target_port, caller))

        self._call(begin())

    def cut(self, *ends: str) -> None:
        """Cut the wire between two ends."""
        self._call(self._set(frozenset(ends), whole=False))

    def mend(self, *ends: str) -> None:
        self._call(self._set(frozenset(ends), whole=True))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # --- On the loop ---

    async def _set(self, link: Link, *, whole: bool) -> None:
        if whole:
            self._wire(link).set()
        else:
            self._wire(link).clear()

    def _wire(self, link: Link) -> asyncio.Event:
        if link not in self._whole:
            self._whole[link] = asyncio.Event()
            self._whole[link].set()
        return self._whole[link]

    async def _end_all(self) -> None:
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, port: int, target_port: Callable[[], int], caller: str | None) -> None:
        """Listen while the target does."""
        while True:
            if not await _listens(target_port()):
                await let_pass_async(LOOK_SECONDS, "between two looks at the port")
                continue
            gone = asyncio.Event()

            def carry(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event = gone
            ) -> None:
                self._spawn(self._carry(reader, writer, name, target_port(), caller, gone))

            # The end of this connection says that the target may have ended; it is there before any caller's.
            look_out = asyncio.create_task(_watch(target_port(), gone))
            server = await asyncio.start_server(carry, "127.0.0.1", port)
            try:
                await gone.wait()
            finally:
                look_out.cancel()
                server.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        target_port: int,
        caller: str | None,
        gone: asyncio.Event,
    ) -> None:
        """One caller's connection, until either end closes it."""
        with contextlib.closing(writer):
            if caller is None:
                # In a thread: it takes longer the more connections the machine has, and all wires would wait.
                ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
                caller = await asyncio.to_thread(self._caller, *ends)
            link = frozenset((caller, name))
            wire = self._wire(link)
            await wire.wait()
            try:
                target_reader, target_writer = await asyncio.open_connection("127.0.0.1", target_port)
            except OSError:
                gone.set()
                return
            with contextlib.closing(target_writer):
                directions = (
                    asyncio.create_task(_pump(reader, target_writer, wire)),
                    asyncio.create_task(_pump(target_reader, writer, wire)),
                )
                try:
                    await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
                    # The end of a connection is news as well, and does not get through a cut.
                    await wire.wait()
                finally:
                    for direction in directions:
                        direction.cancel()
                    await asyncio.gather(*directions, return_exceptions=True)

    def _caller(self, own: tuple[str, int], called: tuple[str, int]) -> str:
        # By both ends: two processes may call different ports from the same one.
        for name, pid in self._process_of().items():
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("tcp4"):
                    if (connection.laddr, connection.raddr) == (own, called):
                        return name
        return "unknown"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: asyncio.Event) -> None:
    """Copy until the end, or until the connection breaks; nothing passes while the wire is cut."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            await wire.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _watch(port: int, gone: asyncio.Event) -> None:
    """Set `gone` when nobody listens at `port` any more; checked whenever a connection has ended."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            gone.set()
            return
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await reader.read(1)
        await let_pass_async(LOOK_SECONDS, "between two looks at the port")
