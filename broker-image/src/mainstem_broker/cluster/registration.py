"""The nodes by which the cluster knows this broker: registration, incarnation, offline replicas.

In scope: writing them, and waiting for an earlier registration of the same broker id to go away. Out of
scope: when that is due (`member_state`), and what other brokers conclude from them (`controller`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from uuid import UUID

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.producer_ids import block_after_restore
from mainstem_broker.cluster.zookeeper import (
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    ZooKeeperSession,
)
from mainstem_broker.errors import StartupError
from mainstem_broker.replica.lease import NO_INCARNATION

logger = structlog.get_logger(__name__)


class Registration:
    """This broker's own nodes. `stopped_uncleanly` says that the ends of its logs may be lost."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        registration: znodes.BrokerRegistration,
        session_timeout_ms: int,
        vacate_controller: Callable[[int], Awaitable[list[Operation]]],
    ) -> None:
        """`vacate_controller` gives the writes that end the controllership of a session."""
        self.stopped_uncleanly = False
        self.known_restores: int | None = None
        """If ZooKeeper proved to be older than this broker's logs: how many restores it knew of before."""
        self.restores = znodes.Restores()
        """As ZooKeeper has them since the last registration."""
        self._incarnation = NO_INCARNATION
        """The last one that this process is known to have begun, and not lost since."""
        self._zookeeper = zookeeper
        self._registration = registration
        self._broker_id = registration.broker_id
        self._path = znodes.broker_path(registration.broker_id)
        self._session_timeout_ms = session_timeout_ms
        self._vacate_controller = vacate_controller
        self._offline: frozenset[tuple[UUID, int]] = frozenset()

    def begin_anew(self) -> None:
        """Another broker considered this one dead: what was given to earlier incarnations is void."""
        self._incarnation = NO_INCARNATION
        self._registration = replace(self._registration, first_incarnation=None)

    async def register(self) -> tuple[int, int] | None:
        """Register this broker, unless it is registered in this session already.

        Returns the incarnation that the registration began, and the first one whose leaderships are this
        process's; None if the session is gone again.

        Raises:
            StartupError: a broker of this id is registered from another address, and stays.
            ZooKeeperUnavailable: no answer came; the broker may be registered.
        """
        while True:
            session_id = self._zookeeper.session_id
            try:
                await self._write()
            except Conflict:
                continue  # the node that stood in the way has gone meanwhile, or another one has come
            node = await self._zookeeper.get(znodes.incarnation_path(self._broker_id))
            # The event of a lost session may have come before this answer, and does not come again.
            if session_id == 0 or session_id != self._zookeeper.session_id:
                return None
            self.stopped_uncleanly = False  # a session that is lost from now on loses no records
            self._incarnation = NO_INCARNATION if node is None else node.version
            first = self._registration.first_incarnation
            return self._incarnation, self._incarnation if first is None else first

    async def _write(self) -> None:
        session_id = self._zookeeper.session_id
        operations: list[Operation] = []
        node = await self._zookeeper.get(znodes.RESTORES)
        self.restores = restores = znodes.Restores() if node is None else znodes.Restores.decode(node.data)
        existing = await self._zookeeper.get(self._path)
        if existing is not None:
            earlier = znodes.BrokerRegistration.decode(self._broker_id, existing.data, existing.czxid)
            if existing.ephemeral_owner == session_id:
                # Written before, by a call whose answer was lost. Others go by what it says.
                self._registration = replace(self._registration, first_incarnation=earlier.first_incarnation)
                return
            if earlier.endpoints == self._registration.endpoints:
                # This process holds the address and the lock on the data, so the process that registered
                # them is gone, and only its session has not run out yet.
                operations.append(Delete(self._path, existing.version))
                operations += await self._vacate_controller(existing.ephemeral_owner)
            else:
                await self._outlast(earlier)
        offline = await self._zookeeper.get(znodes.offline_path(self._broker_id))
        if offline is not None and offline.ephemeral_owner != session_id:
            # Of an earlier session, with which it would vanish later, without an event for this broker.
            operations.append(Delete(znodes.offline_path(self._broker_id), offline.version))
        operations.append(await self._next_incarnation())
        if self.known_restores is not None and restores.count <= self.known_restores:
            vacated = any(operation.path == znodes.CONTROLLER for operation in operations)
            restores, writes = await self._note_restore(node, self.known_restores + 1, vacated=vacated)
            operations += writes
        data = self._registration.encode(_now_ms())
        await self._zookeeper.multi([*operations, Create(self._path, data, ephemeral=True)])
        self.restores = restores
        logger.info("broker registered", path=self._path, unclean=self.stopped_uncleanly)

    async def _note_restore(
        self, node: Node | None, count: int, *, vacated: bool
    ) -> tuple[znodes.Restores, list[Operation]]:
        """The note that ZooKeeper was restored from an older backup, and the writes that take it there.

        They end the present controllership, so every later controller knows of it, and the registrations of
        all other brokers: those from the backup last until their sessions have run out, and would look like
        leaders that live. A broker that lives registers anew, and has lost its leaderships (as by `fence`).
        Producer ids go on after all that may have been given since the backup.

        Args:
            node: the node of the former note.
            count: with this restore.
            vacated: whether the controllership ends in any case.
        """
        epoch = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
        controller = None if vacated else await self._zookeeper.get(znodes.CONTROLLER)
        assert epoch is not None
        restores = znodes.Restores(count, int(epoch.data))
        operations: list[Operation] = [
            Create(znodes.RESTORES, restores.encode())
            if node is None
            else SetData(znodes.RESTORES, restores.encode(), node.version),
            SetData(znodes.CONTROLLER_EPOCH, str(restores.controller_epoch + 1).encode(), epoch.version),
        ]
        block_node = await self._zookeeper.get(znodes.PRODUCER_ID_BLOCK)
        if block_node is not None:
            block = block_after_restore(znodes.decode_producer_id_block(block_node.data), count)
            data = znodes.encode_producer_id_block(self._broker_id, block)
            operations.append(SetData(znodes.PRODUCER_ID_BLOCK, data, block_node.version))
        if controller is not None:
            operations.append(Delete(znodes.CONTROLLER, controller.version))
        others = set(await self._zookeeper.children(znodes.BROKER_IDS)) - {str(self._broker_id)}
        operations += [Delete(f"{znodes.BROKER_IDS}/{name}") for name in sorted(others)]
        return restores, operations

    async def _next_incarnation(self) -> Operation:
        """The write that begins a new incarnation, which goes with the registration.

        Notes in the registration whether the process goes on from the last incarnation.
        """
        path = znodes.incarnation_path(self._broker_id)
        node = await self._zookeeper.get(path)
        before = self._registration.first_incarnation
        if node is None or node.version != self._incarnation:
            # The first one of this process, or another one has come in between, such as one that this process
            # began by a write whose answer was lost.
            before = None
        elif before is None:
            before = node.version
        self._registration = replace(self._registration, first_incarnation=before)
        if node is None:
            return Create(path, znodes.encode_incarnation(0))
        last_unclean = node.version + 1 if self.stopped_uncleanly else znodes.decode_incarnation(node.data)
        return SetData(path, znodes.encode_incarnation(last_unclean), node.version)

    async def _outlast(self, other: znodes.BrokerRegistration) -> None:
        """Wait for a registration of this broker's id from another address to go away.

        It may be this broker's own from before it moved; that one's session runs out by itself.

        Raises:
            StartupError: it stays for longer than a session, so another broker keeps it.
        """
        address = other.endpoints[0]
        logger.warning(
            "broker id is registered elsewhere", path=self._path, host=address.host, port=address.port
        )
        gone = asyncio.Event()
        try:
            async with asyncio.timeout(2 * self._session_timeout_ms / 1000):
                while await self._zookeeper.get(self._path, gone.set) is not None:
                    await gone.wait()
                    gone.clear()
        except TimeoutError:
            raise StartupError(
                f"Broker id {self._broker_id} is already registered from {address.host}:{address.port}:"
                " give this broker another broker.id, or stop the other one."
            ) from None

    async def mark_leaving(self) -> None:
        """Announce that this broker is about to stop.

        Raises:
            Conflict: it is not registered.
            ZooKeeperUnavailable: no answer came.
        """
        self._registration = replace(self._registration, leaving=True)
        data = self._registration.encode(_now_ms())
        await self._zookeeper.multi([SetData(self._path, data), self._feed_entry()])

    def set_offline(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Take the replicas that this broker cannot serve, by topic id and number; `write_offline` writes
        them."""
        self._offline = frozenset(partitions)

    async def write_offline(self) -> None:
        """Report to the cluster the replicas that this broker cannot serve, if there are any."""
        if not self._offline:
            return
        path = znodes.offline_path(self._broker_id)
        node = await self._zookeeper.get(path)
        operations: list[Operation] = [
            Create(path, znodes.encode_offline(self._offline), ephemeral=True),
            self._feed_entry(),
        ]
        # The node of an earlier session is deleted first: it would go with that session.
        await self._zookeeper.multi(operations if node is None else [Delete(path, node.version), *operations])

    def _feed_entry(self) -> Create:
        entry = znodes.Change(brokers=(self._broker_id,)).encode()
        return Create(znodes.CHANGE_PREFIX, entry, sequential=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
