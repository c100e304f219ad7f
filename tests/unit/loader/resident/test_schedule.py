"""Which topic the resident loader loads next (R30)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.resident.schedule import FAILURE_PAUSE_S_MAX, Schedule


def scheduled(*names: str, freshness_s: float = 60, now_s: float = 0) -> Schedule:
    schedule = Schedule()
    schedule.set_topics(dict.fromkeys(names, freshness_s), now_s)
    return schedule


def test_a_new_topic_is_due_at_once_and_again_after_half_of_its_freshness() -> None:
    schedule = scheduled("a")
    assert schedule.take(0) == "a"
    assert schedule.take(0) is None
    schedule.end("a", 5)
    assert schedule.wait_s(5) == 25
    assert schedule.take(29.9) is None
    assert schedule.take(30) == "a"


def test_a_load_that_takes_longer_is_followed_by_the_next() -> None:
    schedule = scheduled("a")
    schedule.take(0)
    schedule.end("a", 100)
    assert schedule.take(100) == "a"


def test_no_topic_is_loaded_by_two_workers() -> None:
    schedule = scheduled("a", "b")
    assert {schedule.take(0), schedule.take(0)} == {"a", "b"}
    assert schedule.take(1000) is None
    assert schedule.wait_s(1000) is None
    assert schedule.longest_s(1000) == 1000


def test_a_backlog_waits_behind_all_that_are_due() -> None:
    schedule = scheduled("backlog", "b", "c")
    assert schedule.take(0) == "b"
    schedule.end("b", 1, has_more=True)
    assert schedule.take(1) == "backlog"
    assert schedule.take(1) == "c"
    schedule.end("backlog", 2, has_more=True)
    assert schedule.take(2) == "b"
    assert schedule.take(2) == "backlog"


def test_pauses_of_a_failing_topic_double_up_to_a_limit_and_end_with_success() -> None:
    schedule, now_s = scheduled("a"), 0.0
    pauses = []
    for _ in range(8):
        assert schedule.take(now_s) == "a"
        schedule.end("a", now_s, failed=True)
        wait_s = schedule.wait_s(now_s)
        assert wait_s is not None
        pauses.append(wait_s)
        now_s += wait_s
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses[4:] == [FAILURE_PAUSE_S_MAX] * 4
    schedule.take(now_s)
    schedule.end("a", now_s)
    assert schedule.wait_s(now_s) == 30


def test_a_topic_that_is_taken_away_while_it_is_loaded_is_not_loaded_again() -> None:
    schedule = scheduled("a")
    schedule.take(0)
    schedule.set_topics({}, 1)
    schedule.end("a", 2)
    assert schedule.take(1000) is None


def test_a_freshness_that_is_made_shorter_counts_at_once() -> None:
    schedule = scheduled("a", freshness_s=3600)
    schedule.take(0)
    schedule.end("a", 1)
    schedule.set_topics({"a": 20}, 2)
    assert schedule.wait_s(2) == 10


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=30))
def test_whatever_happens_every_topic_is_loaded_within_the_longest_pause(
    ends: list[tuple[str, bool, bool]],
) -> None:
    schedule, now_s = scheduled("a", "b", "c"), 0.0
    outcome_of = {name: (failed, more) for name, failed, more in ends}
    last_of = dict.fromkeys("abc", 0.0)
    for _ in range(200):
        name = schedule.take(now_s)
        if name is None:
            wait_s = schedule.wait_s(now_s)
            assert wait_s is not None
            now_s += wait_s
            continue
        assert now_s - last_of[name] <= FAILURE_PAUSE_S_MAX + 1
        last_of[name] = now_s
        now_s += 0.1
        failed, has_more = outcome_of.get(name, (False, False))
        schedule.end(name, now_s, failed=failed, has_more=has_more)
