"""The bytes of a producer snapshot: Apache Kafka's, and broken ones (R11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.log.producer_logs import CONTROL, NOW_MS, TRANSACTIONAL, ProducerLog, header

from mainstem_broker.config.setting import INT32_MAX
from mainstem_broker.errors import OutOfOrderSequenceNumber
from mainstem_broker.log.producer_snapshot_format import decode_snapshot, encode_snapshot

# Written by Apache Kafka 4.1.0 (`ProducerStateManager.takeSnapshot`) after three batches: producer 5 wrote
# records 2147483646 to 1, round the end of sequence numbers, then producer 6 at epoch 3 records 0 to 1 and 2.
KAFKA_SNAPSHOT = bytes.fromhex(
    "0001438afcec00000002"
    "0000000000000005000000000001000000000000000300000003000001977420dc00ffffffffffffffffffffffff"
    "0000000000000006000300000002000000000000000600000000000001977420dc00ffffffffffffffffffffffff"
)


def test_a_snapshot_is_apache_kafkas_byte_for_byte_where_one_batch_is_remembered() -> None:
    log = ProducerLog()
    log.send(header(5, 0, INT32_MAX - 1, 4))
    log.end_offset = 6  # the first batch of producer 6 is left out: Kafka's file says nothing of it
    log.send(header(6, 3, 2, 1))
    assert encode_snapshot(log.producers) == KAFKA_SNAPSHOT
    assert encode_snapshot(decode_snapshot(KAFKA_SNAPSHOT)) == KAFKA_SNAPSHOT


def test_r11_a_snapshot_keeps_all_remembered_batches_the_last_one_last() -> None:
    log = ProducerLog()
    batches = [header(sequence=at, count=2) for at in range(0, 14, 2)]
    for number, batch in enumerate(batches):
        log.send(batch, NOW_MS + number)
    read = decode_snapshot(encode_snapshot(log.producers))
    assert read.states[7].batches == log.producers.states[7].batches
    assert read.states[7].last_timestamp_ms == NOW_MS + 6
    log.producers = read
    assert [log.send(batch) for batch in batches[2:]] == [4, 6, 8, 10, 12]


def test_from_a_snapshot_the_last_batch_of_each_producer_is_known() -> None:
    log = ProducerLog()
    log.producers, log.end_offset = decode_snapshot(KAFKA_SNAPSHOT), 7
    assert log.send(header(5, 0, INT32_MAX - 1, 4)) == 0
    assert log.send(header(6, 3, 2, 1)) == 6
    assert log.send(header(5, 0, 2, 1)) == 7
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(6, 3, 0, 2))
    assert not log.truncate_to(6)


def test_a_snapshot_keeps_producers_without_batches_and_open_transactions() -> None:
    log = ProducerLog()
    log.copy(header(5, 2, -1, attributes=TRANSACTIONAL | CONTROL))
    log.copy(header(6, 0, 0, attributes=TRANSACTIONAL))
    log.producers.states[5].coordinator_epoch = 9
    read = decode_snapshot(encode_snapshot(log.producers))
    assert encode_snapshot(read) == encode_snapshot(log.producers)
    marked, open_one = read.states[5], read.states[6]
    assert (marked.epoch, marked.last_sequence, marked.next_sequence, len(marked.batches)) == (2, -1, 0, 0)
    assert (marked.coordinator_epoch, marked.last_timestamp_ms) == (9, NOW_MS)
    assert open_one.transaction_first_offset == 1


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"", "only 0 bytes"),
        (lambda data: data[:9], "only 9 bytes"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:40] + b"\x55" + data[41:], "checksum"),
        (lambda data: b"\x00\x02" + data[2:], "version is 2"),
        (lambda data: bytes(len(data)), "version is 0"),
    ],
    ids=["empty", "no head", "torn", "flipped", "of the future", "zeros"],
)
def test_a_broken_snapshot_is_reported_by_a_sentence(spoil: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_snapshot(spoil(KAFKA_SNAPSHOT))


@given(st.binary(max_size=200))
def test_no_bytes_but_a_snapshot_are_taken_for_one(data: bytes) -> None:
    try:
        assert encode_snapshot(decode_snapshot(data)) == data
    except ValueError:
        pass
