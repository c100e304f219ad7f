"""Checking every file of a log, and the checkpoints of a data directory, against the batches.

In scope: what `mainstem log verify` reports beyond a single segment and its indexes (`dump`): segments
against each other, leader epochs, snapshots of producers, the topic's id, offset checkpoints. Must not:
printing and repairing. Files are only read, so a log may be verified while its broker runs; what that broker
has not written to its checkpoints yet is not reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem_broker.config.properties import parse_properties
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.log.checkpoints import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    parse_epochs,
    parse_offsets,
    parse_topic_id,
)
from mainstem_broker.log.dump import (
    BatchDump,
    Problem,
    ProducerDump,
    SnapshotDump,
    dump_log,
    dump_snapshot,
    dump_transaction_index,
    is_snapshot,
    is_transaction_index,
)
from mainstem_broker.log.leader_epochs import EpochCache
from mainstem_broker.log.producer_snapshots import SNAPSHOT_SUFFIX
from mainstem_broker.log.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, is_named_by_offset
from mainstem_broker.protocol.topic_partition import TopicPartition

_OFFSET_CHECKPOINTS: Final = {
    RECOVERY_POINTS: "records that were flushed to the disk are missing",
    HIGH_WATERMARKS: "records that were replicated are missing",
    LOG_START_OFFSETS: "records that were not deleted are missing",
    FIRST_DIRTY_OFFSETS: "records that were compacted are missing",
}
"""What it means that an offset of the checkpoint is behind the end of its log."""


@dataclass(frozen=True, slots=True)
class LogVerification:
    """A log, or one file of it, and everything that is wrong with it; offsets as its segments have them."""

    path: Path
    segments: int
    size_bytes: int
    end_offset: int
    problems: list[Problem]


def verify_log(path: Path) -> LogVerification:
    """Check every file of a log's directory, or the one file that `path` names.

    Raises:
        NotALog: there is no segment, and `path` is no other file of a log.
    """
    if is_snapshot(path):
        return LogVerification(path, 0, path.stat().st_size, 0, dump_snapshot(path).problems)
    if is_transaction_index(path) and not path.with_suffix(LOG_SUFFIX).exists():
        return LogVerification(path, 0, path.stat().st_size, 0, dump_transaction_index(path).problems)
    segments = dump_log(path, records=True, verify=True)
    problems: list[Problem] = []
    checks: list[_LeaderEpochCheck | _SnapshotCheck] = []
    if path.is_dir():
        problems += [*_lone_indexes(path), *_topic_id_problems(path)]
        checks = [_LeaderEpochCheck(path / LEADER_EPOCHS), _SnapshotCheck(path, segments[0].base_offset)]
    end_offset = segments[0].base_offset
    for segment in segments:
        if segment.base_offset < end_offset:
            problems.append(
                Problem(segment.path, None, f"it begins below {end_offset}, where the one before ends")
            )
        end_offset = max(end_offset, segment.base_offset)
        for batch in segment:
            for check in checks:
                check.see(batch)
            end_offset = max(end_offset, batch.last_offset + 1)
        problems += segment.problems
    for check in checks:
        problems += check.finish(end_offset)
    return LogVerification(
        path, len(segments), sum(segment.size_bytes for segment in segments), end_offset, problems
    )


def _lone_indexes(directory: Path) -> list[Problem]:
    return [
        Problem(path, None, "the index has no segment; a restart removes it")
        for suffix in SEGMENT_SUFFIXES
        if suffix != LOG_SUFFIX
        for path in sorted(directory.glob("*" + suffix))
        if is_named_by_offset(path) and not path.with_suffix(LOG_SUFFIX).exists()
    ]


def _topic_id_problems(directory: Path) -> list[Problem]:
    path = directory / PARTITION_METADATA
    try:
        parse_topic_id(path)
    except ValueError as error:
        return [Problem(path, None, _reason(error))]
    return []


def _reason(error: ValueError) -> str:
    return "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)


class DataDirectoryCheck:
    """The files of a data directory itself: offset checkpoints, and whose directory it is.

    They are read at once, and compared with the logs in `finish`: a running broker goes on writing both, and
    the ends of logs only rise. Logs that a checkpoint names and that are not there were deleted.
    """

    def __init__(self, directory: Path) -> None:
        self._problems = _owner_problems(directory / META_PROPERTIES)
        self._offsets: dict[Path, dict[TopicPartition, int]] = {}
        for name in _OFFSET_CHECKPOINTS:
            path = directory / name
            try:
                self._offsets[path] = parse_offsets(path)
            except ValueError as error:
                self._problems.append(Problem(path, None, f"{_reason(error)}; a restart does without it"))

    def finish(self, end_offsets: Mapping[TopicPartition, int]) -> list[Problem]:
        """What is wrong; `end_offsets` are those of the logs in the directory."""
        for path, offsets in self._offsets.items():
            for (topic, partition), offset in offsets.items():
                end_offset = end_offsets.get((topic, partition), offset)
                if offset > end_offset:
                    self._problems.append(
                        Problem(
                            path,
                            None,
                            f"it has offset {offset} for {topic}-{partition}, which ends at {end_offset}:"
                            f" {_OFFSET_CHECKPOINTS[path.name]}",
                        )
                    )
        return self._problems


def _owner_problems(path: Path) -> list[Problem]:
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        return [Problem(path, None, "it is not text; no broker starts with it")]
    except InvalidSetting as error:
        return [Problem(path, None, f"{error}; no broker starts with it")]
    return [] if "cluster.id" in properties else [Problem(path, None, "it does not name a cluster")]


class _LeaderEpochCheck:
    """The epochs of batches are those of the checkpoint, as far as that goes.

    It may end before the log does: it is written now and then, and after a crash completed from the batches.
    Batches below its first entry are below the log's start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[Problem] = []
        self._epochs = EpochCache()
        # Reported once for a run of batches, not for each of them.
        self._mismatch: tuple[int, int] | None = None
        try:
            entries = parse_epochs(path)
        except ValueError as error:
            self._problem(f"{_reason(error)}; a restart does without it")
            return
        for earlier, later in itertools.pairwise(entries):
            if later.epoch <= earlier.epoch or later.start_offset <= earlier.start_offset:
                self._problem(
                    f"epoch {later.epoch} from {later.start_offset} on follows epoch {earlier.epoch} from"
                    f" {earlier.start_offset} on: both must rise"
                )
                return
        self._epochs = EpochCache(entries)

    def see(self, batch: BatchDump) -> None:
        offset, batch_epoch = batch.base_offset, batch.partition_leader_epoch
        epoch = self._epochs.epoch_of(offset)
        is_not_written_yet = epoch == self._epochs.latest_epoch < batch_epoch
        if epoch in (batch_epoch, -1) or is_not_written_yet or self._mismatch == (epoch, batch_epoch):
            return
        self._mismatch = epoch, batch_epoch
        self._problem(f"it has epoch {epoch} for offset {offset}, but the batch there has {batch_epoch}")

    def finish(self, end_offset: int) -> list[Problem]:
        if self._epochs.entries and self._epochs.entries[-1].start_offset > end_offset:
            last = self._epochs.entries[-1]
            self._problem(
                f"epoch {last.epoch} begins at {last.start_offset}, but the log ends at {end_offset}"
            )
        return self._problems

    def _problem(self, sentence: str) -> None:
        self._problems.append(Problem(self._path, None, sentence))


