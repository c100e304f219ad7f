"""Lines to records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.records.lines import NOW, line_reader


@given(st.binary())
def test_a_plain_line_is_the_value_byte_for_byte(line: bytes) -> None:
    assert line_reader()(line) == (line, None, NOW)


def test_a_separator_cuts_key_from_value_at_its_first_place() -> None:
    assert line_reader(key_separator="::")(b"a::b::c") == (b"b::c", b"a", NOW)


def test_a_line_without_the_separator_is_refused() -> None:
    with pytest.raises(BadInput, match="no ':' between key and value"):
        line_reader(key_separator=":")(b"abc")


def test_a_json_line_is_sent_as_it_was_written() -> None:
    line = b'{"b": 1,   "a": 2}'
    assert line_reader(json_lines=True)(line) == (line, None, NOW)


@pytest.mark.parametrize("line", [b"", b"{", b"{}{}", b"nan", b"\xff", b"'a'"], ids=repr)
def test_a_line_that_is_not_json_is_refused(line: bytes) -> None:
    with pytest.raises(BadInput, match="not a JSON value"):
        line_reader(json_lines=True)(line)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("UA", b"UA"),
        (7, b"7"),
        (1.5, b"1.5"),
        (True, b"true"),
        (None, None),
        ("", b""),
        ({"a": 1}, b'{"a":1}'),
    ],
    ids=repr,
)
def test_a_field_becomes_the_key(value: object, key: bytes | None) -> None:
    line = json.dumps({"carrier": value}).encode()
    assert line_reader(key_field="carrier")(line) == (line, key, NOW)


@pytest.mark.parametrize("value", [1_769_853_600_000, "2026-01-31T10:00:00Z", "2026-01-31T10:00"])
def test_a_field_becomes_the_timestamp(value: object) -> None:
    line = json.dumps({"at": value}).encode()
    assert line_reader(timestamp_field="at")(line) == (line, None, 1_769_853_600_000)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"b": 1}', "no field 'carrier'"),
        (b"[1]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b"{", "not a JSON value"),
    ],
)
def test_a_line_without_the_field_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        line_reader(key_field="carrier")(line)


@given(st.binary())
def test_any_bytes_are_a_record_or_refused(line: bytes) -> None:
    try:
        value, *_ = line_reader(key_field="a", timestamp_field="b")(line)
    except BadInput:
        return
    assert value == line


def test_a_separator_contradicts_json_lines() -> None:
    with pytest.raises(BadInput, match="--key-field"):
        line_reader(json_lines=True, key_separator=":")
    with pytest.raises(BadInput, match="at least one character"):
        line_reader(key_separator="")


def test_json_records_carry_tombstones_bytes_times_and_headers() -> None:
    read = line_reader(json_records=True)
    assert read(b'{"key": "a", "value": null}') == (None, b"a", 0, [])
    assert read(b'{"value_base64": "/w==", "timestamp_ms": 5}') == (b"\xff", None, 5, [])
    headers = b'{"value": "v", "headers": [{"name": "h", "value": "x"}, {"name": "n", "value": null}]}'
    assert read(headers) == (b"v", None, 0, [("h", b"x"), ("n", None)])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"key": "a"}', "not a JSON object with the field value"),
        (b'{"value_base64": "!"}', "not base64"),
        (b'{"value": "v", "headers": [1]}', "headers are not a list"),
    ],
)
def test_a_json_record_that_does_not_fit_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        line_reader(json_records=True)(line)


def test_json_records_exclude_the_options_for_parts_of_a_line() -> None:
    with pytest.raises(BadInput, match="--json-records"):
        line_reader(json_records=True, key_field="a")


def test_a_text_stands_for_null_in_plain_lines() -> None:
    read = line_reader(key_separator=":", null_text="NULL")
    assert read(b"a:NULL") == (None, b"a", 0)
    assert read(b"NULL:b") == (b"b", None, 0)


def test_integers_beyond_64_bits_are_keys_with_all_their_digits() -> None:
    """R22: two of them are two keys."""
    read = line_reader(key_field="id")
    for digits in (b"123456789012345678901234567890", b"123456789012345678901234567891", b"1.5", b"7"):
        assert read(b'{"id": %s}' % digits)[1] == digits
