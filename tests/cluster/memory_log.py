"""Logs in memory, with the parts of `PartitionLog`'s and `LogManager`'s interfaces that replicas use.

A log remembers how far it was synced, so that a crash of the machine can take back what was not. A broker has
two data directories, each on a disk of its own, which can be full or slow, break, and be mended or replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import OffsetOutOfRange, StorageError
from mainstem_broker.log.leader_epochs import EpochCache
from mainstem_broker.log.partition_log import AppendInfo
from mainstem_broker.log.producer_snapshot_format import decode_snapshot, encode_snapshot
from mainstem_broker.log.producer_state import RememberedBatch
from mainstem_broker.log.producers import Producers
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


class Disk:
    """What is wrong with the disk under a data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_full = False
        """Writes are refused until there is room again."""
        self.is_slow = False
        """Nothing gets from the page cache to the disk."""
        self.is_broken = False
        """Writes fail, which the broker notices: it takes the directory out of use."""
        self.on_failure: Callable[[Path], None] = lambda _directory: None

    def write(self) -> None:
        """Raises StorageError: it cannot be written to."""
        if self.is_broken:
            self.on_failure(self.directory)
            error = StorageError("the simulated disk broke")
            error.is_failure = True
            raise error
        if self.is_full:
            raise StorageError("the simulated disk is full")


