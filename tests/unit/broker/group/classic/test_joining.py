"""What a client may rely on when it joins a group: ids, protocols, the wait for the first members (R14)."""

from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import RANGE, PlayedGroup

from mainstem_broker.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    MemberIdRequired,
    UnknownMemberId,
)


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


def test_the_wait_never_exceeds_the_rebalance_timeout() -> None:
    played = PlayedGroup(initial_delay_ms=3_000)
    first = played.join(rebalance_ms=10_000)
    for _ in range(9):
        played.pass_time(1_000)
        played.join(rebalance_ms=10_000)
    played.pass_time(1_000)
    assert not played.is_waiting(first)
    assert len(played.joined(first).members) == 10
