"""The coordinator of transactions writes first and answers then, and goes on from its log (R9, R11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.waiting import settle, wait_until_async
from tests.unit.broker.txn.local_transactions import ID, LocalTransactions, loaded

from mainstem_broker.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    NotCoordinator,
    ProducerFenced,
    TransactionalIdNotFound,
)
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import CLIENT_EPOCH_MAX, Producer

P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalTransactions]:
    async with loaded(tmp_path) as coordinator:
        yield coordinator


async def test_a_transaction_from_its_begin_to_its_end(local: LocalTransactions) -> None:
    producer = await local.init()
    assert producer == Producer(1001, 0)
    await local.add(producer, P0, P1)
    assert await local.end(producer) == Producer(1001, 1)
    assert local.coordinator.transaction(ID).state is State.PREPARE_COMMIT
    (markers,) = local.markers.write_all()
    assert (markers.producer_id, markers.epoch, markers.is_commit) == (1001, 1, True)
    assert markers.partitions == {P0, P1}
    assert markers.coordinator_epoch == local.epoch
    assert local.coordinator.transaction(ID).state is State.COMPLETE_COMMIT


async def test_a_coordinator_that_may_have_been_replaced_answers_nothing(tmp_path: Path) -> None:
    """Else leaders would take a batch of a transaction that the next coordinator has ended."""
    async with loaded(tmp_path, followers=True) as local:
        producer = await local.replicated(local.init())
        await local.replicated(local.add(producer, P0))
        assert local.coordinator.missing_partitions(ID, producer, [P0]) == {}
        local.lease.lose_session()
        with pytest.raises(NotCoordinator):
            local.coordinator.missing_partitions(ID, producer, [P0])
        with pytest.raises(NotCoordinator):
            await local.end(Producer(producer.producer_id, producer.epoch + 1))


async def test_the_next_transaction_waits_for_the_markers_of_the_last_one(local: LocalTransactions) -> None:
    producer = await local.init()
    await local.add(producer, P0)
    following = await local.end(producer)
    with pytest.raises(ConcurrentTransactions):
        await local.add(following, P0)
    local.markers.write_all()
    await local.add(following, P0)


async def test_a_request_is_answered_when_its_record_is_replicated(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        producer = await local.replicated(local.init())
        adding = asyncio.ensure_future(local.add(producer, P0))
        await asyncio.sleep(0)
        assert not adding.done()
        assert local.coordinator.transaction(ID).state is State.EMPTY
        for request in (local.add(producer, P1), local.end(producer), local.init()):
            with pytest.raises(ConcurrentTransactions):
                await request
        local.replicate()
        await adding
        assert local.coordinator.transaction(ID).state is State.ONGOING


async def test_a_producer_that_is_not_replicated_yet_adds_nothing(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        making = asyncio.ensure_future(local.init())
        await settle()
        with pytest.raises(ConcurrentTransactions):
            await local.add(Producer(local.last_producer_id, 0), P0)
        producer = await local.replicated(making)
        await local.replicated(local.add(producer, P0))


async def test_two_ends_that_wait_for_the_next_producer_id_end_one_transaction(
    local: LocalTransactions,
) -> None:
    producer = await local.init()
    await local.add(producer, P0)
    coordinated = local.shard.transactions[ID]
    assert coordinated.current is not None
    coordinated.current = replace(coordinated.current, epoch=CLIENT_EPOCH_MAX)
    last = Producer(producer.producer_id, CLIENT_EPOCH_MAX)
    answers = await asyncio.gather(local.end(last), local.end(last), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Producer, ConcurrentTransactions]


async def test_a_timeout_may_be_as_long_as_the_setting_allows(local: LocalTransactions) -> None:
    assert (await local.init(timeout_ms=900_000)).epoch == 0
    with pytest.raises(InvalidTransactionTimeout):
        await local.init(timeout_ms=900_001)


async def test_two_first_requests_at_once_make_one_producer(local: LocalTransactions) -> None:
    answers = await asyncio.gather(local.init(), local.init(), return_exceptions=True)
    assert sorted(answer.epoch for answer in answers if isinstance(answer, Producer)) == [0, 1]
    assert len(local.shard.transactions) == 1


async def test_a_second_instance_aborts_the_transaction_of_the_first_and_fences_it(
    local: LocalTransactions,
) -> None:
    zombie = await local.init()
    await local.add(zombie, P0)
    with pytest.raises(ConcurrentTransactions):
        await local.init()
    with pytest.raises(ProducerFenced):
        await local.end(zombie)
    with pytest.raises(ConcurrentTransactions):
        await local.init()
    (markers,) = local.markers.write_all()
    assert not markers.is_commit and markers.epoch > zombie.epoch
    second = await local.init()
    assert second.epoch > markers.epoch
    for request in (local.add(zombie, P0), local.end(zombie), local.init(zombie)):
        with pytest.raises(ProducerFenced):
            await request


async def test_an_unknown_id_has_to_be_initialized_first(local: LocalTransactions) -> None:
    producer = Producer(7, 0)
    for request in (local.add(producer, P0), local.end(producer)):
        with pytest.raises(InvalidProducerIdMapping):
            await request
    with pytest.raises(TransactionalIdNotFound):
        local.coordinator.transaction(ID)
    assert (await local.init(producer)).epoch == 0


# --- Time ---


async def test_a_transaction_that_is_open_for_too_long_is_aborted(local: LocalTransactions) -> None:
    producer = await local.init(timeout_ms=1_000)
    await local.add(producer, P0)
    local.now_ms += 1_000
    await local.shard.upkeep()
    assert not local.markers.waiting
    local.now_ms += 1
    await local.shard.upkeep()
    (markers,) = local.markers.write_all()
    assert not markers.is_commit and markers.epoch > producer.epoch
    assert local.coordinator.transaction(ID).state is State.COMPLETE_ABORT
    for committed in (True, False):
        with pytest.raises(ProducerFenced):
            await local.end(producer, committed=committed)


async def test_an_id_that_is_not_used_expires_and_comes_back_with_another_producer_id(tmp_path: Path) -> None:
    async with loaded(tmp_path, expiration_ms=10_000) as local:
        producer = await local.init()
        local.now_ms += 10_000
        await local.shard.upkeep()
        assert not local.shard.transactions
        with pytest.raises(InvalidProducerIdMapping):
            await local.add(producer, P0)
        await local.restart()
        assert not local.shard.transactions
        assert await local.init(producer) == Producer(1002, 0)


async def test_what_is_being_changed_neither_times_out_nor_expires(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True, expiration_ms=10_000) as local:
        producer = await local.replicated(local.init(timeout_ms=1_000))
        await local.replicated(local.add(producer, P0))
        ending = asyncio.ensure_future(local.end(producer))
        await settle()
        local.now_ms += 10_000
        await local.shard.upkeep()
        assert await local.replicated(ending) == Producer(1001, 1)
        local.markers.write_all()
        local.replicate()
        local.now_ms += 10_000
        beginning = asyncio.ensure_future(local.init())
        await settle()
        await local.shard.upkeep()
        assert await local.replicated(beginning) == Producer(1001, 2)
        local.replicate()
        assert list(local.shard.transactions) == [ID]


async def test_an_id_whose_deletion_is_not_replicated_yet_is_not_used_again(tmp_path: Path) -> None:
    """The deletion would take the new producer away with it."""
    async with loaded(tmp_path, followers=True, expiration_ms=10_000) as local:
        await local.replicated(local.init())
        local.now_ms += 10_000
        await local.shard.upkeep()
        early = asyncio.ensure_future(local.init())
        await settle()
        assert isinstance(early.exception(), ConcurrentTransactions)
        local.replicate()
        assert not local.shard.transactions
        assert (await local.replicated(local.init())).epoch == 0


async def test_an_id_whose_deletion_could_not_be_written_stays_in_use(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True, expiration_ms=10_000) as local:
        await local.replicated(local.init())
        local.now_ms += 10_000
        set_in_sync(local, (1,), min_insync_replicas=2)
        await local.shard.upkeep()
        set_in_sync(local, (1, 2), min_insync_replicas=2)
        assert (await local.replicated(local.init())).epoch == 1


# --- Failures ---


@pytest.mark.parametrize("committed", [True, False])
async def test_the_next_coordinator_completes_what_was_decided(
    local: LocalTransactions, committed: bool
) -> None:
    producer = await local.init()
    await local.add(producer, P0, P1)
    await local.end(producer, committed=committed)
    first_epoch = local.epoch
    await local.restart()
    (markers,) = local.markers.write_all()
    assert markers.is_commit is committed
    assert markers.partitions == {P0, P1}
    assert markers.coordinator_epoch > first_epoch
    assert await local.end(producer, committed=committed) == Producer(1001, 1)


async def test_the_next_coordinator_goes_on_with_an_open_transaction(local: LocalTransactions) -> None:
    producer = await local.init(timeout_ms=1_000)
    await local.add(producer, P0)
    await local.restart()
    assert not local.markers.waiting
    await local.add(producer, P1)
    await local.end(producer)
    assert [markers.partitions for markers in local.markers.write_all()] == [{P0, P1}]


async def test_a_coordinator_that_was_replaced_sends_no_more_markers(local: LocalTransactions) -> None:
    producer = await local.init()
    await local.add(producer, P0)
    await local.end(producer)
    (waiting,) = local.markers.waiting
    local.follow()
    assert waiting.is_stopped
    with pytest.raises(NotCoordinator):
        await local.end(producer)


async def test_a_change_whose_replication_failed_counts_when_it_is_replicated_after_all(
    tmp_path: Path,
) -> None:
    async with loaded(tmp_path, followers=True) as local:
        producer = await local.replicated(local.init())
        await local.replicated(local.add(producer, P0))
        ending = asyncio.ensure_future(local.end(producer))
        await asyncio.sleep(0)
        set_in_sync(local, (1,), min_insync_replicas=2)
        with pytest.raises(CoordinatorNotAvailable):
            await ending
        with pytest.raises(ConcurrentTransactions):
            await local.end(producer, committed=False)
        assert not local.markers.waiting
        set_in_sync(local, (1, 2), min_insync_replicas=2)
        local.replicate()
        assert [waiting.markers.is_commit for waiting in local.markers.waiting] == [True]


async def test_an_append_that_fails_changes_nothing(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        producer = await local.replicated(local.init())
        set_in_sync(local, (1,), min_insync_replicas=2)
        with pytest.raises(CoordinatorNotAvailable):
            await local.add(producer, P0)
        with pytest.raises(CoordinatorNotAvailable):
            await local.coordinator.init_producer("another", 60_000, None)
        assert list(local.shard.transactions) == [ID]
        set_in_sync(local, (1, 2), min_insync_replicas=2)
        await local.replicated(local.add(producer, P0))


async def test_the_end_of_a_transaction_is_stored_as_soon_as_that_is_possible(tmp_path: Path) -> None:
    async with loaded(tmp_path, followers=True) as local:
        producer = await local.replicated(local.init())
        await local.replicated(local.add(producer, P0))
        await local.replicated(local.end(producer))
        set_in_sync(local, (1,), min_insync_replicas=2)
        local.markers.write_all()
        assert local.coordinator.transaction(ID).state is State.PREPARE_COMMIT
        set_in_sync(local, (1, 2), min_insync_replicas=2)

        def is_complete() -> bool:
            local.replicate()
            return local.coordinator.transaction(ID).state is State.COMPLETE_COMMIT

        await wait_until_async(is_complete, "the transaction is complete")


async def test_records_in_another_format_are_ignored(local: LocalTransactions) -> None:
    await local.init()
    local.shard.append([(b"\0\1?", b"?", ()), (b"\0\0\0\1x", b"\xff\x09", ())], lambda _: None)
    # And a kind of records that a later version writes.
    local.shard.append([(b"\0\x63?", b"\0\x09", ())], lambda _: None)
    await local.restart()
    assert list(local.shard.transactions) == [ID]


async def test_transactions_in_a_newer_format_are_not_forgotten(local: LocalTransactions) -> None:
    """R44, R12: a transaction that a coordinator forgets would never end."""
    await local.init()
    local.shard.append([(b"\0\0\0\1x", b"\0\x09", ())], lambda _: None)
    await local.restart()
    with pytest.raises(CoordinatorNotAvailable, match="upgrade broker 1"):
        local.shard.require_loaded()


def set_in_sync(local: LocalTransactions, isr: tuple[int, ...], *, min_insync_replicas: int) -> None:
    config = local.partition.log.config
    local.partition.log.config = type(config)(
        **{
            **{name: getattr(config, name) for name in config.__dataclass_fields__},
            "min_insync_replicas": min_insync_replicas,
        }
    )
    old = local.partition.state
    assert old is not None
    local.partition_epoch = old.partition_epoch + 1
    state = PartitionState(1, local.epoch, isr, 1, local.partition_epoch, incarnations={1: 0, 2: 0})
    local.partition.update_state(state, (1, 2), local.now_ms)
