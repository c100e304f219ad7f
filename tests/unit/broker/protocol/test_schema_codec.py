from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from tests.unit.broker.protocol.schema_strategies import (
    REQUESTS,
    RESPONSES,
    bodies,
    encode_request,
    entities,
    expected_entity,
    lifted,
    missing_fields,
    request_schema,
    response_schema,
    smallest,
    unknown_fields,
)

from mainstem_broker.api.api_table import APIS
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.codec import RequestHeader, decode_header, decode_request, encode_response
from mainstem_broker.protocol.primitives import encode_unsigned_varint
from mainstem_broker.protocol.schema_codec import is_flexible
from mainstem_broker.protocol.wire import Frame

CORRELATION_ID = 0x01020304


def named(keys_and_versions: list[tuple[int, int]]) -> list[Any]:
    return [
        pytest.param(key, version, id=f"{APIS[key].name}-v{version}") for key, version in keys_and_versions
    ]


def content(frame: Frame) -> bytes:
    """A frame's bytes, its file slices read."""
    return b"".join(part if isinstance(part, bytes) else part.read() for part in frame)  # type: ignore[attr-defined]  # Slice below


class Slice:
    """Bytes that pretend to lie in a file."""

    def __init__(self, data: bytes) -> None:
        self.size_bytes = len(data)
        self._data = data

    def read(self) -> bytes:
        return self._data


def produce_request(version: int, name: str, records: bytes) -> Any:
    schema = request_schema(0, version)
    topic = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    partition = topic.__dataclass_fields__["partition_data"].type.__args__[0]
    return schema(
        transactional_id=None,
        acks=1,
        timeout=schema.__dataclass_fields__["timeout"].type.parse(timedelta(0)),
        topic_data=(topic(name=name, partition_data=(partition(index=0, records=records),)),),
    )


# --- Responses ---


@pytest.mark.parametrize(("key", "version"), named(RESPONSES))
@settings(max_examples=8)
@given(data=st.data())
def test_a_response_is_read_back_by_kio_as_it_was_written(
    key: int, version: int, data: st.DataObject
) -> None:
    schema = response_schema(key, version)
    body = data.draw(bodies(schema))
    frame = content(encode_response(key, version, CORRELATION_ID, body))

    size, correlation_id = struct.unpack_from(">ii", frame)
    assert size == len(frame) - 4
    assert correlation_id == CORRELATION_ID
    _, header_bytes = entity_reader(schema.__header_schema__)(memoryview(frame), 4)
    entity, body_bytes = entity_reader(schema)(memoryview(frame), 4 + header_bytes)
    assert 4 + header_bytes + body_bytes == len(frame)
    assert entity == expected_entity(schema, body)


def test_the_response_header_of_api_versions_is_version_0_in_every_version() -> None:
    body = {"error_code": 0, "api_keys": (), "throttle_time": 0}
    for version in range(5):
        frame = content(encode_response(18, version, CORRELATION_ID, body))
        assert frame[8:10] == b"\0\0", "the error code follows the correlation id, no tagged fields between"


def test_a_file_slice_stays_one_between_runs_of_bytes() -> None:
    records = [Slice(b"first batch"), Slice(b"second")]
    partitions = [
        {"partition_index": index, "error_code": 0, "high_watermark": 5, "records": piece}
        for index, piece in enumerate(records)
    ]
    body = {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": [{"topic": "t", "partitions": partitions}],
    }
    for version in range(4, 13):
        frame = encode_response(1, version, CORRELATION_ID, body)
        assert [part for part in frame if not isinstance(part, bytes)] == records
        assert all(
            isinstance(part, bytes) != isinstance(following, bytes) for part, following in pairwise(frame)
        )
        whole = content(frame)
        assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
        entity, _ = entity_reader(response_schema(1, version))(memoryview(whole), 9 if version >= 12 else 8)
        assert [p.records for t in entity.responses for p in t.partitions] == [b"first batch", b"second"]


def test_a_response_that_lacks_a_field_without_default_is_refused() -> None:
    with pytest.raises(KeyError):
        encode_response(3, 9, 1, {"throttle_time": 0, "topics": [], "controller_id": 1, "brokers": [{}]})


def test_a_value_out_of_its_range_is_refused() -> None:
    with pytest.raises(struct.error):
        encode_response(18, 0, 1, {"error_code": 2**15, "api_keys": ()})


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31 - 1, "ffffffff07")],
)
def test_unsigned_varints_are_groups_of_seven_bits_lowest_first(value: int, encoded: str) -> None:
    assert encode_unsigned_varint(value).hex() == encoded


def test_a_field_name_that_no_version_knows_is_found() -> None:
    body = {"throttle_time": 0, "topics": [{"name": "t", "partitons": ()}], "clusterid": "x"}
    assert unknown_fields(3, body) == ["clusterid", "topics.partitons"]


# --- Requests ---


