"""Logs in memory, with the parts of `PartitionLog`'s and `LogManager`'s interfaces that replicas use.

A log remembers how far it was synced, so that a crash of the machine can take back what was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mainstem_broker.config import TopicConfig
from mainstem_broker.errors import OffsetOutOfRange, StorageError
from mainstem_broker.log.epochs import EpochCache
from mainstem_broker.log.partition_log import AppendInfo
from mainstem_broker.log.producers import Producers, RememberedBatch
from mainstem_broker.protocol.batches import BatchHeader, parse_batch_header


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of one record: enough for what replicas may get wrong."""

    offset: int
    epoch: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """What a read found, in place of a slice of a file."""

    batches: tuple[StoredBatch, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(stored.batch) for stored in self.batches)


@dataclass(frozen=True, slots=True)
class MemoryReadResult:
    slice: BatchSlice | None
    end_offset: int


class MemoryLog:
    """A list of batches. `disk_failed` makes writes fail."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.batches: list[StoredBatch] = []
        self.epochs = EpochCache()
        self.producers = Producers()
        self.log_start_offset = 0
        self.synced_to = 0
        self.disk_failed = False

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.batches)

    @property
    def unflushed_messages(self) -> int:
        return 0

    def begin_epoch(self, leader_epoch: int) -> None:
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def append_as_leader(
        self, batch: bytes, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        self._refuse_when_failed()
        offset = self.log_end_offset
        self.batches.append(StoredBatch(offset, leader_epoch, bytes(batch)))
        self.epochs.assign(leader_epoch, offset)
        if header.producer_id >= 0:
            self.producers.update(header, offset, now_ms)
        return AppendInfo(offset, offset, -1, -1, self.log_start_offset)

    def repeated(self, _header: BatchHeader, batch: RememberedBatch) -> AppendInfo:
        return AppendInfo(batch.first_offset, batch.last_offset, -1, -1, self.log_start_offset)

    def append_as_follower(self, batches: tuple[StoredBatch, ...], now_ms: int) -> AppendInfo:
        self._refuse_when_failed()
        for stored in batches:
            if stored.offset != self.log_end_offset:
                raise OffsetOutOfRange(f"{stored.offset} does not follow {self.log_end_offset}")
            self.batches.append(stored)
            self.epochs.assign(stored.epoch, stored.offset)
            self._learn(stored, now_ms)
        return AppendInfo(0, 0, -1, -1, self.log_start_offset)

    def _learn(self, stored: StoredBatch, now_ms: int) -> None:
        header = parse_batch_header(stored.batch)
        if header.producer_id >= 0:
            self.producers.update(header, stored.offset, now_ms)

    def reopen(self) -> None:
        """What a start knows of producers: one batch of each, as from a snapshot."""
        self._read_producers()
        self.producers = Producers.decode(self.producers.encode())

    def _read_producers(self) -> None:
        self.producers = Producers()
        for stored in self.batches:
            self._learn(stored, 0)

    def _refuse_when_failed(self) -> None:
        if self.disk_failed:
            raise StorageError("the simulated disk failed")

    def read(self, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> MemoryReadResult:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"{offset}")
        first = offset - self.log_start_offset
        last = max(min(upper_bound, self.log_end_offset) - self.log_start_offset, first)
        found = tuple(self.batches[first:last][: max(max_bytes // 100, 1)])
        return MemoryReadResult(BatchSlice(found) if found else None, offset + len(found))

    def truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return
        del self.batches[max(offset - self.log_start_offset, 0) :]
        self.epochs.truncate_from_end(self.log_end_offset)
        self.synced_to = min(self.synced_to, self.log_end_offset)
        if not self.producers.truncate_to(self.log_end_offset):
            self._read_producers()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.batches.clear()
        self.epochs.clear()
        self.producers = Producers()
        self.log_start_offset = self.synced_to = offset

    def maybe_increment_log_start_offset(self, _offset: int) -> bool:
        return False

    def update_config(self, config: TopicConfig) -> None:
        self.config = config

    def sync(self) -> None:
        self.synced_to = self.log_end_offset

    def lose_unsynced(self) -> None:
        """What a crash of the machine does."""
        self.truncate_to(self.synced_to)


class MemoryLogs:
    """The disks of one broker. They outlive its lives."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.high_watermarks: dict[tuple[str, int], int] = {}
        self.failed: frozenset[str] = frozenset()
        self._topic_ids: dict[tuple[str, int], UUID] = {}

    def get_or_create(
        self, topic: str, partition: int, topic_id: UUID, config: TopicConfig, _now_ms: int
    ) -> MemoryLog:
        self._topic_ids[topic, partition] = topic_id
        log = self.logs.setdefault((topic, partition), MemoryLog(config))
        log.reopen()
        return log

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        return self._topic_ids.get((topic, partition))

    def delete(self, topic: str, partition: int) -> None:
        self.logs.pop((topic, partition), None)

    set_aside = delete
