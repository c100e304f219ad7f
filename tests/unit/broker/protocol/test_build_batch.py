"""Batches that the broker makes of its own records are as good as a producer's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.protocol.batch_validation import validate_for_append
from mainstem_broker.protocol.batches import HEADER_BYTES, make_batch, parse_batch_header, read_records
from mainstem_broker.protocol.records import Record, encode_records, parse_records

NOW_MS = 1_750_000_000_000
BYTES = st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | BYTES), max_size=3)
COMPACTED = BrokerConfig({"broker.id": "1", "zookeeper.connect": "z"}).topic({"cleanup.policy": "compact"})


@given(st.lists(st.tuples(BYTES, st.none() | BYTES, HEADERS), min_size=1, max_size=5))
def test_a_batch_of_our_records_may_be_appended_and_says_what_was_put_in(
    entries: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    batch = make_batch(entries, NOW_MS)
    valid = validate_for_append(batch, COMPACTED, produce_version=11, now_ms=NOW_MS)
    assert (valid.batch, valid.header.record_count) == (batch, len(entries))
    records = list(read_records(parse_batch_header(batch), batch))
    assert [(one.key, one.value, list(one.headers)) for one in records] == [
        (key, value, headers) for key, value, headers in entries
    ]
    assert [(one.offset, one.timestamp_ms) for one in records] == [
        (number, NOW_MS) for number in range(len(entries))
    ]


@given(
    st.lists(
        st.builds(
            Record,
            offset=st.integers(0, 2**31 - 1),
            timestamp_ms=st.integers(0, 2**62),
            key=st.none() | BYTES,
            value=st.none() | BYTES,
            headers=HEADERS,
        ),
        max_size=5,
    )
)
def test_records_that_were_written_are_read_as_they_were(records: list[Record]) -> None:
    payload = encode_records(records, 0, 0)
    assert list(parse_records(payload, len(records), 0, 0, None)) == records


def test_the_bytes_of_a_record_are_those_of_kip_98() -> None:
    record = Record(1, 5, b"k", None, [("h", b"v")])
    assert encode_records([record], 0, 3).hex() == "1600040202" + b"k".hex() + "010202" + (
        b"h".hex() + "02" + b"v".hex()
    )
    assert len(make_batch([(b"k", None, ())], 3)) == HEADER_BYTES + 8
