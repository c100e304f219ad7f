"""Looking into the files of a log, batch by batch, and checking them.

In scope: what `mainstem log dump` shows, as values, and every check of a segment against its indexes. Out of
scope: checks of a log as a whole (`verification`), printing, repairing, and anything a running broker needs.
Files are only read, so a log may be looked at while its broker runs; the newest index entries are in that
broker's memory then.

The checks of the indexes are those of Apache Kafka's DumpLogSegments (`--deep-iteration`,
`--verify-index-only`, `--index-sanity-check`).
"""

from __future__ import annotations

import itertools
import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mainstem_broker.config.setting import INT32_MAX, INT64_MAX
from mainstem_broker.errors import MainstemError, ProtocolError
from mainstem_broker.log.files import LogFile
from mainstem_broker.log.index import OffsetIndex, TimeIndex
from mainstem_broker.log.producer_snapshot_format import decode_snapshot
from mainstem_broker.log.producer_snapshots import SNAPSHOT_SUFFIX
from mainstem_broker.log.scanning import scan_batches
from mainstem_broker.log.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, is_named_by_offset
from mainstem_broker.log.transaction_index import AbortedTransaction, TransactionIndex, is_sound
from mainstem_broker.protocol.batches import BatchHeader, crc_matches, read_records
from mainstem_broker.protocol.markers import read_marker
from mainstem_broker.protocol.records import Record


class NotALog(MainstemError):
    """The path holds no segment; the message says so in a sentence for people."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file; `position` is a byte of the file, where that says where."""

    path: Path
    position: int | None
    sentence: str

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        return f"{self.path}{place}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class ProducerDump:
    """A producer in a snapshot: its last batch (-1 where it has none), and when it was written (ms)."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class SnapshotDump:
    """One snapshot of producers. `producers` is empty, and `problems` says why, when it is broken."""

    def __init__(self, path: Path) -> None:
        """Use `dump_snapshot`."""
        self.path = path
        self.problems: list[Problem] = []
        self.producers: list[ProducerDump] = []
        try:
            states = decode_snapshot(path.read_bytes()).states
        except ValueError as error:
            self.problems.append(Problem(path, None, f"{error}; a restart does without it"))
            return
        for producer_id, state in states.items():
            last = state.batches[-1] if state.batches else None
            self.producers.append(
                ProducerDump(
                    producer_id,
                    state.epoch,
                    -1 if last is None else (last.last_sequence - last.offset_delta) & INT32_MAX,
                    state.last_sequence,
                    -1 if last is None else last.last_offset,
                    0 if last is None else last.offset_delta,
                    state.last_timestamp_ms,
                    state.coordinator_epoch,
                    state.transaction_first_offset,
                )
            )


class TransactionIndexDump:
    """The index of a segment's aborted transactions; `problems` says why it cannot be one, if it cannot."""

    def __init__(self, path: Path) -> None:
        """Use `dump_transaction_index`."""
        self.path = path
        self.problems: list[Problem] = []
        content = path.read_bytes()
        whole_bytes = len(content) // TransactionIndex.ENTRY.size * TransactionIndex.ENTRY.size
        self.aborted = [
            AbortedTransaction(*entry)
            for _, *entry in TransactionIndex.ENTRY.iter_unpack(content[:whole_bytes])
        ]
        if not is_sound(content, int(path.stem), INT64_MAX):
            self.problems.append(Problem(path, None, "the index is broken; a restart rebuilds it"))


@dataclass(frozen=True, slots=True)
class BatchDump:
    """One batch. Timestamps are ms; `codec` is a name; `records` is None unless requested, or if unreadable.

    `marker` is "commit" or "abort" where the batch ends a transaction, by the coordinator of
    `coordinator_epoch`.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    record_count: int
    partition_leader_epoch: int
    codec: str
    crc: int
    crc_valid: bool
    base_timestamp: int
    max_timestamp: int
    timestamp_type: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    has_delete_horizon: bool
    marker: str | None
    coordinator_epoch: int
    records: tuple[Record, ...] | None


class OffsetEntry(NamedTuple):
    """An entry of an offset index, with its offset made absolute."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index, with its offset made absolute."""

    timestamp: int
    offset: int


