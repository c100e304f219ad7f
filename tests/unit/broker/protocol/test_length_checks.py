from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from tests.unit.broker.api.brokers import make
from tests.unit.broker.protocol.odd_requests import Bytes, variants
from tests.unit.broker.protocol.schema_strategies import REQUESTS, Shape, entities, request_schema, written

from mainstem_broker.api.api_table import APIS
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.codec import REQUEST_READERS, RequestHeader, decode_header, decode_request
from mainstem_broker.protocol.fetch_codec import FIELDS_NOT_READ
from mainstem_broker.protocol.length_checks import walker
from mainstem_broker.protocol.primitives import (
    REQUEST_ELEMENTS_MAX,
    encode_unsigned_varint,
    read_unsigned_varint,
    walk_tagged_fields,
)
from mainstem_broker.protocol.schema_codec import is_flexible


@settings(max_examples=150)
@given(key_and_version=st.sampled_from(REQUESTS), data=st.data())
def test_a_walk_ends_where_the_request_does(key_and_version: tuple[int, int], data: st.DataObject) -> None:
    schema = request_schema(*key_and_version)
    body = written(data.draw(entities(schema)))
    before = data.draw(st.binary(max_size=5))
    after = data.draw(st.binary(max_size=5))
    end, _ = walker(schema)(memoryview(before + body + after), len(before))
    assert end == len(before) + len(body)


@settings(max_examples=400)
@given(
    key_and_version=st.sampled_from(REQUESTS),
    body=st.lists(st.sampled_from([b"\0", b"\x01", b"\x02", b"\x05topi", b"\0\x02tt", b"\0\0\0\x01"])).map(
        b"".join
    ),
)
def test_what_can_be_read_is_walked_to_the_same_end(key_and_version: tuple[int, int], body: bytes) -> None:
    """Claims that are too large, and null where it is not allowed, may be refused by the walk alone."""
    schema = request_schema(*key_and_version)
    frame = memoryview(body)
    try:
        end: int | None = walker(schema)(frame, 0)[0]
    except (InvalidRequestBytes, IndexError, struct.error):
        end = None
    if end is not None and end > len(frame):
        end = None  # fixed fields run past the end: the reader is the one to say so
    try:
        entity, read = entity_reader(schema)(frame, 0)
    except Exception:  # noqa: BLE001  # kio raises many kinds for bytes that do not fit
        return
    assert end == (None if has_null_array(entity) else read)


@pytest.mark.parametrize(("key", "version"), [one for one in REQUESTS if one not in REQUEST_READERS])
def test_no_handler_needs_a_tagged_field_that_the_walk_leaves_out(key: int, version: int) -> None:
    def check(schema: Any) -> None:
        for field in fields(schema):
            shape = Shape.of(field)
            assert shape.tag is None or field.name in FIELDS_NOT_READ, field.name
            if shape.is_struct:
                check(shape.inner)

    check(request_schema(key, version))


def has_null_array(entity: Any) -> bool:
    """Whether an array is null that must not be, which kio reads."""
    for field in fields(entity):
        shape, value = Shape.of(field), getattr(entity, field.name)
        if shape.repeated and value is None and not shape.optional:
            return True
        inner = () if not shape.is_struct or value is None else value if shape.repeated else (value,)
        if any(has_null_array(item) for item in inner):
            return True
    return False


@pytest.mark.parametrize(("key", "version"), [one for one in REQUESTS if one not in REQUEST_READERS])
@pytest.mark.parametrize("what", ["null", "a negative count"])
def test_no_null_array_gets_to_a_handler_that_expects_none(key: int, version: int, what: str) -> None:
    """Kafka closes the connection, too; a handler would fail, and the log tell of a defect."""
    schema = request_schema(key, version)
    count = b"\0" if schema.__flexible__ else struct.pack(">i", -1 if what == "null" else -2)
    for variant in variants(key, version):
        if variant.what == "no element" and not is_nullable(schema, variant.path):
            frame = memoryview(Bytes(schema, replace(variant, content=count)).content).toreadonly()
            header, position = decode_header(frame)
            with pytest.raises(InvalidRequestBytes, match="An array is null that must not be"):
                decode_request(header, frame, position, APIS[key].model_for(version))


