"""Reading one topic at its leaders: who leads, which offsets exist, and the bytes of record batches.

Requests used: Metadata, ListOffsets and Fetch (Kafka protocol guide), without fetch sessions and without a
consumer group, so any Kafka-protocol broker will do. A leader that moved or went away is looked up again and
asked again for `retry_ms`; an offset that is gone ends the run, because jumping over it would lose records.

Must not live here: what batches contain (`decode`) and which offsets to read (`ranges`).
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem_loader.connection import FETCH, LIST_OFFSETS, METADATA, BrokerConnection, build
from mainstem_loader.errors import (
    BrokerUnreachableError,
    CorruptBatchError,
    LoaderError,
    OffsetsLostError,
    SettingsError,
    TopicRecreatedError,
    TopicUnknownError,
    UnsupportedBrokerError,
)

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2

# A topic that was just made is not known to every broker at once.
UNKNOWN_TOPIC_PATIENCE_MS: Final = 2_000
# Before the first answer a wrong address is likelier than a broker that is about to come back.
FIRST_ANSWER_PATIENCE_MS: Final = 3_000
RETRY_PAUSE_MS: Final = 100
FETCH_WAIT_MS: Final = 500

# Errors that go away when the leader is looked up again, beyond those the protocol calls retriable.
_LEADER_MOVED: Final = {ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch}
_FORBIDDEN: Final = {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}

T = TypeVar("T")


class IsolationLevel(IntEnum):
    """Which records are read (KIP-98): all up to the high watermark, or none of open and aborted
    transactions.
    """

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Records of this producer from `first_offset` up to its next abort marker do not count."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """An answer to one fetch: batches as the broker stores them, the last one possibly cut off.

    `high_watermark` is the broker's at the time of the answer; every batch ends before it.
    """

    records: bytes
    high_watermark: int
    aborted: tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Where the brokers are and how long to wait for them."""

    bootstrap_servers: str
    request_timeout_ms: int = 30_000
    retry_ms: int = 30_000


class _TryAgainError(Exception):
    """The answer may be another one once the leader is looked up again."""


