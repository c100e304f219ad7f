"""Reading one topic at its leaders: which offsets exist, and the bytes of record batches.

Requests used: Metadata, ListOffsets, Fetch and OffsetForLeaderEpoch (Kafka protocol guide), without fetch
sessions and without a consumer group, so any Kafka-protocol broker will do. An offset that is gone ends the
run, because jumping over it would lose records.

A topic that is deleted and created anew, or a partition that is truncated by an unclean election, could
continue at the same offset with other records. Fetches therefore name the topic by id and the leader by epoch
where the broker can (KIP-516, KIP-320), and before a commit `check_unchanged` asks whether all that was read
is still there.

Must not live here: what batches contain (`decode`) and which offsets to read (`ranges`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from mainstem_loader.errors import (
    CorruptBatchError,
    OffsetsLostError,
    TopicRecreatedError,
    UnsupportedBrokerError,
)
from mainstem_loader.kafka.connection import (
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    BrokerConnection,
    build,
)
from mainstem_loader.kafka.leaders import FORBIDDEN, BrokerSettings, TopicLeaders, TryAgainError, forbidden

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
FETCH_WAIT_MS: Final = 500

# Errors that go away when the leader is looked up again, beyond those the protocol calls retriable.
_LEADER_MOVED: Final = frozenset({ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch})


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
class EpochEnd:
    """Records that were read from one leader epoch end before `end_offset`."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """An answer to one fetch: batches as the broker stores them, the last one possibly cut off.

    `high_watermark` is the broker's at the time of the answer; every batch ends before it.
    """

    records: bytes
    high_watermark: int
    aborted: tuple[AbortedTransaction, ...]


class TopicReader:
    """A topic, read at its leaders; a context manager.

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
        self._isolation = isolation
        self._leaders = TopicLeaders(brokers, topic, topic_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaders.__exit__()

    @property
    def topic_id(self) -> str:
        """See `TopicLeaders.topic_id`."""
        return self._leaders.topic_id

    def offsets(self) -> dict[int, tuple[int, int]]:
        """For each partition the log start offset and the end of what may be read, exclusive."""
        self._leaders.find()
        earliest = self._list_offsets(EARLIEST_TIMESTAMP)
        latest = self._list_offsets(LATEST_TIMESTAMP)
        return {partition: (earliest[partition], latest[partition]) for partition in self._leaders.partitions}

    def high_watermarks(self) -> dict[int, int]:
        """For each partition the end of what is replicated, exclusive, whether or not it may be read yet:
        open transactions hold back readers of committed records (KIP-98).
        """
        self._leaders.find()
        return self._list_offsets(LATEST_TIMESTAMP, IsolationLevel.READ_UNCOMMITTED)

    def last_stable_offsets(self) -> dict[int, int]:
        """For each partition where its first open transaction begins; without one, its high watermark."""
        self._leaders.find()
        return self._list_offsets(LATEST_TIMESTAMP, IsolationLevel.READ_COMMITTED)

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """For each partition the first offset whose record has this timestamp or a later one; None for
        none."""
        self._leaders.find()
        offsets = self._list_offsets(timestamp_ms)
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

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
            fetched = self._fetch_partitions(connection, {partition: offset}, bytes_max)[partition]
            self._check(fetched.error_code, partition, offset)
            aborted = [
                AbortedTransaction(transaction.producer_id, transaction.first_offset)
                for transaction in fetched.aborted_transactions or ()
            ]
            return FetchedRecords(fetched.records or b"", fetched.high_watermark, tuple(aborted))

        return self._leaders.ask(partition, ask)

    def check_unchanged(self, epochs_of: Mapping[int, Sequence[EpochEnd]]) -> None:
        """Whether the topic is the same as before, and its partitions still hold what was read.

        Args:
            epochs_of: for each partition the leader epochs that were read.

        Raises:
            TopicRecreatedError: it is another topic, or a partition was truncated.
        """
        self._leaders.find()
        for partition, epoch_ends in epochs_of.items():
            for read in epoch_ends:
                end_offset = self._leaders.ask(
                    partition, partial(self._end_of_epoch, partition=partition, epoch=read.epoch)
                )
                if end_offset is not None and end_offset < read.end_offset:
                    raise TopicRecreatedError(
                        f"Partition {partition} of topic {self.topic} was truncated while it was being"
                        f" loaded: records of leader epoch {read.epoch} were read up to offset"
                        f" {read.end_offset}, and now they end at {end_offset}. Nothing was loaded; load"
                        " again."
                    )

    def _end_of_epoch(self, connection: BrokerConnection, partition: int, epoch: int) -> int | None:
        """Where the records of a leader epoch end; None if the broker cannot say."""
        if epoch < 0 or not connection.supports(OFFSET_FOR_LEADER_EPOCH):
            return None
        schema = connection.schema(OFFSET_FOR_LEADER_EPOCH)
        response = connection.call(
            OFFSET_FOR_LEADER_EPOCH,
            topics=(
                schema.OffsetForLeaderTopic(
                    topic=self.topic,
                    partitions=(
                        schema.OffsetForLeaderPartition(
                            partition=partition,
                            current_leader_epoch=self._leaders.epoch_of(partition),
                            leader_epoch=epoch,
                        ),
                    ),
                ),
            ),
        )
        ((answer,),) = [topic.partitions for topic in response.topics]
        self._check(answer.error_code, partition, -1)
        return int(answer.end_offset)

    def sample(self, offset_of: Mapping[int, int], bytes_max: int) -> dict[int, bytes]:
        """A few first batches of some of the partitions, in one request per leader: a look at their size.

        Partitions that have nothing to say are left out, and nothing is tried again.
        """
        samples: dict[int, bytes] = {}
        for leader in {self._leaders.leader_of(partition) for partition in offset_of}:
            start_offsets = {
                partition: offset
                for partition, offset in offset_of.items()
                if self._leaders.leader_of(partition) == leader
            }
            try:
                fetched = self._fetch_partitions(self._leaders.connect(leader), start_offsets, bytes_max)
            except (OSError, TryAgainError):
                self._leaders.hang_up(leader)
                continue
            samples |= {partition: answer.records for partition, answer in fetched.items() if answer.records}
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
                build(
                    schema.FetchTopic,
                    topic=self.topic,
                    topic_id=self._leaders.topic_uuid,
                    partitions=tuple(
                        build(
                            schema.FetchPartition,
                            partition=partition,
                            current_leader_epoch=self._leaders.epoch_of(partition),
                            fetch_offset=offset,
                            partition_max_bytes=partition_bytes_max,
                        )
                        for partition, offset in offset_of.items()
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        self._check(getattr(response, "error_code", ErrorCode.none), -1, -1)
        answers = {
            partition.partition_index: partition
            for topic in response.responses
            for partition in topic.partitions
        }
        if not answers.keys() >= offset_of.keys():
            raise UnsupportedBrokerError(
                f"{connection.address} left out partitions it was asked for in a fetch of {self.topic}; the"
                " loader needs a broker that answers for each."
            )
        return answers

    def _list_offsets(self, timestamp: int, isolation: IsolationLevel | None = None) -> dict[int, int]:
        offsets: dict[int, int] = {}
        while missing := [partition for partition in self._leaders.partitions if partition not in offsets]:
            ask = partial(
                self._list_offsets_at,
                missing=missing,
                timestamp=timestamp,
                isolation=self._isolation if isolation is None else isolation,
            )
            offsets |= self._leaders.ask(missing[0], ask)
        return offsets

    def _list_offsets_at(
        self, connection: BrokerConnection, missing: Sequence[int], timestamp: int, isolation: IsolationLevel
    ) -> dict[int, int]:
        """The offsets of those of the partitions `missing` that the first one's leader leads, too."""
        leader = self._leaders.leader_of(missing[0])
        partitions = [partition for partition in missing if self._leaders.leader_of(partition) == leader]
        schema = connection.schema(LIST_OFFSETS)
        response = connection.call(
            LIST_OFFSETS,
            replica_id=-1,
            isolation_level=int(isolation),
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
        offsets: dict[int, int] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                self._check(partition.error_code, partition.partition_index, -1)
                offsets[partition.partition_index] = partition.offset
        if not offsets.keys() >= set(partitions):
            raise UnsupportedBrokerError(
                f"{connection.address} left out partitions of {self.topic} when asked for their offsets; the"
                " loader needs a broker that answers for each."
            )
        return offsets

    def _check(self, error_code: Any, partition: int, offset: int) -> None:
        """Raise what an error code means; for the whole response `partition` is -1."""
        if error_code is ErrorCode.none:
            return
        where = f"partition {partition} of topic {self.topic}" if partition >= 0 else f"topic {self.topic}"
        if error_code is ErrorCode.offset_out_of_range:
            raise OffsetsLostError(
                f"Offset {offset} of {where} is gone: retention deleted it or the topic was created anew;"
                " load more often or keep the topic longer, then load again."
            )
        if error_code is ErrorCode.corrupt_message:
            raise CorruptBatchError(
                f"The broker says that the data of {where} at offset {offset} is damaged; restore the"
                " partition from another replica, then load again."
            )
        if error_code in FORBIDDEN:
            raise forbidden(self.topic)
        if error_code.retriable or error_code in _LEADER_MOVED:
            raise TryAgainError(f"the broker answered {error_code.name.upper()}")
        raise UnsupportedBrokerError(
            f"The broker refused to serve {where} with {error_code.name.upper()}; its log says why."
        )
