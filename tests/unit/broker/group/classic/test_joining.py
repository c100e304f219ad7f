"""What a client may rely on when it joins a group: ids, protocols, the wait for the first members (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import RANGE, PlayedGroup

from mainstem_broker.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)


def test_the_first_member_leads_and_is_told_of_all_members(played: PlayedGroup) -> None:
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


def test_only_the_leader_is_told_of_the_members(played: PlayedGroup) -> None:
    leader, follower = played.stable(2)
    played.join(leader)
    answer = played.joined(played.join(follower))
    assert (answer.leader, answer.members) == (leader, ())


def test_a_second_member_makes_the_first_join_again(played: PlayedGroup) -> None:
    (first,) = played.stable(1)
    second = played.join()
    assert played.is_waiting(second)
    with pytest.raises(RebalanceInProgress):
        played.heartbeat(first)
    rejoined = played.join(first)
    assert played.joined(rejoined).generation == played.joined(second).generation == 2


def test_a_client_that_can_is_sent_back_for_its_id_first_kip_394(played: PlayedGroup) -> None:
    sent_back = played.joined(played.join(version=4, fresh_id="given"))
    assert (sent_back.error_code, sent_back.member_id) == (MemberIdRequired.code, "given")
    assert len(played.group.members) == 0
    joined = played.joined(played.join("given", version=4))
    assert (joined.error_code, joined.member_id) == (0, "given")


def test_t30_a_client_of_version_3_or_less_is_never_sent_back(played: PlayedGroup) -> None:
    assert played.joined(played.join(version=3)).error_code == 0


def test_t31_an_id_that_is_given_out_and_not_used_holds_a_rebalance_up_for_its_session(
    played: PlayedGroup,
) -> None:
    first, second = played.stable(2)
    played.join(version=4, session_ms=6_000)
    played.leave(second)
    rejoin = played.join(first)
    assert played.is_waiting(rejoin)
    played.pass_time(5_999)
    assert played.is_waiting(rejoin)
    played.pass_time(1)
    assert played.joined(rejoin).error_code == 0


def test_an_id_that_is_given_out_can_be_given_back(played: PlayedGroup) -> None:
    (first,) = played.stable(1)
    given = played.joined(played.join(version=4)).member_id
    played.leave(given)
    with pytest.raises(UnknownMemberId):
        played.leave(given)
    played.heartbeat(first)


def test_an_id_that_was_given_to_a_dynamic_member_does_not_serve_a_static_one(played: PlayedGroup) -> None:
    given = played.joined(played.join(version=4)).member_id
    answer = played.joined(played.join(given, instance_id="instance", version=5))
    assert answer.error_code == UnknownMemberId.code


def test_an_unknown_member_is_told_so(played: PlayedGroup) -> None:
    played.stable(1)
    assert played.joined(played.join("stranger")).error_code == UnknownMemberId.code


def test_an_unknown_member_of_an_empty_group_is_told_so(played: PlayedGroup) -> None:
    assert played.joined(played.join("stranger")).error_code == UnknownMemberId.code


@pytest.mark.parametrize("protocols", [(), (("roundrobin", b""),)], ids=["none", "another"])
def test_a_member_without_a_protocol_that_all_know_is_refused(
    played: PlayedGroup, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    played.stable(1)
    assert played.joined(played.join(protocols=protocols)).error_code == InconsistentGroupProtocol.code


@pytest.mark.parametrize("protocol_type", ["", "connect"])
def test_a_member_of_another_protocol_type_is_refused(played: PlayedGroup, protocol_type: str) -> None:
    played.stable(1)
    answer = played.joined(played.join(protocol_type=protocol_type))
    assert answer.error_code == InconsistentGroupProtocol.code


def test_a_lone_member_may_change_to_protocols_that_it_did_not_know_before(played: PlayedGroup) -> None:
    (member,) = played.stable(1)
    answer = played.joined(played.join(member, protocols=(("sticky", b""),)))
    assert (answer.error_code, answer.protocol) == (0, "sticky")


def test_an_empty_group_takes_members_of_any_protocol_type(played: PlayedGroup) -> None:
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