@pytest.mark.parametrize(("key", "version"), named(REQUESTS))
@settings(max_examples=8)
@given(data=st.data())
def test_a_request_written_by_kio_is_lifted_to_the_model_version(
    key: int, version: int, data: st.DataObject
) -> None:
    sent = data.draw(entities(request_schema(key, version)))
    client_id = data.draw(st.none() | st.text(max_size=10))
    frame = memoryview(encode_request(sent, CORRELATION_ID, client_id))

    header, position = decode_header(frame)
    assert header == RequestHeader(key, version, CORRELATION_ID, client_id)
    model_version = APIS[key].model_for(version)
    received = decode_request(header, frame, position, model_version)
    model = request_schema(key, model_version)
    assert missing_fields(received, model) == []
    assert lifted(received, model) == lifted(sent, model)


def test_fields_that_a_version_lacks_have_the_defaults_of_the_schema() -> None:
    def received(key: int, version: int, body: bytes) -> Any:
        frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + body)
        header, position = decode_header(frame)
        return decode_request(header, frame, position, APIS[key].model_for(version))

    metadata = received(3, 1, b"\xff\xff\xff\xff")
    assert metadata.topics is None
    assert metadata.allow_auto_topic_creation is True, "before version 4 clients could not say no"
    fetch = received(1, 4, struct.pack(">iiiibi", -1, 500, 1, 1024, 0, 0))
    assert (fetch.session_id, fetch.session_epoch, fetch.rack_id) == (0, -1, "")


@pytest.mark.parametrize("version", [8, 9])
def test_a_request_outlives_the_buffer_it_was_read_from_but_for_records_of_produce(version: int) -> None:
    records = b"not copied would be overwritten"
    sent = produce_request(version, "topic", records)
    buffer = bytearray(encode_request(sent, 1, None))
    frame = memoryview(buffer).toreadonly()
    header, position = decode_header(frame)
    received = decode_request(header, frame, position, 11)
    (topic,) = received.topic_data
    (data,) = topic.partition_data
    assert data.records == records
    buffer[:] = bytes(len(buffer))
    assert topic.name == "topic"
    assert data.records == (records if version == 8 else bytes(len(records)))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "no request header"),
        (b"\0\x12\0", "no request header"),
        (struct.pack(">hhih", 18, 0, 1, 5) + b"ab", "runs past the end"),
    ],
    ids=["empty", "short", "client-id-too-long"],
)
def test_a_header_that_cannot_be_read_is_reported(frame: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestBytes, match=reason):
        decode_header(memoryview(frame))


@pytest.mark.parametrize(
    ("client_id", "expected"),
    [
        pytest.param(b"\0\x07M\xfcller\xe9", "M\ufffdller\ufffd", id="Latin-1"),
        pytest.param(b"\xff\xfe", None, id="of negative length"),
    ],
)
def test_an_odd_client_id_is_read_as_in_kafka(client_id: bytes, expected: str | None) -> None:
    """Apache Kafka 4.4 answers such clients. A client in another encoding could not connect at all."""
    header, end = decode_header(memoryview(struct.pack(">hhi", 18, 0, 1) + client_id))
    assert header.client_id == expected
    assert end == 8 + len(client_id)


@pytest.mark.parametrize(
    ("key", "version", "body", "names_of"),
    [
        pytest.param(
            *(15, 0, b"\0\0\0\2" + b"\0\3a\xff\xfe" + b"\0\1b", lambda request: request.groups),
            id="DescribeGroups",
        ),
        pytest.param(
            *(69, 0, b"\3" + b"\4a\xff\xfe" + b"\2b" + b"\0\0", lambda request: request.group_ids),
            id="ConsumerGroupDescribe, flexible",
        ),
        pytest.param(
            *(0, 9, b"\0\0\1\0\0\0\0\3\4a\xff\xfe\1\0\2b\1\0\0"),
            lambda request: [topic.name for topic in request.topic_data],
            id="Produce",
        ),
    ],
)
def test_what_is_not_utf_8_in_a_text_is_replaced_as_in_kafka(
    key: int, version: int, body: bytes, names_of: Callable[[Any], Sequence[str]]
) -> None:
    """Apache Kafka 4.4 answers that it has no such group or topic; the connection was closed."""
    tags = b"\0" if is_flexible(key, version) else b""
    frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + tags + body)
    header, position = decode_header(frame)
    assert list(names_of(decode_request(header, frame, position, version))) == ["a\ufffd\ufffd", "b"]


def test_a_text_that_is_too_long_once_it_is_replaced_is_refused() -> None:
    """A text has at most 32,767 bytes, and U+FFFD has three."""
    body = struct.pack(">ih", 1, 32_000) + b"\xff" * 32_000
    frame = memoryview(struct.pack(">hhih", 15, 0, 1, -1) + body)
    header, position = decode_header(frame)
    with pytest.raises(InvalidRequestBytes):
        decode_request(header, frame, position, 0)


