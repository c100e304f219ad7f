"""Members of a stable group: heartbeats, leaving, commits, and the move to another coordinator (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import SESSION_MS, PlayedGroup

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.rebalancing import ClassicPolicy, ClassicState


def test_a_member_that_is_silent_for_its_session_is_dropped(played: PlayedGroup) -> None:
    leader, follower = played.stable(2)
    played.pass_time(SESSION_MS - 1)
    played.heartbeat(leader)
    played.pass_time(1)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(leader)
    with pytest.raises(UnknownMemberId):
        played.heartbeat(follower)


def test_heartbeats_and_commits_keep_a_member_alive(played: PlayedGroup) -> None:
    (member,) = played.stable(1)
    for _ in range(5):
        played.pass_time(SESSION_MS - 1)
        played.heartbeat(member)
        played.pass_time(SESSION_MS - 1)
        played.commit(member, played.group.generation)
    assert played.group.state is ClassicState.STABLE


def test_the_last_member_to_leave_leaves_an_empty_group_which_is_stored(played: PlayedGroup) -> None:
    (member,) = played.stable(1)
    played.leave(member)
    assert played.group.state is ClassicState.EMPTY
    record = played.stored[-1].group
    assert (record.members, record.protocol, record.leader) == ((), None, None)
    assert (record.protocol_type, record.generation) == ("consumer", 2)
    played.pass_time(SESSION_MS)
    assert played.group.wake_ms is None


def test_members_may_commit_while_a_rebalance_begins_but_not_between_join_and_sync(
    played: PlayedGroup,
) -> None:
    (member,) = played.stable(1)
    newcomer = played.join()
    played.commit(member, played.group.generation)
    played.join(member)
    assert not played.is_waiting(newcomer)
    with pytest.raises(RebalanceInProgress):
        played.commit(member, played.group.generation)


def test_each_waiting_request_is_answered_when_the_coordinator_lets_go() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    sync = played.sync(member, [(member, b"one")])
    join = played.join()
    other = PlayedGroup(initial_delay_ms=1_000)
    first = other.join()
    for each in (played, other):
        each.carry_out(each.group.close(NotCoordinator.code))
        assert (each.group.state, len(each.group.members), each.group.wake_ms) == (ClassicState.DEAD, 0, None)
    assert played.joined(join).error_code == NotCoordinator.code
    assert played.synced(sync).error_code == RebalanceInProgress.code
    assert other.joined(first).error_code == NotCoordinator.code
    played.store()
    assert played.joined(played.join()).error_code == CoordinatorNotAvailable.code


def test_a_group_goes_on_where_its_record_left_it(played: PlayedGroup) -> None:
    leader, follower = played.stable(2)
    restored = PlayedGroup()
    restored.group = ClassicGroup.restore(
        "group", ClassicPolicy(0, 100), played.stored[-1].group, restored.now_ms
    )
    assert restored.group.metadata() == played.group.metadata()
    assert restored.group.generation == played.group.generation
    restored.heartbeat(leader)
    restored.commit(follower, restored.group.generation)
    assert restored.synced(restored.sync(follower)).assignment == follower.encode()
    assert restored.joined(restored.join(follower)).leader == leader
    restored.pass_time(SESSION_MS)
    assert restored.group.state is ClassicState.EMPTY


def test_an_empty_group_keeps_its_generation_when_it_is_restored(played: PlayedGroup) -> None:
    (member,) = played.stable(1)
    played.leave(member)
    restored = ClassicGroup.restore("group", ClassicPolicy(0, 100), played.stored[-1].group, 0)
    assert (restored.state, restored.generation, restored.wake_ms) == (ClassicState.EMPTY, 2, None)