class SegmentDump:
    """One segment, to be iterated for its batches. `problems` fills meanwhile and is complete at the end."""

    def __init__(self, path: Path, *, records: bool, verify: bool) -> None:
        """Use `dump_segment` or `dump_log`."""
        self.path = path
        self.base_offset = int(path.stem)
        self.size_bytes = path.stat().st_size
        self.problems: list[Problem] = []
        self._records = records
        self._verify = verify

    def __iter__(self) -> Iterator[BatchDump]:
        self.problems.clear()
        file = LogFile(self.path, read_only=True)
        size_bytes = os.fstat(file.descriptor).st_size
        end = 0
        expected_offset = self.base_offset
        epoch = -1
        checks = self._index_checks() if self._verify else []
        try:
            for position, header, batch in scan_batches(file, 0, size_bytes):
                dumped = self._dump(position, header, batch)
                if header.base_offset < expected_offset or header.last_offset_delta < 0:
                    self._problem(
                        position,
                        f"offset {header.base_offset} follows {expected_offset - 1}: offsets must rise",
                    )
                if header.partition_leader_epoch < epoch:
                    self._problem(position, f"leader epoch {header.partition_leader_epoch} follows {epoch}")
                for check in checks:
                    check.see(dumped)
                yield dumped
                expected_offset = max(expected_offset, header.next_offset)
                epoch = max(epoch, header.partition_leader_epoch)
                end = position + header.size_bytes
        except ProtocolError as error:
            self._problem(end, f"there is no batch here, nor can any after it be found: {error}")
        else:
            if end < size_bytes:
                self._problem(end, f"the last batch is incomplete: {size_bytes - end} bytes are left")
        for check in checks:
            self.problems += check.finish()

    def offset_entries(self) -> list[OffsetEntry]:
        """The segment's offset index, up to space that was never written; empty when there is no file."""
        entries = _read_entries(self.path.with_suffix(OffsetIndex.SUFFIX), OffsetIndex.ENTRY)
        return [OffsetEntry(self.base_offset + offset, position) for offset, position in entries]

    def time_entries(self) -> list[TimeEntry]:
        """The segment's time index, up to space that was never written; empty when there is no file."""
        entries = _read_entries(self.path.with_suffix(TimeIndex.SUFFIX), TimeIndex.ENTRY)
        return [TimeEntry(timestamp, self.base_offset + offset) for timestamp, offset in entries]

    def _dump(self, position: int, header: BatchHeader, batch: memoryview) -> BatchDump:
        crc_valid = crc_matches(header, batch)
        if not crc_valid:
            self._problem(position, f"the batch of offset {header.base_offset} does not match its checksum")
        records = None
        marker = read_marker(header, batch) if crc_valid else None
        try:
            codec = header.codec.name.lower()
        except ProtocolError:
            codec = f"unknown ({header.attributes & 0x07})"
        try:
            if self._records:
                records = tuple(read_records(header, batch))
                if crc_valid:
                    self._check_records(position, header, records)
        except ProtocolError as error:
            self._problem(position, f"the batch of offset {header.base_offset} cannot be read: {error}")
        return BatchDump(
            position,
            header.size_bytes,
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.partition_leader_epoch,
            codec,
            header.crc,
            crc_valid,
            header.base_timestamp,
            header.max_timestamp,
            "LogAppendTime" if header.log_append_time else "CreateTime",
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_transactional,
            header.is_control,
            header.has_delete_horizon,
            None if marker is None else "commit" if marker.is_commit else "abort",
            -1 if marker is None else marker.coordinator_epoch,
            records,
        )

    def _check_records(self, position: int, header: BatchHeader, records: Sequence[Record]) -> None:
        offsets = [record.offset for record in records]
        if any(later <= earlier for earlier, later in itertools.pairwise(offsets)) or (
            offsets and not header.base_offset <= offsets[0] <= offsets[-1] <= header.last_offset
        ):
            self._problem(position, f"the records of offset {header.base_offset} have wrong offsets")
        latest = max((record.timestamp_ms for record in records), default=header.max_timestamp)
        if latest != header.max_timestamp:
            self._problem(
                position, f"the batch says that its latest record is of {header.max_timestamp}, not {latest}"
            )

    def _index_checks(self) -> list[_IndexCheck | _TransactionIndexCheck]:
        for suffix, entry in ((OffsetIndex.SUFFIX, OffsetIndex.ENTRY), (TimeIndex.SUFFIX, TimeIndex.ENTRY)):
            path = self.path.with_suffix(suffix)
            if not path.exists():
                self.problems.append(Problem(path, None, "the index is missing; a restart rebuilds it"))
            elif path.stat().st_size % entry.size:
                self.problems.append(
                    Problem(path, None, f"the size is not a multiple of {entry.size}; a restart rebuilds it")
                )
        return [
            _OffsetIndexCheck(self.path.with_suffix(OffsetIndex.SUFFIX), self.offset_entries()),
            _TimeIndexCheck(self.path.with_suffix(TimeIndex.SUFFIX), self.time_entries()),
            *self._transaction_index_checks(),
        ]

    def _transaction_index_checks(self) -> list[_TransactionIndexCheck]:
        path = self.path.with_suffix(TransactionIndex.SUFFIX)
        return [_TransactionIndexCheck(TransactionIndexDump(path))] if path.exists() else []

    def _problem(self, position: int, sentence: str) -> None:
        self.problems.append(Problem(self.path, position, sentence))


