"""What a client may rely on when it is a member of a group of KIP-848 (R14)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.group.consumer.played_consumer_group import (
    REBALANCE_MS,
    SESSION_MS,
    PlayedConsumerGroup,
    PlayedTopics,
    some,
)

from mainstem_broker.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    NotCoordinator,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from mainstem_broker.group.consumer.group import ConsumerState
from mainstem_broker.group.consumer.records import MemberState

ALL = some(*range(6))


def two_members(**how: Any) -> PlayedConsumerGroup:
    """A stable group of "a" and "b", three partitions each, in epoch 2."""
    played = PlayedConsumerGroup(**how)
    played.join("a")
    played.join("b")
    played.settle("a", "b")
    assert played.assigned("a") | played.assigned("b") == set(range(6))
    return played


# --- Joining ---


@pytest.fixture
def played() -> PlayedConsumerGroup:
    return two_members()


def test_a_member_that_keeps_its_partitions_never_stops() -> None:
    """What stays is in every answer, in whatever step; counted over a hundred joins."""
    played = PlayedConsumerGroup(topics=PlayedTopics({"t": 200}))
    played.join("m0")
    for number in range(1, 100):
        before = {one: member.current.assigned for one, member in played.group.members.items()}
        played.join(f"m{number}")
        for member_id in before:
            target = played.group.targets[member_id]
            while not played.group.members[member_id].is_settled(played.group.epoch):
                current = played.group.members[member_id].current
                played.heartbeat(member_id, current.epoch, owned=current.assigned)
                after = played.group.members[member_id].current.assigned
                assert before[member_id] & target <= after
        # A group of n loses one in n when another one comes: that and no more moves.
        moved = sum(len(before[one] - played.group.targets[one]) for one in before)
        assert moved <= 200 // (number + 1) + 1
        played.settle(*played.group.members)


def test_a_member_that_says_everything_again_learns_everything_again(played: PlayedConsumerGroup) -> None:
    """As clients do after an answer was lost."""
    current = played.group.members["a"].current
    number = played.ask("a", 2, owned=current.assigned, topics=("t",), rebalance_ms=REBALANCE_MS)
    assert played.heard(number).assignment == current.assigned


def test_new_partitions_are_assigned_although_somebody_has_asked_meanwhile_what_the_group_reads() -> None:
    """Expiry of offsets does, and who deletes some; it must not take the news from the members."""
    played = PlayedConsumerGroup()
    played.join("a")
    played.topics.set("t", 7)
    assert played.group.topics_in_use() == {"t"}
    assert played.heard(played.ask("a", 1)).assignment == some(*range(7))


def test_expressions_that_nobody_subscribes_to_any_more_are_forgotten() -> None:
    """A client that changes its mind for ever must not fill the broker's memory."""
    played = PlayedConsumerGroup(members_max=1)
    played.join("a", topics=None, regex="t0")
    for number in range(1, 5):
        played.ask("a", played.group.epoch, regex=f"t{number}")
        assert played.join("b", topics=None, regex=f"b{number}").error_code == GroupMaxSizeReached.code
    patterns = played.group._subscribed._patterns  # memory shows nowhere else
    assert list(patterns) == ["t4"]


def test_a_topic_that_is_gone_is_given_up(played: PlayedConsumerGroup) -> None:
    played.topics.set("t", 0)
    assert played.heartbeat("a", 2).assignment == frozenset()
    assert played.heartbeat("a", 2, owned=frozenset()).member_epoch == 3


def test_most_votes_choose_the_assignor() -> None:
    played = PlayedConsumerGroup()
    played.join("a")
    assert played.group.assignor == "uniform"
    played.join("b", assignor="range")
    assert played.group.assignor == "range"
    played.settle("a", "b")
    assert (played.assigned("a"), played.assigned("b")) == ({0, 1, 2}, {3, 4, 5})


# --- Regular expressions ---


def test_what_is_no_regular_expression_is_refused_and_changes_nothing(played: PlayedConsumerGroup) -> None:
    for regex in ("(", "a{2,1}", "(?=a)"):
        assert played.join("c", topics=None, regex=regex).error_code == InvalidRegularExpression.code
        assert played.heard(played.ask("a", 2, regex=regex)).error_code == InvalidRegularExpression.code
    assert (played.group.epoch, set(played.group.members)) == (2, {"a", "b"})


# --- Topics that a member may not see ---


