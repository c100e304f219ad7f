from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from tests.unit.broker.protocol.schemas import REQUESTS, Shape, entities, request_schema, written

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.bounds import read_unsigned_varint, walk_tagged_fields, walker
from mainstem_broker.protocol.wire import encode_unsigned_varint


@settings(max_examples=150, deadline=None)
@given(key_and_version=st.sampled_from(REQUESTS), data=st.data())
def test_a_walk_ends_where_the_request_does(key_and_version: tuple[int, int], data: st.DataObject) -> None:
    schema = request_schema(*key_and_version)
    body = written(data.draw(entities(schema)))
    before = data.draw(st.binary(max_size=5))
    after = data.draw(st.binary(max_size=5))
    assert walker(schema)(memoryview(before + body + after), len(before)) == len(before) + len(body)


@settings(max_examples=400, deadline=None)
@given(
    key_and_version=st.sampled_from(REQUESTS),
    body=st.lists(st.sampled_from([b"\0", b"\x01", b"\x02", b"\x05topi", b"\0\x02tt", b"\0\0\0\x01"])).map(
        b"".join
    ),
)
def test_what_can_be_read_is_walked_to_the_same_end(key_and_version: tuple[int, int], body: bytes) -> None:
    """Only claims that are too large may be refused by the walk and not by the reader."""
    schema = request_schema(*key_and_version)
    frame = memoryview(body)
    try:
        end: int | None = walker(schema)(frame, 0)
    except (InvalidRequestBytes, IndexError, struct.error):
        end = None
    if end is not None and end > len(frame):
        end = None  # fixed fields run past the end: the reader is the one to say so
    try:
        _, read = entity_reader(schema)(frame, 0)
    except Exception:  # noqa: BLE001  # kio raises many kinds for bytes that do not fit
        return
    assert end == read


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_no_tagged_field_of_a_request_holds_an_array(key: int, version: int) -> None:
    """The walk does not look into tagged fields."""

    def check(schema: Any, within_tagged: bool) -> None:
        for field in fields(schema):
            shape = Shape.of(field)
            tagged = within_tagged or shape.tag is not None
            assert not (tagged and shape.repeated), field.name
            if shape.is_struct:
                check(shape.inner, tagged)

    check(request_schema(key, version), False)


@given(st.integers(0, 2**35 - 1), st.binary(max_size=3))
def test_a_varint_is_read_back(value: int, after: bytes) -> None:
    encoded = encode_unsigned_varint(value)
    assert read_unsigned_varint(memoryview(encoded + after), 0) == (value, len(encoded))


def test_a_varint_of_more_than_five_bytes_is_refused() -> None:
    with pytest.raises(InvalidRequestBytes, match="longer than five bytes"):
        read_unsigned_varint(memoryview(b"\x80\x80\x80\x80\x80\x01"), 0)
    with pytest.raises(IndexError):
        read_unsigned_varint(memoryview(b"\x80"), 0)


def test_tagged_fields_are_walked_by_their_sizes() -> None:
    frame = memoryview(b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00" + b"rest")
    assert walk_tagged_fields(frame, 0) == len(frame) - 4
    assert walk_tagged_fields(memoryview(b"\0"), 0) == 1
    with pytest.raises(InvalidRequestBytes, match="runs past the end"):
        walk_tagged_fields(memoryview(b"\x01\x00\x7fab"), 0)
