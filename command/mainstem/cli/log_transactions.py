"""`mainstem log transactions`: transactional ids, and what the log of a partition says of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import typer

from mainstem.cli.log_files import (
    JsonObject,
    decoded_lines,
    fail_if_damaged,
    logs_under,
    reading,
    report,
    topic_of,
    unless_deleted,
    write_lines,
    writing_lines,
)
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Output, OutputFormat
from mainstem.records.text import printable
from mainstem.times import text_of_ms

if TYPE_CHECKING:
    from mainstem_broker.log.dump import Problem
    from mainstem_broker.log.transaction_history import TransactionHistory
    from mainstem_broker.protocol.records import Record

_TRANSACTION_LINE: Final = "{:<7}  {:>9}  {:>5}  {:>13}  {:>12}  {}\n"
_TRANSACTION_TITLES: Final = _TRANSACTION_LINE.format(
    "State", "Producer", "Epoch", "First offset", "Last offset", "Last written"
)
_PRODUCER_TITLES: Final = _TRANSACTION_LINE.format(
    "", "Producer", "Epoch", "Last sequence", "Last offset", "Last written"
)


def transactions(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Partition folders or segments, or folders above them."),
    ],
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show transactional ids in __transaction_state, or the transactions in the log of another partition.

    Of __transaction_state, every record is shown in the order of the log. Of other partitions, open and
    aborted transactions are shown, and the last batch of each producer. Exits with 1 if a record or batch
    cannot be read. JSON output has one object per line.
    """
    from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

    out = Output(output)
    problems: list[Problem] = []
    with writing_lines():
        for path in paths:
            for log_path in logs_under(path):
                if topic_of(log_path) == TRANSACTIONS_TOPIC:
                    write_lines(decoded_lines(out, log_path, problems, _record_value, _record_text))
                else:
                    with unless_deleted(log_path):
                        _show_partition(out, log_path, problems)
    fail_if_damaged(len(problems))


def _record_value(record: Record) -> JsonObject:
    """A record of `__transaction_state` as fields.

    Raises:
        ValueError: the record is in another format.
    """
    from mainstem_broker.txn.records import decode_key, decode_value

    transactional_id = decode_key(record.key or b"")
    if transactional_id is None or record.value is None:
        return {"transactional_id": transactional_id, "state": None}
    transaction = decode_value(record.value)
    return {
        "transactional_id": transactional_id,
        "state": transaction.state.title,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "timeout_ms": transaction.timeout_ms,
        "partitions": [f"{topic}-{index}" for topic, index in sorted(transaction.partitions)],
        "started_ms": transaction.started_ms,
        "updated_ms": transaction.updated_ms,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "client_version": transaction.client_version,
    }


def _record_text(record: JsonObject) -> str:
    if record["transactional_id"] is None:
        return "of a kind that this version does not know"
    name = printable(str(record["transactional_id"]))
    if record["state"] is None:
        return f"{name} deleted"
    producer = f"producer {record['producer_id']}, epoch {record['producer_epoch']}"
    partitions = record["partitions"]
    assert isinstance(partitions, list)
    named = printable(", ".join(partitions))
    return f"{name} {record['state']}, {producer}" + (f": {named}" if named else "")


def _show_partition(out: Output, path: Path, problems: list[Problem]) -> None:
    from mainstem_broker.log.transaction_history import read_history

    with reading(path):
        history = read_history(path)
    write_lines(_json_lines(history) if out.json else _text_lines(history))
    report(out, history.problems)
    problems += history.problems


def _json_lines(history: TransactionHistory) -> Iterator[bytes]:
    value = {
        "log": str(history.path),
        "open": list(history.open.values()),
        "aborted": history.aborted,
        "committed_count": history.committed_count,
        "producers": list(history.producers.values()),
    }
    yield orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _text_lines(history: TransactionHistory) -> Iterator[bytes]:
    counts = (
        f"{len(history.open):,} open, {len(history.aborted):,} aborted, {history.committed_count:,} committed"
    )
    yield f"{history.path}\n{counts}\n".encode()
    rows = [("open", one) for one in history.open.values()] + [("aborted", one) for one in history.aborted]
    if rows:
        yield _TRANSACTION_TITLES.encode()
    for state, transaction in rows:
        yield _TRANSACTION_LINE.format(
            state,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.first_offset,
            transaction.last_offset,
            text_of_ms(transaction.last_written_ms),
        ).encode()
    if history.producers:
        yield _PRODUCER_TITLES.encode()
    for producer in history.producers.values():
        yield _TRANSACTION_LINE.format(
            "last",
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_offset,
            text_of_ms(producer.last_written_ms),
        ).encode()
    yield b"\n"