def topics_of(played: PlayedConsumerGroup, member_id: str) -> set[str]:
    """The names of the topics that a member has partitions of."""
    names = (played.topics.name(topic_id) for topic_id, _ in played.group.members[member_id].current.held)
    return {name for name in names if name is not None}


def with_hidden(*topics: str) -> PlayedConsumerGroup:
    """A group of "a", whose expression matches pay0 and pay1, and which may not see `topics`."""
    played = PlayedConsumerGroup(hides_topics=True, topics=PlayedTopics({"pay0": 2, "pay1": 2, "t": 6}))
    played.set_hidden("a", *topics)
    played.join("a", topics=None, regex="pay.*")
    return played


def test_an_expression_does_not_match_a_topic_that_the_member_may_not_see() -> None:
    """R38; also not when it comes later, or grows, or the member says everything again."""
    played = with_hidden("pay1", "pay2")
    assert topics_of(played, "a") == {"pay0"}
    played.topics.set("pay2", 1)
    played.topics.set("pay1", 9)
    played.settle("a")
    owned = played.group.members["a"].current.assigned
    everything = played.ask("a", 1, owned=owned, topics=(), regex="pay.*", rebalance_ms=REBALANCE_MS)
    assert played.heard(everything).assignment == owned == some(0, 1, topic="pay0")


def test_a_topic_is_assigned_when_a_rule_lets_the_member_see_it() -> None:
    played = with_hidden("pay1")
    played.set_hidden("a")
    answer = played.heartbeat("a", 1)
    assert answer.assignment == some(0, 1, topic="pay0") | some(0, 1, topic="pay1")


def test_a_topic_is_taken_from_a_member_that_may_no_longer_see_it() -> None:
    played = with_hidden()
    played.join("b", topics=None, regex="pay.*")
    played.settle("a", "b")
    played.set_hidden("a", "pay1")
    assert topics_of(played, "b") == {"pay0", "pay1"}
    played.settle("a", "b")
    assert topics_of(played, "a") == {"pay0"}
    assert some(0, 1, topic="pay1") <= played.group.members["b"].current.assigned


def test_a_heartbeat_without_news_of_topics_and_rules_looks_at_no_topic() -> None:
    """R40: with thousands of topics, heartbeats are many and changes are few."""
    played = with_hidden("pay1")
    member = played.group.members["a"]
    before = member.matched
    played.heartbeat("a", 1)
    assert member.matched is before
    assert before == frozenset({"pay0"})


def test_the_next_coordinator_keeps_what_members_have_until_it_hears_of_them() -> None:
    """A member of which nothing was heard gets nothing new, and loses nothing."""
    played = with_hidden("pay1")
    played.join("b", topics=None, regex="pay.*")
    played.settle("a", "b")
    before = {one: member.current.assigned for one, member in played.group.members.items()}
    played.topics.set("pay2", 4)
    played.restart()
    assert played.group.topics_in_use() == {"pay0", "pay1"}
    for _ in range(3):
        played.heartbeat("b", played.group.members["b"].current.epoch)
    assert played.group.members["a"].current.assigned == before["a"]
    assert before["b"] <= played.group.members["b"].current.assigned
    assert played.group.targets["b"] == before["b"] | some(0, 1, 2, 3, topic="pay2")
    played.settle("a", "b")
    assert topics_of(played, "a") <= {"pay0", "pay2"}
    total = played.group.members["a"].current.assigned | played.group.members["b"].current.assigned
    assert len(total) == 8


def test_a_static_member_that_comes_back_with_the_same_rights_changes_nothing_for_others() -> None:
    played = with_hidden()
    played.join("b", topics=None, regex="pay.*", instance_id="i")
    played.settle("a", "b")
    epoch = played.group.epoch
    played.leave("b", instance_id="i", epoch=-2)
    played.join("b2", topics=None, regex="pay.*", instance_id="i")
    assert played.group.epoch == epoch


def test_a_static_member_that_comes_back_with_fewer_rights_gets_only_what_it_may_see() -> None:
    played = PlayedConsumerGroup(hides_topics=True, topics=PlayedTopics({"pay0": 2, "pay1": 2}))
    played.join("a", topics=None, regex="pay.*", instance_id="i")
    played.leave("a", instance_id="i", epoch=-2)
    played.set_hidden("mallory", "pay1")
    answer = played.join("mallory", topics=None, regex="pay.*", instance_id="i")
    assert answer.assignment == some(0, 1, topic="pay0")


