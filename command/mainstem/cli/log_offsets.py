"""`mainstem log offsets`: the records of `__consumer_offsets`, decoded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import typer

from mainstem.cli.log_files import (
    JsonObject,
    decoded_lines,
    fail_if_damaged,
    folders_of_topic,
    plain,
    write_lines,
    writing_lines,
)
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Output, OutputFormat
from mainstem.records.text import printable
from mainstem.times import text_of_ms

if TYPE_CHECKING:
    from mainstem_broker.log.dump import Problem
    from mainstem_broker.protocol.records import Record

_CONSUMER_RECORDS: Final = {
    3: "consumer group",
    5: "member",
    6: "target epoch",
    7: "target assignment",
    8: "current assignment",
}
"""What each version of a key is about (KIP-848)."""


def offsets(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Partition folders or segments of __consumer_offsets, or folders above them.",
        ),
    ],
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the records of __consumer_offsets: committed offsets and groups, in the order of the log.

    A record of a transaction counts only if a commit marker of its producer follows. Exits with 1 if a record
    cannot be read. JSON output has one object per line.
    """
    from mainstem_broker.group.coordinator import OFFSETS_TOPIC

    out = Output(output)
    problems: list[Problem] = []
    with writing_lines():
        for folder in folders_of_topic(paths, OFFSETS_TOPIC):
            write_lines(decoded_lines(out, folder, problems, _record_value, _record_text))
    fail_if_damaged(len(problems))


def _record_value(record: Record) -> JsonObject:
    """A record of `__consumer_offsets` as fields.

    Raises:
        ValueError: the record is in another format.
    """
    from mainstem_broker.group.classic.records import GroupMetadata
    from mainstem_broker.group.consumer.records import ConsumerGroupKey, decode_value
    from mainstem_broker.group.offsets.records import CommittedOffset, OffsetKey
    from mainstem_broker.group.records import decode_key

    key, content = decode_key(record.key or b""), record.value
    if key is None:
        return {"kind": "unknown", "group": None, "value": None}
    value: object = None
    if isinstance(key, OffsetKey):
        if content is not None:
            value = CommittedOffset.decode(content)
        return {
            "kind": "offset",
            "group": key.group_id,
            "topic": key.topic,
            "partition": key.partition,
            "value": value,
        }
    if isinstance(key, ConsumerGroupKey):
        if content is not None:
            value = decode_value(key, content)
        kind = _CONSUMER_RECORDS[key.kind]
        return {"kind": kind, "group": key.group_id, "member": key.member_id or None, "value": value}
    if content is not None:
        value = GroupMetadata.decode(content)
    return {"kind": "classic group", "group": key.group_id, "value": value}


def _record_text(record: JsonObject) -> str:
    if record["kind"] == "unknown":
        return "of a kind that this version does not know"
    group, value = printable(str(record["group"])), record["value"]
    if record["kind"] == "offset":
        from mainstem_broker.group.offsets.records import CommittedOffset

        partition = f"{group}: {printable(str(record['topic']))}-{record['partition']}"
        if not isinstance(value, CommittedOffset):
            return f"{partition} deleted"
        metadata = f", {printable(value.metadata)}" if value.metadata else ""
        return f"{partition} at {value.offset}, committed {text_of_ms(value.commit_ms)}{metadata}"
    member = f" {printable(str(record['member']))}" if record.get("member") else ""
    if value is None:
        return f"{group}: {record['kind']}{member} deleted"
    fields = orjson.dumps(value, default=plain).decode()
    return f"{group}: {record['kind']}{member} {printable(fields)}"
