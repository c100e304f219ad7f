"""A partition's log in memory, with the part of `PartitionLog`'s interface that replicas use.

It remembers how far it was synced, so that a crash can take back what was not.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainstem_broker.config import TopicConfig
from mainstem_broker.errors import OffsetOutOfRange, StorageError
from mainstem_broker.log.epochs import EpochCache
from mainstem_broker.log.partition_log import AppendInfo


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One batch of one record: enough for what replicas may get wrong."""

    offset: int
    epoch: int
    value: bytes


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """What a read found, in place of a slice of a file."""

    records: tuple[StoredRecord, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class MemoryReadResult:
    slice: RecordSlice | None
    end_offset: int


class MemoryLog:
    """A list of records. `disk_failed` makes writes fail."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.records: list[StoredRecord] = []
        self.epochs = EpochCache()
        self.log_start_offset = 0
        self.synced_to = 0
        self.disk_failed = False

    @property
    def log_end_offset(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.log_start_offset

    @property
    def unflushed_messages(self) -> int:
        return 0

    def begin_epoch(self, leader_epoch: int) -> None:
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def append_value(self, value: bytes, leader_epoch: int) -> AppendInfo:
        self._refuse_when_failed()
        offset = self.log_end_offset
        self.records.append(StoredRecord(offset, leader_epoch, value))
        self.epochs.assign(leader_epoch, offset)
        return AppendInfo(offset, offset, -1, -1, self.log_start_offset)

    def append_as_follower(self, records: tuple[StoredRecord, ...], now_ms: int) -> AppendInfo:
        self._refuse_when_failed()
        for record in records:
            if record.offset < self.log_end_offset:
                raise OffsetOutOfRange(f"{record.offset} is below {self.log_end_offset}")
            assert record.offset == self.log_end_offset
            self.records.append(record)
            self.epochs.assign(record.epoch, record.offset)
        return AppendInfo(0, 0, -1, -1, self.log_start_offset)

    def _refuse_when_failed(self) -> None:
        if self.disk_failed:
            raise StorageError("the simulated disk failed")

    def read(self, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> MemoryReadResult:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"{offset}")
        first = offset - self.log_start_offset
        last = min(upper_bound, self.log_end_offset) - self.log_start_offset
        found = tuple(self.records[first : max(last, first)][: max(max_bytes, 1)])
        return MemoryReadResult(RecordSlice(found) if found else None, offset + len(found))

    def truncate_to(self, offset: int) -> None:
        del self.records[max(offset - self.log_start_offset, 0) :]
        self.epochs.truncate_from_end(self.log_end_offset)
        self.synced_to = min(self.synced_to, self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.records.clear()
        self.epochs.clear()
        self.log_start_offset = self.synced_to = offset

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        return False

    def update_config(self, config: TopicConfig) -> None:
        self.config = config

    def sync(self) -> None:
        self.synced_to = self.log_end_offset

    def lose_unsynced(self) -> None:
        """What a crash of the machine does."""
        self.truncate_to(self.synced_to)
