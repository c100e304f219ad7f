"""`mainstem log dump`: batches, entries of indexes, producers of snapshots, and aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import typer

from mainstem.cli.log_files import (
    fail_if_damaged,
    logs_under,
    reading,
    report,
    unless_deleted,
    write_lines,
    writing_lines,
)
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Output, OutputFormat
from mainstem.records.text import header_value, put_bytes, safe
from mainstem.times import text_of_ms

if TYPE_CHECKING:
    from mainstem_broker.log.dump import (
        BatchDump,
        OffsetEntry,
        ProducerDump,
        SegmentDump,
        SnapshotDump,
        TimeEntry,
        TransactionIndexDump,
    )
    from mainstem_broker.protocol.records import Record

# A segment can have 100,000 batches. Lines are therefore written while the file is read, with fixed columns,
# and a terminal that is too narrow for them gets two lines for each batch.
_LINE_WIDTH: Final = 118
_BATCH_LINE: Final = "{:>12}  {:>12}  {:>10}  {:>7}  {:>8}  {:<6}  {:>5}  {:<24}  {}\n"
_BATCH_TITLES: Final = _BATCH_LINE.format(
    "First offset",
    "Last offset",
    "Position",
    "Records",
    "Bytes",
    "Codec",
    "Epoch",
    "Latest timestamp",
    "Notes",
)
_PRODUCER_LINE: Final = "{:>12}  {:>5}  {:>14}  {:>13}  {:>12}  {:<24}  {}\n"
_PRODUCER_TITLES: Final = _PRODUCER_LINE.format(
    "Producer", "Epoch", "First sequence", "Last sequence", "Last offset", "Last append", "Notes"
)
_ENTRY_LINE: Final = "{:>24}  {:>12}\n"
_ABORTED_LINE: Final = "{:>12}  {:>12}  {:>12}  {:>18}\n"
_ABORTED_TITLES: Final = _ABORTED_LINE.format("Producer", "First offset", "Last offset", "Last stable offset")


def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Segments, their indexes, producer snapshots, indexes of aborted transactions, partition"
            " folders, or folders above them.",
        ),
    ],
    records: Annotated[bool, typer.Option("--records", help="Show each batch's records.")] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the batches in a partition's files, the entries of an .index or .timeindex file, the producers in
    a .snapshot file, or the aborted transactions in a .txnindex file.

    Exits with 1 if a batch or a file is damaged. JSON output has one object per line.
    """
    out = Output(output)
    problem_count = 0
    with writing_lines():
        for path in paths:
            for log_path in logs_under(path):
                with unless_deleted(log_path), reading(log_path):
                    problem_count += _dump(out, log_path, records)
    fail_if_damaged(problem_count)


def _dump(out: Output, path: Path, records: bool) -> int:
    """Show a log or a file; returns the number of problems, which are shown too."""
    from mainstem_broker.log.dump import (
        dump_log,
        dump_segment,
        dump_snapshot,
        dump_transaction_index,
        is_snapshot,
        is_transaction_index,
    )
    from mainstem_broker.log.index import OffsetIndex, TimeIndex

    if path.suffix == OffsetIndex.SUFFIX:
        write_lines(_entry_lines(path, "offset_index", dump_segment(path).offset_entries(), out))
        return 0
    if path.suffix == TimeIndex.SUFFIX:
        write_lines(_entry_lines(path, "time_index", dump_segment(path).time_entries(), out))
        return 0
    if is_transaction_index(path):
        index = dump_transaction_index(path)
        write_lines(_aborted_json_lines(index) if out.json else _aborted_lines(index))
        report(out, index.problems)
        return len(index.problems)
    if is_snapshot(path):
        snapshot = dump_snapshot(path)
        write_lines(_producer_json_lines(snapshot) if out.json else _producer_lines(snapshot, out.width))
        report(out, snapshot.problems)
        return len(snapshot.problems)
    problem_count = 0
    for segment in dump_log(path, records=records):
        write_lines(_json_lines(segment) if out.json else _text_lines(segment, out.width))
        report(out, segment.problems)
        problem_count += len(segment.problems)
    return problem_count


def _json_lines(segment: SegmentDump) -> Iterator[bytes]:
    from mainstem_broker.log.dump import BatchDump

    names = [field.name for field in fields(BatchDump)]
    for batch in segment:
        value = {"segment": str(segment.path), **{name: getattr(batch, name) for name in names}}
        value["records"] = (
            None if batch.records is None else [_record_value(record) for record in batch.records]
        )
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _record_value(record: Record) -> dict[str, object]:
    value: dict[str, object] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    put_bytes(value, "key", record.key)
    put_bytes(value, "value", record.value)
    value["headers"] = [header_value(name, content) for name, content in record.headers]
    return value


