"""Logs without files: the real `PartitionLog` over segments in memory, and the parts of `LogManager`'s
interface that replicas use.

A log remembers what was written down of it, so that a crash can take back the rest, and a crash of the
machine what was not flushed. A broker has two data directories, each on a disk of its own, which can be full
or slow, break, and be mended or replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from tests.cluster.memory_segments import Disk, MemorySegment, MemorySegments, MemorySnapshots

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import StorageError
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.log.leader_epochs import EpochCache, EpochEntry
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.recovery import RecoveredLog
from mainstem_broker.protocol.batches import BatchHeader


class MemoryLog(PartitionLog):
    """One life's log. What outlives it are the segments, the snapshots, and what `written_*` say."""

    def __init__(
        self, topic: str, partition: int, config: TopicConfig, disk: Disk, recovered: RecoveredLog
    ) -> None:
        """Use `create` or `recovered_from`."""
        super().__init__(
            disk.directory / f"{topic}-{partition}", config, recovered, 0, lambda _paths, _delay_ms: None
        )
        self.disk = disk
        self.disk_failed = lambda: disk.on_failure(disk.directory)
        self._segments: MemorySegments = MemorySegments(cast(Any, recovered.segments), disk)
        self._snapshots: MemorySnapshots = cast(MemorySnapshots, recovered.snapshots)
        self.written_epochs: Sequence[EpochEntry] = ()
        self.written_start_offset = recovered.log_start_offset
        self.is_closed = False
        """Whether all of it is on the disk, and said to be."""

    @classmethod
    def create(cls, topic: str, partition: int, config: TopicConfig, disk: Disk) -> MemoryLog:
        segments: Any = [MemorySegment(0, disk)]
        recovered = RecoveredLog(segments, EpochCache(), Producers(), cast(Any, MemorySnapshots()), 0, 0)
        return cls(topic, partition, config, disk, recovered)

    @classmethod
    def recovered_from(cls, former: MemoryLog) -> MemoryLog:
        """What the next life finds, as `recovery.recover` brings it in order."""
        segments: list[Any] = list(former.segments)
        epochs, snapshots = EpochCache(former.written_epochs), former._snapshots
        if not former.is_closed:
            snapshots.remove_after(max(former.recovery_point, segments[0].base_offset))
            for segment in segments:
                if segment is segments[-1] or segment.next_offset >= former.recovery_point:
                    epochs.truncate_from_end(segment.base_offset)
                    for header in segment.headers():
                        if header.partition_leader_epoch != epochs.latest_epoch:
                            epochs.assign(header.partition_leader_epoch, header.base_offset)
        if segments[-1].next_offset < former.written_start_offset:
            segments = [MemorySegment(former.written_start_offset, former.disk)]
        start = max(former.written_start_offset, segments[0].base_offset)
        end = segments[-1].next_offset
        epochs.truncate_from_start(start)
        epochs.truncate_from_end(end)
        snapshots.remove_after(end)
        producers = snapshots.restore(segments, end)
        recovery_point = end if former.is_closed else min(former.recovery_point, end)
        recovered = RecoveredLog(segments, epochs, producers, snapshots, start, recovery_point)
        log = cls(former.topic, former.partition, former.config, former.disk, recovered)
        log.written_epochs = former.written_epochs
        return log

    # --- For the tests ---

    def batches(self) -> Iterator[BatchHeader]:
        """The headers of what can be read, oldest first."""
        for segment in self._memory_segments():
            for header in segment.headers():
                if header.last_offset >= self.log_start_offset:
                    yield header

    def content_from(self, offset: int) -> bytes:
        """The batches from the one that holds `offset` on."""
        return b"".join([segment.content_from(offset) for segment in self._memory_segments()])

    def batch_at(self, base_offset: int) -> bytes | None:
        """The batch that begins there, if one does."""
        for segment in reversed(self._memory_segments()):
            if segment.base_offset <= base_offset:
                return segment.batch_at(base_offset)
        return None

    def _memory_segments(self) -> list[MemorySegment]:
        return cast(list[MemorySegment], self._segments.all)

    def lose_unflushed(self) -> None:
        """What a crash of the machine does."""
        lost_from = self.recovery_point
        segments = self._memory_segments()
        segments[-1].lose_from(lost_from)
        while len(segments) > 1 and segments[-1].base_offset >= lost_from:
            segments.pop()
            segments[-1].lose_from(lost_from)
        self.log_end_offset = segments[-1].next_offset

    # --- What files would do ---

    def write_down_start(self) -> None:
        self.written_start_offset = self.log_start_offset

    def write_epochs(self) -> None:
        self.disk.grow()
        self._epochs_changed = False
        self.written_epochs = self.epochs.entries

    def _flush_names(self) -> None:
        self._segments.directory_changed = False

    def delete(self) -> None:
        self.disk.write()  # the directory is renamed


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
        return MemoryLog.create(self.topic, self.partition, self.config, self.disk)


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
        self.tree_position: TreePosition | None = None
        self.kept_aside: dict[tuple[str, int], MemoryLog] = {}
        self._out_of_use: dict[tuple[str, int], MemoryLog] = {}
        self._doomed: dict[tuple[str, int], MemoryLog] = {}
        """Being deleted; a crash keeps them."""
        self._topic_ids: dict[tuple[str, int], UUID] = {}

    @property
    def unreachable_topics(self) -> set[UUID]:
        """The ids of topics that have logs in directories that are out of use."""
        return {self._topic_ids[key] for key in self._out_of_use}

    # --- What happens to them ---

    def begin_life(self, on_failure: Callable[[Path], None]) -> None:
        """What a start finds: the directories whose disks work."""
        self.logs |= self._out_of_use | self._doomed
        self._out_of_use, self._doomed = {}, {}
        self.failed = set()
        self.logs = {key: MemoryLog.recovered_from(log) for key, log in self.logs.items()}
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
                log.lose_unflushed()

    def sync(self) -> None:
        """Flush every directory that is in use."""
        for log in self._reachable():
            log.mark_flushed(log.flush())

    def checkpoint_tree_position(self, position: TreePosition | None) -> None:
        if position is not None:
            self.tree_position = max(position, self.tree_position or position)

    def write_down_starts(self) -> None:
        """Write the checkpoints of log start offsets."""
        for log in self._reachable():
            log.write_down_start()

    def _reachable(self) -> Iterator[MemoryLog]:
        for directory in self.usable_directories:
            try:
                self.disks[directory].write()
            except StorageError:
                continue  # the broker learns of it, if that is for good
            for log in self.logs.values():
                if log.disk.directory == directory and not log.disk.is_slow:
                    yield log

    def close(self) -> bool:
        """Flush everything, however long it takes; whether all of it is on the disks, and said to be."""
        clean = not self.failed
        for disk in self.disks.values():
            disk.is_slow = False
            clean &= not disk.is_full and not disk.is_broken
        self.sync()
        self.write_down_starts()
        for log in self._reachable():
            log.is_closed = clean
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
        return self.logs[key]

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
        for log in list(self.logs.values()):
            if log.truncations_written != log.truncation_count:
                log.disk.write()
                log.write_epochs()
                log.truncations_written = log.truncation_count

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
            self.kept_aside[topic, partition] = self.logs.pop((topic, partition))
            self.high_watermarks.pop((topic, partition), None)
