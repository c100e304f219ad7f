"""The records of `__transaction_state` are Kafka's own (R11): bytes written out by hand from its schemas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.txn.records import decode_key, decode_value, encode_key, encode_value
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import Transaction

HEAD = "0000000000001234 0005 0000ea60"
"""Producer id, epoch and timeout."""
TIMES = "0000018bcfe56800 0000018bcfe56400"
ONGOING = Transaction(
    producer_id=0x1234,
    epoch=5,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset((("t", 0), ("t", 2), ("u", 1))),
    updated_ms=0x18BCFE56800,
    started_ms=0x18BCFE56400,
)


def test_a_key_is_version_0_and_the_transactional_id() -> None:
    assert encode_key("txn-1") == bytes.fromhex("0000 0005") + b"txn-1"
    assert decode_key(bytes.fromhex("0000 0005") + b"txn-1") == "txn-1"


def test_a_key_of_a_newer_kind_is_none_of_ours() -> None:
    assert decode_key(bytes.fromhex("0001 00")) is None


def test_a_value_is_written_in_version_1_without_tags_that_have_their_defaults() -> None:
    assert encode_value(ONGOING) == bytes.fromhex(
        f"0001 {HEAD} 01 03 02 74 03 00000000 00000002 00 02 75 02 00000001 00 {TIMES} 00"
    )


def test_an_empty_transaction_has_null_partitions() -> None:
    empty = Transaction(0x1234, 5, 60_000, State.EMPTY, updated_ms=0x18BCFE56800)
    assert encode_value(empty) == bytes.fromhex(f"0001 {HEAD} 00 00 0000018bcfe56800 ffffffffffffffff 00")
    assert decode_value(encode_value(empty)) == empty


def test_ids_and_the_version_of_the_client_are_tagged_fields() -> None:
    rotating = Transaction(
        0x1234, 5, 60_000, State.PREPARE_COMMIT, frozenset((("t", 0),)), 0x18BCFE56800, 0x18BCFE56400, 7, 9, 2
    )
    assert encode_value(rotating) == bytes.fromhex(
        f"0001 {HEAD} 02 02 02 74 02 00000000 00 {TIMES}"
        " 03 00 08 0000000000000007 01 08 0000000000000009 02 02 0002"
    )


def test_values_of_version_0_are_read() -> None:
    value = bytes.fromhex(
        f"0000 {HEAD} 01 00000002 0001 74 00000002 00000000 00000002 0001 75 00000001 00000001 {TIMES}"
    )
    assert decode_value(value) == ONGOING
    empty = bytes.fromhex(f"0000 {HEAD} 00 ffffffff {TIMES}")
    assert decode_value(empty).partitions == frozenset()


def test_unknown_tags_of_newer_programs_are_skipped() -> None:
    value = bytes.fromhex(f"0001 {HEAD} 00 00 {TIMES} 01 03 02 0007")
    assert decode_value(value).producer_id == 0x1234


@pytest.mark.parametrize("cut", range(len(encode_value(ONGOING))))
def test_a_value_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(ValueError):
        decode_value(encode_value(ONGOING)[:cut])


transactions = st.builds(
    Transaction,
    producer_id=st.integers(-1, 2**63 - 1),
    epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from([state for state in State if state is not State.EMPTY]),
    partitions=st.frozensets(st.tuples(st.text(max_size=200), st.integers(0, 2**31 - 1)), max_size=20),
    updated_ms=st.integers(-1, 2**63 - 1),
    started_ms=st.integers(-1, 2**63 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
)


@given(transactions)
def test_what_is_written_is_read_again(transaction: Transaction) -> None:
    assert decode_value(encode_value(transaction)) == transaction


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_value_error(data: bytes) -> None:
    for decode in (decode_key, decode_value):
        try:
            decode(data)
        except ValueError:
            pass
