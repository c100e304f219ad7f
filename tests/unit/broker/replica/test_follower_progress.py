from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.replica.follower_progress import UNKNOWN_OFFSET, Progress

LAG_MS_MAX = 10


def test_a_follower_is_given_the_whole_time_before_its_first_fetch() -> None:
    progress = Progress(incarnation=0, caught_up_ms=100)
    assert progress.log_end_offset == UNKNOWN_OFFSET
    assert progress.is_caught_up(5, 110, LAG_MS_MAX)
    assert not progress.is_caught_up(5, 111, LAG_MS_MAX)


def test_who_has_all_there_is_is_caught_up_however_long_ago_he_asked() -> None:
    """A leader to whom nobody writes must not evict those who have everything."""
    progress = Progress(0, 100)
    progress.record_fetch(5, 5, 101)
    assert progress.is_caught_up(5, 10_000, LAG_MS_MAX)
    assert not progress.is_caught_up(6, 10_000, LAG_MS_MAX)


def test_who_reaches_what_there_was_at_his_last_fetch_was_caught_up_then() -> None:
    """KIP-16: a follower that keeps pace with a leader who is written to all the time is in sync."""
    progress = Progress(0, 0)
    for now_ms in range(100, 200, 5):
        progress.record_fetch(now_ms, now_ms + 5, now_ms)  # always five behind
        assert progress.is_caught_up(now_ms + 5, now_ms + 5, LAG_MS_MAX) == (now_ms > 100)


def test_who_fetches_but_never_reaches_the_end_falls_out() -> None:
    progress = Progress(0, 100)
    for step in range(20):
        progress.record_fetch(step, 1000 + 10 * step, 100 + step)
    assert not progress.is_caught_up(1200, 119, LAG_MS_MAX)


def test_a_follower_that_truncated_is_where_it_says() -> None:
    progress = Progress(0, 100)
    progress.record_fetch(8, 9, 101)
    progress.record_fetch(3, 9, 102)
    assert progress.log_end_offset == 3
    assert not progress.is_caught_up(9, 200, LAG_MS_MAX)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_the_time_of_having_been_caught_up_is_never_too_late_and_never_goes_back(
    steps: list[tuple[int, int, int]],
) -> None:
    """Against the definition: the latest known time at which it had what the leader had then."""
    progress, now_ms, leader_end, offset = Progress(0, 0), 0, 0, 0
    ends: list[tuple[int, int]] = []  # (time, the leader's end then)
    for waited_ms, appended, copied in steps:
        now_ms += waited_ms
        leader_end += appended
        offset = min(offset + copied, leader_end)
        before = progress.caught_up_ms
        ends.append((now_ms, leader_end))
        progress.record_fetch(offset, leader_end, now_ms)
        assert before <= progress.caught_up_ms <= now_ms
        reached = [time_ms for time_ms, end in ends if end <= offset]
        assert progress.caught_up_ms <= max(reached, default=0)
