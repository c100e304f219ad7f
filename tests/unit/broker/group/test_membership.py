"""What a client may rely on when it is a member of a group: joining, syncing, leaving, being late (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.played_group import RANGE, REBALANCE_MS, SESSION_MS, PlayedGroup

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.member import NEW_MEMBER_TIMEOUT_MS
from mainstem_broker.group.membership import Group, GroupPolicy, State

# --- Joining ---


def test_the_first_member_leads_and_is_told_of_all_members() -> None:
    played = PlayedGroup()
    answer = played.joined(played.join())
    assert (answer.error_code, answer.generation, answer.protocol, answer.protocol_type) == (
        0,
        1,
        "range",
        "consumer",
    )
    assert answer.leader == answer.member_id
    assert [(member.member_id, member.metadata) for member in answer.members] == [
        (answer.member_id, b"subscription")
    ]


def test_only_the_leader_is_told_of_the_members() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    played.join(leader)
    answer = played.joined(played.join(follower))
    assert (answer.leader, answer.members) == (leader, ())


def test_a_second_member_makes_the_first_join_again() -> None:
    played = PlayedGroup()
    (first,) = played.stable(1)
    second = played.join()
    assert played.is_waiting(second)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(first)
    rejoined = played.join(first)
    assert played.joined(rejoined).generation == played.joined(second).generation == 2


def test_a_client_that_can_is_sent_back_for_its_id_first_kip_394() -> None:
    played = PlayedGroup()
    sent_back = played.joined(played.join(version=4, fresh_id="given"))
    assert (sent_back.error_code, sent_back.member_id) == (MemberIdRequired.code, "given")
    assert len(played.group.members) == 0
    joined = played.joined(played.join("given", version=4))
    assert (joined.error_code, joined.member_id) == (0, "given")


def test_t30_a_client_of_version_3_or_less_is_never_sent_back() -> None:
    played = PlayedGroup()
    assert played.joined(played.join(version=3)).error_code == 0


def test_t31_an_id_that_is_given_out_and_not_used_holds_a_rebalance_up_for_its_session() -> None:
    played = PlayedGroup()
    first, second = played.stable(2)
    played.join(version=4, session_ms=6_000)
    played.leave(second)
    rejoin = played.join(first)
    assert played.is_waiting(rejoin)
    played.pass_time(5_999)
    assert played.is_waiting(rejoin)
    played.pass_time(1)
    assert played.joined(rejoin).error_code == 0


def test_an_id_that_is_given_out_can_be_given_back() -> None:
    played = PlayedGroup()
    (first,) = played.stable(1)
    given = played.joined(played.join(version=4)).member_id
    played.leave(given)
    with pytest.raises(UnknownMemberId):
        played.leave(given)
    played.heartbeat(first)


def test_an_id_that_was_given_to_a_dynamic_member_does_not_serve_a_static_one() -> None:
    played = PlayedGroup()
    given = played.joined(played.join(version=4)).member_id
    answer = played.joined(played.join(given, instance_id="instance", version=5))
    assert answer.error_code == UnknownMemberId.code


def test_an_unknown_member_is_told_so() -> None:
    played = PlayedGroup()
    played.stable(1)
    assert played.joined(played.join("stranger")).error_code == UnknownMemberId.code


def test_an_unknown_member_of_an_empty_group_is_told_so() -> None:
    played = PlayedGroup()
    assert played.joined(played.join("stranger")).error_code == UnknownMemberId.code


@pytest.mark.parametrize("protocols", [(), (("roundrobin", b""),)], ids=["none", "another"])
def test_a_member_without_a_protocol_that_all_know_is_refused(
    protocols: tuple[tuple[str, bytes], ...],
) -> None:
    played = PlayedGroup()
    played.stable(1)
    assert played.joined(played.join(protocols=protocols)).error_code == InconsistentGroupProtocol.code


@pytest.mark.parametrize("protocol_type", ["", "connect"])
def test_a_member_of_another_protocol_type_is_refused(protocol_type: str) -> None:
    played = PlayedGroup()
    played.stable(1)
    answer = played.joined(played.join(protocol_type=protocol_type))
    assert answer.error_code == InconsistentGroupProtocol.code


def test_a_lone_member_may_change_to_protocols_that_it_did_not_know_before() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    answer = played.joined(played.join(member, protocols=(("sticky", b""),)))
    assert (answer.error_code, answer.protocol) == (0, "sticky")


def test_an_empty_group_takes_members_of_any_protocol_type() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    played.leave(member)
    answer = played.joined(played.join(protocol_type="connect", protocols=(("v1", b""),)))
    assert (answer.error_code, answer.protocol_type, answer.protocol) == (0, "connect", "v1")


def test_members_elect_the_protocol_that_most_of_them_like_best() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    both, other = (("range", b""), ("sticky", b"")), (("sticky", b""), ("range", b""))
    numbers = [played.join(protocols=protocols) for protocols in (both, other, other)]
    played.pass_time(100)
    assert {played.joined(number).protocol for number in numbers} == {"sticky"}


def test_a_protocol_that_one_member_does_not_know_is_not_elected() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    liked = (("sticky", b""), ("range", b""))
    numbers = [played.join(protocols=protocols) for protocols in (liked, liked, RANGE)]
    played.pass_time(100)
    assert {played.joined(number).protocol for number in numbers} == {"range"}


def test_a_group_takes_no_more_members_than_group_max_size() -> None:
    played = PlayedGroup(members_max=1)
    played.stable(1)
    assert played.joined(played.join()).error_code == GroupMaxSizeReached.code
    assert played.joined(played.join(version=4)).error_code == GroupMaxSizeReached.code


# --- Company for the first ---


def test_the_first_join_of_an_empty_group_waits_for_company() -> None:
    played = PlayedGroup(initial_delay_ms=3_000)
    first = played.join()
    played.pass_time(2_999)
    assert played.is_waiting(first)
    played.pass_time(1)
    assert played.joined(first).generation == 1


def test_the_wait_is_drawn_out_while_members_come() -> None:
    played = PlayedGroup(initial_delay_ms=3_000)
    first = played.join()
    played.pass_time(2_000)
    second = played.join()
    played.pass_time(1_000)
    assert played.is_waiting(first)
    played.pass_time(3_000)
    assert played.joined(first).generation == played.joined(second).generation == 1


def test_the_wait_never_exceeds_the_rebalance_timeout() -> None:
    played = PlayedGroup(initial_delay_ms=3_000)
    first = played.join(rebalance_ms=10_000)
    for _ in range(9):
        played.pass_time(1_000)
        played.join(rebalance_ms=10_000)
    played.pass_time(1_000)
    assert not played.is_waiting(first)
    assert len(played.joined(first).members) == 10


# --- Joining again ---


def test_a_follower_that_asks_again_without_a_change_gets_the_present_generation() -> None:
    played = PlayedGroup()
    _, follower = played.stable(2)
    generation = played.group.generation
    answer = played.joined(played.join(follower))
    assert (answer.generation, played.group.state) == (generation, State.STABLE)


def test_a_leader_that_joins_again_rebalances_the_group() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    number = played.join(leader)
    assert played.is_waiting(number)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(follower)


def test_a_follower_with_another_subscription_rebalances_the_group() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    assert played.is_waiting(played.join(follower, protocols=(("range", b"changed"),)))
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(leader)


def test_one_who_lost_the_answer_to_a_join_gets_it_again() -> None:
    played = PlayedGroup()
    first = played.joined(played.join())
    again = played.joined(played.join(first.member_id))
    assert again == first
    assert played.group.state is State.COMPLETING_REBALANCE


def test_a_join_that_its_client_has_repeated_is_answered_too() -> None:
    played = PlayedGroup()
    leader, _ = played.stable(2)
    given_up = played.join(leader)
    waiting = played.join(leader)
    assert played.joined(given_up).error_code == RebalanceInProgress.code
    assert played.is_waiting(waiting)


def test_members_that_do_not_join_in_time_are_dropped() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    number = played.join(leader, rebalance_ms=REBALANCE_MS)
    for _ in range(REBALANCE_MS // 5_000):
        # It is alive, but busy: heartbeats do not replace a join.
        with pytest.raises(RebalanceInProgress):
            played.heartbeat(follower)
        played.pass_time(5_000)
    assert [member.member_id for member in played.joined(number).members] == [leader]
    with pytest.raises(UnknownMemberId):
        played.heartbeat(follower)


def test_a_leader_that_does_not_join_in_time_loses_its_office() -> None:
    played = PlayedGroup()
    _, follower = played.stable(2)
    number = played.join(follower, protocols=(("range", b"changed"),))
    played.pass_time(REBALANCE_MS)
    assert played.joined(number).leader == follower


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


def test_a_member_that_waits_for_others_to_join_stays_alive() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    number = played.join(leader)
    for _ in range(4):
        played.pass_time(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            played.heartbeat(follower)
    played.join(follower)
    assert played.joined(number).error_code == 0


def test_a_first_join_that_nobody_waits_for_any_more_does_not_count_for_ever() -> None:
    played = PlayedGroup(initial_delay_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    number = played.join(rebalance_ms=NEW_MEMBER_TIMEOUT_MS * 4)
    played.pass_time(NEW_MEMBER_TIMEOUT_MS)
    assert played.joined(number).error_code == UnknownMemberId.code
    assert len(played.group.members) == 0


# --- Syncing ---


def test_each_member_gets_its_part_of_what_the_leader_assigned() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [played.join(), played.join()]
    played.pass_time(100)
    leader, follower = (played.joined(number).member_id for number in numbers)
    waiting = played.sync(follower)
    assert played.is_waiting(waiting)
    own = played.sync(leader, [(leader, b"one"), (follower, b"two"), ("stranger", b"three")])
    assert (played.synced(own).assignment, played.synced(waiting).assignment) == (b"one", b"two")
    assert played.group.state is State.STABLE


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    played = PlayedGroup()
    member = played.joined(played.join()).member_id
    assert played.synced(played.sync(member)).assignment == b""


def test_a_member_that_asks_late_gets_its_assignment_at_once() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    assert played.synced(played.sync(follower)).assignment == follower.encode()
    assert played.synced(played.sync(leader)).assignment == leader.encode()


def test_an_assignment_counts_only_once_it_is_stored() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    number = played.sync(member, [(member, b"one")])
    assert played.is_waiting(number)
    assert played.group.state is State.COMPLETING_REBALANCE
    record = played.unstored[0].group
    assert (record.generation, record.leader, record.protocol) == (1, member, "range")
    assert [(told.member_id, told.assignment) for told in record.members] == [(member, b"one")]
    played.store()
    assert played.synced(number).assignment == b"one"


def test_an_assignment_that_cannot_be_stored_makes_everyone_join_again() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    number = played.sync(member, [(member, b"one")])
    played.store(CoordinatorNotAvailable.code)
    assert played.synced(number).error_code == CoordinatorNotAvailable.code
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(member)
    assert played.joined(played.join(member)).generation == 2


def test_an_assignment_that_was_overtaken_by_a_rebalance_does_not_count() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    number = played.sync(member, [(member, b"one")])
    played.join()
    assert played.synced(number).error_code == RebalanceInProgress.code
    played.store()
    assert played.group.state is State.PREPARING_REBALANCE


def test_a_sync_of_another_generation_is_refused() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    for generation in (played.group.generation - 1, played.group.generation + 1, -1):
        number = played.sync(member, generation=generation)
        assert played.synced(number).error_code == IllegalGeneration.code


def test_a_sync_of_a_stranger_is_refused() -> None:
    played = PlayedGroup()
    played.stable(1)
    assert played.synced(played.sync("stranger")).error_code == UnknownMemberId.code


def test_a_sync_during_the_join_phase_is_told_to_join() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    played.join(leader)
    assert played.synced(played.sync(follower)).error_code == RebalanceInProgress.code


@pytest.mark.parametrize(
    ("protocol_type", "protocol"), [("connect", "range"), ("consumer", "sticky")], ids=["type", "name"]
)
def test_a_sync_that_names_another_protocol_is_refused(protocol_type: str, protocol: str) -> None:
    played = PlayedGroup()
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


def test_a_member_that_never_fetches_its_assignment_is_dropped() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    numbers = [played.join(session_ms=200_000), played.join(session_ms=200_000)]
    played.pass_time(100)
    leader, follower = (played.joined(number).member_id for number in numbers)
    played.sync(leader, [(leader, b"one")])
    assert played.group.state is State.STABLE
    played.pass_time(REBALANCE_MS)
    assert follower not in played.group.members


# --- Heartbeats ---


def test_a_member_that_is_silent_for_its_session_is_dropped() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    played.pass_time(SESSION_MS - 1)
    played.heartbeat(leader)
    played.pass_time(1)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(leader)
    with pytest.raises(UnknownMemberId):
        played.heartbeat(follower)


def test_heartbeats_and_commits_keep_a_member_alive() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    for _ in range(5):
        played.pass_time(SESSION_MS - 1)
        played.heartbeat(member)
        played.pass_time(SESSION_MS - 1)
        played.commit(member, played.group.generation)
    assert played.group.state is State.STABLE


def test_a_heartbeat_between_join_and_sync_is_fine() -> None:
    played = PlayedGroup()
    member = played.joined(played.join()).member_id
    assert played.group.state is State.COMPLETING_REBALANCE
    played.heartbeat(member)


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    with pytest.raises(IllegalGeneration):
        played.heartbeat(member, played.group.generation + 1)


def test_a_heartbeat_to_an_empty_group_is_from_a_stranger() -> None:
    with pytest.raises(UnknownMemberId):
        PlayedGroup().heartbeat("stranger")


# --- Leaving ---


def test_a_member_that_leaves_makes_the_others_join_again() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    played.leave(leader)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(follower)
    answer = played.joined(played.join(follower))
    assert (answer.leader, len(answer.members)) == (follower, 1)


def test_the_last_member_to_leave_leaves_an_empty_group_which_is_stored() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    played.leave(member)
    assert played.group.state is State.EMPTY
    record = played.stored[-1].group
    assert (record.members, record.protocol, record.leader) == ((), None, None)
    assert (record.protocol_type, record.generation) == ("consumer", 2)
    played.pass_time(SESSION_MS)
    assert played.group.wake_ms is None


def test_one_who_leaves_while_it_waits_is_answered() -> None:
    played = PlayedGroup()
    played.stable(2)
    number = played.join(fresh_id="newcomer")
    played.leave("newcomer")
    assert played.joined(number).error_code == UnknownMemberId.code


def test_a_stranger_cannot_leave() -> None:
    played = PlayedGroup()
    played.stable(1)
    with pytest.raises(UnknownMemberId):
        played.leave("stranger")


# --- Commits ---


def test_members_commit_in_their_generation() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    played.commit(member, played.group.generation)
    with pytest.raises(IllegalGeneration):
        played.commit(member, played.group.generation - 1)
    with pytest.raises(UnknownMemberId):
        played.commit("stranger", played.group.generation)


def test_members_may_commit_while_a_rebalance_begins_but_not_between_join_and_sync() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    newcomer = played.join()
    played.commit(member, played.group.generation)
    played.join(member)
    assert not played.is_waiting(newcomer)
    with pytest.raises(RebalanceInProgress):
        played.commit(member, played.group.generation)


def test_one_who_is_no_member_may_commit_only_while_there_are_none() -> None:
    played = PlayedGroup()
    played.commit("", -1)
    (member,) = played.stable(1)
    with pytest.raises(UnknownMemberId):
        played.commit("", -1)
    played.leave(member)
    played.commit("", -1)


# --- The end, and the beginning elsewhere ---


def test_whoever_waits_is_told_when_the_coordinator_lets_go() -> None:
    played = PlayedGroup(stores_at_once=False)
    member = played.joined(played.join()).member_id
    sync = played.sync(member, [(member, b"one")])
    join = played.join()
    other = PlayedGroup(initial_delay_ms=1_000)
    first = other.join()
    for each in (played, other):
        each.carry_out(each.group.close(NotCoordinator.code))
        assert (each.group.state, len(each.group.members), each.group.wake_ms) == (State.DEAD, 0, None)
    assert played.joined(join).error_code == NotCoordinator.code
    assert played.synced(sync).error_code == RebalanceInProgress.code
    assert other.joined(first).error_code == NotCoordinator.code
    played.store()
    assert played.joined(played.join()).error_code == CoordinatorNotAvailable.code


def test_a_group_goes_on_where_its_record_left_it() -> None:
    played = PlayedGroup()
    leader, follower = played.stable(2)
    restored = PlayedGroup()
    restored.group = Group.restore("group", GroupPolicy(0, 100), played.stored[-1].group, restored.now_ms)
    assert restored.group.metadata() == played.group.metadata()
    assert restored.group.generation == played.group.generation
    restored.heartbeat(leader)
    restored.commit(follower, restored.group.generation)
    assert restored.synced(restored.sync(follower)).assignment == follower.encode()
    assert restored.joined(restored.join(follower)).leader == leader
    restored.pass_time(SESSION_MS)
    assert restored.group.state is State.EMPTY


def test_an_empty_group_keeps_its_generation_when_it_is_restored() -> None:
    played = PlayedGroup()
    (member,) = played.stable(1)
    played.leave(member)
    restored = Group.restore("group", GroupPolicy(0, 100), played.stored[-1].group, 0)
    assert (restored.state, restored.generation, restored.wake_ms) == (State.EMPTY, 2, None)