def test_tagged_fields_of_the_header_are_skipped() -> None:
    tagged = b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00"
    frame = memoryview(struct.pack(">hhih", 3, 12, 7, -1) + tagged + b"\x00\x01\x00\x00")
    header, position = decode_header(frame)
    request = decode_request(header, frame, position, 12)
    assert request.topics is None
    assert request.allow_auto_topic_creation is True


def test_bytes_after_the_body_are_ignored() -> None:
    frame = memoryview(struct.pack(">hhih", 3, 1, 7, -1) + b"\0\0\0\0" + b"more")
    header, position = decode_header(frame)
    assert decode_request(header, frame, position, 12).topics == ()


@pytest.mark.parametrize(("key", "version"), named(REQUESTS))
def test_a_request_cut_anywhere_is_refused(key: int, version: int) -> None:
    frame = encode_request(smallest(request_schema(key, version)), 1, "c")
    header, start = decode_header(memoryview(frame))
    for end in range(start, len(frame)):
        with pytest.raises(InvalidRequestBytes, match=f"API key {key} version {version}"):
            decode_request(header, memoryview(frame)[:end], start, APIS[key].model_for(version))


@pytest.mark.parametrize("count", [2**31 - 1, 2**32 - 2, 1000])
@pytest.mark.parametrize(
    ("key", "version", "position"),
    [(1, 4, 17), (1, 12, 25), (0, 3, 8), (0, 9, 7), (3, 1, 0), (3, 12, 0), (20, 4, 0), (32, 4, 0)],
)
def test_an_array_that_claims_more_items_than_came_is_refused(
    key: int, version: int, position: int, count: int
) -> None:
    """A length is only a claim: kio would reserve memory for it, and for the largest end the process."""
    flexible = request_schema(key, version).__flexible__
    claim = encode_unsigned_varint(count + 1) if flexible else struct.pack(">i", min(count, 2**31 - 1))
    body = (b"\0" if flexible else b"") + bytes(position) + claim + bytes(64)
    frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + body).toreadonly()
    header, start = decode_header(frame)
    with pytest.raises(InvalidRequestBytes):
        decode_request(header, frame, start, APIS[key].model_for(version))


@settings(max_examples=400)
@given(frame=st.binary(max_size=400))
def test_no_bytes_make_the_header_raise_anything_else(frame: bytes) -> None:
    try:
        header, position = decode_header(memoryview(frame))
    except InvalidRequestBytes:
        return
    assert 10 <= position <= len(frame)
    assert isinstance(header.client_id, str | None)


@settings(max_examples=800)
@given(
    key_and_version=st.sampled_from(REQUESTS),
    body=st.binary(max_size=300)
    | st.lists(st.sampled_from([b"\0", b"\x01", b"\xff", b"\x7f\xff\xff\xff", b"\x80", b"topic"])).map(
        b"".join
    ),
)
def test_no_bytes_make_a_request_raise_anything_else(key_and_version: tuple[int, int], body: bytes) -> None:
    key, version = key_and_version
    frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + body).toreadonly()
    header, position = decode_header(frame)
    try:
        request = decode_request(header, frame, position, APIS[key].model_for(version))
    except InvalidRequestBytes:
        return
    assert request is not None


@settings(max_examples=300)
@given(key_and_version=st.sampled_from(REQUESTS), data=st.data())
def test_no_damage_to_a_request_makes_it_raise_anything_else(
    key_and_version: tuple[int, int], data: st.DataObject
) -> None:
    key, version = key_and_version
    frame = bytearray(encode_request(data.draw(entities(request_schema(key, version))), 1, "client"))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(12, len(frame) - 1))] = data.draw(st.integers(0, 255))
    view = memoryview(bytes(frame))
    try:
        header, position = decode_header(view)
        decode_request(header, view, position, APIS[key].model_for(version))
    except InvalidRequestBytes:
        pass


@given(count=st.integers(0, 3), sizes=st.lists(st.integers(0, 2**32), max_size=3))
def test_tagged_fields_that_run_past_the_end_are_refused(count: int, sizes: list[int]) -> None:
    tagged = encode_unsigned_varint(len(sizes) + count) + b"".join(
        b"\0" + encode_unsigned_varint(size + 100) for size in sizes
    )
    frame = memoryview(struct.pack(">hhih", 18, 3, 1, -1) + tagged)
    header, position = decode_header(frame)
    with pytest.raises(InvalidRequestBytes):
        decode_request(header, frame, position, 4)


def test_the_null_id_is_written_as_zeros() -> None:
    body = {
        "throttle_time": 0,
        "topics": [
            {"name": "t", "topic_id": topic_id, "error_code": 0, "topic_config_error_code": 0}
            for topic_id in (None, UUID(int=0), UUID(int=1))
        ],
    }
    frame = content(encode_response(19, 7, 1, body))
    entity, _ = entity_reader(response_schema(19, 7))(memoryview(frame), 9)
    assert [topic.topic_id for topic in entity.topics] == [None, None, UUID(int=1)]
