"""Transaction markers in Apache Kafka's format."""

from __future__ import annotations

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.protocol.batches import crc_matches, parse_batch_header, read_records
from mainstem_broker.protocol.markers import Marker, make_marker, read_marker

NOW_MS = 1_750_000_000_000
CONTROL = 0x30


@pytest.mark.parametrize(("is_commit", "kind"), [(False, 0), (True, 1)])
def test_a_marker_is_a_control_batch_of_one_record_as_apache_kafka_writes_it(
    is_commit: bool, kind: int
) -> None:
    header, batch = make_marker(7, 3, Marker(is_commit, 9), NOW_MS)
    assert parse_batch_header(batch) == header
    assert crc_matches(header, batch)
    assert header.is_control
    assert header.is_transactional
    fields = header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
    assert fields == (7, 3, -1, 1)
    assert header.size_bytes == 78
    (record,) = read_records(header, batch)
    assert record.key == bytes([0, 0, 0, kind])
    assert record.value == bytes([0, 0, 0, 0, 0, 9])
    assert record.timestamp_ms == NOW_MS


@pytest.mark.parametrize("marker", [Marker(True, 0), Marker(False, 2**31 - 1)])
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert read_marker(*make_marker(7, 3, marker, NOW_MS)) == marker


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch([Message(bytes(6), bytes(4), (), NOW_MS)], producer_id=7),
        encode_batch([], attributes=CONTROL, producer_id=7),
        encode_batch([Message(bytes(6), bytes([0, 0, 0, 2]), (), NOW_MS)], attributes=CONTROL),
        encode_batch([Message(bytes(5), bytes(4), (), NOW_MS)], attributes=CONTROL),
        encode_batch([Message(None, None, (), NOW_MS)], attributes=CONTROL),
        encode_batch([Message(bytes(6), bytes(4), (), NOW_MS)], attributes=CONTROL, records=b"\xff" * 20),
        encode_batch([Message(bytes(9000), bytes(4), (), NOW_MS)], attributes=CONTROL),
    ],
    ids=["no control batch", "emptied", "leader change", "short value", "nulls", "garbage", "huge"],
)
def test_what_is_no_marker_ends_no_transaction(batch: bytes) -> None:
    assert read_marker(parse_batch_header(batch), batch) is None


def test_fields_of_later_versions_are_ignored() -> None:
    batch = encode_batch(
        [Message(bytes([0, 1, 0, 0, 0, 9, 1, 2]), bytes([0, 1, 0, 1, 5]), (), NOW_MS)], attributes=CONTROL
    )
    assert read_marker(parse_batch_header(batch), batch) == Marker(True, 9)
