"""Members of the classic protocol in a group of KIP-848, and groups that change their kind (R14)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.group.consumer.played_consumer_group import (
    REBALANCE_MS,
    SESSION_MS,
    PlayedConsumerGroup,
    PlayedTopics,
    some,
    subscription,
)

from mainstem_broker.errors import (
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.bridge.migration import MigrationPolicy, downgrade, upgrade
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.rebalancing import ClassicPolicy, ClassicState
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.embedded_protocol import Subscription, decode_assignment, encode_assignment
from mainstem_broker.group.messages import Commit, Join, JoinAnswer, Sync

POLICY = ConsumerPolicy(lambda _: SESSION_MS, 100, ("uniform", "range"))


def mixed() -> PlayedConsumerGroup:
    """A stable group of "new" (KIP-848) and "old" (classic), in epoch 2."""
    played = PlayedConsumerGroup()
    played.join("new")
    joined = played.classic_join("old")
    assert (joined.error_code, joined.generation, joined.protocol) == (0, 2, "cooperative-sticky")
    assert played.classic_sync("old", 2) == (0, set())
    played.settle("new")
    with pytest.raises(RebalanceInProgress):
        played.classic_heartbeat("old", 2)
    played.classic_join("old", metadata=subscription(generation=2))
    error_code, numbers = played.classic_sync("old", 2)
    assert (error_code, len(numbers)) == (0, 3)
    assert played.assigned("new") | numbers == set(range(6))
    return played


# --- In a group of both ---


def test_a_classic_member_is_given_what_the_broker_assigns_and_nobody_leads() -> None:
    played = mixed()
    assert played.classic_join("old", metadata=subscription(owned=played.assigned("old"))).leader == ""
    played.classic_heartbeat("old", 2)


def test_a_classic_member_is_sent_back_for_its_id_if_its_client_can() -> None:
    played = PlayedConsumerGroup()
    played.join("new")
    sent_back = played.classic_join("", must_know_id=True)
    assert sent_back.error_code == MemberIdRequired.code
    assert played.classic_join(sent_back.member_id, must_know_id=True).error_code == 0


def test_an_eager_member_has_given_up_everything_when_it_joins() -> None:
    played = mixed()
    played.join("third")
    assert played.classic_join("old", metadata=subscription()).generation == 3
    error_code, numbers = played.classic_sync("old", 3)
    assert (error_code, len(numbers)) == (0, 2)


def test_a_generation_that_is_not_the_members_is_refused() -> None:
    played = mixed()
    with pytest.raises(IllegalGeneration):
        played.classic_heartbeat("old", 1)
    assert played.classic_sync("old", 3)[0] == IllegalGeneration.code
    with pytest.raises(IllegalGeneration):
        played.check_commit("old", 1)


def test_a_sync_is_refused_when_the_group_has_gone_on_meanwhile() -> None:
    played = mixed()
    played.join("third")
    assert played.classic_sync("old", 2)[0] == RebalanceInProgress.code


def test_a_member_that_does_not_join_when_it_has_to_is_gone() -> None:
    played = mixed()
    played.join("third")
    until_ms = played.now_ms + REBALANCE_MS
    while played.now_ms < until_ms:
        with pytest.raises(RebalanceInProgress):
            played.classic_heartbeat("old", 2)
        for member_id in ("new", "third"):
            current = played.group.members[member_id].current
            played.heartbeat(member_id, current.epoch, owned=current.assigned)
        played.pass_time(10_000)
    with pytest.raises(UnknownMemberId):
        played.classic_heartbeat("old", 2)


def test_each_kind_of_member_has_its_own_requests() -> None:
    played = mixed()
    with pytest.raises(UnknownMemberId):
        played.classic_heartbeat("new", 2)
    assert played.classic_sync("new", 2)[0] == UnknownMemberId.code
    assert played.heartbeat("old", 2).error_code == UnknownMemberId.code


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"protocol_type": "connect"}, id="another-type"),
        pytest.param({"protocol": "range"}, id="no-protocol-in-common"),
        pytest.param({"metadata": b"no subscription"}, id="malformed-metadata"),
        pytest.param({"metadata": b""}, id="no-metadata"),
    ],
)
def test_a_member_that_the_broker_cannot_assign_to_is_refused(how: dict[str, Any]) -> None:
    played = mixed()
    assert played.classic_join("another", **how).error_code == InconsistentGroupProtocol.code
    assert set(played.group.members) == {"new", "old"}


def test_an_administrator_removes_members_of_both_protocols() -> None:
    """As Apache Kafka 4.4: `removeMembersFromConsumerGroup` names static members by their instance, others by
    their id."""
    played = mixed()
    played.join("static", instance_id="one")
    played.carry_out(played.group.leave("", "one", played.now_ms))
    assert set(played.group.members) == {"new", "old"}
    played.carry_out(played.group.leave("new", None, played.now_ms))
    assert set(played.group.members) == {"old"}
    played.carry_out(played.group.leave("old", None, played.now_ms))
    assert played.group.is_empty
    with pytest.raises(UnknownMemberId):
        played.group.leave("new", None, played.now_ms)


def test_both_kinds_of_members_are_known_to_the_next_coordinator() -> None:
    played = mixed()
    played.restart()
    played.classic_heartbeat("old", 2)
    assert played.heartbeat("new", 2).error_code == 0


# --- From one kind to the other ---


def classic_group(*names: str, metadata: bytes | None = None, kind: str = "consumer") -> ClassicGroup:
    """A stable classic group in generation 1, whose members have two partitions of "t" each."""
    group = ClassicGroup("group", ClassicPolicy(1_000, 100))
    metadata_bytes = metadata if metadata is not None else subscription()
    for number, name in enumerate(names):
        request = Join(
            number,
            "",
            name,
            None,
            "client",
            "/host",
            10_000,
            20_000,
            kind,
            (("r", metadata_bytes),),
            False,
            False,
        )
        group.join(request, 0)
    decided = group.tick(1_000)
    while not decided.answers and group.wake_ms is not None:
        decided = group.tick(group.wake_ms)
    assignments = tuple(
        (name, encode_assignment([("t", 2 * number), ("t", 2 * number + 1)], 1))
        for number, name in enumerate(names)
    )
    (stored,) = group.sync(Sync(9, names[0], None, 1, None, None, assignments), 1_000).stores
    group.stored(stored.ticket, 0, 1_000)
    assert group.state is ClassicState.STABLE
    return group


def test_members_of_a_group_that_is_upgraded_keep_what_they_have_until_they_join_again() -> None:
    played = PlayedConsumerGroup()
    played.group = upgrade(
        classic_group("x", "y"), MigrationPolicy.BIDIRECTIONAL, POLICY, played.topics, played.now_ms
    )
    first = played.join("new")
    assert (first.member_epoch, first.assignment) == (2, some(4, 5))  # what nobody had
    assert played.group.members["x"].current.assigned == some(0, 1)
    with pytest.raises(RebalanceInProgress):
        played.classic_heartbeat("x", 1)
    joined = played.classic_join("x", metadata=subscription(owned=[0, 1], generation=1), protocol="r")
    assert joined.generation == 2
    assert played.classic_sync("x", 2) == (0, {0, 1})
    played.restart()
    assert played.group.members["x"].current.assigned == some(0, 1)


@pytest.mark.parametrize(
    ("migration", "how", "error"),
    [
        pytest.param(MigrationPolicy.DISABLED, {}, GroupIdNotFound, id="disabled"),
        pytest.param(MigrationPolicy.DOWNGRADE, {}, GroupIdNotFound, id="only-back"),
        pytest.param(MigrationPolicy.UPGRADE, {"kind": "connect"}, GroupIdNotFound, id="no-consumers"),
        pytest.param(MigrationPolicy.UPGRADE, {"metadata": b"?"}, GroupIdNotFound, id="own-metadata"),
    ],
)
def test_a_group_that_cannot_be_upgraded_stays_as_it_is(
    migration: MigrationPolicy, how: dict[str, Any], error: type[ProtocolError]
) -> None:
    group = classic_group("x", **how)
    with pytest.raises(error):
        upgrade(group, migration, POLICY, PlayedTopics(), 0)
    assert group.state is ClassicState.STABLE


def test_a_group_that_is_too_large_is_not_upgraded() -> None:
    policy = ConsumerPolicy(lambda _: SESSION_MS, 2, ("uniform",))
    with pytest.raises(GroupMaxSizeReached):
        upgrade(classic_group("x", "y"), MigrationPolicy.UPGRADE, policy, PlayedTopics(), 0)


def test_members_of_a_group_that_is_downgraded_have_to_join_and_lose_nothing() -> None:
    played = mixed()
    mine = played.assigned("old")
    played.join("third")
    played.leave("third")
    played.leave("new")
    assert played.group.has_only_classic_members
    group = downgrade(played.group, ClassicPolicy(0, 100), played.now_ms)
    (stored,) = group.tick(played.now_ms).stores
    (member,) = stored.group.members
    assert set(decode_assignment(member.assignment)) == {("t", number) for number in mine}
    with pytest.raises(RebalanceInProgress):
        group.heartbeat("old", None, 2, played.now_ms)  # in its own generation; the group is further
    group.check_commit(Commit("old", None, 2, 9), played.now_ms)
    request = Join(1, "old", "", None, "c", "/h", 9_000, 9_000, "consumer", (("r", b""),), False, False)
    (answer,) = group.join(request, played.now_ms).answers
    assert isinstance(answer.answer, JoinAnswer)
    assert answer.answer.generation > played.group.epoch
    with pytest.raises(IllegalGeneration):
        group.heartbeat("old", None, 2, played.now_ms)


def test_a_subscription_is_read_in_all_its_versions() -> None:
    topics = "00000001 0001 74"
    owned = "00000001 0001 74 00000002 00000003 00000004"
    for version, tail, expected in (
        (0, "", Subscription(0, ("t",))),
        (1, owned, Subscription(1, ("t",), (("t", 3), ("t", 4)))),
        (2, owned + "00000007", Subscription(2, ("t",), (("t", 3), ("t", 4)), 7)),
        (3, owned + "00000007 0001 72", Subscription(3, ("t",), (("t", 3), ("t", 4)), 7, "r")),
    ):
        metadata_bytes = bytes.fromhex(f"{version:04x} {topics} ffffffff {tail}")
        assert Subscription.decode(metadata_bytes) == expected
    assert encode_assignment([("t", 1), ("t", 0)], 9) == bytes.fromhex(
        "0003 00000001 0001 74 00000002 00000000 00000001 ffffffff"
    )
