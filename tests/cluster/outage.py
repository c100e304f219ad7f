"""Histories in which nothing is wrong but ZooKeeper: what goes on without it, and what its return changes."""

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

from mainstem_broker.cluster.znodes import TopicAssignment

SESSION_S = SESSION_TIMEOUT_MS / 1000
BROKERS = (1, 2, 3)
LOOK_INTERVAL_S = 0.1
RECORDS_MAX = 4
LOOK_AT_LEADERS_INTERVAL_S = 0.005
"""As long as a message to ZooKeeper takes: registering anew takes several times as long."""


@dataclass(frozen=True, slots=True)
class Story:
    """What an outage came to: `epochs` are (before, after) for each partition."""

    acknowledged_meanwhile: int
    read_meanwhile: int
    longest_wait_s: float
    epochs: tuple[tuple[int, int], ...]
    incarnations: tuple[tuple[int, int], ...]
    """(before, after) for each broker."""
    refusing_s: float
    """For how long a leader that lives refused clients, from the beginning of the outage on."""


def live_through(
    seed: int, outage_s: float, *, keeps_sessions: bool, hangs: bool = False, killed: int | None = None
) -> Story:
    """Stop the ensemble for `outage_s` of virtual time, under load, and start it again.

    If it `hangs`, connections stay open and are not answered; else they are refused.
    If `killed` names a broker, it dies at the beginning of the outage, and is started after it.

    Raises:
        Violation: an invariant does not hold.
    """
    return run_in_virtual_time(_live(random.Random(seed), outage_s, keeps_sessions, hangs, killed))


async def _live(
    source: random.Random, outage_s: float, keeps_sessions: bool, hangs: bool, killed: int | None
) -> Story:
    server = ZooKeeperServer()
    ledger = Ledger(server, TOPIC)
    network = Network(source, 0.0)
    brokers = {
        broker_id: SimulatedBroker(broker_id, server, network, source, ledger) for broker_id in BROKERS
    }
    ledger.brokers = brokers
    await asyncio.gather(*(broker.start() for broker in brokers.values()))
    assignment = TopicAssignment(TOPIC, UUID(int=7), dict.fromkeys(range(PARTITIONS), BROKERS))
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
    await until(lambda: ledger.acknowledgements > 10, "records to be taken")
    epochs, incarnations = _epochs(ledger), _incarnations(ledger)
    watch = asyncio.create_task(_longest_wait(ledger, outage_s + 3 * SESSION_S))
    refusals = asyncio.create_task(_refusing_s(brokers, outage_s + 3 * SESSION_S))
    acknowledged, reads = ledger.acknowledgements, ledger.reads
    if hangs:
        server.hang()
    else:
        server.stop()
    if killed is not None:
        brokers[killed].crash(lose_unsynced=False)
    await asyncio.sleep(outage_s)
    acknowledged, reads = ledger.acknowledgements - acknowledged, ledger.reads - reads
    server.start(lambda: keeps_sessions)
    if killed is not None:
        await brokers[killed].start()
    longest_wait_s, refusing_s = await watch, await refusals
    await until(ledger.all_in_sync, "all to be in sync")
    for client in clients:
        client.cancel()
    await until(ledger.all_level, "the followers to have everything")
    ledger.check()
    return Story(
        acknowledged,
        reads,
        longest_wait_s,
        tuple(zip(epochs, _epochs(ledger), strict=True)),
        tuple(zip(incarnations, _incarnations(ledger), strict=True)),
        refusing_s,
    )


def _epochs(ledger: Ledger) -> list[int]:
    states = [ledger.state(partition) for partition in ledger.partitions()]
    return [-1 if state is None else state.leader_epoch for state in states]


def _incarnations(ledger: Ledger) -> list[int]:
    return [ledger.life(broker_id) for broker_id in BROKERS]


async def _longest_wait(ledger: Ledger, duration_s: float) -> float:
    """The longest time without an acknowledgement; the invariants are checked meanwhile."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + duration_s
    longest_s, last_s, count = 0.0, loop.time(), ledger.acknowledgements
    while loop.time() < end_s:
        await asyncio.sleep(LOOK_INTERVAL_S)
        ledger.check()
        if ledger.acknowledgements > count:
            count, last_s = ledger.acknowledgements, loop.time()
        longest_s = max(longest_s, loop.time() - last_s)
    return longest_s


async def _refusing_s(brokers: dict[int, SimulatedBroker], duration_s: float) -> float:
    """For how long at least one leader that lives refused clients."""
    refusing_s = 0.0
    for _ in range(round(duration_s / LOOK_AT_LEADERS_INTERVAL_S)):
        await asyncio.sleep(LOOK_AT_LEADERS_INTERVAL_S)
        if any(
            partition.is_leader and not partition.is_served
            for broker in brokers.values()
            if broker.joined
            for partition in broker.replicas
        ):
            refusing_s += LOOK_AT_LEADERS_INTERVAL_S
    return refusing_s
