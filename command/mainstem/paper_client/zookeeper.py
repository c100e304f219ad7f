"""A consumer's session with ZooKeeper: what it reads from the registries of its group and writes to them.

Everything this client asks of ZooKeeper is here; decisions are not. Every write of a member is one
transaction with a check that its registration still exists. A registration goes with its session and is
never made again under the same id, so a consumer that lost its session without knowing it can no longer
claim a partition, nor set back an offset that its successor has written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from mainstem.paper_client import znodes
from mainstem.paper_client.errors import WrongSetting, ZooKeeperUnreachable
from mainstem.paper_client.slices import stream_name
from mainstem.paper_client.znodes import GroupPaths

CONNECT_SECONDS: Final = 10.0
_SHORT_SESSION_MS: Final = 10_000

NoAnswer = (KazooException, KazooTimeoutError)
"""Raised below when the connection or the session goes: whether a write was done is unknown."""


class RegistrationGone(Exception):
    """The session in which this consumer registered has ended; nothing was written."""


class OwnedByAnother(Exception):
    """The partition to be claimed is somebody else's; the message says whose."""


@dataclass(frozen=True, slots=True)
class Registries:
    """What the broker and the consumer registry say: addresses, partitions of the topic, and for each
    consumer of the group how many streams of the topic it has."""

    brokers: tuple[str, ...]
    partitions: frozenset[int]
    streams_of: Mapping[str, int]


@contextmanager
def connected(zookeeper_connect: str) -> Iterator[Any]:
    """A session for a few questions.

    Raises:
        WrongSetting, ZooKeeperUnreachable: as `start` below.
    """
    zookeeper = _client(zookeeper_connect, _SHORT_SESSION_MS)
    start(zookeeper, zookeeper_connect)
    try:
        yield zookeeper
    finally:
        stop(zookeeper)


def _client(zookeeper_connect: str, session_timeout_ms: int) -> Any:
    try:
        return KazooClient(
            hosts=zookeeper_connect,
            timeout=session_timeout_ms / 1000,
            command_retry=KazooRetry(max_tries=0),  # a write whose answer was lost is looked at, not repeated
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1, max_jitter=0.2),
        )
    except ValueError as error:
        raise WrongSetting(
            f"{zookeeper_connect!r} is no address of ZooKeeper ({error}): write host:port,host:port/chroot."
        ) from error


def start(zookeeper: Any, zookeeper_connect: str) -> None:
    """Connect.

    Raises:
        ZooKeeperUnreachable: no answer in time.
    """
    try:
        zookeeper.start(CONNECT_SECONDS)
    except KazooTimeoutError as error:
        stop(zookeeper)
        raise ZooKeeperUnreachable(
            f"ZooKeeper does not answer at {zookeeper_connect}: start it, or correct the address."
        ) from error


def stop(zookeeper: Any) -> None:
    """End the session; its ephemeral nodes go at once."""
    zookeeper.stop()
    zookeeper.close()


def registered_brokers(zookeeper: Any, watch: Callable[[Any], None] | None = None) -> tuple[str, ...]:
    """The addresses in the broker registry, by broker id."""
    try:
        names = zookeeper.get_children(znodes.BROKER_IDS, watch=watch)
    except NoNodeError:
        return ()
    registrations = _get_all(zookeeper, {name: f"{znodes.BROKER_IDS}/{name}" for name in sorted(names)})
    return tuple(
        address for data in registrations.values() if (address := znodes.address_in(data)) is not None
    )


def _get_all(zookeeper: Any, paths: Mapping[str, str]) -> dict[str, bytes]:
    """The texts of those nodes that exist, by one request."""
    data_by_name: dict[str, bytes] = {}
    for name, answer in [(name, zookeeper.get_async(path)) for name, path in paths.items()]:
        try:
            data_by_name[name] = answer.get()[0]
        except NoNodeError:
            pass  # it left in between
    return data_by_name


