"""Lines of text to records: what of a line is the key, what the value, and when it happened.

Pure: takes bytes, gives records or says what is wrong with the line. Reading and sending are `produce.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from mainstem.errors import BadInput
from mainstem.times import event_time_ms

# Value, key, and timestamp in ms; 0 as the timestamp means the time of sending.
Record = tuple[bytes | None, bytes | None, int]
LineReader = Callable[[bytes], Record]

NOW: Final = 0


def line_reader(
    json_lines: bool = False,
    key_field: str | None = None,
    timestamp_field: str | None = None,
    key_separator: str | None = None,
) -> LineReader:
    """The function that turns one line, without its end, into a record.

    It raises BadInput for a line that does not fit. `key_field` and `timestamp_field` name fields of JSON
    objects, and so ask for JSON lines; `key_separator` cuts plain lines in key and value.

    Raises:
        BadInput: the options contradict each other.
    """
    if key_separator is not None:
        if json_lines or key_field or timestamp_field:
            raise BadInput("--key-separator is for plain lines: with JSON lines use --key-field.")
        if not key_separator:
            raise BadInput("--key-separator needs at least one character.")
        return _keyed(key_separator.encode())
    if key_field is not None or timestamp_field is not None:
        return _fields(key_field, timestamp_field)
    return _checked_json if json_lines else _plain


def _plain(line: bytes) -> Record:
    return line, None, NOW


def _keyed(separator: bytes) -> LineReader:
    def read(line: bytes) -> Record:
        key, found, value = line.partition(separator)
        if not found:
            raise BadInput(f"it has no {separator.decode()!r} between key and value")
        return value, key, NOW

    return read


def _checked_json(line: bytes) -> Record:
    _parse(line)
    return line, None, NOW


def _fields(key_field: str | None, timestamp_field: str | None) -> LineReader:
    def read(line: bytes) -> Record:
        event = _parse(line)
        if not isinstance(event, dict):
            raise BadInput("it is no JSON object, so it has no fields")
        key = None if key_field is None else _key(_field(event, key_field))
        timestamp_ms = NOW if timestamp_field is None else event_time_ms(_field(event, timestamp_field))
        return line, key, timestamp_ms

    return read


def _parse(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"it is no JSON value of one line ({error})") from error


def _field(event: dict[str, object], name: str) -> object:
    try:
        return event[name]
    except KeyError:
        raise BadInput(f"it has no field {name!r}") from None


def _key(value: object) -> bytes | None:
    """A text's own bytes; anything else as its JSON text; no key for null."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
