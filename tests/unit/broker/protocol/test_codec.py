"""The codecs of Produce and Fetch come to the same as the one by schema; `test_schema_codec.py` compares both
with kio."""

from __future__ import annotations

import struct

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from tests.unit.broker.protocol.schema_strategies import (
    bodies,
    entities,
    expected_entity,
    lifted,
    request_schema,
    response_schema,
    written,
)

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.codec import REQUEST_READERS, RESPONSE_READERS
from mainstem_broker.protocol.fetch_codec import (
    ReplicaState,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from mainstem_broker.protocol.length_checks import walker
from mainstem_broker.protocol.primitives import encode_unsigned_varint
from mainstem_broker.protocol.wire import Frame

WITHOUT_SCHEMA = sorted(REQUEST_READERS)
DOES_NOT_FIT = (InvalidRequestBytes, IndexError, struct.error, ValueError)


@pytest.mark.parametrize(("key", "version"), WITHOUT_SCHEMA)
@settings(max_examples=150)
@given(data=st.data())
def test_what_kio_reads_is_read_and_means_the_same(key: int, version: int, data: st.DataObject) -> None:
    """After some bytes of a request were changed."""
    schema = request_schema(key, version)
    body = bytearray(written(data.draw(entities(schema))))
    for position in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[position] = data.draw(st.integers(0, 255))
    frame = memoryview(bytes(body))
    try:
        end, _ = walker(schema)(frame, 0)
        expected, read_end = entity_reader(schema)(frame, 0)
        assert read_end == end
    except Exception:  # noqa: BLE001  # kio raises many kinds for bytes that do not fit
        expected = None
    try:
        result, found_end = REQUEST_READERS[key, version](frame, 0)
    except DOES_NOT_FIT:
        assert expected is None
        return
    if expected is None:
        event("accepted, though kio refuses it")
    else:
        assert lifted(result, schema) == lifted(expected, schema)
        assert found_end == end


@pytest.mark.parametrize(
    ("key", "body"),
    [
        pytest.param(0, "01 ffff 00000001 02 00 01 00 00", id="a topic without a name"),
        pytest.param(1, "0" * 42 + "01 01 00 00", id="no rack"),
        pytest.param(1, "0" * 42 + "01 01 01 01 01 02 0001", id="half a replica state"),
    ],
)
def test_what_must_be_there_and_is_null_or_cut_is_refused(key: int, body: str) -> None:
    with pytest.raises(DOES_NOT_FIT):
        REQUEST_READERS[key, 11 if key == 0 else 17](memoryview(bytes.fromhex(body + "00" * 20)), 0)


@pytest.mark.parametrize("count", [0, 3])
def test_a_null_array_is_empty_however_its_length_is_written(count: int) -> None:
    null = bytes([0x80] * count + [0])
    body = bytes.fromhex("0" * 42 + "01 02" + "11" * 16) + null + bytes.fromhex("00 01 00")
    request, end = REQUEST_READERS[1, 17](memoryview(body), 0)
    assert [topic.partitions for topic in request.forgotten_topics_data] == [()]
    assert end == len(body)


@settings(max_examples=100)
@given(count=st.integers(2**20, 2**35 - 1), key_and_version=st.sampled_from(WITHOUT_SCHEMA))
def test_a_count_without_elements_costs_nothing(count: int, key_and_version: tuple[int, int]) -> None:
    key, version = key_and_version
    head = b"\0" + bytes(6) if key == 0 else bytes(21)
    with pytest.raises(DOES_NOT_FIT):
        REQUEST_READERS[key, version](memoryview(head + encode_unsigned_varint(count)), 0)


@settings(max_examples=100)
@given(data=st.data())
def test_a_follower_asks_as_the_schema_says(data: st.DataObject) -> None:
    schema = request_schema(1, 17)
    topic_id, number = st.uuids(), st.integers(-(2**31), 2**31 - 1)
    offset = st.integers(-(2**63), 2**63 - 1)
    requested = st.fixed_dictionaries(
        {
            "partition": number,
            "current_leader_epoch": number,
            "fetch_offset": offset,
            "last_fetched_epoch": number,
            "log_start_offset": offset,
            "partition_max_bytes": number,
        }
    )
    named = st.fixed_dictionaries({"topic_id": topic_id, "partitions": st.lists(requested, max_size=200)})
    forgotten = st.fixed_dictionaries({"topic_id": topic_id, "partitions": st.lists(number, max_size=200)})
    body = {
        "replica_state": {"replica_id": data.draw(number), "replica_epoch": data.draw(offset)},
        "max_wait": data.draw(number),
        "min_bytes": data.draw(number),
        "max_bytes": data.draw(number),
        "isolation_level": 0,
        "session_id": data.draw(number),
        "session_epoch": data.draw(number),
        "topics": data.draw(st.lists(named, max_size=3)),
        "forgotten_topics_data": data.draw(st.lists(forgotten, max_size=3)),
        "rack_id": "",
    }
    out: Frame = []
    write_fetch_request(out, body)
    (run,) = out
    assert isinstance(run, bytes)
    entity, end = entity_reader(schema)(memoryview(run), 0)
    assert end == len(run)
    assert lifted(entity, schema) == lifted(expected_entity(schema, body), schema)


@pytest.mark.parametrize("grants", [True, False])
def test_the_mark_of_a_grant_arrives(grants: bool) -> None:
    body = {
        "replica_state": {"replica_id": 2, "replica_epoch": 7, "grants": grants},
        "max_wait": 1,
        "min_bytes": 1,
        "max_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": 0,
        "topics": [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    out: Frame = []
    write_fetch_request(out, body)
    (run,) = out
    assert isinstance(run, bytes)
    result, end = read_fetch_request(memoryview(run), 0)
    assert end == len(run)
    assert result.replica_state == ReplicaState(2, 7, grants)


@settings(max_examples=100)
@given(data=st.data())
def test_a_follower_reads_what_the_leader_wrote(data: st.DataObject) -> None:
    schema = response_schema(1, 17)
    body = data.draw(bodies(schema))
    out: Frame = []
    write_fetch_response(out, body)
    run = b"".join(part for part in out if isinstance(part, bytes))
    result, end = read_fetch_response(memoryview(run + b"more"), 0)
    assert end == len(run)
    expected = expected_entity(schema, body)
    assert (result.error_code, result.session_id) == (expected.error_code.value, expected.session_id)
    assert [topic.topic_id for topic in result.responses] == [topic.topic_id for topic in expected.responses]
    pairs = zip(
        (partition for topic in result.responses for partition in topic.partitions),
        (partition for topic in expected.responses for partition in topic.partitions),
        strict=True,
    )
    for one, other in pairs:
        assert one.partition_index == other.partition_index
        assert one.error_code == other.error_code.value
        assert (one.high_watermark, one.log_start_offset) == (other.high_watermark, other.log_start_offset)
        assert one.records == (other.records or b"")
        epoch = other.diverging_epoch
        assert (one.diverging or (-1, -1)) == (epoch.epoch, epoch.end_offset)


def test_a_response_that_runs_past_its_end_is_refused() -> None:
    out: Frame = []
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "records": b"x" * 300}
    topics = [{"topic_id": None, "partitions": [partition]}]
    write_fetch_response(out, {"throttle_time": 0, "error_code": 0, "session_id": 1, "responses": topics})
    (run,) = out
    assert isinstance(run, bytes)
    for cut in range(len(run)):
        with pytest.raises(DOES_NOT_FIT):
            RESPONSE_READERS[1, 17](memoryview(run)[:cut], 0)