# --- Being late, leaving ---


def test_a_silent_member_is_gone_after_its_session_and_its_partitions_are_free(
    played: PlayedConsumerGroup,
) -> None:
    played.pass_time(SESSION_MS - 1)
    played.settle("a")
    played.pass_time(1)
    assert set(played.group.members) == {"a"}
    assert played.group.state is ConsumerState.ASSIGNING
    played.settle("a")
    assert played.assigned("a") == set(range(6))
    assert played.heartbeat("b", 2).error_code == UnknownMemberId.code


def test_a_member_that_does_not_give_up_in_time_is_gone_though_it_heartbeats() -> None:
    played = PlayedConsumerGroup()
    answer = played.join("a", rebalance_ms=10_000)
    played.join("b")
    for _ in range(9):
        assert played.heartbeat("a", 1, owned=answer.assignment).error_code == 0
        played.pass_time(1_000)
    assert "a" in played.group.members
    played.pass_time(2_000)
    assert "a" not in played.group.members
    played.settle("b")
    assert played.assigned("b") == set(range(6))


def test_who_leaves_is_gone_at_once(played: PlayedConsumerGroup) -> None:
    answer = played.leave("a")
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    played.settle("b")
    assert played.assigned("b") == set(range(6))
    assert played.leave("a").error_code == UnknownMemberId.code


# --- Epochs ---


def test_a_member_behind_its_epoch_is_fenced_unless_it_has_lost_one_answer(
    played: PlayedConsumerGroup,
) -> None:
    assigned = played.group.members["a"].current.assigned
    assert played.heartbeat("a", 1).error_code == FencedMemberEpoch.code
    assert played.heartbeat("a", 1, owned=ALL).error_code == FencedMemberEpoch.code
    assert played.heartbeat("a", 1, owned=assigned).member_epoch == 2


def test_a_commit_needs_the_members_epoch(played: PlayedConsumerGroup) -> None:
    played.check_commit("a", 2, 9)
    for epoch in (1, 3, -1):
        with pytest.raises(StaleMemberEpoch):
            played.check_commit("a", epoch, 9)
        with pytest.raises(StaleMemberEpoch):
            played.group.check_fetch("a", epoch)
    with pytest.raises(UnknownMemberId):
        played.check_commit("stranger", 2, 9)
    with pytest.raises(UnknownMemberId):
        played.check_commit("", -1, 9)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_commit_of_partitions_that_stay_may_be_of_an_earlier_epoch(*, is_transactional: bool) -> None:
    """KIP-1251: the answer that raises the epoch may be on its way when the commit is sent."""
    stale = IllegalGeneration if is_transactional else StaleMemberEpoch
    played = PlayedConsumerGroup()
    first = played.join("a").member_epoch

    def check(epoch: int, *numbers: int) -> None:
        played.check_commit("a", epoch, numbers=numbers, is_transactional=is_transactional)

    played.join("b")
    played.settle("a", "b")
    epoch = played.group.members["a"].current.epoch
    kept, given = played.assigned("a"), played.assigned("b")
    assert epoch > first
    check(first, *kept)
    check(epoch, *kept)
    for earlier, numbers in ((first - 1, kept), (first, {*kept, min(given)}), (first, given), (first, ())):
        with pytest.raises(stale):
            check(earlier, *numbers)

    # What comes back is held since it came back.
    played.leave("b")
    played.settle("a")
    check(first, *kept)
    for number in given:
        with pytest.raises(stale):
            check(epoch, number)
    with pytest.raises(stale):
        check(played.group.members["a"].current.epoch + 1, *kept)

    # The next coordinator does not know since when; nothing is lost, as clients repeat the commit.
    played.restart()
    check(played.group.members["a"].current.epoch, *kept)
    with pytest.raises(stale):
        check(first, *kept)


def test_a_member_may_commit_what_it_is_giving_up() -> None:
    played = PlayedConsumerGroup()
    first = played.join("a").member_epoch
    played.join("b")
    played.heartbeat("a", first, owned=ALL)
    current = played.group.members["a"].current
    assert current.revoking
    played.check_commit("a", current.epoch, numbers=range(6))
    played.check_commit("a", first, numbers=range(6))


def test_a_commit_of_a_version_that_knows_no_epochs_is_refused(played: PlayedConsumerGroup) -> None:
    with pytest.raises(UnsupportedVersion):
        played.check_commit("a", 2, 8)


