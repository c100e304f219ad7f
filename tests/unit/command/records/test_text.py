"""How a consumed record is written."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, cast

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.records.lines import NOW, line_reader
from mainstem.records.text import Field, format_writer, json_line, line_writer


@dataclass
class FakeMessage:
    """What of confluent_kafka's Message is read."""

    value_: bytes | None = b"v"
    key_: bytes | None = None
    headers_: list[tuple[str, bytes | None]] | None = None
    timestamp_ms: int = 1_769_853_600_123

    def topic(self) -> str:
        return "clicks"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 42

    def timestamp(self) -> tuple[int, int]:
        return 1, self.timestamp_ms

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.headers_


def message(**parts: Any) -> Message:
    return cast(Message, FakeMessage(**parts))


def test_json_holds_the_whole_record() -> None:
    line = json_line(message(value_=b'{"a":1}', key_=b"k", headers_=[("h", b"1"), ("h", None)]))
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "topic": "clicks",
        "partition": 3,
        "offset": 42,
        "timestamp": "2026-01-31T10:00:00.123Z",
        "timestamp_ms": 1_769_853_600_123,
        "key": "k",
        "value": '{"a":1}',
        "headers": [{"name": "h", "value": "1"}, {"name": "h", "value": None}],
    }


@given(st.binary(), st.none() | st.binary())
def test_json_gives_back_any_bytes(value: bytes, key: bytes | None) -> None:
    record = json.loads(json_line(message(value_=value, key_=key)))
    for name, original in (("value", value), ("key", key)):
        if f"{name}_base64" in record:
            assert base64.b64decode(record[f"{name}_base64"]) == original
            assert name not in record
        else:
            assert record[name] == (None if original is None else original.decode())


LINE_SEPARATORS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"
"""All at which str.splitlines or a Java reader would end a line, and NUL."""
BYTES = st.binary() | st.text(LINE_SEPARATORS + "a").map(str.encode)


@given(BYTES, st.none() | BYTES, st.lists(st.tuples(st.text(LINE_SEPARATORS + "a"), st.none() | BYTES)))
def test_a_record_as_json_is_one_line_that_gives_back_all_of_it(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """R36. What `consume --output json` writes, `produce --json-records` sends."""
    line = json_line(message(value_=value, key_=key, headers_=headers))
    assert line.count(b"\n") == 1
    assert line_reader(json_records=True)(line.removesuffix(b"\n")) == (
        value,
        key,
        1_769_853_600_123,
        headers,
    )


def test_a_record_without_a_time_says_so_and_is_sent_back_with_the_time_of_sending() -> None:
    """KIP-32: -1 is no time, and not the last millisecond of 1969."""
    timeless = message(timestamp_ms=-1)
    record = json.loads(json_line(timeless))
    assert (record["timestamp"], record["timestamp_ms"]) == (None, None)
    assert line_reader(json_records=True)(json_line(timeless)) == (b"v", None, NOW, [])
    assert line_writer([Field.TIMESTAMP], for_a_terminal=False)(timeless) == b"null\tv\n"
    assert format_writer("%T")(timeless) == b"-1"  # as kcat


@given(st.binary())
def test_in_a_pipe_a_value_goes_out_as_it_is(value: bytes) -> None:
    assert line_writer([], for_a_terminal=False)(message(value_=value)) == value + b"\n"


@given(st.binary(), st.binary())
def test_on_a_terminal_a_record_is_one_line_that_cannot_steer_it(value: bytes, key: bytes) -> None:
    line = line_writer([Field.KEY], for_a_terminal=True)(message(value_=value, key_=key))
    without_style = line.replace(b"\x1b[2m", b"", 1).replace(b"\x1b[0m", b"", 1)
    assert without_style.endswith(b"\n")
    assert without_style[:-1].decode().isprintable()


def test_fields_stand_before_the_value_in_the_requested_order() -> None:
    write = line_writer([Field.OFFSET, Field.PARTITION, Field.KEY, Field.TIMESTAMP, Field.HEADERS], False)
    assert write(message(headers_=[("h", b"1"), ("i", None)])) == (
        b"42\t3\tnull\t2026-01-31T10:00:00.123Z\th=1,i=null\tv\n"
    )


def test_a_missing_value_is_null() -> None:
    assert line_writer([], for_a_terminal=False)(message(value_=None)) == b"null\n"
    assert line_writer([Field.OFFSET], for_a_terminal=False)(message(value_=None)) == b"42\tnull\n"
    assert line_writer([], for_a_terminal=True)(message(value_=None)) == b"null\n"
    assert line_writer([], for_a_terminal=True)(message(value_=b"v\t")) == b"v\\t\n"


def test_a_format_string_writes_a_record_with_the_letters_of_kcat() -> None:
    write = format_writer(r"%t-%p@%o\t%k=%s %T [%h] 100%%\n")
    message = cast(Message, FakeMessage(b"v", b"k", [("h", b"x"), ("n", None)]))
    assert write(message) == b"clicks-3@42\tk=v 1769853600123 [h=x,n=null] 100%\n"
    assert format_writer("%k%s")(cast(Message, FakeMessage(None, None))) == b"nullnull"
    assert format_writer(os.fsdecode(b"\xff%s"))(message) == b"\xffv"


@pytest.mark.parametrize("template", ["%x", "%", "\\q", "\\"])
def test_an_unknown_placeholder_is_refused(template: str) -> None:
    with pytest.raises(BadInput, match="unknown placeholder"):
        format_writer(template)
