from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.protocol.records import Record, parse_records

nullable = st.none() | st.binary(max_size=40)
message = st.builds(
    Message,
    value=nullable,
    key=nullable,
    headers=st.lists(st.tuples(st.text(max_size=10), nullable), max_size=3).map(tuple),
    timestamp_ms=st.integers(0, 2**42),
)


def payload(content: list[Message]) -> bytes:
    return encode_batch(content)[HEADER.size :]


def parse(plain: bytes, count: int, stamped_ms: int | None = None) -> list[Record]:
    return list(parse_records(plain, count, 100, 1_000, stamped_ms))


@given(content=st.lists(message, min_size=1, max_size=5))
def test_records_come_back_as_a_client_wrote_them(content: list[Message]) -> None:
    base_ms = content[0].timestamp_ms
    records = list(parse_records(payload(content), len(content), 7, base_ms, None))
    assert [(r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in records] == [
        (7 + number, m.timestamp_ms, m.key, m.value, m.headers) for number, m in enumerate(content)
    ]


def test_the_brokers_stamp_replaces_every_timestamp() -> None:
    content = [Message(b"a", timestamp_ms=5), Message(b"b", timestamp_ms=6)]
    assert [r.timestamp_ms for r in parse(payload(content), 2, stamped_ms=99)] == [99, 99]


@given(plain=st.binary(max_size=200), count=st.integers(0, 10))
def test_any_bytes_are_either_records_or_corrupt(plain: bytes, count: int) -> None:
    try:
        records = parse(plain, count)
    except CorruptMessage:
        return
    assert len(records) == count


def test_records_cut_short_at_any_byte_are_corrupt() -> None:
    plain = payload([Message(b"value", b"key", (("h", b"x"),)), Message(None, None, (("n", None),))])
    for size in range(len(plain)):
        with pytest.raises(CorruptMessage):
            parse(plain[:size], 2)


@pytest.mark.parametrize(("count", "reason"), [(1, "after its last record"), (3, "cannot be read")])
def test_more_or_fewer_records_than_the_header_counts_are_corrupt(count: int, reason: str) -> None:
    with pytest.raises(CorruptMessage, match=reason):
        parse(payload([Message(b"a"), Message(b"b")]), count)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        pytest.param(b"\x01", "length leaves the batch", id="negative length"),
        pytest.param(b"\x80" * 11, "longer than ten bytes", id="varint without end"),
        pytest.param(b"\x0c\x00\x00\x00\x03\x01\x00", "field leaves the record", id="key length -2"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x01", "header count is negative", id="header count -1"),
        pytest.param(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "header has no name", id="null header name"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x01\x00\x00", "do not fill", id="bytes after the headers"),
        pytest.param(b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", "codec can't decode", id="name not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(plain: bytes, reason: str) -> None:
    with pytest.raises(CorruptMessage, match=reason):
        parse(plain, 1)
