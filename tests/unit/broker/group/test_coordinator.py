"""The coordinator over a real log: what it answers when, what outlives a change of leaders (R14, R15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.unit.broker.group.local_coordinator import LocalCoordinator, run

from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotCoordinator,
    StorageError,
    UnknownMemberId,
)
from mainstem_broker.group import shard as shard_module
from mainstem_broker.group.membership import State
from mainstem_broker.protocol.records import Record
from mainstem_broker.replica.journal import Journal


@pytest.fixture
def soon_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that could not be loaded is tried again at once."""
    monkeypatch.setattr(shard_module, "LOAD_PAUSE_S", 0.001)
    monkeypatch.setattr(shard_module, "LOAD_PAUSE_S_MAX", 0.002)


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop's timers run until the condition holds.

    Raises:
        AssertionError: it never does.
    """
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("It never came true.")


def alone(tmp_path: Path, test: Callable[[LocalCoordinator], Awaitable[None]], **settings: Any) -> None:
    """Run a test with a coordinator that has loaded an empty partition without followers."""

    async def work() -> None:
        local = LocalCoordinator(tmp_path, **settings)
        await local.load()
        await test(local)
        await local.coordinator.stop()

    run(work())


def replicated(tmp_path: Path, test: Callable[[LocalCoordinator], Awaitable[None]]) -> None:
    """Likewise, with a follower in sync."""
    alone(tmp_path, test, followers=True)


# --- Commits ---


def test_a_commit_is_answered_and_seen_only_when_the_replicas_have_it(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        stored = local.commit("g", 5)
        await asyncio.sleep(0)
        assert not stored.done()
        assert local.committed("g") is None
        local.replicate()
        await stored
        assert local.committed("g") == 5

    replicated(tmp_path, test)


def test_commits_under_way_are_taken_in_the_order_of_the_log(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        stored = [local.commit("g", offset) for offset in (5, 6, 4)]
        local.replicate()
        await asyncio.gather(*stored)
        assert local.committed("g") == 4
        await local.restart()
        assert local.committed("g") == 4

    replicated(tmp_path, test)


def test_t27_a_commit_that_is_cut_off_by_a_change_of_leaders_says_that_the_coordinator_moved(
    tmp_path: Path,
) -> None:
    async def test(local: LocalCoordinator) -> None:
        stored = local.commit("g", 5)
        local.follow()
        with pytest.raises(NotCoordinator):
            await stored
        with pytest.raises(NotCoordinator):
            local.commit("g", 5)
        with pytest.raises(NotCoordinator):
            local.committed("g")

    replicated(tmp_path, test)


def test_t27_a_commit_while_too_few_replicas_are_in_sync_says_to_try_again(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        log = local.partition.log
        log.update_config(replace(log.config, min_insync_replicas=2))
        local.isr = (1,)
        local._set_state(1)
        with pytest.raises(CoordinatorNotAvailable):
            local.commit("g", 5)
        assert not local.coordinator._shards[0].groups["g"].commits_under_way

    replicated(tmp_path, test)


def test_a_commit_that_is_larger_than_a_batch_may_be_has_an_error_of_its_own(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        with pytest.raises(InvalidCommitOffsetSize):
            local.commit("g", 5, metadata="x" * 2_000)

    alone(tmp_path, test, max_message_bytes=1_000)


def test_a_generation_of_a_group_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        joined = await local.member("g")
        with pytest.raises(IllegalGeneration):
            local.commit("other", 5, member=joined)
        await local.commit("g", 5, member=joined)
        assert local.committed("g") == 5

    alone(tmp_path, test)


def test_t37_a_topic_that_was_made_again_starts_clean_also_at_the_next_coordinator(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.commit("g", 5)
        await local.commit("g", 7, topic="u")
        local.topics.ids["t"] = uuid4()
        assert local.committed("g") is None
        await local.restart()
        assert local.committed("g") is None
        assert list(local.coordinator.committed("g", None)) == [("u", 0)]

    alone(tmp_path, test)


def test_what_was_committed_for_a_deleted_topic_is_taken_from_the_log(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.commit("g", 5)
        end = local.partition.log.log_end_offset
        topic_id = local.topics.ids.pop("t")
        local.coordinator.topics_deleted({topic_id})
        assert local.partition.log.log_end_offset == end + 1
        local.coordinator.topics_deleted({topic_id})
        assert local.partition.log.log_end_offset == end + 1
        local.topics.ids["t"] = topic_id  # even then it is gone
        assert local.committed("g") is None

    alone(tmp_path, test)


# --- A change of leaders ---


def test_the_next_coordinator_knows_members_and_offsets(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        joined = await local.member("g")
        stored = local.commit("g", 5, member=joined)
        local.replicate()
        await stored
        await local.restart()
        local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)
        assert local.committed("g") == 5
        assert (await local.ask_sync("g", joined)).assignment == b"all"

    replicated(tmp_path, test)


def test_t21_nothing_is_answered_before_the_groups_are_loaded(tmp_path: Path) -> None:
    async def work() -> None:
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
        await local.coordinator._loading[0]
        assert local.committed("g") is None
        await local.coordinator.stop()

    run(work())


def test_t21_what_is_not_replicated_yet_is_not_told_by_the_next_coordinator(tmp_path: Path) -> None:
    async def work() -> None:
        local = LocalCoordinator(tmp_path, followers=True)
        await local.load()
        stored = local.commit("g", 5)
        local.lead()  # elected anew, before the follower has it
        with pytest.raises(NotCoordinator):
            await stored
        with pytest.raises(CoordinatorLoadInProgress):
            local.committed("g")
        loading = local.coordinator._loading[0]
        while not loading.done():
            with pytest.raises(CoordinatorLoadInProgress):
                local.committed("g")
            local.replicate()
            await asyncio.sleep(0)
        assert local.committed("g") == 5
        await local.coordinator.stop()

    run(work())


def test_a_partition_that_is_lost_while_it_is_loaded_is_let_go(tmp_path: Path) -> None:
    async def work() -> None:
        local = LocalCoordinator(tmp_path)
        local.lead()
        loading = local.coordinator._loading[0]
        local.follow()
        await asyncio.gather(loading, return_exceptions=True)
        with pytest.raises(NotCoordinator):
            local.committed("g")
        await local.load()
        assert local.committed("g") is None
        await local.coordinator.stop()

    run(work())


@pytest.mark.usefixtures("soon_loaded_again")
def test_a_partition_that_cannot_be_read_is_read_again_as_long_as_this_broker_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3

    async def replay(journal: Journal, take: Callable[[Record], None]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageError("The disk does not answer.")
        await read(journal, take)

    async def work() -> None:
        local = LocalCoordinator(tmp_path)
        await local.load()
        await local.commit("g", 5)
        monkeypatch.setattr(Journal, "replay", replay)
        local.lead()
        await asyncio.sleep(0)
        with pytest.raises(CoordinatorLoadInProgress):
            local.committed("g")
        await local.coordinator._loading[0]
        assert failures == 0
        assert local.committed("g") == 5
        await local.coordinator.stop()

    read = Journal.replay
    run(work())


@pytest.mark.usefixtures("soon_loaded_again")
def test_t21_what_too_few_replicas_have_is_not_told_though_the_partition_was_read(
    tmp_path: Path,
) -> None:
    """The last follower leaves the in-sync set while the groups are loaded: another leader may lack them."""

    async def work() -> None:
        local = LocalCoordinator(tmp_path, followers=True, min_insync_replicas=2)
        await local.load()
        stored = local.commit("g", 5)
        local.lead()  # elected anew, before the follower has it
        with pytest.raises(NotCoordinator):
            await stored
        loading = local.coordinator._loading[0]
        await eventually(lambda: bool(local.partition._acknowledgements))
        local.set_in_sync((1,))
        await asyncio.sleep(0.02)
        with pytest.raises(CoordinatorLoadInProgress):
            local.committed("g")
        local.set_in_sync((1, 2))
        while not loading.done():
            local.replicate()
            await asyncio.sleep(0.001)
        assert local.committed("g") == 5
        await local.coordinator.stop()

    run(work())


def test_an_epoch_that_goes_on_leaves_the_groups_alone(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        joined = await local.member("g")
        shard = local.coordinator._shards[0]
        local.coordinator.follow(0)
        local.coordinator.follow_all()
        assert local.coordinator._shards[0] is shard
        local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)

    alone(tmp_path, test)


def test_who_waits_for_others_is_sent_to_the_next_coordinator(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.member("g")
        newcomer = local.ask_join("g")
        assert not newcomer.done()
        local.follow()
        assert (await newcomer).error_code == NotCoordinator.code

    alone(tmp_path, test)


def test_records_that_are_none_of_ours_do_not_keep_groups_from_being_loaded(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.commit("g", 5)
        local.coordinator._shards[0].journal.append(
            [(b"?", b"?", ()), (b"\0\7", None, ())], local.now_ms, lambda _: None
        )
        await local.restart()
        assert local.committed("g") == 5

    alone(tmp_path, test)


def test_a_long_log_is_loaded_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem_broker.replica.journal.READ_BYTES", 300)

    async def test(local: LocalCoordinator) -> None:
        for offset in range(50):
            await local.commit(f"g{offset % 7}", offset)
        await local.restart()
        assert [local.committed(f"g{number}") for number in range(7)] == [49, 43, 44, 45, 46, 47, 48]

    alone(tmp_path, test)


# --- Members ---


def test_an_assignment_is_answered_when_the_replicas_have_it(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        synced = local.ask_sync("g", await local.ask_join("g"))
        await asyncio.sleep(0)
        assert not synced.done()
        local.replicate()
        assert (await synced).assignment == b"all"

    replicated(tmp_path, test)


def test_a_silent_member_is_dropped_by_the_clock(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        joined = await local.member("g", session_ms=30)
        await eventually(lambda: local.coordinator.group("g").state is State.EMPTY)
        with pytest.raises(UnknownMemberId):
            local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)
        await local.restart()
        assert local.coordinator.group("g").state is State.EMPTY

    alone(tmp_path, test)


def test_a_member_whose_client_went_away_while_it_waited_harms_nobody(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        first = await local.member("g")
        gone = local.ask_join("g")
        gone.cancel()
        again = await local.ask_join("g", first.member_id)
        assert len(again.members) == 2

    alone(tmp_path, test)


@pytest.mark.parametrize("session_ms", [9, 60_001])
def test_t32_a_session_timeout_outside_the_bounds_is_refused(tmp_path: Path, session_ms: int) -> None:
    async def test(local: LocalCoordinator) -> None:
        with pytest.raises(InvalidSessionTimeout):
            local.ask_join("g", session_ms=session_ms)
        with pytest.raises(GroupIdNotFound):
            local.coordinator.group("g")

    alone(tmp_path, test)


def test_groups_of_members_need_a_name_and_groups_of_offsets_do_not(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        with pytest.raises(InvalidGroupId):
            local.ask_join("")
        with pytest.raises(InvalidGroupId):
            local.coordinator.heartbeat("", "member", None, 1)
        await local.commit("", 5)
        assert local.committed("") == 5

    alone(tmp_path, test)


def test_members_of_a_group_that_does_not_exist_are_unknown(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        with pytest.raises(UnknownMemberId):
            local.ask_join("g", "member")
        with pytest.raises(UnknownMemberId):
            local.coordinator.heartbeat("g", "member", None, 1)
        with pytest.raises(UnknownMemberId):
            local.coordinator.leave("g", "member", None)

    alone(tmp_path, test)


# --- Deleting and expiring ---


def test_a_group_is_deleted_with_its_offsets_for_good(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
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

    alone(tmp_path, test)


def test_a_group_is_deleted_with_what_is_being_committed(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        stored = local.commit("g", 5)
        deleted = local.coordinator.delete_group("g")
        local.replicate()
        await asyncio.gather(stored, deleted)
        assert local.committed("g") is None
        await local.restart()
        assert local.committed("g") is None

    replicated(tmp_path, test)


def test_only_offsets_of_topics_that_nobody_reads_are_deleted_kip_496(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
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

    alone(tmp_path, test)


def test_offsets_and_then_the_group_expire(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.commit("simple", 5)
        joined = await local.member("g")
        await local.commit("g", 5, member=joined)
        await local.commit("g", 5, topic="u", member=joined)
        shard = local.coordinator._shards[0]
        local.now_ms += 10_000
        shard.drop_expired(10_000)
        assert (local.committed("g"), local.committed("g", "u")) == (5, None)
        with pytest.raises(GroupIdNotFound):
            local.coordinator.group("simple")
        local.coordinator.leave("g", joined.member_id, None)
        local.now_ms += 9_999
        shard.drop_expired(10_000)
        assert local.committed("g") == 5
        local.now_ms += 1
        shard.drop_expired(10_000)
        await local.restart()
        assert list(local.coordinator.groups()) == []

    alone(tmp_path, test)


def test_expiry_is_looked_for_at_its_interval(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        await local.commit("g", 5, expire_ms=local.now_ms)
        await eventually(lambda: not list(local.coordinator.groups()))

    alone(tmp_path, test, check_interval_ms=5)


def test_a_group_with_members_does_not_expire(tmp_path: Path) -> None:
    async def test(local: LocalCoordinator) -> None:
        joined = await local.member("g")
        local.now_ms += 1_000_000
        local.coordinator._shards[0].drop_expired(1)
        local.coordinator.heartbeat("g", joined.member_id, None, joined.generation)

    alone(tmp_path, test)
