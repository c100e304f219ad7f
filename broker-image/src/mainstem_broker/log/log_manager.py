"""All the logs of this broker, over its data directories.

In scope: which directory holds which log, start-up and shutdown, checkpoints of all logs. Out of scope: one
data directory (`data_directory`), what is in a log, and when anything is flushed or deleted (the owner
decides).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import InconsistentTopicId, StartupError, StorageError
from mainstem_broker.log import checkpoints, data_directory
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.log.deletion import ScheduleUnlink, unlink_all
from mainstem_broker.log.directory_names import parse_directory_name
from mainstem_broker.log.files import storage_error
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.placement import LogPlacement
from mainstem_broker.protocol.topic_partition import TopicPartition

logger = structlog.get_logger(__name__)


class DoomedLog(NamedTuple):
    """A log that is being deleted."""

    log: PartitionLog
    topic_id: uuid.UUID | None


class NewLog(NamedTuple):
    """A log that is to be created in the data directory `parent`."""

    topic: str
    partition: int
    topic_id: uuid.UUID
    config: TopicConfig
    parent: Path
    schedule_unlink: ScheduleUnlink
    forget_earlier: Callable[[], None]
    """Removes what checkpoints say of an earlier log of the partition; may raise StorageError."""

    def create(self, now_ms: int) -> PartitionLog:
        """Create the log's files. Any thread may call it.

        Raises:
            StorageError: the disk failed or is full.
        """
        directory = self.parent / f"{self.topic}-{self.partition}"
        was_there = directory.exists()
        try:
            self.forget_earlier()
            _write_topic_id(directory, self.topic_id)
            return PartitionLog.open(
                directory,
                self.config,
                clean_shutdown=True,
                recovery_point=0,
                log_start_offset=0,
                now_ms=now_ms,
                schedule_unlink=self.schedule_unlink,
                is_new=not was_there,
            )
        except StorageError:
            if not was_there:
                # The next try may choose another directory, and a start refuses a partition that is in two.
                unlink_all([directory])
            raise


class LogManager:
    """The logs of one broker over its data directories.

    In order: `prepare`, `load_all`, then anything, then `close`. `high_watermarks` are those of the last run,
    as loaded; their owner keeps them from there.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        broker_id: int,
        recovery_threads_per_directory: Callable[[], int],
        schedule_unlink: ScheduleUnlink,
        on_failure: Callable[[Path], None],
    ) -> None:
        """Take the settings; no file is opened yet.

        Args:
            directories: `log.dirs`, without repetition.
            broker_id: must be the one in each directory's meta.properties.
            recovery_threads_per_directory: `num.recovery.threads.per.data.dir`, read at each use, because a
                dynamic value is known only later.
            schedule_unlink: called with files to unlink (`unlink_all`) after a delay in ms.
            on_failure: called, from any thread, with a data directory whose disk failed while it was in use;
                once or more. Its owner then calls `fail`.
        """
        self.directories = list(directories)
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._broker_id = broker_id
        self._recovery_threads = recovery_threads_per_directory
        self._schedule_unlink = schedule_unlink
        self._on_failure = on_failure
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._topic_ids: dict[TopicPartition, uuid.UUID | None] = {}  # of the logs; None where unknown
        self._log_counts = Counter[Path]()  # by data directory, with those that are being created
        self._placement = LogPlacement()
        self._locks: list[int] = []
        self._checkpoint_lock = threading.Lock()
        self._checkpoints: dict[tuple[Path, str], Mapping[TopicPartition, int]] = {}
        """By data directory and file name, as they were last read or written."""
        self.failed: set[Path] = set()
        """Data directories that are not used any more, until the next start."""
        self.unreachable_topics: set[uuid.UUID | None] = set()
        """The ids of topics that have logs in those, as far as this process has opened or created them."""
        self.stopped_cleanly = False
        """Whether every directory was closed cleanly the last time; known after `load_all`."""
        self._tree_positions: dict[Path, TreePosition | None] = {}

    @property
    def tree_positions(self) -> Collection[TreePosition | None]:
        """The position of ZooKeeper's tree that was written down last in each data directory; None if none
        was, though there are logs. Known after `load_all`."""
        return self._tree_positions.values()

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return self._logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    # Start and stop

    def prepare(self, cluster_id: str) -> None:
        """Create, lock and check the data directories.

        Raises:
            StartupError: one cannot be used, is in use, or belongs to another broker or cluster.
        """
        for directory in self.directories:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                self._locks.append(data_directory.lock(directory))
                data_directory.check_owner(directory, self._broker_id, cluster_id)
            except OSError as error:
                self.failed.add(directory)
                logger.error("data directory failed", path=str(directory), reason=error.strerror)
                if len(self.failed) == len(self.directories):
                    raise StartupError(
                        f"The data directory {directory} cannot be used ({error.strerror}): "
                        "make it writable, or name another in log.dirs."
                    ) from error

    def load_all(
        self,
        config_of: Callable[[str], TopicConfig],
        is_outdated: Callable[[str, uuid.UUID], bool],
        now_ms: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open every log there is, recovering those that were not closed cleanly, directories in parallel.

        A directory whose disk fails is left out, with its logs. Of a partition that has logs in several
        directories, those of earlier topics of its name are set aside: they are left of a directory that was
        out of use while the topic was deleted and created again.

        Args:
            config_of: returns a topic's settings.
            is_outdated: whether a topic of this name certainly has another id than this one.
            progress: called with the number of open logs and the number of all logs.

        Raises:
            StorageError: a disk is full, or the last one failed.
            StartupError: two directories hold the same partition of a topic.
        """
        folders: list[tuple[Path, bool]] = []
        self.stopped_cleanly = not self.failed
        for directory in self.usable_directories:
            try:
                clean = data_directory.take_clean_shutdown_mark(directory)
                self.stopped_cleanly &= clean
                logs = data_directory.find_logs(directory)
                for name in checkpoints.OF_OFFSETS:
                    self._checkpoints[directory, name] = checkpoints.read_offsets(directory, name)
                position = checkpoints.read_tree_position(directory)
            except OSError as error:
                self._leave_out(directory, storage_error(directory, "looking for logs", error))
                continue
            folders += [(path, clean) for path in logs]
            # A new directory has neither; one that was out of use has an older position.
            if position is not None or logs:
                self._tree_positions[directory] = position
        folders = self._without_outdated(folders, is_outdated)
        data_directory.refuse_duplicates([path for path, _ in folders])

        def open_log(path: Path, clean: bool) -> tuple[PartitionLog, uuid.UUID | None]:
            key = parse_directory_name(path.name)

            def offset(name: str) -> int:
                # Other directories' checkpoints may name the partition, too, for a log that they had once.
                return self._checkpoints[path.parent, name].get(key, 0)

            log = PartitionLog.open(
                path,
                configs[key[0]],
                clean_shutdown=clean,
                recovery_point=offset(checkpoints.RECOVERY_POINTS),
                log_start_offset=offset(checkpoints.LOG_START_OFFSETS),
                now_ms=now_ms,
                schedule_unlink=self._schedule_unlink,
            )
            log.first_dirty_offset = min(offset(checkpoints.FIRST_DIRTY_OFFSETS), log.log_end_offset)
            self.high_watermarks[key] = offset(checkpoints.HIGH_WATERMARKS)
            return log, checkpoints.read_topic_id(path)

        topics = {parse_directory_name(path.name)[0] for path, _ in folders}
        configs = {topic: config_of(topic) for topic in topics}
        with self._threads() as pool:
            futures = {pool.submit(open_log, path, clean): path.parent for path, clean in folders}
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    try:
                        log, topic_id = future.result()
                        self._log_counts[futures[future]] += 1
                        self._add(log, topic_id)
                    except StorageError as error:
                        self._leave_out(futures[future], error)
                    if progress:
                        progress(done, len(futures))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for directory in self.failed:
            self.fail(directory)

    def _without_outdated(
        self, folders: Sequence[tuple[Path, bool]], is_outdated: Callable[[str, uuid.UUID], bool]
    ) -> list[tuple[Path, bool]]:
        """Set the logs of earlier topics aside where partitions have several; return the others."""
        counts = Counter(path.name for path, _ in folders)
        kept: list[tuple[Path, bool]] = []
        for path, clean in folders:
            try:
                topic_id = checkpoints.read_topic_id(path) if counts[path.name] > 1 else None
                if topic_id is None or not is_outdated(parse_directory_name(path.name)[0], topic_id):
                    kept.append((path, clean))
                else:
                    _report_set_aside(data_directory.set_aside(path))
            except OSError as error:
                self._leave_out(path.parent, storage_error(path, "setting an outdated log aside", error))
        return [(path, clean) for path, clean in kept if path.parent not in self.failed]

    def _leave_out(self, directory: Path, error: StorageError) -> None:
        """At the start: go on without a directory whose disk failed, if another one is left."""
        if not error.is_failure or len(self.failed | {directory}) == len(self.directories):
            raise error
        logger.error("data directory failed", path=str(directory), reason=str(error))
        self.failed.add(directory)
        self.stopped_cleanly = False

    @property
    def usable_directories(self) -> list[Path]:
        return [directory for directory in self.directories if directory not in self.failed]

    def fail(self, directory: Path) -> list[TopicPartition]:
        """Take a directory out of use, and return the partitions whose logs are gone with it.

        From now on a stop does not count as clean: the broker may start again without these logs.
        """
        self.failed.add(directory)
        gone = [key for key, _ in self._logs_in(directory)]
        self.unreachable_topics.update(self._topic_ids[key] for key in gone)
        for key in gone:
            self._take_out(*key)
            self.high_watermarks.pop(key, None)
        return gone

    def _threads(self) -> ThreadPoolExecutor:
        """For work on every log: the same number of threads for each data directory."""
        return ThreadPoolExecutor(max(1, self._recovery_threads() * len(self.directories)))

    def close(
        self,
        high_watermarks: Mapping[TopicPartition, int],
        tree_position: TreePosition | None = None,
        *,
        is_clean: bool = True,
    ) -> None:
        """Close every log, write the checkpoints, and say that this was a clean stop, in this order.

        A directory with a log that could not be closed is not marked, so the next start recovers it. Without
        `is_clean` none is.
        """
        failed: set[Path] = set()
        with self._threads() as pool:
            futures = {pool.submit(log.close): log for log in self._logs.values()}
            for future in as_completed(futures):
                try:
                    future.result()
                except StorageError as error:
                    failed.add(futures[future].directory.parent)
                    logger.error("log is not closed cleanly", why=str(error))
        for directory in self.usable_directories:
            if directory in failed:
                continue
            try:
                self._checkpoint(directory, checkpoints.RECOVERY_POINTS, _recovery_point)
                self._checkpoint(directory, checkpoints.LOG_START_OFFSETS, _log_start_offset)
                self._write_high_watermarks(directory, high_watermarks)
                self._write_tree_position(directory, tree_position)
                if is_clean and not self.failed:
                    data_directory.mark_clean_shutdown(directory)
            except OSError as error:
                logger.error("data directory is not closed cleanly", path=str(directory), why=str(error))
        self.release()

    def release(self) -> None:
        """Let go of the data directories without writing anything, as a killed process would."""
        self._logs.clear()
        self._topic_ids.clear()
        self._log_counts.clear()
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    # Logs

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: TopicConfig, now_ms: int
    ) -> PartitionLog:
        """The log of a partition; where there is none, a new one is created, which takes an fsync.

        Raises:
            InconsistentTopicId: the log there is belongs to an earlier topic of the same name.
            StorageError: the disk failed or is full.
        """
        key = topic, partition
        log = self._logs.get(key)
        if log is None:
            new = self.begin_creation(topic, partition, topic_id, config)
            try:
                self.finish_creation(new, new.create(now_ms))
            except StorageError:
                self.finish_creation(new, None)
                raise
            return self._logs[key]
        log_topic_id = self._topic_ids[key]
        if log_topic_id is None:
            _write_topic_id(log.directory, topic_id)
            self._topic_ids[key] = topic_id
        elif log_topic_id != topic_id:
            raise InconsistentTopicId(
                f"The log {log.directory.name} belongs to the topic with id {log_topic_id}, not {topic_id}: "
                "delete it first."
            )
        return log

    def begin_creation(self, topic: str, partition: int, topic_id: uuid.UUID, config: TopicConfig) -> NewLog:
        """Place a log, of which there is none yet, in a data directory that has space (`placement.py`).

        It is created by `NewLog.create`, in any thread. `finish_creation` has to be called then, and no other
        log of the partition may be created meanwhile.
        """
        parent = self._placement.choose(self.usable_directories, self._log_counts)
        self._log_counts[parent] += 1
        forget_earlier = partial(self._forget_earlier, parent, (topic, partition))
        return NewLog(topic, partition, topic_id, config, parent, self._schedule_unlink, forget_earlier)

    def finish_creation(self, new: NewLog, log: PartitionLog | None) -> bool:
        """Take a new log into use, or note that it could not be created; whether it is in use.

        It is not if its disk has failed meanwhile.
        """
        if log is None or new.parent in self.failed:
            self._log_counts[new.parent] -= 1
            if log is not None:
                self.unreachable_topics.add(new.topic_id)
            return False
        self._add(log, new.topic_id)
        return True

    def largest_producer_id(self) -> int:
        """The largest producer id that a log knows, or -1."""
        return max((max(log.producers.states, default=-1) for log in self._logs.values()), default=-1)

    def topic_id(self, topic: str, partition: int) -> uuid.UUID | None:
        """The topic id that the partition's log was created under; None when it has none."""
        return self._topic_ids.get((topic, partition))

    def delete(self, topic: str, partition: int) -> None:
        """Drop a partition's log: at once from view, from the disk after `file.delete.delay.ms`.

        Nothing happens when there is none.

        Raises:
            StorageError: the disk failed; the log is still there.
        """
        doomed = self.begin_deletion(topic, partition)
        if doomed is not None:
            try:
                doomed.log.delete()
            except StorageError:
                self.finish_deletion(doomed, is_deleted=False)
                raise
            self.finish_deletion(doomed, is_deleted=True)

    def begin_deletion(self, topic: str, partition: int) -> DoomedLog | None:
        """Take a log out of view, if there is one.

        `PartitionLog.delete` deletes it, in any thread. `finish_deletion` has to be called then, and no other
        log of the partition may be created meanwhile.
        """
        log = self._logs.get((topic, partition))
        if log is None:
            return None
        doomed = DoomedLog(log, self._topic_ids[topic, partition])
        self._take_out(topic, partition)
        return doomed

    def finish_deletion(self, doomed: DoomedLog, *, is_deleted: bool) -> None:
        """Forget a log that was deleted; bring one back that the disk kept, unless the disk has failed."""
        log = doomed.log
        if is_deleted:
            self.high_watermarks.pop((log.topic, log.partition), None)
        elif log.directory.parent in self.failed:
            self.unreachable_topics.add(doomed.topic_id)
        else:
            self._log_counts[log.directory.parent] += 1
            self._add(log, doomed.topic_id)

    def set_aside(self, topic: str, partition: int) -> None:
        """Take a log out of use that the cluster does not know here; its files stay, under another name.

        Raises:
            StorageError: the disk failed; the log is still there.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            kept = log.set_aside()
            self._take_out(topic, partition)
            self.high_watermarks.pop((topic, partition), None)
            _report_set_aside(kept)

    def _add(self, log: PartitionLog, topic_id: uuid.UUID | None) -> None:
        key = log.topic, log.partition
        self._logs[key] = log
        self._topic_ids[key] = topic_id
        directory = log.directory.parent
        log.write_truncations = lambda truncated: self._write_truncations(directory, (truncated,))
        log.disk_failed = partial(self._on_failure, directory)

    def _take_out(self, topic: str, partition: int) -> None:
        log = self._logs.pop((topic, partition))
        del self._topic_ids[topic, partition]
        self._log_counts[log.directory.parent] -= 1

    # Checkpoints

    def write_truncations(self) -> None:
        """Make the truncations of all logs durable. Any thread may call it.

        Raises:
            StorageError: a disk failed or is full; those on the others are durable.
        """

        def write(directory: Path) -> None:
            logs = [log for _, log in self._logs_in(directory)]
            self._write_truncations(
                directory, [log for log in logs if log.truncations_written != log.truncation_count]
            )

        self._in_each_directory(write)

    def _write_truncations(self, directory: Path, truncated: Sequence[PartitionLog]) -> None:
        """Write the leader epochs of these logs in `directory`, and the checkpoints if they need it."""
        # Counted before anything is read: what is truncated after that waits for the next time.
        counts = [log.truncation_count for log in truncated]
        for log in truncated:
            log.write_epochs()
        if any(log.last_lowering > log.truncations_written for log in truncated):
            self._checkpoint(directory, checkpoints.RECOVERY_POINTS, _recovery_point)
            self._checkpoint(directory, checkpoints.FIRST_DIRTY_OFFSETS, _first_dirty_offset)
        for log, count in zip(truncated, counts, strict=True):
            log.truncations_written = max(log.truncations_written, count)

    def checkpoint_recovery_points(self) -> None:
        """Write down what is flushed. Any thread may call it. Raises StorageError."""
        self._checkpoint_all(checkpoints.RECOVERY_POINTS, _recovery_point)

    def checkpoint_log_start_offsets(self) -> None:
        """Write down where logs start. Any thread may call it. Raises StorageError."""
        self._checkpoint_all(checkpoints.LOG_START_OFFSETS, _log_start_offset)

    def checkpoint_first_dirty_offsets(self) -> None:
        """Write down up to where logs are compacted. Any thread may call it. Raises StorageError."""
        self._checkpoint_all(checkpoints.FIRST_DIRTY_OFFSETS, _first_dirty_offset)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write down these high watermarks. Any thread may call it. Raises StorageError."""
        self._in_each_directory(lambda directory: self._write_high_watermarks(directory, high_watermarks))

    def checkpoint_tree_position(self, position: TreePosition | None) -> None:
        """Write down how far ZooKeeper's tree was read. Any thread may call it. Raises StorageError."""
        self._in_each_directory(lambda directory: self._write_tree_position(directory, position))

    def _write_tree_position(self, directory: Path, position: TreePosition | None) -> None:
        """Write a position that is later than the one that was written: a restored tree is behind it."""
        known = self._tree_positions.get(directory)
        if position is not None and (known is None or position > known):
            checkpoints.write_tree_position(directory, position)
            self._tree_positions[directory] = position

    def _checkpoint_all(self, name: str, value_of: Callable[[PartitionLog], int]) -> None:
        self._in_each_directory(lambda directory: self._checkpoint(directory, name, value_of))

    def _in_each_directory(self, write: Callable[[Path], None]) -> None:
        """Write into each data directory, though others are full. Raises the first StorageError."""
        failures: list[StorageError] = []
        for directory in self.usable_directories:
            try:
                write(directory)
            except OSError as error:
                failures.append(self._checkpoint_failed(directory, error))
        if failures:
            raise failures[0]

    def _checkpoint_failed(self, directory: Path, error: OSError) -> StorageError:
        failure = storage_error(directory, "writing a checkpoint", error)
        if failure.is_failure:
            self._on_failure(directory)
        return failure

    def _checkpoint(self, directory: Path, name: str, value_of: Callable[[PartitionLog], int]) -> None:
        with self._checkpoint_lock:
            self._write(directory, name, {key: value_of(log) for key, log in self._logs_in(directory)})

    def _write_high_watermarks(self, directory: Path, values: Mapping[TopicPartition, int]) -> None:
        with self._checkpoint_lock:
            offsets = {key: values[key] for key, _ in self._logs_in(directory) if key in values}
            self._write(directory, checkpoints.HIGH_WATERMARKS, offsets)

    def _forget_earlier(self, directory: Path, created: TopicPartition) -> None:
        """Remove what checkpoints say of deleted logs, if one of them is about to be `created` again.

        After a crash the new log would begin where the earlier one did, without the records before.
        """
        with self._checkpoint_lock:
            for name in checkpoints.OF_OFFSETS:
                offsets = self._checkpoints.get((directory, name), {})
                if created in offsets:
                    of_logs = {key: offset for key, offset in offsets.items() if key in self._logs}
                    try:
                        self._write(directory, name, of_logs)
                    except OSError as error:
                        raise self._checkpoint_failed(directory, error) from error

    def _write(self, directory: Path, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        checkpoints.write_offsets(directory, name, offsets)
        self._checkpoints[directory, name] = offsets

    def _logs_in(self, directory: Path) -> list[tuple[TopicPartition, PartitionLog]]:
        # list() takes its copy in one step of the interpreter, whatever the loop adds meanwhile.
        return [(key, log) for key, log in list(self._logs.items()) if log.directory.parent == directory]


def _report_set_aside(path: Path) -> None:
    logger.warning("log of an unknown topic set aside; remove it if it is not needed", path=str(path))


def _write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    try:
        directory.mkdir(exist_ok=True)
        checkpoints.write_topic_id(directory, topic_id)
    except OSError as error:
        raise storage_error(directory, "creating the log", error) from error


def _recovery_point(log: PartitionLog) -> int:
    return log.recovery_point


def _first_dirty_offset(log: PartitionLog) -> int:
    return log.first_dirty_offset


def _log_start_offset(log: PartitionLog) -> int:
    return log.log_start_offset
