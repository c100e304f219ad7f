"""Lines to records."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.records.lines import NOW, line_reader

NO_JSON = [b"", b"{", b"{}{}", b"nan", b"\xff", b"'a'"]


@given(st.binary())
def test_a_plain_line_is_the_value_byte_for_byte(line: bytes) -> None:
    assert line_reader()(line) == (line, None, NOW)


@pytest.mark.parametrize(
    ("options", "line", "record"),
    [
        ({"key_separator": "::"}, b"a::b::c", (b"b::c", b"a", NOW)),
        ({"key_separator": os.fsdecode(b"\xff")}, b"a\xffb", (b"b", b"a", NOW)),
        ({"null_text": os.fsdecode(b"\xff")}, b"\xff", (None, None, NOW)),
        ({"key_separator": ":", "null_text": "NULL"}, b"a:NULL", (None, b"a", NOW)),
        ({"key_separator": ":", "null_text": "NULL"}, b"NULL:b", (b"b", None, NOW)),
        ({"json_records": True}, b'{"key": "a", "value": null}', (None, b"a", NOW, [])),
        ({"json_records": True}, b'{"value_base64": "/w==", "timestamp_ms": 5}', (b"\xff", None, 5, [])),
        (
            {"json_records": True},
            b'{"value": {"id": 18446744073709551615, "part": 1.5e3}, "key": 0.1234567890123456}',
            (b'{"id":18446744073709551615,"part":1500.0}', b"0.1234567890123456", NOW, []),
        ),
        (
            {"json_records": True},
            b'{"value": "v", "headers": [{"name": "h", "value": "x"}, {"name": "n", "value": null}]}',
            (b"v", None, NOW, [("h", b"x"), ("n", None)]),
        ),
    ],
)
def test_a_line_becomes_a_record(options: dict[str, Any], line: bytes, record: tuple[object, ...]) -> None:
    assert line_reader(**options)(line) == record


@pytest.mark.parametrize(
    ("options", "line", "key", "timestamp_ms"),
    [
        ({"json_lines": True}, b'{"b": 1,   "a": 2}', None, NOW),
        ({"key_field": "a"}, b'{"a": "UA"}', b"UA", NOW),
        ({"key_field": "a"}, b'{"a": 7}', b"7", NOW),
        ({"key_field": "a"}, b'{"a": 1.5}', b"1.5", NOW),
        ({"key_field": "a"}, b'{"a": true}', b"true", NOW),
        ({"key_field": "a"}, b'{"a": null}', None, NOW),
        ({"key_field": "a"}, b'{"a": ""}', b"", NOW),
        ({"key_field": "a"}, b'{"a": {"b": 1}}', b'{"b":1}', NOW),
        # R22: two integers beyond 64 bits are two keys.
        (
            {"key_field": "a"},
            b'{"a": 123456789012345678901234567890}',
            b"123456789012345678901234567890",
            NOW,
        ),
        (
            {"key_field": "a"},
            b'{"a": 123456789012345678901234567891}',
            b"123456789012345678901234567891",
            NOW,
        ),
        ({"timestamp_field": "at"}, b'{"at": 1769853600000}', None, 1_769_853_600_000),
        ({"timestamp_field": "at"}, b'{"at": "2026-01-31T10:00:00Z"}', None, 1_769_853_600_000),
        ({"timestamp_field": "at"}, b'{"at": "2026-01-31T10:00"}', None, 1_769_853_600_000),
    ],
)
def test_a_json_line_is_sent_as_it_was_written_with_the_key_and_time_of_its_fields(
    options: dict[str, Any], line: bytes, key: bytes | None, timestamp_ms: int
) -> None:
    assert line_reader(**options)(line) == (line, key, timestamp_ms)


@pytest.mark.parametrize(
    ("options", "line", "reason"),
    [
        ({"key_separator": ":"}, b"abc", "no ':' between key and value"),
        *(({"json_lines": True}, line, "not a JSON value") for line in NO_JSON),
        ({"key_field": "a"}, b'{"b": 1}', "no field 'a'"),
        ({"key_field": "a"}, b"[1]", "not a JSON object"),
        ({"key_field": "a"}, b"5", "not a JSON object"),
        ({"key_field": "a"}, b"{", "not a JSON value"),
        ({"json_records": True}, b'{"key": "a"}', "not a JSON object with the field value"),
        ({"json_records": True}, b'{"value_base64": "!"}', "not base64"),
        ({"json_records": True}, b'{"value": "v", "headers": [1]}', "headers are not a list"),
        ({"json_records": True}, b'{"value": "v", "headers": [{"name": 5}]}', "headers are not a list"),
        ({"json_records": True}, b'{"value": "v", "headers": [{"name": null}]}', "headers are not a list"),
        ({"json_records": True}, b'{"value": {"id": 12345678901234567890123}}', "would lose digits"),
        ({"json_records": True}, b'{"value": 1, "key": [0.12345678901234567890]}', "would lose digits"),
        ({"json_records": True}, b'{"value": "v", "timestamp_ms": 0}', "0 for the time of sending"),
        ({"timestamp_field": "at"}, b'{"at": 0}', "0 for the time of sending"),
        ({"timestamp_field": "at"}, b'{"at": "1970-01-01T00:00:00Z"}', "0 for the time of sending"),
        ({"timestamp_field": "at"}, b'{"at": "1969-12-31T23:59:59Z"}', "no time before 1970"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(options: dict[str, Any], line: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        line_reader(**options)(line)


@given(st.binary())
def test_any_bytes_are_a_record_or_refused(line: bytes) -> None:
    try:
        value, *_ = line_reader(key_field="a", timestamp_field="b")(line)
    except BadInput:
        return
    assert value == line


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"json_lines": True, "key_separator": ":"}, "--key-field"),
        ({"key_separator": ""}, "at least one character"),
        ({"json_records": True, "key_field": "a"}, "--json-records"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        line_reader(**options)
