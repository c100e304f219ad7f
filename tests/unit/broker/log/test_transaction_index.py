"""The index of a segment's aborted transactions (R12: Apache Kafka's format)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem_broker.log.transaction_index import AbortedTransaction, TransactionIndex

FIRST = AbortedTransaction(7, 0, 4, 2)
SECOND = AbortedTransaction(8, 2, 6, 5)
THIRD = AbortedTransaction(7, 5, 9, 10)


def index_of(tmp_path: Path, *transactions: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(tmp_path / "00000000000000000000.txnindex")
    for transaction in transactions:
        index.append(transaction)
    index.write()
    return index


def search(index: TransactionIndex, from_offset: int, to_offset: int) -> tuple[list[int], bool]:
    """First offsets, and whether later segments need no look."""
    results: list[AbortedTransaction] = []
    is_complete = index.search(from_offset, to_offset, results)
    return [transaction.first_offset for transaction in results], is_complete


def test_entries_have_34_bytes_as_in_apache_kafka(tmp_path: Path) -> None:
    index_of(tmp_path, AbortedTransaction(1, 2, 3, 4))
    content = (tmp_path / "00000000000000000000.txnindex").read_bytes()
    assert content.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))


def test_what_was_written_is_loaded(tmp_path: Path) -> None:
    index_of(tmp_path, FIRST, SECOND)
    index = index_of(tmp_path)
    assert index.load(0, 10)
    assert list(index) == [FIRST, SECOND]
    index.append(THIRD)
    index.write()
    assert index_of(tmp_path).load(0, 10)


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "first_offsets", "is_complete"),
    [
        (0, 10, [0, 2, 5], True),
        (0, 2, [0], True),
        (4, 5, [0, 2], True),
        (5, 6, [2, 5], True),
        (7, 10, [5], True),
        (7, 11, [5], False),
        (10, 20, [], False),
    ],
)
def test_a_search_finds_what_overlaps_and_says_when_it_is_complete(
    tmp_path: Path, from_offset: int, to_offset: int, first_offsets: list[int], is_complete: bool
) -> None:
    result = search(index_of(tmp_path, FIRST, SECOND, THIRD), from_offset, to_offset)
    assert result == (first_offsets, is_complete)


@pytest.mark.parametrize(("end_offset", "count"), [(10, 3), (9, 2), (7, 2), (6, 1), (5, 1), (4, 0), (0, 0)])
def test_truncation_drops_the_transactions_whose_marker_goes(
    tmp_path: Path, end_offset: int, count: int
) -> None:
    index = index_of(tmp_path, FIRST, SECOND, THIRD)
    index.truncate_to(end_offset)
    assert list(index) == [FIRST, SECOND, THIRD][:count]
    assert index.path.exists() == bool(count)
    again = index_of(tmp_path)
    assert again.load(0, 10)
    assert len(again) == count


def test_truncation_of_entries_that_are_not_written_yet_leaves_the_file_whole(tmp_path: Path) -> None:
    index = index_of(tmp_path, FIRST)
    index.append(SECOND)
    index.append(THIRD)
    index.truncate_to(7)
    index.write()
    assert index.path.stat().st_size == 2 * TransactionIndex.ENTRY.size


@pytest.mark.parametrize(
    ("transactions", "cut_bytes"),
    [
        ((FIRST, SECOND), 1),
        ((SECOND, FIRST), 0),
        ((AbortedTransaction(7, 5, 4, 5),), 0),
        ((AbortedTransaction(7, 5, 10, 11),), 0),
        ((AbortedTransaction(7, -1, 4, 5),), 0),
        ((AbortedTransaction(7, 0, 4, 5), AbortedTransaction(7, 5, 6, 4)), 0),
    ],
    ids=[
        "torn",
        "falling",
        "ends before it begins",
        "of another segment",
        "negative",
        "falling stable offset",
    ],
)
def test_an_index_that_its_segment_cannot_have_is_not_sound(
    tmp_path: Path, transactions: tuple[AbortedTransaction, ...], cut_bytes: int
) -> None:
    path = index_of(tmp_path, *transactions).path
    path.write_bytes(path.read_bytes()[: len(transactions) * 34 - cut_bytes])
    assert not index_of(tmp_path).load(0, 10)


def test_a_full_disk_leaves_the_entries_in_memory_until_there_is_room(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "missing" / "00000000000000000000.txnindex")
    index.append(FIRST)
    with pytest.raises(OSError, match="No such file"):
        index.write()
    assert search(index, 0, 2) == ([0], True)
    index.path.parent.mkdir()
    index.write()
    assert index.path.stat().st_size == TransactionIndex.ENTRY.size
