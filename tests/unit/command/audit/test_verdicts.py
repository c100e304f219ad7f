"""What the counts of all sides say about a window (R32)."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.audit.counts import WINDOW_MS, CountKey, ProducerCounts
from mainstem.audit.verdicts import (
    LoadedCounts,
    Observations,
    StoredCounts,
    UnauditedReason,
    WindowState,
    WindowVerdict,
    verdicts,
)

NOW_MS = 10 * WINDOW_MS
POSTED_MS = WINDOW_MS
GRACE_MS = 60_000


def verdict(
    counts: ProducerCounts | None = None,
    stored: StoredCounts | None = None,
    loaded: LoadedCounts | None = None,
    **more: Any,
) -> WindowVerdict:
    (one,) = verdicts(
        "t",
        Observations(
            produced={} if counts is None else {CountKey("p", "t", 0): counts},
            stored={} if stored is None else {0: stored},
            loaded={} if loaded is None else {0: loaded},
            has_table=loaded is not None,
            read_ms=NOW_MS,
            **more,
        ),
        GRACE_MS,
    )
    return one


def sent(
    produced: int, delivered: int | None = None, failed: int = 0, posted_ms: int = POSTED_MS
) -> ProducerCounts:
    return ProducerCounts(produced, produced - failed if delivered is None else delivered, failed, posted_ms)


COMPLETE, MISSING, DUPLICATES, OPEN = (
    {"state": state}
    for state in (WindowState.COMPLETE, WindowState.MISSING, WindowState.DUPLICATES, WindowState.OPEN)
)
RECENT = sent(10, 6, posted_ms=NOW_MS - GRACE_MS + 1)
VERDICTS: dict[str, tuple[ProducerCounts | None, StoredCounts, LoadedCounts | None, dict[str, Any]]] = {
    "all arrived": (
        sent(10), StoredCounts(10, 10), LoadedCounts(9, 1),
        {**COMPLETE, "missing": 0, "duplicates": 0, "completeness": 1.0},
    ),
    "all arrived, without a table": (sent(10), StoredCounts(10, 10), None, COMPLETE),
    "not stored": (
        sent(10, 6), StoredCounts(6, 6), LoadedCounts(6),
        {**MISSING, "missing_in_log": 4, "missing_in_table": 0, "producers": ("p",), "completeness": 0.6},
    ),
    # The application received the error.
    "failed": (sent(10, failed=3), StoredCounts(7, 7), None, {**COMPLETE, "produced": 7, "failed": 3}),
    "under way": (RECENT, StoredCounts(6, 6), None, OPEN),
    "under way and not stored": (RECENT, StoredCounts(5, 5), None, {"missing_in_log": 1}),
    "not loaded": (
        sent(10), StoredCounts(10, 10), LoadedCounts(8, 1),
        {**MISSING, "missing_in_log": 0, "missing_in_table": 1, "producers": ()},
    ),
    "still to load": (
        sent(10), StoredCounts(10, 4), LoadedCounts(4),
        {**OPEN, "pending": 6, "missing": 0, "completeness": 1.0},
    ),
    "stored twice": (
        sent(10), StoredCounts(11, 11), LoadedCounts(11),
        {**DUPLICATES, "duplicates": 1, "completeness": 1.1},
    ),
    "loaded twice": (
        sent(10), StoredCounts(10, 10), LoadedCounts(12), {**DUPLICATES, "duplicates": 2, "producers": ()},
    ),
    "not counted": (
        None, StoredCounts(5, 5), LoadedCounts(5), {"state": WindowState.UNAUDITED, "completeness": None},
    ),
    "not counted and not loaded": (None, StoredCounts(5, 5), LoadedCounts(4), {"missing_in_table": 1}),
    # R32: the first record that remains is of an earlier window than records before it.
    "out of order and deleted by retention": (
        sent(10), StoredCounts(6, 6), LoadedCounts(10, expired=4),
        {**COMPLETE, "stored": 10, "missing": 0, "duplicates": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("counts", "stored", "loaded", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_a_window_is_judged_by_the_counts_of_all_sides(
    counts: ProducerCounts | None, stored: StoredCounts, loaded: LoadedCounts | None, expected: dict[str, Any]
) -> None:
    one = verdict(counts, stored, loaded)
    assert {name: getattr(one, name) for name in expected} == expected


def test_a_window_of_which_nothing_was_stored_is_missing() -> None:
    """A producer that dies before flushing has posted its first count."""
    assert verdict(sent(50, 0)).missing_in_log == 50


@pytest.mark.parametrize(
    ("loaded", "state", "missing"),
    [
        (LoadedCounts(10, expired=7), WindowState.COMPLETE, 0),
        (LoadedCounts(9, 1, expired=7), WindowState.COMPLETE, 0),
        (LoadedCounts(8, expired=5), WindowState.MISSING, 2),
        (LoadedCounts(9, expired=7), WindowState.MISSING, 1),
        (None, WindowState.UNAUDITED, 0),
    ],
)
def test_what_retention_has_deleted_is_judged_by_the_table(
    loaded: LoadedCounts | None, state: WindowState, missing: int
) -> None:
    one = verdict(sent(10), StoredCounts(3, 3), loaded, expired_before_ms=WINDOW_MS)
    assert (one.state, one.missing) == (state, missing)


@pytest.mark.parametrize("loaded", [None, LoadedCounts(10)])
def test_a_compacted_topic_is_unaudited_but_for_records_that_its_table_lacks(
    loaded: LoadedCounts | None,
) -> None:
    """R32: compaction has removed records from the log, and the table still has them."""
    one = verdict(sent(10), StoredCounts(3, 3), loaded, is_compacted=True)
    assert (one.state, one.reason) == (WindowState.UNAUDITED, UnauditedReason.COMPACTED)
    assert (one.missing, one.duplicates) == (0, 0)
    assert verdict(sent(10), StoredCounts(3, 3), LoadedCounts(2), is_compacted=True).missing_in_table == 1


def test_records_of_aborted_transactions_are_not_missing() -> None:
    """R12, R32: their producer has counted them as delivered."""
    one = verdict(sent(10), StoredCounts(6, 6, uncommitted=4), LoadedCounts(6))
    assert (one.state, one.reason, one.missing) == (WindowState.UNAUDITED, UnauditedReason.UNCOMMITTED, 0)
    assert verdict(sent(10), StoredCounts(5, 5, uncommitted=4)).missing_in_log == 1
    # Those of a producer that does not count explain nothing.
    assert verdict(sent(10), StoredCounts(10, 10, uncommitted=4)).state is WindowState.COMPLETE


def test_a_window_says_why_it_is_unaudited() -> None:
    """R32."""
    assert verdict(None, StoredCounts(5, 5)).reason is UnauditedReason.NOT_COUNTED
    expired = verdict(sent(10), StoredCounts(5, 5), expired_before_ms=WINDOW_MS)
    assert expired.reason is UnauditedReason.EXPIRED
    assert verdict(sent(5), StoredCounts(5, 5)).reason is None


def test_the_counts_of_several_producers_add_up_and_other_topics_do_not_count() -> None:
    observations = Observations(
        produced={
            CountKey("p", "t", 0): sent(4),
            CountKey("q", "t", 0): sent(6),
            CountKey("q", "other", 0): sent(100),
            CountKey("q", "t", WINDOW_MS): sent(1),
        },
        stored={0: StoredCounts(10, 10, 2, 5000)},
        read_ms=NOW_MS,
    )
    first, second = verdicts("t", observations, GRACE_MS)
    assert (first.state, first.produced, first.late, first.lateness_ms_max) == (
        WindowState.COMPLETE,
        10,
        2,
        5000,
    )
    assert (second.window_ms, second.missing) == (WINDOW_MS, 1)


def test_a_window_that_has_not_ended_is_open() -> None:
    observations = Observations(
        {CountKey("p", "t", 0): sent(4)}, {0: StoredCounts(4, 4)}, read_ms=WINDOW_MS - 1
    )
    assert verdicts("t", observations, GRACE_MS)[0].state is WindowState.OPEN