def is_nullable(schema: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    (shape,) = (Shape.of(field) for field in fields(schema) if field.name == name)
    return is_nullable(shape.inner, rest) if rest else shape.optional


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


def test_an_entity_has_few_tagged_fields() -> None:
    """R40: they are walked before a login, and each takes two bytes and a step of a loop."""
    assert walk_tagged_fields(memoryview(bytes([16]) + bytes(32)), 0) == 33
    with pytest.raises(InvalidRequestBytes, match="17 tagged fields"):
        walk_tagged_fields(memoryview(bytes([17]) + bytes(34)), 0)


def test_tagged_fields_are_walked_by_their_sizes() -> None:
    frame = memoryview(b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00" + b"rest")
    assert walk_tagged_fields(frame, 0) == len(frame) - 4
    assert walk_tagged_fields(memoryview(b"\0"), 0) == 1
    with pytest.raises(InvalidRequestBytes, match="runs past the end"):
        walk_tagged_fields(memoryview(b"\x01\x00\x7fab"), 0)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        pytest.param(3, 1, lambda n: struct.pack(">i", n) + b"\0\1!" * n, id="Metadata"),
        pytest.param(9, 7, lambda n: b"\2g" + _one_topic_of(n - 1, b"\0\0\0\1") + b"\0\0", id="OffsetFetch"),
        pytest.param(
            2, 7, lambda n: b"\0\0\0\0\0" + _one_topic_of(n - 1, bytes(17)) + b"\0", id="ListOffsets"
        ),
        pytest.param(
            1,
            17,
            lambda n: bytes(21) + b"\2" + bytes(16) + _compact_array(n - 1, bytes(33)) + b"\0\1\1\0",
            id="Fetch",
        ),
        pytest.param(
            1,
            17,
            lambda n: bytes(21) + b"\1\2" + bytes(16) + _compact_array(n - 1, bytes(4)) + b"\0\1\0",
            id="Fetch that forgets",
        ),
    ],
)
def test_a_request_has_at_most_fifty_thousand_elements(
    key: int, version: int, body: Callable[[int], bytes]
) -> None:
    """R40: all arrays count, also those in others, and before the decoder makes objects of them."""
    assert REQUEST_ELEMENTS_MAX == 50_000
    _decode(key, version, body(REQUEST_ELEMENTS_MAX))
    with pytest.raises(InvalidRequestBytes, match="more than 50000 elements"):
        _decode(key, version, body(REQUEST_ELEMENTS_MAX + 1))


def test_a_produce_has_at_most_half_as_many() -> None:
    """R40: its partitions have no arrays."""

    def body(count: int) -> bytes:
        return b"\0" + bytes(6) + _one_topic_of(count - 1, b"\0\0\0\1\0\0") + b"\0"

    _decode(0, 9, body(REQUEST_ELEMENTS_MAX // 2))
    with pytest.raises(InvalidRequestBytes, match="more than 25000 elements"):
        _decode(0, 9, body(REQUEST_ELEMENTS_MAX // 2 + 1))


_PARTITION: Final = {"partition_index": 0}
_PLACED: Final = {"broker_ids": [1, 2, 3]}
_MOVED: Final = {"partition_index": 0, "replicas": [1, 2, 3]}


@pytest.mark.parametrize(
    ("key", "version", "array", "topic"),
    [
        (0, 12, "topic_data", {"name": "t", "partition_data": [{"index": 0, "records": b"a"}]}),
        (1, 17, "topics", {"topic_id": UUID(int=1), "partitions": [{"partition": 0}]}),
        (1, 4, "topics", {"topic": "t", "partitions": [{"partition": 0}]}),
        (2, 9, "topics", {"name": "t", "partitions": [_PARTITION]}),
        (3, 12, "topics", {"name": "t"}),
        (8, 9, "topics", {"name": "t", "partitions": [_PARTITION]}),
        (9, 7, "topics", {"name": "t", "partition_indexes": [0]}),
        (24, 3, "v3_and_below_topics", {"name": "t", "partitions": [0]}),
        (37, 3, "topics", {"name": "t", "count": 2, "assignments": [_PLACED]}),
        (45, 0, "topics", {"name": "t", "partitions": [_MOVED]}),
    ],
)
def test_a_client_may_name_ten_thousand_partitions_at_once(
    key: int, version: int, array: str, topic: dict[str, Any]
) -> None:
    """Each of a topic of its own, with three replicas where a request has them."""
    request = make(request_schema(key, version), {array: [topic] * 10_000})
    _decode(key, version, written(request))


def _decode(key: int, version: int, body: bytes) -> None:
    header = RequestHeader(key, version, 1, None)
    tags = b"\0" if is_flexible(key, version) else b""
    decode_request(header, memoryview(tags + body), 0, APIS[key].model_for(version))


def _compact_array(count: int, element: bytes) -> bytes:
    return encode_unsigned_varint(count + 1) + element * count


def _one_topic_of(partition_count: int, partition: bytes) -> bytes:
    return b"\2\2t" + _compact_array(partition_count, partition) + b"\0"
