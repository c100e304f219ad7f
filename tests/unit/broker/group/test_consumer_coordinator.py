"""Groups of KIP-848 over a real log: what is stored counts, and nothing else (R14, R15)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.group.consumer.played_consumer_group import subscription
from tests.unit.broker.group.local_coordinator import LocalCoordinator, loaded

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    NotCoordinator,
    ProtocolError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)
from mainstem_broker.group.bridge.migration import MigrationPolicy
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.consumer.group import ConsumerGroup
from mainstem_broker.group.messages import Commit, ConsumerHeartbeat, HeartbeatAnswer, JoinAnswer
from mainstem_broker.group.offsets.records import CommittedOffset


def heartbeat(member_id: str, epoch: int, *, regex: str | None = None) -> ConsumerHeartbeat:
    if epoch:
        return ConsumerHeartbeat(
            0, member_id, epoch, None, None, None, None, regex, None, None, "client", "/127.0.0.1"
        )
    return ConsumerHeartbeat(
        0, member_id, 0, None, None, 1_000, ("t",), regex, None, frozenset(), "client", "/127.0.0.1"
    )


async def join(local: LocalCoordinator, member_id: str = "a", group_id: str = "g") -> HeartbeatAnswer:
    answer = await local.coordinator.consumer_heartbeat(group_id, heartbeat(member_id, 0))
    assert answer.error_code == 0
    return answer


def commit(local: LocalCoordinator, epoch: int, offset: int = 5, version: int = 9) -> Any:
    value = CommittedOffset(offset, 3, "", local.now_ms, None, local.topics.topic_id("t"))
    return local.coordinator.commit("g", Commit("a", None, epoch, version), {("t", 0): value})


async def test_an_answer_waits_for_the_in_sync_replicas(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        answer = local.coordinator.consumer_heartbeat("g", heartbeat("a", 0))
        assert not answer.done()
        local.replicate()
        assert (await answer).member_epoch == 1


@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        (None, -1, None),
        ("a", 1, None),
        ("a", 0, StaleMemberEpoch),
        ("a", -1, StaleMemberEpoch),
        ("", -1, UnknownMemberId),
        ("ghost", -1, UnknownMemberId),
        ("ghost", 1, UnknownMemberId),
        (None, 1, UnknownMemberId),
    ],
)
async def test_offsets_are_fetched_by_nobody_in_particular_or_by_a_member_in_its_epoch(
    tmp_path: Path, member_id: str | None, epoch: int, expected: type[ProtocolError] | None
) -> None:
    """As `validateOffsetFetch` of Kafka 4.4: only a null member without an epoch is nobody."""
    async with loaded(tmp_path) as local:
        check_fetch = local.coordinator.check_fetch
        check_fetch("g", member_id, epoch)  # a group that does not exist has no offsets, and no members
        await join(local)
        if expected is None:
            check_fetch("g", member_id, epoch)
        else:
            with pytest.raises(expected):
                check_fetch("g", member_id, epoch)


async def test_with_too_few_replicas_members_have_to_retry_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        local.isr = (1,)
        local._set_state(1)
        answer = local.coordinator.consumer_heartbeat("g", heartbeat("a", 0))
        assert (await answer).error_code == CoordinatorNotAvailable.code
        local.isr = (1, 2)
        local._set_state(1)
        again = local.coordinator.consumer_heartbeat("g", heartbeat("a", 0))
        local.replicate()
        assert len((await again).assignment or ()) == 4
        await local.restart()
        group = local.coordinator.group("g")
        assert isinstance(group, ConsumerGroup)
        assert set(group.members) == {"a"}


async def test_who_waits_when_leadership_is_lost_is_sent_to_the_new_coordinator(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        answer = local.coordinator.consumer_heartbeat("g", heartbeat("a", 0))
        local.follow()
        assert (await answer).error_code == NotCoordinator.code


async def test_records_that_one_batch_cannot_hold_are_written_in_several(tmp_path: Path) -> None:
    async with loaded(tmp_path, max_message_bytes=600_000, members_max=1_000) as local:
        names = [f"{number:03}" + "x" * 8_000 for number in range(50)]
        for name in names:
            await join(local, name)
        local.topics.version += 1
        local.topics.ids["t"] = local.topics.ids["u"]  # all targets change
        await local.coordinator.consumer_heartbeat("g", heartbeat(names[0], 0))
        await local.restart()
        group = local.coordinator.group("g")
        assert isinstance(group, ConsumerGroup)
        assert set(group.members) == set(names)


async def test_a_session_ends_by_the_clock(local: LocalCoordinator) -> None:
    await join(local)
    group = local.coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    assert group.wake_ms is not None
    shard = local.shard
    assert shard.groups["g"].timer is not None
    group.tick(group.wake_ms)
    assert not group.members


async def test_a_group_with_members_is_not_deleted_nor_the_offsets_that_they_use(
    local: LocalCoordinator,
) -> None:
    await join(local)
    await commit(local, 1)
    with pytest.raises(NonEmptyGroup):
        local.coordinator.delete_group("g")
    _, refused = local.coordinator.delete_offsets("g", [("t", 0), ("u", 0)])
    assert {key: type(error) for key, error in refused.items()} == {("t", 0): GroupSubscribedToTopic}
    await local.coordinator.consumer_heartbeat("g", heartbeat("a", -1))
    await local.coordinator.delete_group("g")
    with pytest.raises(GroupIdNotFound):
        local.coordinator.group("g")
    await local.restart()
    with pytest.raises(GroupIdNotFound):
        local.coordinator.group("g")


@pytest.mark.parametrize("restarts", [False, True])
async def test_offsets_of_an_empty_group_expire_and_then_the_group(tmp_path: Path, restarts: bool) -> None:
    """The retention begins when the last member leaves, also for the next coordinator (KIP-211)."""
    async with loaded(tmp_path, retention_ms=1_000) as local:
        await join(local)
        await commit(local, 1)
        local.now_ms += 5_000
        await local.shard.expire(1_000)
        assert local.committed("g") == 5
        await local.coordinator.consumer_heartbeat("g", heartbeat("a", -1))
        local.now_ms += 999
        if restarts:
            await local.restart()
        await local.shard.expire(1_000)
        assert local.committed("g") == 5
        local.now_ms += 1
        await local.shard.expire(1_000)
        assert not local.shard.groups


async def test_a_group_whose_last_member_left_while_nothing_could_be_written_is_written_later(
    tmp_path: Path,
) -> None:
    """Else the group would stay for ever, and the next coordinator would wait for a member that has gone."""

    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        joined = local.coordinator.consumer_heartbeat("g", heartbeat("a", 0))
        local.replicate()
        assert (await joined).error_code == 0
        local.isr = (1,)
        local._set_state(1)
        left = local.coordinator.consumer_heartbeat("g", heartbeat("a", -1))
        assert (await left).error_code == CoordinatorNotAvailable.code
        local.isr = (1, 2)
        local._set_state(1)
        shard = local.shard
        await shard.expire(1_000)
        local.replicate()
        await local.restart()
        group = local.coordinator.group("g")
        assert isinstance(group, ConsumerGroup)
        assert not group.members
        local.now_ms += 1_000
        await local.shard.expire(1_000)
        assert not local.shard.groups


@pytest.mark.usefixtures("assigning")
async def test_a_group_that_is_classic_again_at_once_keeps_its_record(local: LocalCoordinator) -> None:
    """A new member that is refused turns the group into its own kind and back."""

    old = await classic(local)
    request = replace(heartbeat(old.member_id, 0), instance_id="one")
    answer = await local.coordinator.consumer_heartbeat("g", request)
    assert answer.error_code == InvalidRequest.code
    assert isinstance(local.coordinator.group("g"), ClassicGroup)
    await local.restart()
    group = local.coordinator.group("g")
    assert isinstance(group, ClassicGroup)
    assert old.member_id in group.members


async def test_a_member_of_no_group_has_to_join(local: LocalCoordinator) -> None:
    """Apache Kafka says that there is no such group, and its client ends."""

    with pytest.raises(UnknownMemberId):
        local.coordinator.consumer_heartbeat("g", heartbeat("a", 3))
    with pytest.raises(InvalidRegularExpression):
        local.coordinator.consumer_heartbeat("g", heartbeat("a", 0, regex="("))
    with pytest.raises(GroupIdNotFound):
        local.coordinator.group("g")  # nothing has become of it


# --- From one kind to the other ---


async def classic(local: LocalCoordinator) -> JoinAnswer:
    return await local.member("g", subscription=subscription())


@pytest.fixture
def assigning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader assigns nothing: `LocalCoordinator` sends bytes that are no assignment."""
    from mainstem_broker.group.bridge import migration

    monkeypatch.setattr(migration, "decode_assignment", lambda _: ())


