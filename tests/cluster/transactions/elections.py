"""Who leads: the states that ZooKeeper would hold, and the faults that change them.

The rules of elections have a simulation of their own (`tests/cluster/simulation.py`); here an in-sync replica
is elected at once, and brokers hear of it later, each at its time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.cluster.transactions.broker import BROKERS, PARTITIONS, TRANSACTIONS, Broker, now_ms
from tests.unit.broker.replica.replicas import LIFE, state_of

from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState

NEWS_S_MAX: Final = 0.1
LAG_MS_MAX: Final = 400
CONTROL_S: Final = 0.1
FAULT_PAUSE_S: Final = 1.5
HELD_SHARE: Final = 0.5
HELD_S_MAX: Final = 0.8
IN_FLIGHT_MS_MAX: Final = 500
"""How long a fault waits for markers that it can meet on their way."""
MIN_INSYNC_REPLICAS: Final = 2
LIVES: Final = dict.fromkeys(BROKERS, LIFE)


class Cluster:
    """Three brokers; at most one is down or cut off at a time."""

    def __init__(self, source: random.Random, directory: Path) -> None:
        self.random = source
        self.cut: set[int] = set()
        self.markers_in_flight: Counter[int] = Counter()
        self.held_until_s: dict[int, float] = {}
        self.brokers = {broker_id: Broker(broker_id, directory, self) for broker_id in BROKERS}
        self.states = {
            place: state_of(source.choice(BROKERS), 0, BROKERS, partition_epoch=1) for place in PARTITIONS
        }
        for broker in self.brokers.values():
            broker.start(self.states)

    # --- Leaders ---

    def leader(self, place: TopicPartition) -> Broker | None:
        """The broker that was elected last, if it is alive and knows."""
        broker = self.brokers.get(self.states[place].leader)
        if broker is None or not broker.is_alive or not broker.partitions[place].is_leader:
            return None
        return broker

    def claimants(self, place: TopicPartition) -> list[Broker]:
        """The brokers that a client may take for the leader: also one that was replaced and has not heard."""
        return [
            broker
            for broker in self.brokers.values()
            if broker.is_alive and broker.partitions[place].is_leader
        ]

    def _write(self, place: TopicPartition, state: PartitionState) -> None:
        self.states[place] = state
        for broker in self.brokers.values():
            asyncio.get_running_loop().call_later(
                self.random.random() * NEWS_S_MAX, self._tell, broker, place
            )

    def _tell(self, broker: Broker, place: TopicPartition) -> None:
        if broker.broker_id in self.cut:
            asyncio.get_running_loop().call_later(NEWS_S_MAX, self._tell, broker, place)
        else:
            broker.take(place, self.states[place])

    def elect(self, place: TopicPartition, *, without: int) -> None:
        """Another in-sync replica leads; the former leader leaves the in-sync set if it is not there."""
        state = self.states[place]
        is_gone = not self.brokers[without].is_alive or without in self.cut
        rest = tuple(broker for broker in state.isr if broker != without)
        able = [each for each in rest if self.brokers[each].is_alive and each not in self.cut]
        if state.leader != without or not able:
            return
        changed = state.with_isr(rest if is_gone else state.isr, LIVES, MIN_INSYNC_REPLICAS)
        leader, leader_epoch = self.random.choice(able), state.leader_epoch + 1
        self._write(place, replace(changed, leader=leader, leader_epoch=leader_epoch))

    def _restart(self, broker_id: int) -> None:
        """A broker that comes back leads nothing that it led before, unless it is elected again."""
        for place, state in self.states.items():
            if state.leader == broker_id:
                again = replace(
                    state, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
                )
                self._write(place, again)
        self.brokers[broker_id].start(self.states)

    async def control(self) -> None:
        """Let leaders change their in-sync sets, and replace leaders that are gone."""
        while True:
            await asyncio.sleep(CONTROL_S * (0.5 + self.random.random()))
            for place in PARTITIONS:
                self._control(place)

    def _control(self, place: TopicPartition) -> None:
        state = self.states[place]
        leader = self.brokers[state.leader]
        if not leader.is_alive or state.leader in self.cut:
            self.elect(place, without=state.leader)
            return
        partition: Partition = leader.partitions[place]
        if not partition.is_leader or partition.state != state:
            leader.take(place, state)  # a restart
            return
        lives = {each: LIFE for each in BROKERS if self.brokers[each].is_alive and each not in self.cut}
        gone = [each for each in state.isr if each not in lives]
        if gone and len(state.isr) > 1:
            isr = [each for each in state.isr if each in lives]
            self._write_and_tell(place, state.with_isr(isr, {}, MIN_INSYNC_REPLICAS))
            return
        proposed = partition.propose_isr(lives, now_ms(), LAG_MS_MAX)
        if proposed is not None:
            self._write_and_tell(place, proposed)

    def _write_and_tell(self, place: TopicPartition, state: PartitionState) -> None:
        self._write(place, state)
        self.brokers[state.leader].take(place, state)

    # --- Faults ---

    async def trouble(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(self.random.random() * FAULT_PAUSE_S)
            # Half of all faults meet the coordinator of transactions.
            place = TRANSACTIONS if self.random.random() < 0.5 else self.random.choice(PARTITIONS)
            victim = self.states[place].leader
            if place == TRANSACTIONS and self.random.random() < HELD_SHARE:
                await self._hold_markers(victim)
            kind = self.random.random()
            if kind < 0.3:
                self.elect(place, without=victim)
            elif kind < 0.6 and self.brokers[victim].is_alive:
                self.brokers[victim].crash()
                await asyncio.sleep(0.1 + self.random.random())
                self._restart(victim)
            else:
                self.cut.add(victim)
                await asyncio.sleep(0.1 + self.random.random())
                self.cut.discard(victim)

    async def _hold_markers(self, broker_id: int) -> None:
        """Wait until a broker has sent markers; the network holds them until another one coordinates."""
        for _ in range(IN_FLIGHT_MS_MAX):
            if self.markers_in_flight[broker_id]:
                break
            await asyncio.sleep(0.001)
        now_s = asyncio.get_running_loop().time()
        self.held_until_s[broker_id] = now_s + 0.2 + self.random.random() * HELD_S_MAX

    def is_level(self) -> bool:
        """Whether all replicas have everything, and all of it is replicated."""
        for place in PARTITIONS:
            leader = self.leader(place)
            if leader is None or len(self.states[place].isr) < len(BROKERS):
                return False
            end_offset = leader.partitions[place].log.log_end_offset
            for broker in self.brokers.values():
                partition = broker.partitions[place]
                if (partition.log.log_end_offset, partition.high_watermark) != (end_offset, end_offset):
                    return False
        return True
