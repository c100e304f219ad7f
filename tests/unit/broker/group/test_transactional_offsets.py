"""Offsets inside transactions count when the transaction is committed, and never before (R6, R11; KIP-98)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.group.local_coordinator import LocalCoordinator, loaded

from mainstem_broker.coordinator.journal import TransactionalProducer
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidProducerEpoch,
    InvalidTxnState,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)
from mainstem_broker.group.messages import Commit, ConsumerHeartbeat, JoinAnswer
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.markers import Marker
from mainstem_broker.replica.transaction_markers import append_marker

PRODUCER_ID = 7


def commit(
    local: LocalCoordinator,
    offset: int,
    *,
    group_id: str = "g",
    partition: int = 0,
    producer_id: int = PRODUCER_ID,
    epoch: int = 0,
    member: JoinAnswer | None = None,
) -> asyncio.Future[None]:
    """Commit an offset of partition `partition` of "t" in the producer's transaction, which is verified."""
    verification = local.coordinator.begin_verification(group_id, producer_id, epoch)
    member_id, generation = ("", -1) if member is None else (member.member_id, member.generation)
    return local.coordinator.commit_in_transaction(
        group_id,
        Commit(member_id, None, generation, 3, is_transactional=True),
        TransactionalProducer(producer_id, epoch, verification),
        {("t", partition): CommittedOffset(offset, 3, "", local.now_ms, topic_id=local.topics.topic_id("t"))},
    )


async def heartbeat(local: LocalCoordinator, epoch: int) -> None:
    """Of member "a" of "g", which joins (0) or leaves (-1)."""
    request = ConsumerHeartbeat(
        0, "a", epoch, None, None, 1_000, ("t",), None, None, frozenset(), "client", "/127.0.0.1"
    )
    answer = await local.coordinator.consumer_heartbeat("g", request)
    assert answer.error_code == 0


def end(
    local: LocalCoordinator, *, committed: bool = True, producer_id: int = PRODUCER_ID, epoch: int = 0
) -> None:
    """Write the marker, as WriteTxnMarkers does."""
    groups = local.coordinator.require_loaded(0)
    marker = Marker(committed, 1)
    append_marker(local.partition, producer_id, epoch, marker, raises_epoch=False, now_ms=local.now_ms)
    groups.end_transaction(producer_id, is_commit=committed)


def unstable(local: LocalCoordinator, group_id: str = "g") -> list[tuple[str, int]]:
    return list(local.coordinator.unstable(group_id))


async def test_offsets_count_when_the_transaction_is_committed(local: LocalCoordinator) -> None:
    await commit(local, 5)
    assert local.committed("g") is None
    assert unstable(local) == [("t", 0)]
    end(local)
    assert local.committed("g") == 5
    assert unstable(local) == []


async def test_offsets_of_an_aborted_transaction_are_dropped(local: LocalCoordinator) -> None:
    await local.commit("g", 3)
    await commit(local, 5)
    assert local.committed("g") == 3
    end(local, committed=False)
    assert local.committed("g") == 3
    assert unstable(local) == []


async def test_only_the_transaction_that_ends_is_affected(local: LocalCoordinator) -> None:
    await commit(local, 5, partition=0, producer_id=1)
    await commit(local, 6, partition=1, producer_id=2)
    end(local, producer_id=2)
    assert (local.committed("g"), local.committed("g", partition=1)) == (None, 6)
    assert unstable(local) == [("t", 0)]


