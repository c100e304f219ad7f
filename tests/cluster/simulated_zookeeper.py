"""A ZooKeeper in memory, with the interface of `mainstem_broker.cluster.zookeeper.ZooKeeper` and with faults.

`ZooKeeperServer` is the ensemble as clients see it: one linear history of writes, sessions that expire when
nothing is heard of them, ephemeral nodes, watches that fire once. `SimulatedZooKeeper` is one client's
session over a link that delays, breaks before or after a write has happened, and comes back.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    ZooKeeperUnavailable,
)

DELAY_S_MAX = 0.005
RECONNECT_SHARE_MAX = 0.2
"""Of a session's timeout: the longest pause between two tries to connect; kazoo's is 1.2 s."""
SILENCE_SHARE_MAX = 2 / 3
"""Of a session's timeout: a client gives up a connection after this time without an answer."""
PATIENCE_SHARE = 1 / 3
"""Of a session's timeout: how long a call waits for a connection, as the real one's does."""


@dataclass(slots=True)
class _Stored:
    data: bytes
    version: int
    czxid: int
    owner: int
    created_children: int = 0
    children: set[str] = field(default_factory=set)


class ZooKeeperServer:
    """The tree and the sessions."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Stored] = {"/": _Stored(b"", 0, 0, 0)}
        self._zxid = 0
        self._next_session = 1
        self._data_watches: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self._child_watches: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self.sessions: set[int] = set()
        self.on_write: Callable[[str, bytes, bytes, int], None] = lambda path, before, after, session: None
        """Called at every change of a node's data, with the session that makes it."""
        self.is_up = asyncio.Event()
        self.is_up.set()
        self.is_hanging = False
        """Whether connections are open, and nothing is answered."""
        self._unread: list[tuple[int, Callable[[], Any]]] = []
        """Writes that nobody waits for any more; a server that goes on may still read them."""
        self._clients: list[SimulatedZooKeeper] = []

    def add_client(self, client: SimulatedZooKeeper) -> None:
        self._clients.append(client)

    def stop(self) -> None:
        """The whole ensemble is gone; what was written stays, and no session ends meanwhile."""
        self.is_up.clear()
        for client in self._clients:
            client.break_link()

    def hang(self) -> None:
        """The whole ensemble stands still, and leaves its connections open."""
        self.is_up.clear()
        self.is_hanging = True
        for client in self._clients:
            client.server_hangs()

    def leave_unread(self, session: int, write: Callable[[], Any]) -> None:
        """A client has given up a connection in which it had sent a write."""
        self._unread.append((session, write))

    def start(self, keeps_session: Callable[[], bool]) -> None:
        """The ensemble is back: a session begins its timeout anew, or has ended as after a standstill.

        One that hung first reads what had arrived, in sessions that have not ended yet.
        """
        self.is_up.set()
        self.is_hanging = False
        unread, self._unread = self._unread, []
        for session, write in unread:
            if session in self.sessions:
                with suppress(Conflict):
                    write()
        for session in sorted(self.sessions):
            if not keeps_session():
                self.expire(session)
        for client in self._clients:
            client.server_is_back()

    def backup(self) -> dict[str, Any]:
        """The tree as it is now, for `restore`."""
        return deepcopy(self._nodes)

    def restore(self, backup: dict[str, Any], session_timeout_s: float) -> None:
        """Replace the tree by an older one, while no client is connected.

        As in ZooKeeper's snapshots, the sessions of that time are in it, and run out.
        """
        self._nodes = deepcopy(backup)
        loop = asyncio.get_running_loop()
        for session in sorted({node.owner for node in self._nodes.values()} - {0}):
            self.sessions.add(session)
            loop.call_later(session_timeout_s, self.expire, session, context=contextvars.Context())

    def open_session(self) -> int:
        session = self._next_session
        self._next_session += 1
        self.sessions.add(session)
        return session

    def expire(self, session: int) -> None:
        """End a session: its ephemeral nodes and its watches go."""
        if not self.is_up.is_set():
            return  # `server_is_back` lets it run out anew
        self.sessions.discard(session)
        self.forget_watches(session)
        for path in [path for path, node in self._nodes.items() if node.owner == session]:
            self._delete(path)

    def forget_watches(self, session: int) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path in list(watches):
                watches[path] = [watch for watch in watches[path] if watch[0] != session]

    def get(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        return None if node is None else Node(node.data, node.version, node.czxid, node.owner)

    def children(self, path: str) -> list[str]:
        node = self._nodes.get(path)
        return [] if node is None else sorted(node.children)

    def sequence_end(self, path: str) -> int:
        node = self._nodes.get(path)
        return 0 if node is None else node.created_children

    def watch_data(self, path: str, session: int, on_change: Callable[[], None]) -> None:
        self._data_watches.setdefault(path, []).append((session, on_change))

    def watch_children(self, path: str, session: int, on_change: Callable[[], None]) -> None:
        self._child_watches.setdefault(path, []).append((session, on_change))

    def ensure(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:depth])
            if prefix not in self._nodes:
                self._create(Create(prefix, b""), 0)

    def multi(self, operations: Sequence[Operation], session: int) -> None:
        """All or nothing.

        Raises:
            Conflict: an operation was refused.
        """
        self._check(operations)
        for operation in operations:
            match operation:
                case Create():
                    self._create(operation, session)
                case SetData(path, data):
                    node = self._nodes[path]
                    self._zxid += 1
                    self.on_write(path, node.data, data, session)
                    node.data = data
                    node.version += 1
                    self._fire(self._data_watches, path)
                case Delete(path):
                    self._delete(path)
                case Check():
                    pass

    def _check(self, operations: Sequence[Operation]) -> None:
        """Refuse as ZooKeeper would, with earlier operations of the same multi taken as done."""
        versions: dict[str, int | None] = {}
        children: dict[str, int] = {}

        def version(path: str) -> int | None:
            if path not in versions:
                node = self._nodes.get(path)
                versions[path] = None if node is None else node.version
            return versions[path]

        def count(path: str, change: int) -> int:
            node = self._nodes.get(path)
            children[path] = children.get(path, 0 if node is None else len(node.children)) + change
            return children[path]

        for operation in operations:
            present = version(operation.path)
            match operation:
                case Create(path, _, _, sequential):
                    if (present is not None and not sequential) or version(_parent(path)) is None:
                        raise Conflict(f"Create {path}")
                    if not sequential:
                        versions[path] = 0
                    count(_parent(path), 1)
                case SetData(path, _, wanted):
                    if present is None or wanted not in (-1, present):
                        raise Conflict(f"SetData {path}")
                    versions[path] = present + 1
                case Delete(path, wanted):
                    if present is None or wanted not in (-1, present) or count(path, 0) > 0:
                        raise Conflict(f"Delete {path}")
                    versions[path] = None
                    count(_parent(path), -1)
                case Check(path, wanted):
                    if present is None or wanted not in (-1, present):
                        raise Conflict(f"Check {path}")

    def _create(self, operation: Create, session: int) -> None:
        path = operation.path
        parent = self._nodes[_parent(path)]
        if operation.sequential:
            path = f"{path}{parent.created_children:010d}"
        parent.created_children += 1
        self._zxid += 1
        owner = session if operation.ephemeral else 0
        self._nodes[path] = _Stored(operation.data, 0, self._zxid, owner)
        parent.children.add(path.rpartition("/")[2])
        self._fire(self._data_watches, path)
        self._fire(self._child_watches, _parent(path))

    def _delete(self, path: str) -> None:
        self._zxid += 1
        del self._nodes[path]
        self._nodes[_parent(path)].children.discard(path.rpartition("/")[2])
        self._fire(self._data_watches, path)
        self._fire(self._child_watches, _parent(path))

    @staticmethod
    def _fire(watches: dict[str, list[tuple[int, Callable[[], None]]]], path: str) -> None:
        for _, on_change in watches.pop(path, []):
            on_change()


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class SimulatedZooKeeper:
    """A client of the server, with faults.

    `cut` and `mend` its link, `pause` and `resume` its process (`running`). The server ends the session
    when it has not heard from it for the session's timeout.
    """

    def __init__(
        self,
        server: ZooKeeperServer,
        source: random.Random,
        session_timeout_s: float,
        listener: Callable[[str], None],
        running: asyncio.Event,
    ) -> None:
        self._server = server
        self._random = source
        self._timeout_s = session_timeout_s
        self._listener = listener
        self._running = running
        self._context = contextvars.copy_context()
        """The process's: what others begin here ends with it."""
        self._linked = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._notice: asyncio.TimerHandle | None = None
        self._calls = asyncio.Lock()  # one at a time, as the real one's single thread
        self._stopped = False
        self._suspended = False
        self._is_cut = False
        self._heard_s = self._broken_s = 0.0
        self.session_id = 0
        server.add_client(self)

    # --- Faults ---

    def cut(self) -> None:
        """The link falls silent. Server and client notice after a while, each by itself."""
        self._is_cut = True
        self.break_link()

    def break_link(self) -> None:
        if not self._linked.is_set() or self._stopped:
            return
        self._linked.clear()
        self._server.forget_watches(self.session_id)
        self._let_expire()
        loop = asyncio.get_running_loop()
        self._broken_s = loop.time()
        notice_s = self._random.random() * self._timeout_s * SILENCE_SHARE_MAX
        self._notice = loop.call_later(notice_s, self._suspend, context=self._context)

    def server_hangs(self) -> None:
        """The client gives up the connection when it has heard nothing for too long."""
        if self._linked.is_set() and not self._stopped:
            loop = asyncio.get_running_loop()
            given_up_s = self._heard_s + self._timeout_s * SILENCE_SHARE_MAX
            self._notice = loop.call_at(max(given_up_s, loop.time()), self._give_up, context=self._context)

    def _give_up(self) -> None:
        if self._server.is_hanging and self._linked.is_set() and not self._stopped:
            self.break_link()
            self._suspend()

    def mend(self) -> None:
        """The client reaches the server again, and learns whether its session is still there."""
        self._is_cut = False
        self._reach_in(0.0)

    def server_is_back(self) -> None:
        loop = asyncio.get_running_loop()
        if self.session_id in self._server.sessions and (self._stopped or not self._linked.is_set()):
            self._heard_s = loop.time()
            self._let_expire()
        self._reach_in(self._random.random() * self._timeout_s * RECONNECT_SHARE_MAX)

    def _reach_in(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._reach, context=self._context)

    def _reach(self) -> None:
        if self._linked.is_set() or self._stopped or self._is_cut or not self._server.is_up.is_set():
            return
        if self._notice is not None:
            self._notice.cancel()
        if not self._running.is_set():
            self._reach_in(DELAY_S_MAX)
            return
        self._reconnect()

    def pause(self) -> None:
        """The process stops: the server hears nothing any more."""
        if not self._stopped:
            self._let_expire()

    def resume(self) -> None:
        """The process goes on as if nothing had been, and hears a little later if its session is gone."""
        if self._stopped:
            return
        if self._linked.is_set() and self.session_id in self._server.sessions:
            if self._expiry is not None:
                self._expiry.cancel()
            return
        self._linked.clear()
        self._reach_in(self._random.random() * 0.05)

    def kill(self) -> None:
        """The process is gone; the server notices when the session runs out."""
        self._stopped = True
        self._linked.clear()
        self._server.forget_watches(self.session_id)
        self._let_expire()

    def _let_expire(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        loop = asyncio.get_running_loop()
        at_s = max(self._heard_s + self._timeout_s, loop.time())
        # The server's: it goes off though the process of this client is killed.
        self._expiry = loop.call_at(at_s, self._server.expire, self.session_id, context=contextvars.Context())

    def _suspend(self) -> None:
        if not self._suspended and not self._stopped:
            self._suspended = True
            self._listener("suspended")

    def _reconnect(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._suspend()
        if self.session_id not in self._server.sessions:
            self._listener("lost")
            self.session_id = self._server.open_session()
        self._heard_s = asyncio.get_running_loop().time()
        self._suspended = False
        self._linked.set()
        self._listener("connected")

    # --- The interface of the real one ---

    async def start(self, timeout_s: float | None) -> None:
        await self._server.is_up.wait()
        if self._stopped:
            raise ZooKeeperUnavailable("the process was killed")
        self.session_id = self._server.open_session()
        self._heard_s = asyncio.get_running_loop().time()
        self._linked.set()
        self._listener("connected")

    async def stop(self) -> None:
        self._stopped = True
        if self._linked.is_set():
            self._server.expire(self.session_id)
        else:
            self._let_expire()
        self._linked.set()  # requests that wait for the link fail now

    async def _call(self, action: Callable[[], Any], *, writes: bool = False) -> Any:
        """One round trip: the request may be lost, or the answer, when the link breaks on the way.

        Requests while the link is down wait for it, but not for long.
        """
        session = self.session_id
        if not self._linked.is_set():
            try:
                async with asyncio.timeout_at(self._broken_s + self._timeout_s * PATIENCE_SHARE):
                    await self._linked.wait()
            except TimeoutError:
                raise ZooKeeperUnavailable("there was no connection for too long") from None
        async with self._calls:
            await self._travel(session, "request")
            while self._server.is_hanging:
                if not self._linked.is_set():
                    if writes:
                        self._server.leave_unread(session, action)
                    raise ZooKeeperUnavailable("no answer came")
                await asyncio.sleep(DELAY_S_MAX)
            # Only what the server hears keeps the session; nothing that is sent in one reaches another.
            self._heard_s = asyncio.get_running_loop().time()
            result = action()
            await self._travel(session, "answer")
            return result

    async def _travel(self, session: int, what: str) -> None:
        if what == "request" and not self._linked.is_set():
            raise ZooKeeperUnavailable("the connection broke while earlier calls were under way")
        await asyncio.sleep(self._random.random() * DELAY_S_MAX)
        if not self._linked.is_set():
            await asyncio.sleep(self._random.random() * self._timeout_s * 0.5)
            raise ZooKeeperUnavailable(f"the {what} was lost")
        await self._running.wait()
        if not self._linked.is_set():
            raise ZooKeeperUnavailable(f"the {what} was lost")
        if self._stopped:
            raise ZooKeeperUnavailable(f"the {what} was made by a session that is closed")
        if session != self.session_id or session not in self._server.sessions:
            if session == self.session_id:
                self._lose_session()
            raise ZooKeeperUnavailable(f"the {what} was lost with the session")

    def _lose_session(self) -> None:
        """The server has ended the session, of which the client learns by this answer."""
        self._linked.clear()
        self._broken_s = asyncio.get_running_loop().time()
        self._reach_in(0.0)

    def _later(self, on_change: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def deliver() -> None:
            if self._stopped:
                return
            if self._running.is_set():
                on_change()
            else:
                loop.call_later(DELAY_S_MAX, deliver, context=self._context)

        def fire() -> None:
            # The process that has changed something may end before others hear of it.
            loop.call_later(self._random.random() * DELAY_S_MAX, deliver, context=self._context)

        return fire

    async def sync(self) -> None:
        await self._call(lambda: None)

    async def get(self, path: str, on_change: Callable[[], None] | None = None) -> Node | None:
        def read() -> Node | None:
            if on_change is not None:
                self._server.watch_data(path, self.session_id, self._later(on_change))
            return self._server.get(path)

        node: Node | None = await self._call(read)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        nodes: list[Node | None] = await self._call(lambda: [self._server.get(path) for path in paths])
        return nodes

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        def read() -> list[str]:
            if on_change is not None:
                self._server.watch_children(path, self.session_id, self._later(on_change))
            return self._server.children(path)

        names: list[str] = await self._call(read)
        return names

    async def sequence_end(self, path: str, on_change: Callable[[], None] | None = None) -> int:
        def read() -> int:
            if on_change is not None:
                self._server.watch_children(path, self.session_id, self._later(on_change))
            return self._server.sequence_end(path)

        end: int = await self._call(read)
        return end

    async def children_of_many(self, paths: Sequence[str]) -> list[list[str]]:
        names: list[list[str]] = await self._call(lambda: [self._server.children(path) for path in paths])
        return names

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        def ensure() -> None:
            for path in paths:
                self._server.ensure(path)

        await self._call(ensure)

    async def create(self, path: str, data: bytes) -> bool:
        def create() -> bool:
            if self._server.get(path) is not None:
                return False
            self._server.multi([Create(path, data)], self.session_id)
            return True

        created: bool = await self._call(create, writes=True)
        return created

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        session = self.session_id
        await self._call(lambda: self._server.multi(operations, session), writes=True)
        return []
