"""Damage is found before anything is read, and only what counts is read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.loader.batch_bytes import TRANSACTIONAL, Record, batch_bytes, control_batch, raw_batch

from mainstem_loader.errors import CorruptBatchError
from mainstem_loader.kafka.batches import Source, readable_batches, scan_batches, wire_bytes_per_offset
from mainstem_loader.kafka.fetch import AbortedTransaction

SOURCE = Source("flights", 3)


def batch(first: int, count: int = 3, producer_id: int = -1, attributes: int = 0) -> bytes:
    records = [Record(offset, offset, b"k", b"v") for offset in range(first, first + count)]
    return batch_bytes(records, producer_id=producer_id, attributes=attributes)


def in_transaction(first: int, producer_id: int) -> bytes:
    return batch(first, producer_id=producer_id, attributes=TRANSACTIONAL)


def test_whole_batches_are_found_and_a_cut_off_one_is_left_for_later() -> None:
    whole = batch(0) + batch(3)
    for size in range(len(whole), len(whole) + len(batch(6))):
        results = list(scan_batches((whole + batch(6))[:size], SOURCE, 0))
        assert [(one.base_offset, one.last_offset) for one in results] == [(0, 2), (3, 5)]


@given(st.integers(0, 2**32))
def test_any_flipped_bit_under_the_checksum_is_found(seed: int) -> None:
    """R6: the CRC covers everything from byte 17 on."""
    chance = random.Random(seed)
    damaged = bytearray(batch(0) + batch(3, 50))
    start = len(batch(0))
    position = chance.randrange(start + 17, len(damaged))
    damaged[position] ^= 1 << chance.randrange(8)
    with pytest.raises(
        CorruptBatchError, match=r"Partition 3 of topic flights is damaged at offset 3: .*checksum"
    ):
        list(scan_batches(bytes(damaged), SOURCE, 0))


def test_a_checksum_failure_names_topic_partition_and_offset_and_says_what_to_do() -> None:
    damaged = bytearray(batch(40))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        list(scan_batches(bytes(damaged), SOURCE, 40))
    assert str(caught.value) == (
        "Partition 3 of topic flights is damaged at offset 40: the checksum of a batch does not match its"
        " bytes. Nothing from there on was loaded; restore the partition, or delete its records up to"
        " there."
    )


@pytest.mark.parametrize(
    ("fetched", "reason"),
    [
        pytest.param(
            raw_batch(b"", base_offset=0, last_offset=0, count=0, magic=1), "format 1", id="old format"
        ),
        pytest.param(batch(0) + batch(1), "follows where they are past", id="offsets that go back"),
        pytest.param(batch(98, 3), "past the end of the partition", id="offsets past the high watermark"),
        pytest.param(b"\0" * 100, "0 bytes long", id="zeros"),
        pytest.param(
            raw_batch(b"", base_offset=0, last_offset=-1, count=0),
            "holds 0 records up to",
            id="no offsets at all",
        ),
        pytest.param(
            raw_batch(b"", base_offset=5, last_offset=9, count=-1), "holds -1 records", id="a negative count"
        ),
    ],
)
def test_what_no_checksum_covers_is_checked_for_sense(fetched: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        list(scan_batches(fetched, SOURCE, 0, high_watermark=100))


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_left_for_later(fetched: bytes) -> None:
    try:
        assert list(scan_batches(fetched, SOURCE, 0)) == []
    except CorruptBatchError:
        pass


def readable(fetched: bytes, *aborted: AbortedTransaction) -> list[int]:
    batches = list(scan_batches(fetched, SOURCE, 0))
    return [one.base_offset for one in readable_batches(batches, fetched, aborted)]


def test_control_batches_hold_no_records_for_readers() -> None:
    assert readable(batch(0) + control_batch(3, 7, commit=True) + batch(4)) == [0, 4]


def test_records_of_aborted_transactions_do_not_count() -> None:
    """R12, KIP-98: from the transaction's first offset to its marker, of that producer only."""
    fetched = b"".join(
        [
            in_transaction(0, 7),
            in_transaction(3, 8),
            batch(6, producer_id=7),
            in_transaction(9, 7),
            control_batch(12, 7, commit=False),
            control_batch(13, 8, commit=True),
            in_transaction(14, 7),
            control_batch(17, 7, commit=True),
        ]
    )
    assert readable(fetched, AbortedTransaction(7, 0)) == [3, 6, 14]
    assert readable(fetched) == [0, 3, 6, 9, 14]


def test_a_producer_may_abort_twice_in_one_fetch() -> None:
    fetched = b"".join(
        [
            in_transaction(0, 7),
            control_batch(3, 7, commit=False),
            in_transaction(4, 7),
            control_batch(7, 7, commit=True),
            in_transaction(8, 7),
            control_batch(11, 7, commit=False),
        ]
    )
    # Brokers order the list by first offset, which is not relied upon.
    assert readable(fetched, AbortedTransaction(7, 8), AbortedTransaction(7, 0)) == [4]


def test_a_fetch_from_the_middle_of_an_aborted_transaction_skips_the_rest_of_it() -> None:
    fetched = in_transaction(6, 7) + control_batch(9, 7, commit=False) + in_transaction(10, 7)
    assert readable(fetched, AbortedTransaction(7, 0)) == [10]


def test_the_size_of_records_is_estimated_from_samples() -> None:
    sample = batch(0, 10)
    assert wire_bytes_per_offset({0: sample}, "t") == len(sample) / 10
    assert wire_bytes_per_offset({}, "t") == 0