def _text_lines(segment: SegmentDump, width: int) -> Iterator[bytes]:
    yield f"{segment.path} ({segment.size_bytes:,} bytes)\n".encode()
    if width >= _LINE_WIDTH:
        yield _BATCH_TITLES.encode()
    for batch in segment:
        yield batch_lines(batch, width).encode()
        for record in batch.records or ():
            shown = [b"" if part is None else safe(part) for part in (record.key, record.value)]
            before = f"{record.offset:>12}  {text_of_ms(record.timestamp_ms):<24}  ".encode()
            yield before + b"  ".join(shown) + b"\n"
    yield b"\n"


def _entry_lines(
    path: Path, kind: str, entries: Sequence[OffsetEntry] | Sequence[TimeEntry], out: Output
) -> Iterator[bytes]:
    """The entries of an index; `mainstem log verify` compares them with the segment."""
    if out.json:
        for entry in entries:
            yield orjson.dumps({kind: str(path), **entry._asdict()}, option=orjson.OPT_APPEND_NEWLINE)
        return
    yield f"{path} ({len(entries):,} entries)\n".encode()
    titles = ("Offset", "Position") if kind == "offset_index" else ("Latest timestamp", "Offset")
    yield _ENTRY_LINE.format(*titles).encode()
    for entry in entries:
        first, second = entry
        shown = first if kind == "offset_index" else text_of_ms(first)
        yield _ENTRY_LINE.format(shown, second).encode()
    yield b"\n"


def _aborted_json_lines(index: TransactionIndexDump) -> Iterator[bytes]:
    for aborted in index.aborted:
        value = {"transaction_index": str(index.path), **aborted._asdict()}
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _aborted_lines(index: TransactionIndexDump) -> Iterator[bytes]:
    yield f"{index.path} ({len(index.aborted):,} aborted transactions)\n".encode()
    yield _ABORTED_TITLES.encode()
    for aborted in index.aborted:
        yield _ABORTED_LINE.format(*aborted).encode()
    yield b"\n"


def _producer_json_lines(snapshot: SnapshotDump) -> Iterator[bytes]:
    for producer in snapshot.producers:
        value = {"snapshot": str(snapshot.path), **asdict(producer)}
        yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _producer_lines(snapshot: SnapshotDump, width: int) -> Iterator[bytes]:
    yield f"{snapshot.path} ({len(snapshot.producers):,} producers)\n".encode()
    if width >= _LINE_WIDTH:
        yield _PRODUCER_TITLES.encode()
    for producer in snapshot.producers:
        yield producer_lines(producer, width).encode()
    yield b"\n"


def producer_lines(producer: ProducerDump, width: int) -> str:
    """One producer of a snapshot: one line in columns, or two lines on a terminal below 118 columns."""
    open_since = producer.transaction_first_offset
    note = f"transaction open since offset {open_since}" if open_since >= 0 else ""
    appended = text_of_ms(producer.last_timestamp)
    if width >= _LINE_WIDTH:
        line = _PRODUCER_LINE.format(
            producer.producer_id,
            producer.producer_epoch,
            producer.first_sequence,
            producer.last_sequence,
            producer.last_offset,
            appended,
            "",
        )
        return _with_note(line, note, width)
    sequences = f"sequences {producer.first_sequence} to {producer.last_sequence}"
    first = f"producer {producer.producer_id}, epoch {producer.producer_epoch}, {sequences}"
    return _with_note(f"{first}\n    last offset {producer.last_offset}, {appended}\n", note, width)


def batch_lines(batch: BatchDump, width: int) -> str:
    """One batch: one line in columns, or two lines on a terminal below 118 columns."""
    notes = [] if batch.crc_valid else ["WRONG CRC"]
    if batch.marker is not None:
        notes += [f"{batch.marker} marker of coordinator epoch {batch.coordinator_epoch}"]
    else:
        notes += ["control"] if batch.is_control else []
        notes += ["transactional"] if batch.is_transactional else []
    notes += ["LogAppendTime"] if batch.timestamp_type == "LogAppendTime" else []
    notes += [f"producer {batch.producer_id}"] if batch.producer_id >= 0 else []
    latest = text_of_ms(batch.max_timestamp)
    if width >= _LINE_WIDTH:
        line = _BATCH_LINE.format(
            batch.base_offset,
            batch.last_offset,
            batch.position,
            batch.record_count,
            batch.size_bytes,
            batch.codec,
            batch.partition_leader_epoch,
            latest,
            "",
        )
    else:
        size = f"{batch.record_count} records, {batch.size_bytes} bytes at {batch.position}"
        line = (
            f"{batch.base_offset}-{batch.last_offset}: {size}\n"
            f"    {latest}, epoch {batch.partition_leader_epoch}, codec {batch.codec}\n"
        )
    return _with_note(line, ", ".join(notes), width)


def _with_note(lines: str, note: str, width: int) -> str:
    """`lines` with a note at their end, or on a line of its own if the last line would become too long."""
    if not note:
        return lines.rstrip() + "\n"
    last = lines.rstrip().rpartition("\n")[2]
    between = "  " if width >= _LINE_WIDTH else ", "
    separator = between if len(last) + len(between) + len(note) <= width else "\n    "
    return f"{lines.rstrip()}{separator}{note}\n"
