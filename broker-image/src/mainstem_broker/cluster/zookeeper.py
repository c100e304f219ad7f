"""A session with ZooKeeper, for one event loop: kazoo's calls as awaitables, its threads kept out.

All calls of a session run one after the other in one thread, in the order they were made. Watches and
changes of the session's state are handed to the loop. Nothing here knows what the nodes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final, Protocol

import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from mainstem_broker.errors import MainstemError, RequestTimedOut, StartupError

logger = structlog.get_logger(__name__)

READS_IN_FLIGHT: Final = 500
"""Reads sent before the first answer is waited for: enough to hide the round trip."""
ANSWER_SHARE_OF_SESSION: Final = 1 / 3
"""How long a server may take to greet, or to finish what it began to say, before another try."""
WAIT_REPORT_INTERVAL_S: Final = 5.0
"""Between two log lines of a broker whose start waits for ZooKeeper."""


class ZooKeeperUnavailable(RequestTimedOut):
    """No answer: the connection or the session is gone. Whether a write happened is unknown.

    Clients are answered REQUEST_TIMED_OUT, which says just that.
    """


class Conflict(MainstemError):
    """A multi was refused: a node changed, appeared or vanished since it was read. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    version: int
    czxid: int
    ephemeral_owner: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Operation = Create | SetData | Delete | Check
SessionListener = Callable[[str], None]
"""Called on the loop with "connected", "suspended" (it may come back) or "lost" (ephemerals are gone)."""


