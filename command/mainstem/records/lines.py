"""Lines of text to records: which part of a line is the key, the value, the timestamp. Pure.

A function of this module takes bytes and returns a record, or says what is wrong with the line. `cli.produce`
reads the lines and sends the records.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import orjson

from mainstem.errors import BadInput
from mainstem.times import event_time_ms

Headers = list[tuple[str, bytes | None]]
# Value, key, and timestamp in ms; 0 means the time of sending. A null value is a tombstone: it deletes its
# key from a compacted topic.
Record = tuple[bytes | None, bytes | None, int]
RecordWithHeaders = tuple[bytes | None, bytes | None, int, Headers]
LineReader = Callable[[bytes], Record | RecordWithHeaders]

NOW: Final = 0

_MAY_BE_INEXACT: Final = re.compile(rb"[0-9.]{16}|[0-9][eE]")
"""In each JSON text with a number that a double may not hold."""


def line_reader(
    json_lines: bool = False,
    key_field: str | None = None,
    timestamp_field: str | None = None,
    key_separator: str | None = None,
    json_records: bool = False,
    null_text: str | None = None,
) -> LineReader:
    """The function that turns one line, without its line end, into a record.

    It raises BadInput for a line that does not fit. `key_field` and `timestamp_field` name fields of JSON
    objects, and imply JSON lines; `key_separator` splits plain lines into key and value; `null_text` is the
    value (or key) that stands for null; `json_records` reads lines as `text.json_line` writes them.

    Raises:
        BadInput: the options contradict each other.
    """
    if json_records:
        if json_lines or key_field or timestamp_field or key_separator is not None or null_text is not None:
            raise BadInput("--json-records describes the whole record: leave out other options for lines.")
        return json_record
    if key_separator is not None:
        if json_lines or key_field or timestamp_field:
            raise BadInput("--key-separator is for plain lines: with JSON lines use --key-field.")
        if not key_separator:
            raise BadInput("--key-separator needs at least one character.")
        return _with_nulls(_keyed(os.fsencode(key_separator)), null_text)
    if key_field is not None or timestamp_field is not None:
        return _with_nulls(_fields(key_field, timestamp_field), null_text)
    return _with_nulls(_checked_json if json_lines else _plain, null_text)


def _with_nulls(read: LineReader, null_text: str | None) -> LineReader:
    if null_text is None:
        return read
    null = os.fsencode(null_text)

    def read_with_nulls(line: bytes) -> Record:
        value, key, timestamp_ms, *_ = read(line)
        return None if value == null else value, None if key == null else key, timestamp_ms

    return read_with_nulls


def json_record(line: bytes) -> RecordWithHeaders:
    """A record as `text.json_line` writes it; all fields but the value may be absent.

    The fields are value, key, timestamp_ms and headers; `value_base64` and `key_base64` hold bytes that are
    not text. Topic, partition and offset are ignored.
    """
    fields = _parse(line)
    if not isinstance(fields, dict) or not fields.keys() & {"value", "value_base64"}:
        raise BadInput("it is not a JSON object with the field value or value_base64")
    if _MAY_BE_INEXACT.search(line) and _exact_json(line) != _exact_json(orjson.dumps(fields)):
        raise BadInput("it has a number that would lose digits: write the key or value as a string of JSON")
    timestamp_ms = fields.get("timestamp_ms")
    headers = fields.get("headers") or []
    if not isinstance(headers, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in headers
    ):
        raise BadInput("its headers are not a list of objects with name and value")
    return (
        _bytes(fields, "value"),
        _bytes(fields, "key"),
        NOW if timestamp_ms is None else _timestamp_ms(timestamp_ms),
        [(header["name"], _bytes(header, "value")) for header in headers],
    )


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise BadInput(f"its field {name}_base64 is not base64 ({error})") from error
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def _plain(line: bytes) -> Record:
    return line, None, NOW


def _keyed(separator: bytes) -> LineReader:
    def read(line: bytes) -> Record:
        key, present, value = line.partition(separator)
        if not present:
            raise BadInput(f"it has no {os.fsdecode(separator)!r} between key and value")
        return value, key, NOW

    return read


def _checked_json(line: bytes) -> Record:
    _parse(line)
    return line, None, NOW


def _fields(key_field: str | None, timestamp_field: str | None) -> LineReader:
    def read(line: bytes) -> Record:
        event = _parse(line)
        if not isinstance(event, dict):
            raise BadInput("it is not a JSON object, so it has no fields")
        key = None if key_field is None else _key(_exact(_field(event, key_field), line, key_field))
        timestamp_ms = NOW if timestamp_field is None else _timestamp_ms(_field(event, timestamp_field))
        return line, key, timestamp_ms

    return read


def _timestamp_ms(value: object) -> int:
    """The time of a record, which the Kafka client sends as it is."""
    timestamp_ms = event_time_ms(value)
    if timestamp_ms <= 0:
        raise BadInput(
            f"its time is {value!r}, and the Kafka client takes 0 for the time of sending and sends no time"
            " before 1970"
        )
    return timestamp_ms


def _exact_json(text: bytes) -> object:
    """A JSON value with all digits of its numbers, for comparison."""
    try:
        return json.loads(text, parse_int=Decimal, parse_float=Decimal)
    except RecursionError as error:
        raise BadInput("it is nested too deeply") from error


def _exact(value: object, line: bytes, name: str) -> object:
    """A field's value with all digits: orjson makes doubles of integers beyond 64 bits, so that two of them
    would be one key.
    """
    if not isinstance(value, float):
        return value
    integer = json.loads(line, parse_int=_IntegerText)[name]
    return str(integer) if isinstance(integer, _IntegerText) else value


class _IntegerText(str):
    """The digits of an integer of any length."""

    __slots__ = ()


def _parse(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"it is not a JSON value on one line ({error})") from error


def _field(event: dict[str, object], name: str) -> object:
    try:
        return event[name]
    except KeyError:
        raise BadInput(f"it has no field {name!r}") from None


def _key(value: object) -> bytes | None:
    """The bytes of a string; the JSON text of any other value; no key for null."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