class _SnapshotCheck:
    """A snapshot only knows what was written before the offset in its name, and by whom.

    The last offset of a producer has to be one of its own in the log, unless compaction or retention has
    removed it.
    """

    def __init__(self, directory: Path, start_offset: int) -> None:
        self._problems: list[Problem] = []
        # By last offset: the snapshots that have it, and what they say of it.
        self._expected: dict[int, list[tuple[Path, ProducerDump]]] = {}
        for path in sorted(directory.glob("*" + SNAPSHOT_SUFFIX)):
            if is_snapshot(path):
                snapshot = dump_snapshot(path)
                self._problems += snapshot.problems
                self._take(snapshot, start_offset)

    def _take(self, snapshot: SnapshotDump, start_offset: int) -> None:
        offset = int(snapshot.path.stem)
        for producer in snapshot.producers:
            latest = max(producer.last_offset, producer.transaction_first_offset)
            if latest >= offset:
                self._problem(
                    snapshot.path, f"producer {producer.producer_id} has offset {latest}, not before {offset}"
                )
            elif producer.last_offset >= start_offset:
                self._expected.setdefault(producer.last_offset, []).append((snapshot.path, producer))

    def see(self, batch: BatchDump) -> None:
        for path, producer in self._expected.pop(batch.last_offset, ()):
            if producer.producer_id != batch.producer_id:
                self._problem(
                    path,
                    f"offset {batch.last_offset} is of producer {producer.producer_id}, but the log has it"
                    f" of {batch.producer_id}",
                )

    def finish(self, end_offset: int) -> list[Problem]:
        for offset, snapshots in sorted(self._expected.items()):
            if offset >= end_offset:
                for path, producer in snapshots:
                    self._problem(
                        path,
                        f"producer {producer.producer_id} has offset {offset}, but the log ends at"
                        f" {end_offset}",
                    )
        return self._problems

    def _problem(self, path: Path, sentence: str) -> None:
        self._problems.append(Problem(path, None, sentence))