def test_anyone_may_commit_while_there_are_no_members(played: PlayedConsumerGroup) -> None:
    played.leave("a")
    played.leave("b")
    played.check_commit("", -1, 2)


# --- Static members ---


def test_a_static_member_that_leaves_for_a_while_finds_its_partitions_again_kip_345() -> None:
    played = PlayedConsumerGroup()
    played.join("a", instance_id="one")
    played.join("b")
    played.settle("a", "b")
    mine, epoch = played.assigned("a"), played.group.epoch
    assert played.leave("a", instance_id="one", epoch=-2).member_epoch == -2
    played.settle("b")
    assert played.assigned("b") == set(range(6)) - mine
    back = played.join("a2", instance_id="one")
    assert (back.error_code, back.member_epoch) == (0, epoch)
    assert {number for _, number in back.assignment or ()} == mine
    assert played.group.epoch == epoch
    assert played.heartbeat("a", epoch, instance_id="one").error_code == FencedInstanceId.code


def test_a_static_member_that_does_not_come_back_is_gone_after_its_session() -> None:
    played = PlayedConsumerGroup()
    played.join("a", instance_id="one")
    played.leave("a", instance_id="one", epoch=-2)
    played.pass_time(SESSION_MS)
    assert played.group.state is ConsumerState.EMPTY


def test_an_instance_id_that_is_in_use_is_refused() -> None:
    played = PlayedConsumerGroup()
    played.join("a", instance_id="one")
    assert played.join("b", instance_id="one").error_code == UnreleasedInstanceId.code
    assert played.heartbeat("a", 1, instance_id="one").error_code == 0


# --- What is refused ---


@pytest.mark.parametrize(
    ("epoch", "how"),
    [
        pytest.param(0, {"member_id": ""}, id="no-member-id"),
        pytest.param(0, {"instance_id": ""}, id="empty-instance-id"),
        pytest.param(0, {"rack_id": ""}, id="empty-rack"),
        pytest.param(0, {"rebalance_ms": None}, id="no-rebalance-timeout"),
        pytest.param(0, {"owned": None}, id="joins-without-saying-what-it-owns"),
        pytest.param(0, {"owned": some(1)}, id="joins-owning-something"),
        pytest.param(0, {"topics": None}, id="no-subscription"),
        pytest.param(-2, {}, id="dynamic-member-leaves-for-a-while"),
        pytest.param(-3, {}, id="no-such-epoch"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_reason(epoch: int, how: dict[str, Any]) -> None:
    played = PlayedConsumerGroup()
    sound: dict[str, Any] = {
        "member_id": "a",
        "owned": frozenset(),
        "topics": ("t",),
        "rebalance_ms": 1_000,
        **how,
    }
    answer = played.heard(played.ask(sound.pop("member_id"), epoch, **sound))
    assert answer.error_code == InvalidRequest.code
    assert answer.error_message
    assert played.group.is_idle


def test_an_assignor_that_does_not_exist_is_refused_with_those_that_do() -> None:
    answer = PlayedConsumerGroup().join("a", assignor="sticky")
    assert answer.error_code == UnsupportedAssignor.code
    assert "uniform, range" in (answer.error_message or "")


# --- What is stored ---


def test_an_answer_waits_for_all_that_it_rests_on() -> None:
    played = PlayedConsumerGroup(stores_at_once=False)
    first = played.ask_join("a")
    second = played.ask_join("b")
    assert played.is_waiting(first)
    played.store()
    assert not played.is_waiting(first)
    assert played.is_waiting(second)
    third = played.ask("b", 2)  # changes nothing, and says what the second has changed
    played.store()
    assert not played.is_waiting(second)
    assert not played.is_waiting(third)


def test_the_next_coordinator_waits_for_who_has_to_give_up() -> None:
    played = PlayedConsumerGroup()
    played.join("a", rebalance_ms=10_000)
    played.join("b")
    played.heartbeat("a", 1)
    played.restart()
    assert played.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert played.heartbeat("b", 2).assignment is None
    played.pass_time(10_000)
    assert "a" not in played.group.members


def test_who_waits_when_the_coordinator_changes_is_sent_to_the_next_one() -> None:
    played = PlayedConsumerGroup(stores_at_once=False)
    number = played.ask_join("a")
    played.carry_out(played.group.close(NotCoordinator.code))
    assert played.heard(number).error_code == NotCoordinator.code
    assert played.group.state is ConsumerState.DEAD