@pytest.mark.usefixtures("assigning")
async def test_a_group_changes_its_kind_with_its_first_and_its_last_new_member(
    local: LocalCoordinator,
) -> None:
    old = await classic(local)
    waiting = local.ask_join("g", subscription=subscription())  # a rebalance is under way
    answer = await join(local, "new")
    assert answer.member_epoch == old.generation + 1
    assert (await waiting).error_code in (RebalanceInProgress.code, UnknownMemberId.code)
    with pytest.raises(RebalanceInProgress):
        local.coordinator.heartbeat("g", old.member_id, None, old.generation)
    await local.restart()
    group = local.coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    assert {old.member_id, "new"} <= set(group.members)
    await local.coordinator.consumer_heartbeat("g", heartbeat("new", -1))
    back = local.coordinator.group("g")
    assert isinstance(back, ClassicGroup)
    assert old.member_id in back.members
    with pytest.raises(UnknownMemberId):
        local.coordinator.consumer_heartbeat("g", heartbeat("new", 2))
    await local.restart()
    assert isinstance(local.coordinator.group("g"), ClassicGroup)


@pytest.mark.usefixtures("assigning")
async def test_a_group_is_not_upgraded_where_that_is_not_allowed(tmp_path: Path) -> None:
    async with loaded(tmp_path, migration=MigrationPolicy.DISABLED) as local:
        old = await classic(local)
        with pytest.raises(GroupIdNotFound, match="stop them first"):
            local.coordinator.consumer_heartbeat("g", heartbeat("new", 0))
        local.coordinator.heartbeat("g", old.member_id, None, old.generation)


async def test_an_empty_group_of_new_members_takes_classic_ones_and_keeps_its_offsets(
    local: LocalCoordinator,
) -> None:
    await join(local)
    await commit(local, 1)
    await local.coordinator.consumer_heartbeat("g", heartbeat("a", -1))
    assert (await classic(local)).generation > 1
    assert local.committed("g") == 5
    await local.restart()
    assert isinstance(local.coordinator.group("g"), ClassicGroup)
    assert local.committed("g") == 5


@pytest.mark.usefixtures("assigning")
async def test_a_change_of_kind_that_was_cut_short_is_ended_by_the_next_coordinator(
    local: LocalCoordinator,
) -> None:
    """Both groups' records are there when the old one's end was not written."""

    await classic(local)
    shard = local.shard
    with pytest.MonkeyPatch.context() as crash:
        crash.setattr(shard, "append_tombstones", lambda *_: None)
        await join(local, "new")
    await local.restart()
    assert isinstance(local.coordinator.group("g"), ConsumerGroup)
    await local.coordinator.consumer_heartbeat("g", heartbeat("new", -1))
    await local.restart()
    assert isinstance(local.coordinator.group("g"), ClassicGroup)
