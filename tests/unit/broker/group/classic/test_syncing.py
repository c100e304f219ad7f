"""Assignments: from the leader's, by way of the log, to each member (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import REBALANCE_MS, PlayedGroup

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)


def test_an_assignment_that_cannot_be_stored_makes_everyone_join_again() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    number = played.sync(member, [(member, b"one")])
    played.store(CoordinatorNotAvailable.code)
    assert played.synced(number).error_code == CoordinatorNotAvailable.code
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(member)
    assert played.joined(played.join(member)).generation == 2


def test_a_sync_of_another_generation_is_refused(played: PlayedGroup) -> None:
    (member,) = played.stable(1)
    for generation in (played.group.generation - 1, played.group.generation + 1, -1):
        number = played.sync(member, generation=generation)
        assert played.synced(number).error_code == IllegalGeneration.code


def test_a_sync_during_the_join_phase_has_to_join(played: PlayedGroup) -> None:
    leader, follower = played.stable(2)
    played.join(leader)
    assert played.synced(played.sync(follower)).error_code == RebalanceInProgress.code


@pytest.mark.parametrize(
    ("protocol_type", "protocol"), [("connect", "range"), ("consumer", "sticky")], ids=["type", "name"]
)
def test_a_sync_that_names_another_protocol_is_refused(
    played: PlayedGroup, protocol_type: str, protocol: str
) -> None:
    (member,) = played.stable(1)
    number = played.sync(member, protocol_type=protocol_type, protocol=protocol)
    assert played.synced(number).error_code == InconsistentGroupProtocol.code


def test_members_that_do_not_sync_in_time_are_dropped() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [played.join(session_ms=200_000), played.join(session_ms=200_000)]
    played.pass_time(100)
    leader, follower = (played.joined(number).member_id for number in numbers)
    waiting = played.sync(follower)
    played.pass_time(REBALANCE_MS)
    assert played.synced(waiting).error_code == RebalanceInProgress.code
    with pytest.raises(UnknownMemberId):
        played.heartbeat(leader)
    answer = played.joined(played.join(follower))
    assert (answer.leader, len(answer.members)) == (follower, 1)