class ZooKeeperSession(Protocol):
    """A session as the cluster's code uses it; `ZooKeeper` is the real one."""

    @property
    def session_id(self) -> int:
        """0 while there is none."""
        ...

    async def start(self, timeout_s: float | None) -> None: ...
    async def stop(self) -> None: ...
    async def sync(self) -> None: ...
    async def get(self, path: str, on_change: Callable[[], None] | None = None) -> Node | None: ...
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]: ...
    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]: ...
    async def sequence_end(self, path: str, on_change: Callable[[], None] | None = None) -> int: ...
    async def children_of_many(self, paths: Sequence[str]) -> list[list[str]]: ...
    async def ensure_paths(self, paths: Iterable[str]) -> None: ...
    async def create(self, path: str, data: bytes) -> bool: ...
    async def multi(self, operations: Sequence[Operation]) -> list[Any]: ...


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, less patient with a server that accepts a connection and then stays silent.

    kazoo waits a whole session for the greeting (a share of it, if it knows several servers), and one that
    is killed or starts at this moment never sends it: then the session is over before the second try.
    """

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self._answer_s = answer_s

    def create_connection(self, *args: Any, timeout: float, **named: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._answer_s), **named)

    def select(self, readable: Any, writable: Any, exceptional: Any, timeout: float) -> Any:
        # With its own pipe beside the socket it waits for news, and sends a heartbeat when there are none.
        waits_for_news = len(readable) > 1
        seconds = timeout if waits_for_news else min(timeout, self._answer_s)
        return super().select(readable, writable, exceptional, seconds)


class ZooKeeper:
    """One session. `start` it once; of several calls of `stop` the first one counts."""

    def __init__(self, servers: str, session_timeout_ms: int, listener: SessionListener) -> None:
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        self._listener = listener
        self._answer_s = session_timeout_ms / 1000 * ANSWER_SHARE_OF_SESSION
        self._is_connected = asyncio.Event()
        self._disconnected_s = self._loop.time()
        self._is_stopped = False
        try:
            self._client = KazooClient(
                hosts=servers,
                timeout=session_timeout_ms / 1000,
                handler=_Handler(self._answer_s),
                # No retries of commands: a write whose answer was lost must be looked at, not repeated.
                command_retry=KazooRetry(max_tries=0),
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1, max_jitter=0.2),
            )
        except ValueError as error:
            raise StartupError(
                f"zookeeper.connect is {servers!r} ({error}): write it as host:port,host:port/chroot."
            ) from error
        self._client.add_listener(self._on_state)

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def _on_state(self, state: str) -> None:
        name = {KazooState.CONNECTED: "connected", KazooState.SUSPENDED: "suspended", KazooState.LOST: "lost"}
        self._call_on_loop(self._take_state, name[state])

    def _take_state(self, state: str) -> None:
        if state == "connected":
            self._is_connected.set()
        elif self._is_connected.is_set():
            self._is_connected.clear()
            self._disconnected_s = self._loop.time()
        self._listener(state)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            pass  # the loop has closed, and its listeners with it

    async def start(self, timeout_s: float | None) -> None:
        """Connect; logs every `WAIT_REPORT_INTERVAL_S` that no server answers.

        Args:
            timeout_s: the longest wait; None waits for as long as it takes.

        Raises:
            StartupError: no server answered in time.
        """
        try:
            await self._submit(self._client.start_async)
            async with asyncio.timeout(timeout_s):
                await self._connected_at_last()
            await self._submit(self._make_chroot)
        except (TimeoutError, ZooKeeperUnavailable) as error:
            await self.stop()
            raise StartupError(
                f"ZooKeeper did not answer at {self._servers}"
                f"{'' if timeout_s is None else f' within {timeout_s:g} s'}: start it, or correct"
                " zookeeper.connect."
            ) from error

    async def _connected_at_last(self) -> None:
        begun_s = self._loop.time()
        while not self._is_connected.is_set():
            try:
                async with asyncio.timeout(WAIT_REPORT_INTERVAL_S):
                    await self._is_connected.wait()
            except TimeoutError:
                logger.warning(
                    "waiting for ZooKeeper: start it, or correct zookeeper.connect",
                    servers=self._servers,
                    waited_s=round(self._loop.time() - begun_s),
                )

    def _make_chroot(self) -> None:
        """Make the node that `zookeeper.connect` ends in; below it, kazoo does not find its parents."""
        chroot, self._client.chroot = self._client.chroot, ""
        try:
            if chroot:
                self._client.ensure_path(chroot)
        finally:
            self._client.chroot = chroot

    async def stop(self) -> None:
        """Close the session; its ephemeral nodes go at once."""

        def close() -> None:
            self._client.stop()
            self._client.close()

        def give_up() -> None:
            with suppress(KazooException):  # its thread still waits for a server, and ends with the process
                close()

        if self._is_stopped:  # kazoo refuses to close a client whose thread has not ended
            return
        self._is_stopped = True
        has_session = self.session_id != 0
        self._is_connected.set()  # calls that wait for a connection fail now
        # Not in the session's own thread: a call that waits for a connection holds it until this.
        if has_session:
            await self._loop.run_in_executor(None, close)
        else:
            # No server knows of it, and kazoo waits long for one that takes connections and is silent.
            Thread(target=give_up, name="zookeeper stop", daemon=True).start()
        self._thread.shutdown(wait=False)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call, in the session's thread.

        While the connection is made again it waits for that. In an outage it refuses at once: a request
        must not be executed when the outage ends, long after its caller has given up.
        """
        if not self._is_connected.is_set():
            try:
                async with asyncio.timeout_at(self._disconnected_s + self._answer_s):
                    await self._is_connected.wait()
            except TimeoutError:
                away_s = self._loop.time() - self._disconnected_s
                raise ZooKeeperUnavailable(
                    f"ZooKeeper has not answered for {away_s:.0f} s, so nothing was changed:"
                    " try again when it is back."
                ) from None
        return await self._submit(self._call_connected, function, *arguments)

    def _call_connected(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` in the session's thread, unless the connection broke during the calls before it.

        kazoo would keep the request until there is another connection. The heartbeat would then wait as long
        as the outage lasts, and a write would be done after it.
        """
        if not self._client.connected:
            raise ZooKeeperUnavailable("The connection to ZooKeeper broke; try again.")
        return function(*arguments)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        def call() -> Any:
            try:
                return function(*arguments)
            except (NoNodeError, NodeExistsError, BadVersionError, KazooTimeoutError):
                raise
            except KazooException as error:
                raise ZooKeeperUnavailable(
                    f"ZooKeeper gave no answer ({type(error).__name__}); try again."
                ) from error

        try:
            return self._loop.run_in_executor(self._thread, call)
        except RuntimeError as error:  # the session was stopped
            raise ZooKeeperUnavailable("This broker has left ZooKeeper; use another one.") from error

    # --- Reading ---

    async def sync(self) -> None:
        """Make the next reads as new as any write that any client has finished by now."""
        await self._run(self._client.sync, "/")

    async def get(self, path: str, on_change: Callable[[], None] | None = None) -> Node | None:
        """The node, or None. `on_change` is called once on the loop when it next changes or appears."""
        watch = self._watch(on_change)

        def read() -> Node | None:
            while True:
                try:
                    return _node(self._client.get(path, watch=watch))
                except NoNodeError:
                    if watch is None or self._client.exists(path, watch=watch) is None:
                        return None

        node: Node | None = await self._run(read)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at `paths`, in order; None where there is none.

        Other calls may come in between, so that a long reading does not keep a heartbeat waiting.
        """

        def read(some: Sequence[str]) -> list[Node | None]:
            nodes: list[Node | None] = []
            for result in [self._client.get_async(path) for path in some]:
                try:
                    nodes.append(_node(result.get()))
                except NoNodeError:
                    nodes.append(None)
            return nodes

        nodes: list[Node | None] = []
        for start in range(0, len(paths), READS_IN_FLIGHT):
            nodes += await self._run(read, paths[start : start + READS_IN_FLIGHT])
        return nodes

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Names below `path`, sorted; none if it does not exist."""
        watch = self._watch(on_change)

        def read() -> list[str]:
            try:
                return sorted(self._client.get_children(path, watch=watch))
            except NoNodeError:
                return []

        names: list[str] = await self._run(read)
        return names

    async def sequence_end(self, path: str, on_change: Callable[[], None] | None = None) -> int:
        """The number that the next sequential child of `path` gets; 0 if `path` does not exist.

        That is how many children were created so far, also if they are gone (`PrepRequestProcessor` of
        ZooKeeper). `on_change` is called as by `children`.
        """
        watch = self._watch(on_change)

        def read() -> int:
            try:
                _, stat = self._client.get_children(path, watch=watch, include_data=True)
            except NoNodeError:
                return 0
            # A stat counts creations and deletions (`DataNode.copyStat`), as an int32 that wraps around.
            return int((stat.cversion + stat.numChildren) % 2**32 // 2)

        end: int = await self._run(read)
        return end

    async def children_of_many(self, paths: Sequence[str]) -> list[list[str]]:
        """As `children`, of each of `paths`, in order; with pauses as in `get_many`."""

        def read(some: Sequence[str]) -> list[list[str]]:
            names: list[list[str]] = []
            for result in [self._client.get_children_async(path) for path in some]:
                try:
                    names.append(sorted(result.get()))
                except NoNodeError:
                    names.append([])
            return names

        names: list[list[str]] = []
        for start in range(0, len(paths), READS_IN_FLIGHT):
            names += await self._run(read, paths[start : start + READS_IN_FLIGHT])
        return names

    def _watch(self, on_change: Callable[[], None] | None) -> _Watch | None:
        return None if on_change is None else _Watch(self._call_on_loop, on_change)

    # --- Writing ---

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        """Create persistent, empty nodes with their parents where they are missing."""

        def ensure() -> None:
            for path in paths:
                self._client.ensure_path(path)

        await self._run(ensure)

    async def create(self, path: str, data: bytes) -> bool:
        """Create a persistent node; False if it exists."""
        try:
            await self._run(self._client.create, path, data)
        except NodeExistsError:
            return False
        return True

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        """Do all operations or none.

        Returns kazoo's result for each: the path of a created node, the stat of a set one.

        Raises:
            Conflict: one was refused, so none was done.
            ZooKeeperUnavailable: no answer came; all may be done, or none.
        """

        def commit() -> list[Any]:
            transaction = self._client.transaction()
            for operation in operations:
                match operation:
                    case Create(path, data, ephemeral, sequential):
                        transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                    case SetData(path, data, version):
                        transaction.set_data(path, data, version)
                    case Delete(path, version):
                        transaction.delete(path, version)
                    case Check(path, version):
                        transaction.check(path, version)
            results: list[Any] = transaction.commit()
            refused = [
                f"{type(operation).__name__} {operation.path}: {type(result).__name__}"
                for operation, result in zip(operations, results, strict=True)
                if isinstance(result, Exception)
                and not isinstance(result, RolledBackError | RuntimeInconsistency)
            ]
            if refused:
                raise Conflict("; ".join(refused))
            return results

        results: list[Any] = await self._run(commit)
        return results


@dataclass(frozen=True, slots=True)
class _Watch:
    """Equal for the same `on_change`, so that kazoo's sets do not grow when a node is read again."""

    call_on_loop: Callable[..., None]
    on_change: Callable[[], None]

    def __call__(self, _event: Any) -> None:
        self.call_on_loop(self.on_change)


def _node(answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return Node(data, stat.version, stat.czxid, stat.ephemeralOwner)
