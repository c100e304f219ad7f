"""The coordinator over a real log: what it answers when, what outlives a change of leaders (R14, R15)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.waiting import let_pass_async, wait_until_async
from tests.unit.broker.group.local_coordinator import LocalCoordinator, loaded

from mainstem_broker.coordinator import shard as shard_module
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from mainstem_broker.group import shard as group_shard
from mainstem_broker.group.classic.rebalancing import ClassicState
from mainstem_broker.group.offsets.group_offsets import GroupOffsets
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.topic_partition import TopicPartition


@pytest.fixture
def soon_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that could not be loaded is tried again at once."""
    monkeypatch.setattr(shard_module, "LOAD_PAUSE_S", 0.001)
    monkeypatch.setattr(shard_module, "LOAD_PAUSE_S_MAX", 0.002)


# --- Commits ---


async def test_a_commit_is_answered_and_seen_only_when_the_replicas_have_it(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        stored = local.commit("g", 5)
        await asyncio.sleep(0)
        assert not stored.done()
        assert local.committed("g") is None
        local.replicate()
        await stored
        assert local.committed("g") == 5


async def test_commits_under_way_are_taken_in_the_order_of_the_log(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        stored = [local.commit("g", offset) for offset in (5, 6, 4)]
        local.replicate()
        await asyncio.gather(*stored)
        assert local.committed("g") == 4
        await local.restart()
        assert local.committed("g") == 4


async def test_t27_a_commit_that_is_cut_off_by_a_change_of_leaders_says_that_the_coordinator_moved(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True) as local:
        stored = local.commit("g", 5)
        local.follow()
        with pytest.raises(NotCoordinator):
            await stored
        with pytest.raises(NotCoordinator):
            local.commit("g", 5)
        with pytest.raises(NotCoordinator):
            local.committed("g")


async def test_t27_a_commit_while_too_few_replicas_are_in_sync_says_to_try_again(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        log = local.partition.log
        log.update_config(replace(log.config, min_insync_replicas=2))
        local.isr = (1,)
        local._set_state(1)
        with pytest.raises(CoordinatorNotAvailable):
            local.commit("g", 5)
        assert not local.shard.groups["g"].commits_under_way


async def test_a_commit_that_too_few_replicas_have_is_seen_when_enough_of_them_have_it(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        committed = local.commit("g", 5)
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            await committed
        assert local.committed("g") is None
        local.set_in_sync((1, 2))
        assert local.committed("g") is None
        local.replicate()
        assert local.committed("g") == 5
        assert not local.shard.groups["g"].commits_under_way


async def test_a_commit_that_too_few_replicas_have_does_not_replace_a_later_one(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        failed = local.commit("g", 5)
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            await failed
        local.set_in_sync((1, 2))
        later = local.commit("g", 7)
        local.replicate()
        await later
        assert local.committed("g") == 7
        await local.restart()
        assert local.committed("g") == 7


async def test_a_deletion_that_too_few_replicas_have_takes_effect_when_enough_of_them_have_it(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        committed = local.commit("g", 5)
        local.replicate()
        await committed
        deleted, _ = local.coordinator.delete_offsets("g", [("t", 0)])
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            await deleted
        assert local.committed("g") == 5
        local.set_in_sync((1, 2))
        local.replicate()
        assert local.committed("g") is None


async def test_t37_a_topic_that_was_made_again_starts_clean_also_at_the_next_coordinator(
    local: LocalCoordinator,
) -> None:
    await local.commit("g", 5)
    await local.commit("g", 7, topic="u")
    local.topics.ids["t"] = uuid4()
    assert local.committed("g") is None
    await local.restart()
    assert local.committed("g") is None
    assert list(local.coordinator.committed("g", None)) == [("u", 0)]


async def test_what_was_committed_for_a_deleted_topic_is_taken_from_the_log(local: LocalCoordinator) -> None:
    await local.commit("g", 5)
    end = local.partition.log.log_end_offset
    topic_id = local.topics.ids.pop("t")
    local.coordinator.topics_deleted([("t", topic_id)])
    assert local.partition.log.log_end_offset == end + 1
    local.coordinator.topics_deleted([("t", topic_id)])
    assert local.partition.log.log_end_offset == end + 1
    local.topics.ids["t"] = topic_id  # even then it is gone
    assert local.committed("g") is None


# --- A change of leaders ---


async def test_the_next_coordinator_knows_members_and_offsets(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        joined = await local.member("g")
        stored = local.commit("g", 5, member=joined)
        local.replicate()
        await stored
        await local.restart()
        local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)
        assert local.committed("g") == 5
        assert (await local.ask_sync("g", joined)).assignment == b"all"


async def test_t21_nothing_is_answered_before_the_groups_are_loaded(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path)
    local.lead()
    with pytest.raises(CoordinatorLoadInProgress):
        local.committed("g")
    with pytest.raises(CoordinatorLoadInProgress):
        local.commit("g", 1)
    with pytest.raises(CoordinatorLoadInProgress):
        local.ask_join("g")
    with pytest.raises(CoordinatorLoadInProgress):
        list(local.coordinator.groups())
    local.coordinator.heartbeat("g", "anyone", None, 1)  # nobody has to join anew because of that
    await local.coordinator.shards.loading(0)
    assert local.committed("g") is None
    await local.coordinator.shards.stop()


async def test_t21_what_is_not_replicated_yet_is_not_reported_by_the_next_coordinator(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        stored = local.commit("g", 5)
        local.lead()  # elected anew, before the follower has it
        with pytest.raises(NotCoordinator):
            await stored
        with pytest.raises(CoordinatorLoadInProgress):
            local.committed("g")
        loading = local.coordinator.shards.loading(0)
        while not loading.done():
            with pytest.raises(CoordinatorLoadInProgress):
                local.committed("g")
            local.replicate()
            await asyncio.sleep(0)
        assert local.committed("g") == 5


@pytest.mark.usefixtures("soon_loaded_again")
async def test_t21_what_too_few_replicas_have_is_not_reported_though_the_partition_was_read(
    tmp_path: Path,
) -> None:
    """The last follower leaves the in-sync set while the groups are loaded: another leader may lack them."""

    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        stored = local.commit("g", 5)
        local.lead()  # elected anew, before the follower has it
        with pytest.raises(NotCoordinator):
            await stored
        loading = local.coordinator.shards.loading(0)
        await wait_until_async(lambda: bool(local.partition.acknowledgements))
        local.set_in_sync((1,))
        await let_pass_async(0.02, "it would have been loaded by then")
        with pytest.raises(CoordinatorLoadInProgress):
            local.committed("g")
        local.set_in_sync((1, 2))

        def is_loaded() -> bool:
            local.replicate()
            return loading.done()

        await wait_until_async(is_loaded, "the groups are loaded")
        assert local.committed("g") == 5


async def test_records_that_are_none_of_ours_do_not_keep_groups_from_being_loaded(
    local: LocalCoordinator,
) -> None:
    await local.commit("g", 5)
    local.shard.journal.append(
        [(b"?", b"?", ()), (b"\0\7", None, ())], local.now_ms, lambda _: None, lambda: None
    )
    await local.restart()
    assert local.committed("g") == 5


# --- Members ---


async def test_an_assignment_is_answered_when_the_replicas_have_it(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        synced = local.ask_sync("g", await local.ask_join("g"))
        await asyncio.sleep(0)
        assert not synced.done()
        local.replicate()
        assert (await synced).assignment == b"all"


async def test_a_silent_member_is_dropped_by_the_clock(local: LocalCoordinator) -> None:
    joined = await local.member("g", session_ms=30)
    await wait_until_async(lambda: local.coordinator.group("g").state is ClassicState.EMPTY)
    with pytest.raises(UnknownMemberId):
        local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)
    await local.restart()
    assert local.coordinator.group("g").state is ClassicState.EMPTY


async def test_a_member_whose_client_went_away_while_it_waited_harms_nobody(local: LocalCoordinator) -> None:
    first = await local.member("g")
    gone = local.ask_join("g")
    gone.cancel()
    again = await local.ask_join("g", first.member_id)
    assert len(again.members) == 2


@pytest.mark.parametrize("session_ms", [9, 60_001])
async def test_t32_a_session_timeout_outside_the_bounds_is_refused(
    local: LocalCoordinator, session_ms: int
) -> None:
    with pytest.raises(InvalidSessionTimeout):
        local.ask_join("g", session_ms=session_ms)
    with pytest.raises(GroupIdNotFound):
        local.coordinator.group("g")


async def test_groups_of_members_need_a_name_and_groups_of_offsets_do_not(local: LocalCoordinator) -> None:
    with pytest.raises(InvalidGroupId):
        local.ask_join("")
    with pytest.raises(InvalidGroupId):
        local.coordinator.heartbeat("", "member", None, 1)
    await local.commit("", 5)
    assert local.committed("") == 5


async def test_members_of_a_group_that_does_not_exist_are_unknown(local: LocalCoordinator) -> None:
    with pytest.raises(UnknownMemberId):
        local.ask_join("g", "member")
    with pytest.raises(UnknownMemberId):
        local.coordinator.heartbeat("g", "member", None, 1)
    with pytest.raises(UnknownMemberId):
        local.coordinator.leave("g", "member", None)


# --- Deleting and expiring ---


async def test_a_group_is_deleted_with_its_offsets_for_good(local: LocalCoordinator) -> None:
    joined = await local.member("g")
    await local.commit("g", 5, member=joined)
    with pytest.raises(NonEmptyGroup):
        local.coordinator.delete_group("g")
    local.coordinator.leave("g", joined.member_id, None)
    await local.coordinator.delete_group("g")
    for _ in range(2):
        assert local.committed("g") is None
        with pytest.raises(GroupIdNotFound):
            local.coordinator.group("g")
        with pytest.raises(GroupIdNotFound):
            local.coordinator.delete_group("g")
        await local.restart()
    assert (await local.member("g")).generation == 1


async def test_only_offsets_of_topics_that_nobody_reads_are_deleted_kip_496(local: LocalCoordinator) -> None:
    joined = await local.member("g")
    await local.commit("g", 5, member=joined)
    await local.commit("g", 6, topic="u", member=joined)
    deleted, refused = local.coordinator.delete_offsets("g", [("t", 0), ("u", 0), ("u", 1)])
    await deleted
    assert {key: type(error) for key, error in refused.items()} == {("t", 0): GroupSubscribedToTopic}
    await local.restart()
    assert (local.committed("g"), local.committed("g", "u")) == (5, None)
    with pytest.raises(GroupIdNotFound):
        local.coordinator.delete_offsets("other", [])


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """So that few offsets take several turns."""
    monkeypatch.setattr(group_shard, "OFFSETS_AT_ONCE", 3)
    return 3


async def commit_many(local: LocalCoordinator, group_id: str, count: int) -> None:
    for number in range(count):
        await local.commit(group_id, number, topic=f"t{number}")


async def turns_of(work: Coroutine[Any, Any, None]) -> int:
    """How many turns of the loop it takes."""
    turns = 0
    task = asyncio.create_task(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


async def test_a_group_with_many_offsets_is_restored_in_turns(
    tmp_path: Path, few_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: one of a million offsets does not hold up the clients of all other groups."""
    count = 9 * few_at_once
    put_in_turn = most = 0
    put = GroupOffsets.put

    def note(
        offsets: GroupOffsets, partition: TopicPartition, offset: CommittedOffset, record_offset: int
    ) -> None:
        nonlocal put_in_turn, most
        put_in_turn += 1
        most = max(most, put_in_turn)
        put(offsets, partition, offset, record_offset)

    async with loaded(tmp_path) as local:
        await commit_many(local, "g", count)
        await local.coordinator.shards.stop()
        local.follow()
        local.coordinator = local._new()
        monkeypatch.setattr(GroupOffsets, "put", note)
        local.lead()
        loading = local.coordinator.shards.loading(0)
        while not loading.done():
            put_in_turn = 0
            with pytest.raises(CoordinatorLoadInProgress):
                local.coordinator.require_coordinated("g")
            await asyncio.sleep(0)
        assert most == few_at_once
        assert [local.committed("g", f"t{number}") for number in range(count)] == [*range(count)]


async def test_a_leadership_that_ends_while_groups_are_restored_leaves_none(
    local: LocalCoordinator, few_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: what comes between two turns."""
    await commit_many(local, "g", 9 * few_at_once)
    await local.coordinator.shards.stop()
    local.follow()
    local.coordinator = local._new()
    local.lead()
    shard, loading = local.shard, local.coordinator.shards.loading(0)
    restored = 0
    count_turns = group_shard._Turns.count

    async def end_at_the_fifth(turns: group_shard._Turns, offsets: int) -> None:
        nonlocal restored
        restored += 1
        if restored == 5:
            local.follow()
        await count_turns(turns, offsets)

    monkeypatch.setattr(group_shard._Turns, "count", end_at_the_fifth)
    await asyncio.gather(loading, return_exceptions=True)
    assert loading.cancelled()
    assert restored == 6, "the pause after the sixth offset is the first since the end"
    assert shard.groups == {}


async def test_many_offsets_expire_in_turns_and_then_the_group(
    local: LocalCoordinator, few_at_once: int
) -> None:
    """R15, R40."""
    await commit_many(local, "g", 4 * few_at_once)
    local.now_ms += 10_000
    assert await turns_of(local.shard.expire(10_000)) >= 4
    await local.shard.expire(10_000)
    assert list(local.coordinator.groups()) == []
    await local.restart()
    assert list(local.coordinator.groups()) == []


async def test_an_offset_that_is_committed_while_others_expire_stays(
    local: LocalCoordinator, few_at_once: int
) -> None:
    """R15, R40: each turn goes by what holds then."""
    last = 4 * few_at_once - 1
    await commit_many(local, "g", last + 1)
    local.now_ms += 10_000
    expiry = asyncio.create_task(local.shard.expire(10_000))
    await asyncio.sleep(0)
    await local.commit("g", 77, topic=f"t{last}")
    await expiry
    await local.restart()
    left = {f"t{number}": local.committed("g", f"t{number}") for number in range(last + 1)}
    assert {topic for topic, offset in left.items() if offset is not None} == {f"t{last}"}
    assert left[f"t{last}"] == 77


async def test_groups_that_are_deleted_while_others_expire_do_no_harm(
    local: LocalCoordinator, few_at_once: int
) -> None:
    """R40: also when the leadership ends."""
    for group_id in ("a", "b", "c"):
        await commit_many(local, group_id, 2 * few_at_once)
    local.now_ms += 10_000
    expiry = asyncio.create_task(local.shard.expire(10_000))
    await asyncio.sleep(0)
    shard = local.shard
    await shard.delete(shard.groups["b"])
    local.follow()
    await expiry
    assert shard.groups == {}


async def test_expiry_is_looked_for_at_its_interval(tmp_path: Path) -> None:
    async with loaded(tmp_path, check_interval_ms=5) as local:
        await local.commit("g", 5, expire_ms=local.now_ms)
        await wait_until_async(lambda: not list(local.coordinator.groups()))


async def test_a_group_with_members_does_not_expire(local: LocalCoordinator) -> None:
    joined = await local.member("g")
    local.now_ms += 1_000_000
    await local.shard.expire(1)
    local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)
