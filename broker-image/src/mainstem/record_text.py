"""How one consumed record is written: as a line of text, or as a JSON object.

Bytes are not always text. In a pipe a value goes out as it is. On a terminal, what would steer it is
escaped. In JSON, bytes that are no UTF-8 stand as base64 under the same name with `_base64` behind it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import orjson
from confluent_kafka import Message

from mainstem.output import printable
from mainstem.times import text_of_ms

NULL: Final = b"null"
_DIM, _PLAIN = b"\x1b[2m", b"\x1b[0m"

RecordWriter = Callable[[Message], bytes]


class Field(StrEnum):
    """What can be shown before the value."""

    KEY = "key"
    TIMESTAMP = "timestamp"
    PARTITION = "partition"
    OFFSET = "offset"
    HEADERS = "headers"


def json_line(message: Message) -> bytes:
    """The whole record as one line of JSON."""
    _, timestamp_ms = message.timestamp()
    record: dict[str, object] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": text_of_ms(timestamp_ms),
        "timestamp_ms": timestamp_ms,
    }
    put_bytes(record, "key", message.key())
    put_bytes(record, "value", message.value())
    record["headers"] = [header_value(name, value) for name, value in message.headers() or []]
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def line_writer(fields: Sequence[Field], for_a_terminal: bool) -> RecordWriter:
    """The function that writes a record as the fields, tab separated, and the value."""
    if not fields and not for_a_terminal:
        return _value_line

    def write(message: Message) -> bytes:
        parts = [_field(message, field) for field in fields]
        value = message.value()
        if not for_a_terminal:
            return b"\t".join([*parts, NULL if value is None else value]) + b"\n"
        shown = NULL if value is None else safe(value)
        before = _DIM + b"  ".join(safe(part) for part in parts) + _PLAIN + b"  " if parts else b""
        return before + shown + b"\n"

    return write


def _value_line(message: Message) -> bytes:
    value = message.value()
    return NULL + b"\n" if value is None else bytes(value) + b"\n"


def _field(message: Message, field: Field) -> bytes:
    match field:
        case Field.KEY:
            key = message.key()
            return NULL if key is None else bytes(key)
        case Field.TIMESTAMP:
            return text_of_ms(message.timestamp()[1]).encode()
        case Field.PARTITION:
            return str(message.partition()).encode()
        case Field.OFFSET:
            return str(message.offset()).encode()
        case Field.HEADERS:
            return b",".join(
                name.encode() + b"=" + (NULL if value is None else value)
                for name, value in message.headers() or []
            )


def header_value(name: str, value: bytes | None) -> dict[str, object]:
    """A header for JSON."""
    header: dict[str, object] = {"name": name}
    put_bytes(header, "value", value)
    return header


def put_bytes(record: dict[str, object], name: str, value: bytes | None) -> None:
    """Put bytes under `name` as text, or under `name_base64` where they are none."""
    if value is None:
        record[name] = None
        return
    try:
        record[name] = value.decode()
    except UnicodeDecodeError:
        record[f"{name}_base64"] = base64.b64encode(value).decode()


def safe(value: bytes) -> bytes:
    """The bytes as text that cannot steer a terminal."""
    return printable(value.decode("utf-8", "backslashreplace")).encode()