class MemoryLog:
    """A list of batches on a disk."""

    def __init__(self, config: TopicConfig, disk: Disk) -> None:
        self.config = config
        self.disk = disk
        self.batches: list[StoredBatch] = []
        self.epochs = EpochCache()
        self.producers = Producers()
        self.log_start_offset = 0
        self.synced_to = 0

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.batches)

    @property
    def acknowledgeable_offset(self) -> int:
        return self.log_end_offset

    def begin_epoch(self, leader_epoch: int) -> None:
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def append_as_leader(
        self, batch: bytes, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        self.disk.write()
        offset = self.log_end_offset
        self.batches.append(StoredBatch(offset, leader_epoch, bytes(batch)))
        self.epochs.assign(leader_epoch, offset)
        if header.producer_id >= 0:
            self.producers.update(header, offset, now_ms)
        return AppendInfo(offset, offset, -1, -1, self.log_start_offset)

    def repeated(self, _header: BatchHeader, batch: RememberedBatch) -> AppendInfo:
        return AppendInfo(batch.first_offset, batch.last_offset, -1, -1, self.log_start_offset)

    def append_as_follower(self, batches: tuple[StoredBatch, ...], now_ms: int) -> AppendInfo:
        self.disk.write()
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
        self.producers = decode_snapshot(encode_snapshot(self.producers))

    def _read_producers(self) -> None:
        self.producers = Producers()
        for stored in self.batches:
            self._learn(stored, 0)

    def read(self, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> MemoryReadResult:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"{offset}")
        first = offset - self.log_start_offset
        last = max(min(upper_bound, self.log_end_offset) - self.log_start_offset, first)
        result = tuple(self.batches[first:last][: max(max_bytes // 100, 1)])
        return MemoryReadResult(BatchSlice(result) if result else None, offset + len(result))

    def truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return
        self.disk.write()
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        del self.batches[max(offset - self.log_start_offset, 0) :]
        self.epochs.truncate_from_end(self.log_end_offset)
        self.synced_to = min(self.synced_to, self.log_end_offset)
        if not self.producers.truncate_to(self.log_end_offset):
            self._read_producers()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.disk.write()
        self.batches.clear()
        self.epochs.clear()
        self.producers = Producers()
        self.log_start_offset = self.synced_to = offset

    def maybe_increment_log_start_offset(self, _offset: int) -> bool:
        return False

    def delete(self) -> None:
        self.disk.write()  # the directory is renamed

    def update_config(self, config: TopicConfig) -> None:
        self.config = config

    def sync(self) -> None:
        if not self.disk.is_slow:
            self.synced_to = self.log_end_offset

    def lose_unsynced(self) -> None:
        """What a crash of the machine does."""
        self._cut(self.synced_to)


class NewMemoryLog(NamedTuple):
    """In place of `NewLog`."""

    topic: str
    partition: int
    topic_id: UUID
    config: TopicConfig
    parent: Path
    disk: Disk

    def create(self, _now_ms: int) -> MemoryLog:
        self.disk.write()
        return MemoryLog(self.config, self.disk)


class DoomedMemoryLog(NamedTuple):
    """In place of `DoomedLog`."""

    key: tuple[str, int]
    log: MemoryLog


DATA_DIRECTORIES: Final = (Path("/disk-1"), Path("/disk-2"))


class MemoryLogs:
    """The data directories of one broker. They outlive its lives."""

    def __init__(self) -> None:
        self.disks = {directory: Disk(directory) for directory in DATA_DIRECTORIES}
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        """Of the directories that are in use."""
        self.failed: set[Path] = set()
        """Directories that the broker has taken out of use, in its present life."""
        self.high_watermarks: dict[tuple[str, int], int] = {}
        self._out_of_use: dict[tuple[str, int], MemoryLog] = {}
        self._doomed: dict[tuple[str, int], MemoryLog] = {}
        """Being deleted; a crash keeps them."""
        self._topic_ids: dict[tuple[str, int], UUID] = {}

    # --- What happens to them ---

    def begin_life(self, on_failure: Callable[[Path], None]) -> None:
        """What a start finds: the directories whose disks work."""
        self.logs |= self._out_of_use | self._doomed
        self._out_of_use, self._doomed = {}, {}
        self.failed = set()
        for disk in self.disks.values():
            disk.on_failure = on_failure
            if disk.is_broken:
                self.fail(disk.directory)

    def replace(self, directory: Path) -> None:
        """A new disk takes the place of a broken one: it is empty."""
        for key in [key for key, log in self._out_of_use.items() if log.disk.directory == directory]:
            del self._out_of_use[key]

    def lose_unsynced(self, directory: Path | None = None) -> None:
        """What had not reached the disk of this directory, or, as in a power cut, of all of them, is lost."""
        for log in (*self.logs.values(), *self._out_of_use.values(), *self._doomed.values()):
            if directory is None or log.disk.directory == directory:
                log.lose_unsynced()

    def sync(self) -> None:
        """Flush, and write checkpoints, which go to every directory that is in use."""
        for directory in self.usable_directories:
            try:
                self.disks[directory].write()
            except StorageError:
                continue  # the broker learns of it, if that is for good
            for log in self.logs.values():
                if log.disk.directory == directory:
                    log.sync()

    def close(self) -> bool:
        """Flush everything, however long it takes; whether all of it is on the disks, and said to be."""
        clean = not self.failed
        for disk in self.disks.values():
            disk.is_slow = False
            clean &= not disk.is_full and not disk.is_broken
        self.sync()
        return clean

    # --- The interface of the real ones ---

    @property
    def usable_directories(self) -> list[Path]:
        return [directory for directory in self.disks if directory not in self.failed]

    def get(self, topic: str, partition: int) -> MemoryLog | None:
        return self.logs.get((topic, partition))

    def fail(self, directory: Path) -> list[tuple[str, int]]:
        self.failed.add(directory)
        gone = [key for key, log in self.logs.items() if log.disk.directory == directory]
        for key in gone:
            self._out_of_use[key] = self.logs.pop(key)
            self.high_watermarks.pop(key, None)
        return gone

    def get_or_create(
        self, topic: str, partition: int, topic_id: UUID, config: TopicConfig, _now_ms: int
    ) -> MemoryLog:
        key = topic, partition
        self._topic_ids[key] = topic_id
        log = self.logs[key]
        log.reopen()
        return log

    def begin_creation(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> NewMemoryLog:
        directory = self._emptiest_directory()
        return NewMemoryLog(topic, partition, topic_id, config, directory, self.disks[directory])

    def finish_creation(self, new: NewMemoryLog, log: MemoryLog | None) -> bool:
        if log is None or new.parent in self.failed:
            return False
        key = new.topic, new.partition
        # One of a former time in a directory that is out of use would be in the way at the next start: a
        # person has to remove it.
        self._out_of_use.pop(key, None)
        assert key not in self.logs
        self.logs[key] = log
        self._topic_ids[key] = new.topic_id
        return True

    def write_truncations(self) -> None:
        """Truncations are never lost here."""

    def _emptiest_directory(self) -> Path:
        used = [log.disk.directory for log in self.logs.values()]
        return min(self.usable_directories, key=used.count)

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        return self._topic_ids.get((topic, partition))

    def begin_deletion(self, topic: str, partition: int) -> DoomedMemoryLog | None:
        key = topic, partition
        log = self.logs.pop(key, None)
        if log is None:
            return None
        self._doomed[key] = log
        return DoomedMemoryLog(key, log)

    def finish_deletion(self, doomed: DoomedMemoryLog, *, is_deleted: bool) -> None:
        del self._doomed[doomed.key]
        if is_deleted:
            self.high_watermarks.pop(doomed.key, None)
        elif doomed.log.disk.directory in self.failed:
            self._out_of_use[doomed.key] = doomed.log
        else:
            self.logs[doomed.key] = doomed.log

    def set_aside(self, topic: str, partition: int) -> None:
        log = self.logs.get((topic, partition))
        if log is not None:
            log.disk.write()  # the directory is renamed
            del self.logs[topic, partition]
            self.high_watermarks.pop((topic, partition), None)
