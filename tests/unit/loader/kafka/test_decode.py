"""The vectorised decoder finds the records that were encoded one by one (R6, R7, R12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.loader.batch_bytes import (
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    NONE,
    SNAPPY,
    XERIAL_SNAPPY,
    ZSTD,
    Record,
    batch_bytes,
    raw_batch,
    record_bytes,
    varint,
)

from mainstem_loader.errors import CorruptBatchError
from mainstem_loader.kafka import decode
from mainstem_loader.kafka.batches import Source
from mainstem_loader.kafka.decode import DecodedRecords, decode_records, headers_of
from mainstem_loader.kafka.fetch import AbortedTransaction, FetchedRecords

SOURCE = Source("t", 0)
CODECS = [NONE, GZIP, SNAPPY, XERIAL_SNAPPY, LZ4, ZSTD]
FAR = 1 << 62

small_bytes = st.binary(max_size=80) | st.binary(min_size=100, max_size=20_000)
headers = st.lists(
    st.tuples(st.text(max_size=5).map(str.encode), st.none() | st.binary(max_size=9)), max_size=3
).map(tuple)


@st.composite
def record_runs(draw: st.DrawFn) -> list[list[Record]]:
    """Batches of records with rising offsets and holes, as compaction leaves them."""
    offset = draw(st.integers(0, 10**12))
    batches: list[list[Record]] = []
    for _ in range(draw(st.integers(1, 5))):
        batch: list[Record] = []
        for _ in range(draw(st.integers(1, 12))):
            offset += draw(st.sampled_from([1, 1, 1, 2, 70, 9000]))
            time = draw(st.integers(-(10**10), 10**13))
            key, value = draw(st.none() | small_bytes), draw(st.none() | small_bytes)
            batch.append(Record(offset, time, key, value, draw(headers)))
        batches.append(batch)
    return batches


def fetched(*batches: bytes, aborted: Sequence[AbortedTransaction] = ()) -> FetchedRecords:
    return FetchedRecords(b"".join(batches), FAR, tuple(aborted))


def records_of(decoded: DecodedRecords) -> list[Record]:
    return [
        Record(
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            row["value"],
            tuple((header["key"].encode(), header["value"]) for header in row.get("headers", ())),
        )
        for block in decoded.blocks
        for row in block.to_pylist()
    ]


@given(batches=record_runs(), codecs=st.lists(st.sampled_from(CODECS), min_size=5, max_size=5))
def test_decoded_records_equal_those_encoded_one_by_one(
    batches: list[list[Record]], codecs: list[int]
) -> None:
    whole = [batch_bytes(batch, codec=codec) for batch, codec in zip(batches, codecs, strict=False)]
    expected = [record for batch in batches for record in batch]
    first, last = expected[0].offset, expected[-1].offset
    decoded = decode_records(fetched(*whole), SOURCE, first, last + 1, with_headers=True)
    assert records_of(decoded) == expected
    assert decoded.next_offset == last + 1


@given(batches=record_runs())
def test_headers_that_were_not_requested_are_there_for_those_who_ask(batches: list[list[Record]]) -> None:
    """As for dead letters, whether a block has them or not."""
    expected = [record.headers for batch in batches for record in batch]
    whole = fetched(*map(batch_bytes, batches))
    blocks = decode_records(whole, SOURCE, batches[0][0].offset, batches[-1][-1].offset + 1).blocks
    found: list[Any] = [headers for block in blocks for headers in headers_of(block, SOURCE).to_pylist()]
    assert [
        tuple((header["key"].encode(), header["value"]) for header in headers) for headers in found
    ] == expected


@given(batches=record_runs(), data=st.data())
def test_only_the_offsets_asked_for_come_back(batches: list[list[Record]], data: st.DataObject) -> None:
    expected = [record for batch in batches for record in batch]
    start = data.draw(st.integers(batches[0][0].offset, batches[0][-1].offset))
    end = data.draw(st.integers(start, expected[-1].offset + 1))
    decoded = decode_records(fetched(*map(batch_bytes, batches)), SOURCE, start, end, with_headers=True)
    assert records_of(decoded) == [record for record in expected if start <= record.offset < end]
    assert decoded.next_offset == end


def test_a_fetch_larger_than_a_block_is_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BLOCK_RECORDS", 7)
    records = [Record(offset, offset, b"%d" % offset, None) for offset in range(100)]
    whole = [batch_bytes(records[first : first + 9]) for first in range(0, 100, 9)]
    blocks = list(decode_records(fetched(*whole), SOURCE, 5, 95).blocks)
    assert records_of(DecodedRecords(iter(blocks), 95, ())) == records[5:95]
    assert max(block.num_rows for block in blocks) == 7


def test_large_fetches_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "PART_BYTES", 300)
    records = [Record(offset, offset, None, b"v" * 50) for offset in range(60)]
    whole = [batch_bytes(records[first : first + 4], codec=ZSTD) for first in range(0, 60, 4)]
    assert records_of(decode_records(fetched(*whole), SOURCE, 0, 60)) == records


def test_a_broker_that_sets_the_time_sets_it_for_the_whole_batch() -> None:
    """LogAppendTime: the batch's maximum is the time of all of its records."""
    records = [Record(0, 5, None, b"a"), Record(1, 6, None, b"b")]
    stamped = batch_bytes(records, attributes=LOG_APPEND_TIME, max_timestamp_ms=1234)
    unstamped = batch_bytes([Record(2, 7, None, b"c")])
    decoded = decode_records(fetched(stamped, unstamped), SOURCE, 0, 3)
    assert [record.timestamp_ms for record in records_of(decoded)] == [1234, 1234, 7]


