"""How a consumed record is written: as a line of text, by a format string, or as a JSON object.

Bytes are not always text. In a pipe a value is written as it is. On a terminal, control characters are
escaped. In JSON, bytes that are not UTF-8 are written as base64 under the field's name with `_base64`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import orjson
from confluent_kafka import Message

from mainstem.errors import BadInput
from mainstem.times import time_or_none

NULL: Final = b"null"
_DIM, _PLAIN = b"\x1b[2m", b"\x1b[0m"

RecordWriter = Callable[[Message], bytes]


class Field(StrEnum):
    """A part of a record that can be shown before its value."""

    KEY = "key"
    TIMESTAMP = "timestamp"
    PARTITION = "partition"
    OFFSET = "offset"
    HEADERS = "headers"


def json_line(message: Message) -> bytes:
    """The whole record as one line of JSON, which `lines.json_record` reads back.

    Both forms of the time are null in a record without one, which is then sent back with the time of sending:
    the Kafka client sends no record without a time.
    """
    _, timestamp_ms = message.timestamp()
    time = time_or_none(timestamp_ms)
    record: dict[str, object] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": time,
        "timestamp_ms": None if time is None else timestamp_ms,
    }
    put_bytes(record, "key", message.key())
    put_bytes(record, "value", message.value())
    record["headers"] = [header_value(name, value) for name, value in message.headers() or []]
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def line_writer(fields: Sequence[Field], for_a_terminal: bool) -> RecordWriter:
    """A function that writes a record as `fields`, separated by tabs, and the value."""
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
            return _or_null(message.key())
        case Field.TIMESTAMP:
            return _or_null(time_or_none(message.timestamp()[1]))
        case Field.PARTITION:
            return str(message.partition()).encode()
        case Field.OFFSET:
            return str(message.offset()).encode()
        case Field.HEADERS:
            return b",".join(
                name.encode() + b"=" + _or_null(value) for name, value in message.headers() or []
            )


# kcat's letters, which many people know.
_PLACEHOLDERS: Final[dict[str, RecordWriter]] = {
    "t": lambda message: str(message.topic()).encode(),
    "p": lambda message: _field(message, Field.PARTITION),
    "o": lambda message: _field(message, Field.OFFSET),
    "k": lambda message: _field(message, Field.KEY),
    "s": lambda message: _or_null(message.value()),
    "T": lambda message: str(message.timestamp()[1]).encode(),
    "h": lambda message: _field(message, Field.HEADERS),
    "%": lambda _message: b"%",
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FORMAT_TOKEN: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)
FORMAT_HELP: Final = (
    r"a text in which %t is the topic, %p the partition, %o the offset, %k the key, %s the value, "
    r"%T the timestamp in ms, %h the headers and \n a new line"
)


def format_writer(template: str) -> RecordWriter:
    """A function that writes a record by a format string such as `%t-%p@%o %k: %s\\n`.

    The letters are kcat's. Bytes are written as they are; an absent key or value is written as `null`.

    Raises:
        BadInput: the format has an unknown placeholder or escape.
    """
    parts: list[bytes | RecordWriter] = []
    for placeholder, escape, literal in _FORMAT_TOKEN.findall(template):
        if literal:
            parts.append(os.fsencode(literal))
        elif placeholder in _PLACEHOLDERS:
            parts.append(_PLACEHOLDERS[placeholder])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise BadInput(
                f"--format {template!r} has an unknown placeholder: use %{', %'.join(_PLACEHOLDERS)}, "
                "\\n, \\t, \\r, \\0 or \\\\."
            )

    def write(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return write


def _or_null(data: bytes | str | None) -> bytes:
    if data is None:
        return NULL
    return data.encode() if isinstance(data, str) else bytes(data)


def header_value(name: str, value: bytes | None) -> dict[str, object]:
    """A header as a JSON object."""
    header: dict[str, object] = {"name": name}
    put_bytes(header, "value", value)
    return header


def put_bytes(record: dict[str, object], name: str, data: bytes | None) -> None:
    """Put `data` into a JSON object: as text under `name`, or as base64 under `name_base64`."""
    if data is None:
        record[name] = None
        return
    try:
        record[name] = data.decode()
    except UnicodeDecodeError:
        record[f"{name}_base64"] = base64.b64encode(data).decode()


def safe(value: bytes) -> bytes:
    """`value` as text that cannot steer a terminal."""
    return printable(value.decode("utf-8", "backslashreplace")).encode()


def printable(text: str) -> str:
    """`text` with control characters escaped, so that it cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def is_utf8(text: str) -> bool:
    """Whether `text` has a form in UTF-8. An argument of a process need not have one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
