from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.log.leader_epochs import EpochCache, EpochEntry

CACHE = [EpochEntry(2, 10), EpochEntry(4, 20), EpochEntry(7, 35)]


def test_an_epoch_is_noted_once_at_its_first_offset() -> None:
    cache = EpochCache()
    assert cache.latest_epoch == -1
    assert cache.assign(3, 5)
    assert not cache.assign(3, 5)
    assert not cache.assign(3, 9)
    assert cache.assign(4, 9)
    assert cache.entries == (EpochEntry(3, 5), EpochEntry(4, 9))
    assert cache.latest_epoch == 4


def test_batches_without_an_epoch_are_not_noted() -> None:
    cache = EpochCache()
    assert not cache.assign(-1, 0)
    assert cache.entries == ()


@pytest.mark.parametrize(
    ("epoch", "start_offset", "entries"),
    [
        pytest.param(5, 25, [(2, 10), (4, 20), (5, 25)], id="earlier epoch, earlier start"),
        pytest.param(8, 20, [(2, 10), (8, 20)], id="later epoch, start taken by another"),
        pytest.param(7, 30, [(2, 10), (4, 20), (7, 30)], id="same epoch, earlier start"),
        pytest.param(1, 0, [(1, 0)], id="before everything"),
    ],
)
def test_what_contradicts_a_new_entry_goes(
    epoch: int, start_offset: int, entries: list[tuple[int, int]]
) -> None:
    cache = EpochCache(CACHE)
    assert cache.assign(epoch, start_offset)
    assert list(cache.entries) == entries


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        pytest.param(-1, (-1, -1), id="undefined"),
        pytest.param(8, (-1, -1), id="later than any known"),
        pytest.param(7, (7, 50), id="the latest ends at the log's end"),
        pytest.param(4, (4, 35), id="a known one ends where the next begins"),
        pytest.param(2, (2, 20), id="the first known"),
        pytest.param(5, (4, 35), id="between two known"),
        pytest.param(1, (1, 10), id="before the first: that one's start, not -1"),
    ],
)
def test_the_end_of_an_epoch_follows_kip_101_and_279(epoch: int, answer: tuple[int, int]) -> None:
    """R19."""
    assert EpochCache(CACHE).end_offset_for(epoch, 50) == answer


def test_an_empty_cache_knows_the_end_of_nothing() -> None:
    assert EpochCache().end_offset_for(0, 50) == (-1, -1)


@pytest.mark.parametrize(
    ("end_offset", "left", "latest"),
    [(50, CACHE, 7), (36, CACHE, 7), (35, CACHE[:2], 4), (10, [], -1), (0, [], -1)],
)
def test_truncating_the_end_forgets_what_begins_there(
    end_offset: int, left: list[EpochEntry], latest: int
) -> None:
    cache = EpochCache(CACHE)
    assert cache.truncate_from_end(end_offset) == (left != CACHE)
    assert list(cache.entries) == left
    assert cache.latest_epoch == latest


@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        pytest.param(5, CACHE, id="before the first"),
        pytest.param(10, CACHE, id="at the first"),
        pytest.param(15, [(2, 15), (4, 20), (7, 35)], id="inside the first"),
        pytest.param(20, [(4, 20), (7, 35)], id="at the second"),
        pytest.param(99, [(7, 99)], id="past the last start"),
    ],
)
def test_truncating_the_start_moves_the_epoch_that_holds_it(
    start_offset: int, left: list[tuple[int, int]]
) -> None:
    cache = EpochCache(CACHE)
    assert cache.truncate_from_start(start_offset) == (left != CACHE)
    assert list(cache.entries) == left


@given(
    appends=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=20),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_the_cache_agrees_with_a_list_of_the_epoch_of_every_offset(
    appends: list[tuple[int, int]], cuts: list[int]
) -> None:
    cache = EpochCache()
    epoch_of: list[int] = []
    epoch = 0
    for step, count in appends:
        epoch += step
        cache.assign(epoch, len(epoch_of))
        epoch_of += [epoch] * count
    for cut in cuts:
        cache.truncate_from_end(cut)
        del epoch_of[cut:]
    assert [cache.epoch_of(offset) for offset in range(len(epoch_of))] == epoch_of
    for current in set(epoch_of):
        last = max(offset for offset, of in enumerate(epoch_of) if of == current)
        assert cache.end_offset_for(current, len(epoch_of)) == (current, last + 1)