def test_a_batch_without_records_moves_the_position() -> None:
    """Compaction keeps the last batch of a producer even when nothing in it is left."""
    empty = raw_batch(b"", base_offset=10, last_offset=19, count=0)
    decoded = decode_records(fetched(batch_bytes([Record(9)]), empty), SOURCE, 9, 30)
    assert records_of(decoded) == [Record(9)]
    assert decoded.next_offset == 20


def test_a_hole_up_to_the_end_ends_the_range() -> None:
    decoded = decode_records(fetched(batch_bytes([Record(50)])), SOURCE, 9, 30)
    assert not list(decoded.blocks)
    assert decoded.next_offset == 30


def test_an_empty_fetch_moves_nothing() -> None:
    decoded = decode_records(fetched(), SOURCE, 7, 9)
    assert (list(decoded.blocks), decoded.next_offset) == ([], 7)


def test_header_names_that_are_not_utf_8_are_kept_readable() -> None:
    odd = batch_bytes([Record(0, 0, None, b"", ((b"\xff", b"x"),))])
    assert records_of(decode_records(fetched(odd), SOURCE, 0, 1, with_headers=True))[0].headers == (
        (b"\\xff", b"x"),
    )


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(record_bytes(Record(0), 0, 0), 2, id="fewer records than said"),
        pytest.param(record_bytes(Record(0), 0, 0) * 2, 1, id="more records than said"),
        pytest.param(b"", 1, id="no bytes at all"),
        pytest.param(varint(20) + record_bytes(Record(0), 0, 0)[1:], 1, id="a record longer than the batch"),
        pytest.param(varint(8) + b"\0\0\0" + varint(50) + b"abcd", 1, id="a key longer than its record"),
        pytest.param(varint(8) + b"\0\0\0\1" + varint(50) + b"abc", 1, id="a value longer than its record"),
        pytest.param(varint(8) + b"\0\0\0" + varint(-5) + b"abcd", 1, id="a negative length"),
        pytest.param(varint(6) + b"\0\0\0\1\1" + varint(-1), 1, id="a negative header count"),
        pytest.param(varint(15) + b"\0" + b"\xff" * 14, 1, id="varints without end"),
        pytest.param(record_bytes(Record(0), 0, 0) * 2, 2, id="the same offset twice"),
        pytest.param(record_bytes(Record(5), 0, 0), 1, id="an offset past the batch"),
    ],
)
def test_records_that_are_not_laid_out_as_records_are_damage(body: bytes, count: int) -> None:
    wrong = raw_batch(body, base_offset=0, last_offset=1, count=count)
    with pytest.raises(CorruptBatchError, match="Partition 0 of topic t is damaged at offset 0"):
        list(decode_records(fetched(wrong), SOURCE, 0, 2).blocks)


def test_headers_that_do_not_fill_their_record_are_damage() -> None:
    body = b"\0\0\0\1\1" + varint(1) + varint(30) + b"abc"
    wrong = raw_batch(varint(len(body)) + body, base_offset=0, last_offset=0, count=1)
    with pytest.raises(CorruptBatchError, match="headers"):
        list(decode_records(fetched(wrong), SOURCE, 0, 1, with_headers=True).blocks)


def test_data_that_does_not_decompress_is_damage() -> None:
    wrong = raw_batch(b"garbage", base_offset=0, last_offset=0, count=1, attributes=ZSTD)
    with pytest.raises(CorruptBatchError, match="do not decompress"):
        list(decode_records(fetched(wrong), SOURCE, 0, 1).blocks)


@given(body=st.binary(max_size=120), count=st.integers(0, 12))
def test_any_bytes_under_a_right_checksum_are_read_or_refused(body: bytes, count: int) -> None:
    batch = raw_batch(body, base_offset=0, last_offset=20, count=count)
    try:
        decoded = records_of(decode_records(fetched(batch), SOURCE, 0, 21, with_headers=True))
    except CorruptBatchError:
        return
    assert len(decoded) == count