class GroupSession:
    """One consumer of a group, for one topic.

    `on_change` is called, in a thread of kazoo's, when what `look` last read may have changed; `on_lost` when
    the session has ended. Neither may wait.
    """

    def __init__(
        self,
        zookeeper_connect: str,
        paths: GroupPaths,
        name: str,
        session_timeout_ms: int,
        on_change: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._address = zookeeper_connect
        self._paths = paths
        self._name = name
        self._on_change = on_change
        self._zookeeper = _client(zookeeper_connect, session_timeout_ms)
        self._zookeeper.add_listener(lambda state: on_lost() if state == KazooState.LOST else None)
        self._consumer_id = ""

    @property
    def consumer_id(self) -> str:
        """Its name in the consumer registry, `GROUP_NAME-MILLISECONDS-RANDOM`; another after each session."""
        return self._consumer_id

    def start(self) -> None:
        """Connect.

        Raises:
            ZooKeeperUnreachable: no answer in time.
        """
        start(self._zookeeper, self._address)

    def stop(self) -> None:
        stop(self._zookeeper)

    def check(self) -> None:
        """See that this consumer is still registered, which also shows that its session lasts.

        Raises:
            RegistrationGone: it is not, perhaps because the session is a new one.
        """
        if self._zookeeper.exists(self._paths.consumer(self._consumer_id)) is None:
            raise RegistrationGone

    def register(self, streams: int) -> None:
        """Enter the consumer registry anew, and only once.

        An entry whose answer was lost lasts as long as its session: beside a second one it would be given a
        share without a reader.
        """
        if self._consumer_id:
            with suppress(NoNodeError):
                self.unregister()
        for path in (self._paths.ids, self._paths.owners, self._paths.offsets):
            self._zookeeper.ensure_path(path)
        now_ms = time.time_ns() // 1_000_000
        consumer_id = f"{self._paths.group_id}_{self._name}-{now_ms}-{uuid4().hex[:8]}"
        registration = znodes.encode_registration(self._paths.topic, streams, now_ms)
        self._consumer_id = consumer_id  # first, for the answer may be lost
        self._zookeeper.create(self._paths.consumer(consumer_id), registration, ephemeral=True)

    def unregister(self) -> None:
        """Leave the consumer registry, if there is an entry."""
        if self._consumer_id:
            self._zookeeper.delete(self._paths.consumer(self._consumer_id))

    def look(self) -> Registries:
        """Read the registries, and watch what was read."""
        brokers = registered_brokers(self._zookeeper, self._watch)
        names = self._zookeeper.get_children(self._paths.ids, watch=self._watch)
        registrations = _get_all(self._zookeeper, {name: self._paths.consumer(name) for name in names})
        streams_of = {
            name: count
            for name, data in registrations.items()
            if (count := znodes.streams_in(data, self._paths.topic)) > 0
        }
        return Registries(brokers, self._partitions(), streams_of)

    def _partitions(self) -> frozenset[int]:
        path = znodes.topic_path(self._paths.topic)
        while True:
            try:
                return znodes.partitions_in(self._zookeeper.get(path, watch=self._watch)[0])
            except NoNodeError:
                if self._zookeeper.exists(path, watch=self._watch) is None:
                    return frozenset()  # until somebody makes it

    def _watch(self, _event: Any) -> None:
        self._on_change()

    def claim(self, partition: int, stream: int) -> int | None:
        """Become the owner of a partition; the offset that the group has in it, if any.

        Raises:
            OwnedByAnother: it is not free.
            RegistrationGone: nothing was claimed.
        """
        path, name = self._paths.owner(partition), stream_name(self._consumer_id, stream).encode()
        transaction = self._transaction()
        transaction.create(path, name, ephemeral=True)
        try:
            self._commit(transaction)
        except NodeExistsError:
            owner, stat = self._zookeeper.get(path)  # NoNodeError: gone just now; the next try has it
            if stat.ephemeralOwner != self._session_id() or owner != name:
                raise OwnedByAnother(
                    f"partition {partition} of {self._paths.topic} is {owner.decode(errors='replace')}'s"
                ) from None
            # Claimed before, by a request whose answer was lost.
        # The former owner wrote its offset before it left, and this session has seen it leave.
        try:
            return int(self._zookeeper.get(self._paths.offset(partition))[0])
        except (NoNodeError, ValueError):
            return None

    def release(self, partition: int, position: int | None) -> None:
        """Give back a partition that may be ours, with the offset where its next owner is to go on.

        Raises:
            RegistrationGone: nothing was written; our nodes go with the session.
        """
        path = self._paths.owner(partition)
        try:
            _, stat = self._zookeeper.get(path)
        except NoNodeError:
            return
        if stat.ephemeralOwner != self._session_id():
            return
        if position is not None:
            self.store(partition, position)
        transaction = self._transaction()
        transaction.delete(path)
        self._commit(transaction)

    def store(self, partition: int, position: int) -> None:
        """Write the offset of a partition that this consumer owns.

        Raises:
            RegistrationGone: nothing was written.
        """
        path, text = self._paths.offset(partition), str(position).encode()
        transaction = self._transaction()
        transaction.set_data(path, text)
        try:
            self._commit(transaction)
        except NoNodeError:
            transaction = self._transaction()
            transaction.create(path, text)
            self._commit(transaction)

    def _transaction(self) -> Any:
        transaction = self._zookeeper.transaction()
        transaction.check(self._paths.consumer(self._consumer_id), -1)
        return transaction

    def _commit(self, transaction: Any) -> None:
        """Do all of a transaction or nothing.

        Raises:
            RegistrationGone: its check failed.
            KazooException: the first reason of another kind.
        """
        for number, result in enumerate(transaction.commit()):
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                if number == 0:
                    raise RegistrationGone from result
                raise result

    def _session_id(self) -> int:
        client_id = self._zookeeper.client_id
        return int(client_id[0]) if client_id else 0
