"""Rebalances: who joins again, who is late, and how long the others wait (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import PlayedGroup

from mainstem_broker.errors import RebalanceInProgress, UnknownMemberId
from mainstem_broker.group.classic.member import NEW_MEMBER_TIMEOUT_MS
from mainstem_broker.group.classic.rebalancing import ClassicState


def test_a_follower_that_asks_again_without_a_change_gets_the_present_generation(played: PlayedGroup) -> None:
    _, follower = played.stable(2)
    generation = played.group.generation
    answer = played.joined(played.join(follower))
    assert (answer.generation, played.group.state) == (generation, ClassicState.STABLE)


def test_a_follower_with_another_subscription_rebalances_the_group(played: PlayedGroup) -> None:
    leader, follower = played.stable(2)
    assert played.is_waiting(played.join(follower, protocols=(("range", b"changed"),)))
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(leader)


def test_one_who_lost_the_answer_to_a_join_gets_it_again(played: PlayedGroup) -> None:
    first = played.joined(played.join())
    again = played.joined(played.join(first.member_id))
    assert again == first
    assert played.group.state is ClassicState.COMPLETING_REBALANCE


def test_a_join_that_its_client_has_repeated_is_answered_too(played: PlayedGroup) -> None:
    leader, _ = played.stable(2)
    given_up = played.join(leader)
    waiting = played.join(leader)
    assert played.joined(given_up).error_code == RebalanceInProgress.code
    assert played.is_waiting(waiting)


def test_t29_the_group_waits_as_long_as_its_most_patient_member_allows() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [played.join(rebalance_ms=1_000), played.join(rebalance_ms=8_000)]
    played.pass_time(100)
    impatient, patient = (played.joined(number).member_id for number in numbers)
    played.sync_all([impatient, patient])
    number = played.join(impatient, rebalance_ms=1_000)
    played.pass_time(7_999)
    assert played.is_waiting(number)
    played.pass_time(1)
    assert len(played.joined(number).members) == 1


def test_a_first_join_that_nobody_waits_for_any_more_does_not_count_for_ever() -> None:
    played = PlayedGroup(initial_delay_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    number = played.join(rebalance_ms=NEW_MEMBER_TIMEOUT_MS * 4)
    played.pass_time(NEW_MEMBER_TIMEOUT_MS)
    assert played.joined(number).error_code == UnknownMemberId.code
    assert len(played.group.members) == 0
