from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.replica.partition_state import PartitionState

BEFORE = PartitionState(1, 4, (1, 2, 3), 9, 6, incarnations={1: 10, 2: 20, 3: 30})


def test_only_the_sets_the_lives_and_the_partition_epoch_change() -> None:
    after = BEFORE.with_isr((1, 3), {}, 1)
    assert after == replace(BEFORE, isr=(1, 3), partition_epoch=7, incarnations={1: 10, 3: 30})


def test_a_new_member_comes_with_the_life_it_was_found_in_and_others_keep_theirs() -> None:
    after = BEFORE.with_isr((1, 2), {}, 1).with_isr((1, 2, 3), {3: 31}, 1)
    assert (after.isr, after.incarnations) == ((1, 2, 3), {1: 10, 2: 20, 3: 31})


def test_who_leaves_a_set_that_becomes_too_small_is_eligible_with_his_life() -> None:
    """KIP-966: nothing is acknowledged from then on, so he has all that was."""
    after = BEFORE.with_isr((1,), {}, 2)
    assert (after.isr, after.elr, after.incarnations) == ((1,), (2, 3), {1: 10, 2: 20, 3: 30})


def test_the_eligible_stay_while_the_set_is_too_small_and_go_when_it_is_large_enough() -> None:
    small = BEFORE.with_isr((1,), {}, 3)
    still_small = small.with_isr((1, 3), {3: 31}, 3)
    assert (still_small.isr, still_small.elr) == ((1, 3), (2,))
    assert still_small.incarnations == {1: 10, 3: 31, 2: 20}
    large = still_small.with_isr((1, 3, 2), {2: 21}, 3)
    assert (large.elr, large.incarnations) == ((), {1: 10, 3: 31, 2: 21})


def test_who_leaves_a_set_that_stays_large_enough_is_forgotten() -> None:
    after = BEFORE.with_isr((1, 2), {}, 2)
    assert (after.elr, after.incarnations) == ((), {1: 10, 2: 20})


MEMBERS = st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True).map(tuple)


@given(st.lists(MEMBERS, min_size=1, max_size=6), st.integers(1, 4))
def test_no_one_is_in_both_sets_and_both_know_their_members_lives(
    history: list[tuple[int, ...]], min_insync_replicas: int
) -> None:
    state = PartitionState(1, 0, (1,), 1, incarnations={1: 0})
    for members in history:
        before = state
        state = before.with_isr(members, dict.fromkeys(members, 7), min_insync_replicas)
        assert state.isr == members
        assert not set(state.isr) & set(state.elr)
        assert set(state.elr) == (
            set(before.isr + before.elr) - set(members) if len(members) < min_insync_replicas else set()
        )
        assert set(state.incarnations) == set(state.isr + state.elr)
        assert state.partition_epoch == before.partition_epoch + 1