class TopicReader:
    """A topic, its leaders and the connections to them; a context manager.

    Args:
        brokers: see there.
        topic: its name.
        isolation: applies to the end offsets and to the records.
        topic_id: when given, a topic of that name with another id is refused.

    Raises (all methods):
        BrokerUnreachableError, TopicUnknownError, TopicRecreatedError, UnsupportedBrokerError
    """

    def __init__(
        self,
        brokers: BrokerSettings,
        topic: str,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        topic_id: str | None = None,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._bootstrap = _parse_bootstrap_servers(brokers.bootstrap_servers)
        self._isolation = isolation
        self._topic_id = topic_id
        # Both moved by every look-up of metadata.
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leader_of: dict[int, int] = {}
        self._connections: dict[tuple[str, int], BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for connection in self._connections.values():
                stack.callback(connection.close)
            self._connections.clear()

    @property
    def topic_id(self) -> str:
        """The topic's id as Kafka's tools print it; from a broker that has no ids, `name:` and the topic's
        name.
        """
        if self._topic_id is None:
            self._find_topic()
        assert self._topic_id is not None
        return self._topic_id

    def offsets(self) -> dict[int, tuple[int, int]]:
        """For each partition the log start offset and the end of what may be read, exclusive."""
        self._find_topic()
        earliest = self._list_offsets(EARLIEST_TIMESTAMP)
        latest = self._list_offsets(LATEST_TIMESTAMP)
        return {partition: (earliest[partition], latest[partition]) for partition in sorted(self._leader_of)}

    def fetch(self, partition: int, offset: int, bytes_max: int) -> FetchedRecords:
        """Batches from the one that holds `offset` on. Empty if none arrives in `FETCH_WAIT_MS`.

        Args:
            partition: its number.
            offset: the first that is wanted; a batch may begin before it.
            bytes_max: about how much; a first batch that is larger comes whole (KIP-74).

        Raises:
            OffsetsLostError: the partition has no such offset.
            CorruptBatchError: the broker itself says that the data is damaged.
        """

        def ask(connection: BrokerConnection) -> FetchedRecords:
            found = self._fetch_partitions(connection, {partition: offset}, bytes_max)[partition]
            self._check(found.error_code, partition, offset)
            aborted = [
                AbortedTransaction(transaction.producer_id, transaction.first_offset)
                for transaction in found.aborted_transactions or ()
            ]
            return FetchedRecords(found.records or b"", found.high_watermark, tuple(aborted))

        return self._at_leader(partition, ask)

    def sample(self, offset_of: Mapping[int, int], bytes_max: int) -> list[bytes]:
        """A few first batches of some of the partitions, in one request per leader: a look at their size.

        Partitions that have nothing to say are left out, and nothing is tried again.
        """
        samples: list[bytes] = []
        for leader in set(self._leader_of.values()):
            wanted = {
                partition: offset
                for partition, offset in offset_of.items()
                if self._leader_of[partition] == leader
            }
            if wanted:
                try:
                    found = self._fetch_partitions(self._connect(leader), wanted, bytes_max)
                except (OSError, _TryAgainError):
                    self._hang_up(leader)
                    continue
                samples += [answer.records for answer in found.values() if answer.records]
        return samples

    def _fetch_partitions(
        self, connection: BrokerConnection, offset_of: Mapping[int, int], bytes_max: int
    ) -> dict[int, Any]:
        schema = connection.schema(FETCH)
        partition_bytes_max = max(bytes_max // len(offset_of), 1)
        response = connection.call(
            FETCH,
            max_wait=timedelta(milliseconds=FETCH_WAIT_MS),
            min_bytes=1,
            max_bytes=bytes_max,
            isolation_level=int(self._isolation),
            topics=(
                schema.FetchTopic(
                    topic=self.topic,
                    partitions=tuple(
                        schema.FetchPartition(
                            partition=partition, fetch_offset=offset, partition_max_bytes=partition_bytes_max
                        )
                        for partition, offset in offset_of.items()
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        self._check(getattr(response, "error_code", ErrorCode.none), -1, -1)
        found = {
            partition.partition_index: partition
            for topic in response.responses
            for partition in topic.partitions
        }
        if not found.keys() >= offset_of.keys():
            raise UnsupportedBrokerError(
                f"{connection.address} left out partitions it was asked for in a fetch of {self.topic}; the"
                " loader"
                " needs a broker that answers for each."
            )
        return found

    def _list_offsets(self, timestamp: int) -> dict[int, int]:
        found: dict[int, int] = {}
        patience = _Patience(self._brokers.retry_ms)
        while missing := [partition for partition in self._leader_of if partition not in found]:
            leader = self._leader_of[missing[0]]
            together = [partition for partition in missing if self._leader_of[partition] == leader]
            try:
                found |= self._list_offsets_at(self._connect(leader), together, timestamp)
            except (OSError, _TryAgainError) as error:
                self._hang_up(leader)
                patience.wait_or_raise(self._unreachable(missing[0], error))
                self._find_topic()
        return found

    def _list_offsets_at(
        self, connection: BrokerConnection, partitions: Sequence[int], timestamp: int
    ) -> dict[int, int]:
        schema = connection.schema(LIST_OFFSETS)
        response = connection.call(
            LIST_OFFSETS,
            replica_id=-1,
            isolation_level=int(self._isolation),
            topics=(
                schema.ListOffsetsTopic(
                    name=self.topic,
                    partitions=tuple(
                        schema.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                        for partition in partitions
                    ),
                ),
            ),
        )
        found: dict[int, int] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                self._check(partition.error_code, partition.partition_index, -1)
                found[partition.partition_index] = partition.offset
        if not found.keys() >= set(partitions):
            raise UnsupportedBrokerError(
                f"{connection.address} left out partitions of {self.topic} when asked for their offsets; the"
                " loader"
                " needs a broker that answers for each."
            )
        return found

    def _at_leader(self, partition: int, ask: Callable[[BrokerConnection], T]) -> T:
        if not self._leader_of:
            self._find_topic()
        patience = _Patience(self._brokers.retry_ms)
        while True:
            leader = self._leader_of.get(partition, -1)
            try:
                return ask(self._connect(leader))
            except (OSError, _TryAgainError) as error:
                self._hang_up(leader)
                patience.wait_or_raise(self._unreachable(partition, error))
                self._find_topic()

    def _connect(self, leader: int) -> BrokerConnection:
        if leader not in self._addresses:
            raise _TryAgainError("it has no leader")
        return self._connection(self._addresses[leader])

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        if address not in self._connections:
            self._connections[address] = BrokerConnection(*address, self._brokers.request_timeout_ms)
        return self._connections[address]

    def _hang_up(self, leader: int) -> None:
        connection = self._connections.pop(self._addresses.get(leader, ("", 0)), None)
        if connection is not None:
            connection.close()

    def _find_topic(self) -> None:
        """Ask any broker for the topic's id and leaders, until one knows them."""
        known = bool(self._leader_of)
        patience = _Patience(self._brokers.retry_ms if known else FIRST_ANSWER_PATIENCE_MS)
        unknown = _Patience(min(UNKNOWN_TOPIC_PATIENCE_MS, self._brokers.retry_ms))
        while True:
            failure: Exception | None = None
            for address in [*self._addresses.values(), *self._bootstrap]:
                try:
                    if self._learn(self._connection(address)):
                        return
                    unknown.wait_or_raise(
                        TopicUnknownError(
                            f"There is no topic {self.topic} at {self._brokers.bootstrap_servers}; create"
                            " it, or"
                            " correct the name."
                        )
                    )
                except OSError as error:
                    failure = error
                    if (connection := self._connections.pop(address, None)) is not None:
                        connection.close()
            if failure is not None:
                patience.wait_or_raise(
                    BrokerUnreachableError(
                        f"No broker answers at {self._brokers.bootstrap_servers} ({failure}); start the"
                        " cluster, or"
                        " correct the bootstrap servers."
                    )
                )

    def _learn(self, connection: BrokerConnection) -> bool:
        """Take over the topic's metadata; False if this broker does not know the topic."""
        schema = connection.schema(METADATA)
        response = connection.call(
            METADATA,
            topics=(build(schema.MetadataRequestTopic, topic_id=None, name=self.topic),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        (topic,) = response.topics
        if topic.error_code is ErrorCode.invalid_topic_exception:
            raise SettingsError(
                f"{self.topic!r} cannot be the name of a topic; use letters, digits, dots, dashes and"
                " underscores."
            )
        if topic.error_code in _FORBIDDEN:
            raise _forbidden(self.topic)
        if topic.error_code is not ErrorCode.none or not topic.partitions:
            return False
        topic_id = _text_of_id(getattr(topic, "topic_id", None), self.topic)
        if self._topic_id not in (None, topic_id):
            raise TopicRecreatedError(
                f"Topic {self.topic} was deleted and made anew while it was being loaded (id"
                f" {self._topic_id}, now"
                f" {topic_id}); load again, and its new records are added to the table."
            )
        self._topic_id = topic_id
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._leader_of = {partition.partition_index: partition.leader_id for partition in topic.partitions}
        return True

    def _check(self, error_code: Any, partition: int, offset: int) -> None:
        """Raise what an error code means; for the whole response `partition` is -1."""
        if error_code is ErrorCode.none:
            return
        where = f"partition {partition} of topic {self.topic}" if partition >= 0 else f"topic {self.topic}"
        if error_code is ErrorCode.offset_out_of_range:
            raise OffsetsLostError(
                f"Offset {offset} of {where} is gone: retention deleted it or the topic was made anew; load"
                " more"
                " often or keep the topic longer, then load again."
            )
        if error_code is ErrorCode.corrupt_message:
            raise CorruptBatchError(
                f"The broker says that the data of {where} at offset {offset} is damaged; restore the"
                " partition from"
                " another replica, then load again."
            )
        if error_code in _FORBIDDEN:
            raise _forbidden(self.topic)
        if error_code.retriable or error_code in _LEADER_MOVED:
            raise _TryAgainError(f"the broker answered {error_code.name.upper()}")
        raise UnsupportedBrokerError(
            f"The broker refused to serve {where} with {error_code.name.upper()}; its log says why."
        )

    def _unreachable(self, partition: int, error: Exception) -> LoaderError:
        return BrokerUnreachableError(
            f"Partition {partition} of topic {self.topic} could not be read for"
            f" {self._brokers.retry_ms / 1000:g} s"
            f" ({error}); bring its leader back, then load again."
        )


class _Patience:
    """Pauses between tries until the time is up."""

    def __init__(self, patience_ms: int) -> None:
        self._deadline_s = time.monotonic() + patience_ms / 1000

    def wait_or_raise(self, error: LoaderError) -> None:
        if time.monotonic() >= self._deadline_s:
            raise error
        time.sleep(RETRY_PAUSE_MS / 1000)


def _forbidden(topic: str) -> LoaderError:
    return TopicUnknownError(f"Topic {topic} may not be read without authorization; ask for READ on it.")


def _text_of_id(topic_id: UUID | None, topic: str) -> str:
    if topic_id is None or not topic_id.int:
        return f"name:{topic}"
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def _parse_bootstrap_servers(text: str) -> list[tuple[str, int]]:
    addresses: list[tuple[str, int]] = []
    for server in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingsError(
                f"{server!r} is not a bootstrap server; write host:port, several with commas."
            )
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise SettingsError("No bootstrap server is given; write host:port, several with commas.")
    return addresses
