"""All the logs of this broker, and the files beside them in its data directories.

Lives here: which directory holds which log, start-up and shutdown, checkpoints of all logs. Must not: what is
in a log, and when anything is flushed or deleted (the owner asks).

A data directory holds one directory per log, and
    meta.properties                        version=0, broker.id, cluster.id: whose data this is
    .lock                                  locked while a broker runs on the directory
    .kafka_cleanshutdown                   written last by a clean stop, removed at start
    recovery-point-offset-checkpoint       what is flushed, per partition
    log-start-offset-checkpoint            first readable offset, per partition
    replication-offset-checkpoint          high watermark, per partition
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from mainstem_broker.config import TopicConfig
from mainstem_broker.errors import InconsistentTopicId, InvalidSetting, StartupError, StorageError
from mainstem_broker.log import checkpoints
from mainstem_broker.log.checkpoints import TopicPartition
from mainstem_broker.log.deletion import DELETED_DIRECTORY_SUFFIX, ScheduleUnlink, unlink_all
from mainstem_broker.log.files import fsync_directory, storage_error
from mainstem_broker.log.partition_log import PartitionLog, parse_directory_name

logger = structlog.get_logger(__name__)

_LOCK: Final = ".lock"
_CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


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
        """Take the settings; nothing is touched yet.

        Args:
            directories: `log.dirs`, without repetition.
            broker_id: must be the one in each directory's meta.properties.
            recovery_threads_per_directory: `num.recovery.threads.per.data.dir`, asked when it counts: what is
                set for it while brokers run is known only after this.
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
        self._locks: list[int] = []
        self._checkpoint_lock = threading.Lock()
        self.failed: set[Path] = set()
        """Data directories that are not used any more, until the next start."""
        self.stopped_cleanly = False
        """Whether every directory was closed cleanly the last time; known after `load_all`."""

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
                self._lock(directory)
                self._check_owner(directory, cluster_id)
            except OSError as error:
                self.failed.add(directory)
                logger.error("data directory failed", path=str(directory), reason=error.strerror)
                if len(self.failed) == len(self.directories):
                    raise StartupError(
                        f"The data directory {directory} cannot be used ({error.strerror}): "
                        "make it writable, or name another in log.dirs."
                    ) from error

    def _lock(self, directory: Path) -> None:
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StartupError(
                    f"Another broker runs on the data directory {directory}: "
                    "stop it first, or name another directory in log.dirs."
                ) from None
            raise
        self._locks.append(descriptor)

    def _check_owner(self, directory: Path, cluster_id: str) -> None:
        try:
            properties = checkpoints.read_meta_properties(directory)
        except InvalidSetting as error:
            raise StartupError(
                f"{directory / checkpoints.META_PROPERTIES} cannot be read ({error}): restore it, or "
                "remove it if this directory surely belongs to this broker."
            ) from error
        if not properties:
            checkpoints.write_meta_properties(directory, self._broker_id, cluster_id)
            return
        for name, ours in (("version", "0"), ("broker.id", str(self._broker_id)), ("cluster.id", cluster_id)):
            theirs = properties.get(name, ours)
            if theirs != ours:
                raise StartupError(
                    f"The data directory {directory} has {name} {theirs}, but this broker's is {ours}: "
                    "name the directory that belongs to it in log.dirs, or correct the setting."
                )

    def load_all(
        self,
        config_of: Callable[[str], TopicConfig],
        now_ms: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open every log there is, recovering those that were not closed cleanly, directories in parallel.

        `config_of` answers a topic's settings. `progress` is told how many of how many logs are open.

        A directory whose disk fails is left out, with its logs.

        Raises:
            StorageError: a disk is full, or the last one failed.
            StartupError: two directories hold the same partition.
        """
        recovery_points: dict[TopicPartition, int] = {}
        start_offsets: dict[TopicPartition, int] = {}
        found: list[tuple[Path, bool]] = []
        self.stopped_cleanly = not self.failed
        for directory in self.usable_directories:
            try:
                clean = self._take_clean_shutdown_mark(directory)
                self.stopped_cleanly &= clean
                logs = self._log_directories(directory)
            except OSError as error:
                self._leave_out(directory, storage_error(directory, "looking for logs", error))
                continue
            found += [(path, clean) for path in logs]
            recovery_points.update(checkpoints.read_offsets(directory, checkpoints.RECOVERY_POINTS))
            start_offsets.update(checkpoints.read_offsets(directory, checkpoints.LOG_START_OFFSETS))
            self.high_watermarks.update(checkpoints.read_offsets(directory, checkpoints.HIGH_WATERMARKS))
        self._refuse_duplicates([path for path, _ in found])

        def open_log(path: Path, clean: bool) -> PartitionLog:
            key = parse_directory_name(path.name)
            return PartitionLog.open(
                path,
                configs[key[0]],
                clean_shutdown=clean,
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=start_offsets.get(key, 0),
                now_ms=now_ms,
                schedule_unlink=self._schedule_unlink,
            )

        topics = {parse_directory_name(path.name)[0] for path, _ in found}
        configs = {topic: config_of(topic) for topic in topics}
        with self._threads() as pool:
            futures = {pool.submit(open_log, path, clean): path.parent for path, clean in found}
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    try:
                        self._add(future.result())
                    except StorageError as error:
                        self._leave_out(futures[future], error)
                    if progress:
                        progress(done, len(futures))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for directory in self.failed:
            self.fail(directory)

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
        """Take a directory out of use; answer which partitions' logs are gone with it.

        From now on a stop does not count as clean: what this broker had may come back without its logs.
        """
        self.failed.add(directory)
        gone = [key for key, _ in self._logs_in(directory)]
        for key in gone:
            del self._logs[key]
            self.high_watermarks.pop(key, None)
        return gone

    def _take_clean_shutdown_mark(self, directory: Path) -> bool:
        """Whether the last stop was clean; from here on it no longer counts as such."""
        try:
            (directory / _CLEAN_SHUTDOWN).unlink()
        except FileNotFoundError:
            return False
        fsync_directory(directory)
        return True

    def _log_directories(self, directory: Path) -> list[Path]:
        """The directories of logs in a data directory, after removing those that were being deleted."""
        logs: list[Path] = []
        for path in sorted(path for path in directory.iterdir() if path.is_dir()):
            if path.name.endswith(DELETED_DIRECTORY_SUFFIX):
                unlink_all([path])
                continue
            try:
                parse_directory_name(path.name)
            except ValueError:
                logger.warning("directory is no log and is left alone", path=str(path))
                continue
            logs.append(path)
        return logs

    def _threads(self) -> ThreadPoolExecutor:
        """For work on every log: so many for each data directory."""
        return ThreadPoolExecutor(max(1, self._recovery_threads() * len(self.directories)))

    def _refuse_duplicates(self, paths: Sequence[Path]) -> None:
        places: dict[str, Path] = {}
        for path in paths:
            other = places.setdefault(path.name, path)
            if other is not path:
                raise StartupError(
                    f"Both {other} and {path} hold the same partition: move the one that is out of date away."
                )

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Close every log, write the checkpoints, and say that this was a clean stop, in this order.

        A directory with a log that could not be closed is not marked, so the next start recovers it.
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
                if not self.failed:
                    checkpoints.write_atomically(directory / _CLEAN_SHUTDOWN, json.dumps({"version": 0}))
            except OSError as error:
                logger.error("data directory is not closed cleanly", path=str(directory), why=str(error))
        self.release()

    def release(self) -> None:
        """Let go of the data directories without writing anything, as a killed process would."""
        self._logs.clear()
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    # Logs

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: TopicConfig, now_ms: int
    ) -> PartitionLog:
        """The log of a partition; a new one goes to the directory that holds the fewest.

        Raises:
            InconsistentTopicId: the log there is belongs to an earlier topic of the same name.
            StorageError: the disk failed or is full.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            known_id = checkpoints.read_topic_id(log.directory)
            if known_id is None:
                self._write_topic_id(log.directory, topic_id)
            elif known_id != topic_id:
                raise InconsistentTopicId(
                    f"The log {log.directory.name} belongs to the topic with id {known_id}, not {topic_id}: "
                    "delete it first."
                )
            return log
        directory = self._emptiest_directory() / f"{topic}-{partition}"
        was_there = directory.exists()
        try:
            self._write_topic_id(directory, topic_id)
            log = PartitionLog.open(
                directory,
                config,
                clean_shutdown=True,
                recovery_point=0,
                log_start_offset=0,
                now_ms=now_ms,
                schedule_unlink=self._schedule_unlink,
            )
        except StorageError:
            if not was_there:
                # The next try may choose another directory, and a start refuses a partition that is in two.
                unlink_all([directory])
            raise
        self._add(log)
        return log

    def topic_id(self, topic: str, partition: int) -> uuid.UUID | None:
        """The topic id that the partition's log was created under; None when it has none."""
        log = self._logs.get((topic, partition))
        return checkpoints.read_topic_id(log.directory) if log else None

    def delete(self, topic: str, partition: int) -> None:
        """Drop a partition's log: at once from view, from the disk after `file.delete.delay.ms`.

        Nothing happens when there is none.

        Raises:
            StorageError: the disk failed; the log is still there.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            log.delete()
            del self._logs[topic, partition]
            self.high_watermarks.pop((topic, partition), None)

    def set_aside(self, topic: str, partition: int) -> None:
        """Take a log out of use that belongs to no topic; its files stay, under another name.

        Raises:
            StorageError: the disk failed; the log is still there.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            kept = log.set_aside()
            del self._logs[topic, partition]
            self.high_watermarks.pop((topic, partition), None)
            logger.warning("log of an unknown topic set aside; remove it if nobody misses it", path=str(kept))

    def _add(self, log: PartitionLog) -> None:
        self._logs[log.topic, log.partition] = log
        log.recovery_point_lowered = self._recovery_point_lowered_in(log.directory.parent)
        log.disk_failed = partial(self._on_failure, log.directory.parent)

    def _recovery_point_lowered_in(self, directory: Path) -> Callable[[], None]:
        return lambda: self._checkpoint(directory, checkpoints.RECOVERY_POINTS, _recovery_point)

    def _emptiest_directory(self) -> Path:
        usable = self.usable_directories
        if len(usable) == 1:
            return usable[0]
        counts = dict.fromkeys(usable, 0)
        for log in self._logs.values():
            counts[log.directory.parent] += 1
        return min(usable, key=lambda directory: counts[directory])

    def _write_topic_id(self, directory: Path, topic_id: uuid.UUID) -> None:
        try:
            directory.mkdir(exist_ok=True)
            checkpoints.write_topic_id(directory, topic_id)
        except OSError as error:
            raise storage_error(directory, "creating the log", error) from error

    # Checkpoints

    def checkpoint_recovery_points(self) -> None:
        """Write down what is flushed. Any thread may call it. Raises StorageError."""
        self._checkpoint_all(checkpoints.RECOVERY_POINTS, _recovery_point)

    def checkpoint_log_start_offsets(self) -> None:
        """Write down where logs start. Any thread may call it. Raises StorageError."""
        self._checkpoint_all(checkpoints.LOG_START_OFFSETS, _log_start_offset)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write down what their owner knows. Any thread may call it. Raises StorageError."""
        for directory in self.usable_directories:
            try:
                self._write_high_watermarks(directory, high_watermarks)
            except OSError as error:
                raise self._checkpoint_failed(directory, error) from error

    def _checkpoint_all(self, name: str, value_of: Callable[[PartitionLog], int]) -> None:
        for directory in self.usable_directories:
            try:
                self._checkpoint(directory, name, value_of)
            except OSError as error:
                raise self._checkpoint_failed(directory, error) from error

    def _checkpoint_failed(self, directory: Path, error: OSError) -> StorageError:
        failure = storage_error(directory, "writing a checkpoint", error)
        if failure.is_failure:
            self._on_failure(directory)
        return failure

    def _checkpoint(self, directory: Path, name: str, value_of: Callable[[PartitionLog], int]) -> None:
        with self._checkpoint_lock:
            offsets = {key: value_of(log) for key, log in self._logs_in(directory)}
            checkpoints.write_offsets(directory, name, offsets)

    def _write_high_watermarks(self, directory: Path, values: Mapping[TopicPartition, int]) -> None:
        with self._checkpoint_lock:
            offsets = {key: values[key] for key, _ in self._logs_in(directory) if key in values}
            checkpoints.write_offsets(directory, checkpoints.HIGH_WATERMARKS, offsets)

    def _logs_in(self, directory: Path) -> list[tuple[TopicPartition, PartitionLog]]:
        # list() takes its copy in one step of the interpreter, whatever the loop adds meanwhile.
        return [(key, log) for key, log in list(self._logs.items()) if log.directory.parent == directory]


def _recovery_point(log: PartitionLog) -> int:
    return log.recovery_point


def _log_start_offset(log: PartitionLog) -> int:
    return log.log_start_offset
