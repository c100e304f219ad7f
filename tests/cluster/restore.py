"""Histories in which ZooKeeper is restored from an older backup, as docs/how-to/restoring.md describes it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from uuid import UUID

from tests.cluster.clients import Consumer, Producer
from tests.cluster.invariants import Ledger
from tests.cluster.network import Network
from tests.cluster.simulated_broker import SESSION_TIMEOUT_MS, SimulatedBroker
from tests.cluster.simulated_zookeeper import ZooKeeperServer
from tests.cluster.simulation import PARTITIONS, TOPIC, until
from tests.cluster.virtual_time import run_in_virtual_time

from mainstem_broker.cluster.reassignment import move_of, with_moves
from mainstem_broker.cluster.znodes import CONTROLLER_EPOCH, TopicAssignment
from mainstem_broker.log.checkpoints import TreePosition

SESSION_S = SESSION_TIMEOUT_MS / 1000
BROKERS = (1, 2, 3, 4)
BEFORE = (1, 2, 3)
"""The replicas at the backup."""
RECORDS_MAX = 4


@dataclass(frozen=True, slots=True)
class Story:
    """What a restore came to."""

    epochs: tuple[tuple[int, int], ...]
    """(before, after) for each partition."""
    producer_ids: tuple[int, ...]
    """All that were given, some by each broker, before and after."""
    acknowledged_since: int
    deleted: frozenset[int]
    """Partitions whose logs the restore left without a place, and that were not set aside."""


def live_through(seed: int, *, moves_away: bool, stops_cleanly: bool) -> Story:
    """Back ZooKeeper up, restart brokers and move replicas under load, stop all brokers, restore ZooKeeper.

    With `moves_away`, a partition is held by other brokers than at the backup.

    Raises:
        Violation: an invariant does not hold.
    """
    return run_in_virtual_time(_live(random.Random(seed), moves_away, stops_cleanly))


async def _live(source: random.Random, moves_away: bool, stops_cleanly: bool) -> Story:
    server = ZooKeeperServer()
    ledger = Ledger(server, TOPIC)
    network = Network(source, 0.0)
    brokers = {
        broker_id: SimulatedBroker(broker_id, server, network, source, ledger) for broker_id in BROKERS
    }
    ledger.brokers = brokers
    await asyncio.gather(*(broker.start() for broker in brokers.values()))
    assignment = TopicAssignment(TOPIC, UUID(int=7), dict.fromkeys(range(PARTITIONS), BEFORE))
    await brokers[1].member.administration.create_topic(assignment, {})
    await until(ledger.all_in_sync, "the topic to begin")
    clients = [
        asyncio.create_task(client.run())
        for index in range(PARTITIONS)
        for client in (
            Producer(TOPIC, index, network, source, ledger, index, RECORDS_MAX),
            Consumer(TOPIC, index, network, source, ledger),
        )
    ]
    for _ in range(source.randrange(3)):
        await _restart(brokers, ledger, source)
    await _until_some_are_acknowledged(ledger)

    backup, backup_position = server.backup(), brokers[1].member.tree_position
    assert backup_position is not None
    if moves_away:
        await _move(brokers, ledger, source)
    for _ in range(source.randrange(1, 4)):
        await _restart(brokers, ledger, source)
    await _until_some_are_acknowledged(ledger)
    producer_ids = await _take_producer_ids(brokers)
    moved = {partition for _, partition in brokers[4].disks.logs}

    for _ in range(source.choice((1, 1, 2))):  # the second time from the same backup
        epochs = _epochs(ledger)
        # Every few seconds they write it down: a later backup is not noticed by brokers that are killed.
        await until(lambda: _all_are_past(brokers, backup_position), "positions to be written down")
        stops = [_stop(broker, source, is_clean=stops_cleanly) for broker in brokers.values()]
        await asyncio.gather(*stops)
        await asyncio.sleep(SESSION_S * 2)
        server.restore(backup, SESSION_S)
        epoch_node = server.get(CONTROLLER_EPOCH)
        assert epoch_node is not None
        ledger.restored_epoch = int(epoch_node.data)
        if not moves_away and source.random() < 0.5:
            await _start_without_knowledge(brokers[4])
        await asyncio.gather(*(_start(broker, source) for broker in brokers.values() if not broker.alive))
        if source.random() < 0.5:
            await asyncio.sleep(source.random() * SESSION_S)
            await _crash(source.choice(list(brokers.values())), source)
        await until(ledger.all_in_sync, "all to be in sync")
        acknowledged = ledger.acknowledgements
        await _until_some_are_acknowledged(ledger)
        producer_ids += await _take_producer_ids(brokers)
    for client in clients:
        client.cancel()
    await until(ledger.all_level, "the followers to have everything")
    ledger.check()
    ledger.check_ends()
    return Story(
        tuple(zip(epochs, _epochs(ledger), strict=True)),
        tuple(producer_ids),
        ledger.acknowledgements - acknowledged,
        frozenset(moved - {partition for _, partition in brokers[4].disks.kept_aside}),
    )


def _epochs(ledger: Ledger) -> list[int]:
    states = [ledger.state(partition) for partition in ledger.partitions()]
    return [-1 if state is None else state.leader_epoch for state in states]


async def _until_some_are_acknowledged(ledger: Ledger) -> None:
    before = ledger.acknowledgements
    await until(lambda: ledger.acknowledgements > before + 5, "records to be taken")
    ledger.check()


def _all_are_past(brokers: dict[int, SimulatedBroker], position: TreePosition) -> bool:
    return all((broker.disks.tree_position or position) > position for broker in brokers.values())


async def _take_producer_ids(brokers: dict[int, SimulatedBroker]) -> list[int]:
    return [await broker.spawn(broker.member.producer_ids.take()) for broker in brokers.values()]


async def _stop(broker: SimulatedBroker, source: random.Random, *, is_clean: bool) -> None:
    await asyncio.sleep(source.random())
    if is_clean:
        await broker.stop()
    else:
        broker.crash(lose_unsynced=False)


async def _start(broker: SimulatedBroker, source: random.Random) -> None:
    await asyncio.sleep(source.choice((0.0, 0.05, 2 * SESSION_S)) * source.random())
    if source.random() < 0.3:
        await broker.start(stops_early=True)
        await broker.stop()
    await broker.start()


async def _start_without_knowledge(broker: SimulatedBroker) -> None:
    """Start a broker that holds nothing with a new disk: it cannot notice the restore."""
    broker.disks.tree_position = None
    await broker.start()
    broker.spawn(_prefetch(broker))


async def _prefetch(broker: SimulatedBroker) -> None:
    broker.member.producer_ids.prefetch()


async def _crash(broker: SimulatedBroker, source: random.Random) -> None:
    await _stop(broker, source, is_clean=False)
    await asyncio.sleep(SESSION_S * 2 * source.random())
    await broker.start()


async def _restart(brokers: dict[int, SimulatedBroker], ledger: Ledger, source: random.Random) -> None:
    broker = source.choice(list(brokers.values()))
    await _stop(broker, source, is_clean=source.random() < 0.5)
    await asyncio.sleep(SESSION_S * 2 * source.random())
    await broker.start()
    await until(ledger.all_in_sync, "a broker to be in sync again")


async def _move(brokers: dict[int, SimulatedBroker], ledger: Ledger, source: random.Random) -> None:
    """Have broker 4 take the place of another one."""
    target = (*source.sample(BEFORE, 2), 4)

    def change(assignment: TopicAssignment) -> TopicAssignment:
        return with_moves(
            assignment, {index: move_of(assignment, index).towards(target) for index in assignment.replicas}
        )

    administration = brokers[1].member.administration
    await brokers[1].spawn(administration.change_assignment(TOPIC, UUID(int=7), change))
    await until(ledger.all_in_sync, "the move to end")
    await until(lambda: not ledger.left_behind(), "logs that were moved away to be deleted")
