"""Members with an instance id, which come back as the same ones (KIP-345, KIP-814; R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import REBALANCE_MS, PlayedGroup

from mainstem_broker.errors import FencedInstanceId, IllegalGeneration, UnknownMemberId
from mainstem_broker.group.classic.rebalancing import ClassicState

CHANGED = (("roundrobin", b""), ("range", b"subscription"))


def stable(played: PlayedGroup) -> tuple[str, str]:
    """A stable group of the static members "a", who leads, and "b"; their member ids."""
    played.group._policy = type(played.group._policy)(10, 100)
    numbers = [played.join(instance_id="a", version=5), played.join(instance_id="b", version=5)]
    played.pass_time(100)
    ids = [played.joined(number).member_id for number in numbers]
    played.sync(ids[1], instance_id="b")
    played.sync(ids[0], [(member_id, member_id.encode()) for member_id in ids], instance_id="a")
    assert played.group.state is ClassicState.STABLE
    return ids[0], ids[1]


def test_a_static_leader_that_comes_back_assigns_nothing_anew(played: PlayedGroup) -> None:
    leader, _ = stable(played)
    back = played.joined(played.join(instance_id="a", version=8, fresh_id="a-2"))
    # An old client that is told of another leader behaves as a follower.
    assert (back.leader, back.members) == (leader, ())
    assert played.group.members.leader == "a-2"


def test_a_newer_static_leader_that_comes_back_learns_of_all_and_skips_the_assignment_kip_814(
    played: PlayedGroup,
) -> None:
    stable(played)
    back = played.joined(played.join(instance_id="a", version=9, fresh_id="a-2"))
    assert (back.leader, back.skip_assignment) == ("a-2", True)
    assert [member.instance_id for member in back.members] == ["a", "b"]


def test_whoever_still_uses_the_old_id_is_fenced(played: PlayedGroup) -> None:
    _, old = stable(played)
    played.join(instance_id="b", version=5)
    with pytest.raises(FencedInstanceId):
        played.heartbeat(old, instance_id="b")
    with pytest.raises(FencedInstanceId):
        played.commit(old, 1, "b")
    with pytest.raises(FencedInstanceId):
        played.leave(old, "b")
    assert played.joined(played.join(old, instance_id="b")).error_code == FencedInstanceId.code
    assert played.synced(played.sync(old, instance_id="b")).error_code == FencedInstanceId.code
    with pytest.raises(UnknownMemberId):
        played.heartbeat(old)


def test_the_former_process_that_still_waits_is_fenced() -> None:
    played = PlayedGroup(initial_delay_ms=1_000)
    former = played.join(instance_id="a", version=5)
    latter = played.join(instance_id="a", version=5)
    assert played.joined(former).error_code == FencedInstanceId.code
    played.pass_time(5_000)
    assert played.joined(latter).error_code == 0
    assert len(played.group.members) == 1


def test_the_former_process_that_waits_for_its_assignment_is_fenced() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [played.join(instance_id=name, version=5) for name in ("a", "b")]
    played.pass_time(100)
    waiting = played.sync(played.joined(numbers[1]).member_id, instance_id="b")
    played.join(instance_id="b", version=5)
    assert played.synced(waiting).error_code == FencedInstanceId.code
    assert played.group.state is ClassicState.PREPARING_REBALANCE


def test_a_static_member_that_comes_back_with_other_tastes_rebalances_if_another_protocol_wins(
    played: PlayedGroup,
) -> None:
    number = played.join(instance_id="a", version=5)
    played.sync(played.joined(number).member_id, instance_id="a")
    number = played.join(instance_id="a", version=5, protocols=CHANGED)
    answer = played.joined(number)
    assert (answer.generation, answer.protocol) == (2, "roundrobin")


def test_static_members_that_are_all_away_are_waited_for_until_their_sessions_end() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [
        played.join(instance_id=name, version=5, session_ms=200_000, rebalance_ms=REBALANCE_MS)
        for name in ("a", "b")
    ]
    played.pass_time(100)
    ids = [played.joined(number).member_id for number in numbers]
    for member_id, instance_id in zip(ids, ("a", "b"), strict=True):
        played.sync(member_id, instance_id=instance_id)
    newcomer = played.join(fresh_id="newcomer")
    played.leave("newcomer")
    assert played.joined(newcomer).error_code == UnknownMemberId.code
    played.pass_time(REBALANCE_MS)
    assert (played.group.state, len(played.group.members)) == (ClassicState.PREPARING_REBALANCE, 2)
    played.pass_time(200_000)
    assert (played.group.state, len(played.group.members)) == (ClassicState.EMPTY, 0)


def test_an_administrator_removes_a_static_member_by_its_instance_id_alone(played: PlayedGroup) -> None:
    leader, _ = stable(played)
    played.leave("", "b")
    assert [member.instance_id for member in played.group.members] == ["a"]
    with pytest.raises(UnknownMemberId):
        played.leave("", "b")
    with pytest.raises(IllegalGeneration):
        played.heartbeat(leader, 0, "a")