class _IndexCheck:
    """Compares an index with the batches as they go by, in one walk through both.

    The entries are in the order of the batches; `see` looks at those that a batch should hold, `finish` at
    what is left.
    """

    def __init__(self, path: Path, entries: Sequence[tuple[int, int]]) -> None:
        self.problems: list[Problem] = []
        self._path = path
        self._left = deque(enumerate(entries))
        for (_, earlier), (number, later) in itertools.pairwise(self._left):
            if later[0] <= earlier[0] or later[1] <= earlier[1]:
                self._problem(number, "does not rise above the one before it")

    def see(self, batch: BatchDump) -> None:
        raise NotImplementedError

    def finish(self) -> list[Problem]:
        for number, entry in self._left:
            self._no_batch(number, entry)
        return self.problems

    def _no_batch(self, number: int, entry: tuple[int, int]) -> None:
        raise NotImplementedError

    def _problem(self, number: int, sentence: str) -> None:
        self.problems.append(Problem(self._path, None, f"entry {number} {sentence}"))


class _OffsetIndexCheck(_IndexCheck):
    """Every entry is the last offset of the batch that begins at its position."""

    def see(self, batch: BatchDump) -> None:
        while self._left and self._left[0][1][1] <= batch.position:
            number, (offset, position) = self._left.popleft()
            if position < batch.position:
                self._no_batch(number, (offset, position))
            elif offset != batch.last_offset:
                self._problem(
                    number,
                    f"says {offset} for position {position}, but that batch ends with {batch.last_offset}",
                )

    def _no_batch(self, number: int, entry: tuple[int, int]) -> None:
        self._problem(number, f"names position {entry[1]}, where no batch begins")


class _TimeIndexCheck(_IndexCheck):
    """Every entry is the largest timestamp so far, and the last offset of the batch that has it."""

    _largest = -1

    def see(self, batch: BatchDump) -> None:
        self._largest = max(self._largest, batch.max_timestamp)
        while self._left and self._left[0][1][1] <= batch.last_offset:
            number, (timestamp, offset) = self._left.popleft()
            if offset < batch.last_offset:
                self._no_batch(number, (timestamp, offset))
            elif not timestamp == batch.max_timestamp == self._largest:
                self._problem(
                    number,
                    f"says {timestamp} for offset {offset}; that batch has {batch.max_timestamp}, and the "
                    f"largest so far is {self._largest}",
                )

    def _no_batch(self, number: int, entry: tuple[int, int]) -> None:
        self._problem(number, f"names offset {entry[1]}, with which no batch ends")