async def test_a_marker_takes_effect_when_it_is_replicated(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        stored = commit(local, 5)
        local.replicate()
        await stored
        end(local)
        assert local.committed("g") is None
        assert unstable(local) == [("t", 0)]
        local.replicate()
        assert local.committed("g") == 5


async def test_what_is_committed_after_the_marker_belongs_to_the_next_transaction(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        commit(local, 5)
        end(local)
        commit(local, 9)
        local.replicate()
        assert local.committed("g") == 5
        assert unstable(local) == [("t", 0)]
        end(local, committed=False)
        local.replicate()
        assert local.committed("g") == 5
        assert unstable(local) == []


async def test_the_last_commit_of_a_transaction_counts(local: LocalCoordinator) -> None:
    await commit(local, 5)
    await commit(local, 6)
    end(local)
    assert local.committed("g") == 6
    assert unstable(local) == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_later_commit_outside_the_transaction_wins(local: LocalCoordinator, restarts: bool) -> None:
    await commit(local, 5)
    await local.commit("g", 8)
    if restarts:
        await local.restart()
    end(local)
    assert local.committed("g") == 8
    await local.restart()
    assert local.committed("g") == 8


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_deletion_covers_what_the_transaction_committed_before(
    local: LocalCoordinator, restarts: bool
) -> None:
    """Of the next coordinator, a compacted log would hold the tombstone alone (KAFKA-14505)."""
    await local.commit("g", 3)
    await commit(local, 5)
    await commit(local, 6, partition=1)
    await commit(local, 7, partition=2)
    deleted, refused = local.coordinator.delete_offsets("g", [("t", 0), ("t", 1)])
    await deleted
    assert not refused
    assert unstable(local) == [("t", 2)]
    await commit(local, 8, partition=1)
    if restarts:
        await local.restart()
        assert sorted(unstable(local)) == [("t", 1), ("t", 2)]
    end(local)
    assert [local.committed("g", partition=number) for number in range(3)] == [None, 8, 7]
    await local.restart()
    assert [local.committed("g", partition=number) for number in range(3)] == [None, 8, 7]


async def test_a_deletion_before_the_marker_takes_effect_before_it(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        commit(local, 5)
        local.replicate()
        deleted, _ = local.coordinator.delete_offsets("g", [("t", 0)])
        end(local)
        local.replicate()
        await deleted
        assert (local.committed("g"), unstable(local)) == (None, [])


@pytest.mark.parametrize("ends_first", [False, True], ids=["before the marker", "after it"])
async def test_a_transaction_of_which_all_offsets_were_deleted_leaves_the_next_one_to_end(
    tmp_path: Path, ends_first: bool
) -> None:
    """R11: each marker ends the transaction that was closed first."""
    async with loaded(tmp_path, followers=True) as local:
        commit(local, 5)
        deleted, _ = local.coordinator.delete_offsets("g", [("t", 0)])
        if ends_first:
            end(local)
        local.replicate()
        await deleted
        if not ends_first:
            end(local)
        commit(local, 6, producer_id=8)
        end(local, producer_id=8)
        local.replicate()
        assert (local.committed("g"), unstable(local)) == (6, [])


@pytest.mark.parametrize("committed", [True, False])
async def test_the_next_coordinator_has_the_same_open_transactions(
    local: LocalCoordinator, committed: bool
) -> None:
    await local.commit("g", 3)
    await commit(local, 5)
    await commit(local, 1, group_id="only-pending")
    await local.restart()
    assert local.committed("g") == 3
    assert unstable(local) == [("t", 0)] == unstable(local, "only-pending")
    end(local, committed=committed)
    assert local.committed("g") == (5 if committed else 3)
    await local.restart()
    assert local.committed("g") == (5 if committed else 3)
    assert local.committed("only-pending") == (1 if committed else None)
    assert unstable(local) == []


async def test_a_marker_waits_until_the_groups_are_loaded(local: LocalCoordinator) -> None:
    """It could come after the part of the log that is replayed."""
    local.follow()
    with pytest.raises(NotCoordinator):
        local.coordinator.require_loaded(0)
    local.lead()
    with pytest.raises(CoordinatorLoadInProgress):
        local.coordinator.require_loaded(0)


async def test_a_commit_of_a_former_epoch_is_refused(local: LocalCoordinator) -> None:
    await commit(local, 5, epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        commit(local, 6, epoch=2)


@pytest.mark.parametrize("has_ended_one", [False, True])
async def test_r12_a_commit_that_was_verified_before_the_marker_is_refused(
    local: LocalCoordinator, has_ended_one: bool
) -> None:
    """It would begin a transaction that nobody ends, also where the marker has the epochs of the last one."""
    if has_ended_one:
        await commit(local, 4)
        end(local, committed=True)
    verification = local.coordinator.begin_verification("g", PRODUCER_ID, 0)
    end(local, committed=False)
    with pytest.raises(InvalidTxnState):
        local.coordinator.commit_in_transaction(
            "g",
            Commit("", None, -1, 3, is_transactional=True),
            TransactionalProducer(PRODUCER_ID, 0, verification),
            {("t", 0): CommittedOffset(5, 3, "", local.now_ms)},
        )
    assert unstable(local) == []


async def test_a_commit_without_verification_is_refused(local: LocalCoordinator) -> None:
    with pytest.raises(InvalidTxnState):
        local.coordinator.commit_in_transaction(
            "g",
            Commit("", None, -1, 3, is_transactional=True),
            TransactionalProducer(PRODUCER_ID, 0, None),
            {("t", 0): CommittedOffset(5, 3, "", local.now_ms)},
        )


async def test_the_member_that_consumed_must_be_of_the_present_generation(local: LocalCoordinator) -> None:
    member = await local.member("g")
    await commit(local, 5, member=member)
    await commit(local, 6)  # clients before version 3 of the request name no member
    stale = JoinAnswer(member.member_id, generation=member.generation - 1)
    with pytest.raises(IllegalGeneration):
        commit(local, 7, member=stale)
    with pytest.raises(UnknownMemberId):
        commit(local, 7, member=JoinAnswer("zombie", generation=member.generation))
    with pytest.raises(IllegalGeneration):
        commit(local, 7, group_id="none", member=member)


async def test_the_next_coordinator_knows_the_epochs_of_members_and_what_is_pending(
    local: LocalCoordinator,
) -> None:
    """Of the second group protocol. The transaction keeps new owners waiting, whoever joins meanwhile."""
    await heartbeat(local, 0)
    await commit(local, 5, member=JoinAnswer("a", generation=1))
    await local.restart()
    for epoch in (0, 2):
        with pytest.raises(IllegalGeneration):
            commit(local, 6, member=JoinAnswer("a", generation=epoch))
    await heartbeat(local, -1)
    with pytest.raises(UnknownMemberId):
        commit(local, 6, member=JoinAnswer("a", generation=1))
    await heartbeat(local, 0)
    with pytest.raises(IllegalGeneration):
        commit(local, 6, member=JoinAnswer("a", generation=1))
    assert unstable(local) == [("t", 0)]
    await local.restart()
    assert unstable(local) == [("t", 0)]
    end(local)
    assert (local.committed("g"), unstable(local)) == (5, [])


async def test_a_group_is_kept_while_a_transaction_may_commit_to_it(local: LocalCoordinator) -> None:
    await local.commit("g", 3)
    await commit(local, 5)
    with pytest.raises(NonEmptyGroup):
        local.coordinator.delete_group("g")
    local.now_ms += 1_000_000
    await local.shard.upkeep()
    assert local.committed("g") == 3
    end(local)
    assert local.committed("g") == 5


async def test_a_commit_whose_replication_failed_is_still_part_of_the_transaction(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        stored = commit(local, 5)
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            await stored
        assert unstable(local) == [("t", 0)]
        local.set_in_sync((1, 2))
        end(local)
        local.replicate()
        assert local.committed("g") == 5


async def test_a_commit_that_too_few_replicas_would_have_is_refused_before_it_is_written(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True, min_insync_replicas=2) as local:
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            commit(local, 5)
        assert unstable(local) == []


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_commit_that_one_batch_cannot_hold_has_an_error_of_its_own(
    tmp_path: Path, in_transaction: bool
) -> None:
    async with loaded(tmp_path, max_message_bytes=1_000) as local:
        groups, offsets = local.coordinator, {("t", 0): CommittedOffset(5, 3, "x" * 1_000, local.now_ms)}
        request = Commit("", None, -1, 3, is_transactional=in_transaction)
        producer = TransactionalProducer(PRODUCER_ID, 0, groups.begin_verification("g", PRODUCER_ID, 0))
        with pytest.raises(InvalidCommitOffsetSize):
            if in_transaction:
                groups.commit_in_transaction("g", request, producer, offsets)
            else:
                groups.commit("g", request, offsets)
        assert (local.committed("g"), unstable(local)) == (None, [])