class _TransactionIndexCheck:
    """Every entry names the abort marker that ends its transaction."""

    def __init__(self, index: TransactionIndexDump) -> None:
        self._index = index
        self._left = deque(enumerate(index.aborted))
        self._problems = list(index.problems)

    def see(self, batch: BatchDump) -> None:
        while self._left and self._left[0][1].last_offset <= batch.last_offset:
            number, entry = self._left.popleft()
            named = entry.last_offset, entry.producer_id, "abort"
            if named != (batch.last_offset, batch.producer_id, batch.marker):
                self._no_marker(number, entry)

    def finish(self) -> list[Problem]:
        for number, entry in self._left:
            self._no_marker(number, entry)
        return self._problems

    def _no_marker(self, number: int, entry: AbortedTransaction) -> None:
        sentence = (
            f"entry {number} names offset {entry.last_offset}, where no abort marker of its producer is"
        )
        self._problems.append(Problem(self._index.path, None, sentence))


def dump_segment(path: Path, *, records: bool = False, verify: bool = False) -> SegmentDump:
    """The segment that `path` belongs to: its `.log`, or one of its indexes.

    With `records` every batch is opened; with `verify` the indexes are checked against the batches. CRCs,
    offsets and leader epochs are always checked.

    Raises:
        NotALog: there is no such segment.
    """
    log_path = path.with_suffix(LOG_SUFFIX)
    if path.suffix not in SEGMENT_SUFFIXES or not is_named_by_offset(path) or not log_path.is_file():
        raise NotALog(f"{path} is no segment: name a .log file, or a directory that holds some.")
    return SegmentDump(log_path, records=records, verify=verify)


def dump_snapshot(path: Path) -> SnapshotDump:
    """The snapshot of producers in a `.snapshot` file.

    Raises:
        NotALog: it is none.
    """
    if not is_snapshot(path):
        raise NotALog(f"{path} is no snapshot of producers: name a .snapshot file of a partition.")
    return SnapshotDump(path)


def dump_transaction_index(path: Path) -> TransactionIndexDump:
    """The index of aborted transactions in a `.txnindex` file.

    Raises:
        NotALog: it is none.
    """
    if not is_transaction_index(path):
        raise NotALog(f"{path} is no index of aborted transactions: name a .txnindex file of a partition.")
    return TransactionIndexDump(path)


def is_transaction_index(path: Path) -> bool:
    """Whether the path has the name of an index of aborted transactions."""
    return path.suffix == TransactionIndex.SUFFIX and is_named_by_offset(path) and path.is_file()


def is_snapshot(path: Path) -> bool:
    """Whether the path has a snapshot's name."""
    return path.suffix == SNAPSHOT_SUFFIX and is_named_by_offset(path) and path.is_file()


def dump_log(path: Path, *, records: bool = False, verify: bool = False) -> list[SegmentDump]:
    """The segments of a log's directory in order, or the one segment that `path` names.

    Arguments are as for `dump_segment`. Iterate each one to see its batches and find its problems.

    Raises:
        NotALog: there is no segment.
    """
    if not path.is_dir():
        return [dump_segment(path, records=records, verify=verify)]
    paths = sorted(segment for segment in path.glob("*" + LOG_SUFFIX) if is_named_by_offset(segment))
    if not paths:
        raise NotALog(f"{path} holds no segment: name the directory of a partition, such as flights-0.")
    return [SegmentDump(segment, records=records, verify=verify) for segment in paths]


def _read_entries(path: Path, entry: struct.Struct) -> list[tuple[int, int]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    entries: list[tuple[int, int]] = []
    for first, second in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if first == second == 0:
            break  # preallocated space
        entries.append((first, second))
    return entries
