"""A broker with real logs, replicas, coordinators and marker senders; its clock, network and elections are
simulated.

Every broker has a replica of every partition. `Cluster` (in `elections.py`) decides who leads.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import UUID

from tests.cluster.virtual_time import OWNER, Process
from tests.unit.broker.replica.replicas import LIFE, valid_lease

from mainstem_broker.api import write_txn_markers
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import PeerUnavailable, ProtocolError
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.log.compaction.compaction_pass import run as run_compaction
from mainstem_broker.log.compaction.facts import CompactedGroup
from mainstem_broker.log.compaction.messages import CompactionJob
from mainstem_broker.log.compaction.plan import plan_compaction
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.server.groups import group_coordinator
from mainstem_broker.server.transaction_markers import TransactionMarkers
from mainstem_broker.server.transactions import transaction_coordinator
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

Answer = TypeVar("Answer")

EPOCH_MS: Final = 1_700_000_000_000
BROKERS: Final = (1, 2, 3)
PLAIN: Final[tuple[TopicPartition, ...]] = (("plain", 0), ("plain", 1))
COMPACTED: Final[TopicPartition] = ("compacted", 0)
OFFSETS: Final[TopicPartition] = (OFFSETS_TOPIC, 0)
TRANSACTIONS: Final[TopicPartition] = (TRANSACTIONS_TOPIC, 0)
PARTITIONS: Final[tuple[TopicPartition, ...]] = (*PLAIN, COMPACTED, OFFSETS, TRANSACTIONS)
INPUT: Final[TopicPartition] = ("input", 0)
"""Whose offsets the transactions commit; it has no records."""
TOPIC_IDS: Final = {name: UUID(int=number) for number, (name, _) in enumerate((*PARTITIONS, INPUT), 1)}

FETCH_PAUSE_S: Final = 0.015
IDLE_SHARE: Final = 0.85
DELAY_S_MAX: Final = 0.01
LATE_SHARE: Final = 0.05
LATE_S_MAX: Final = 0.8
"""Some requests between brokers arrive late: after the broker that sent them has been replaced."""
PEER_TIMEOUT_S: Final = 3.0
"""Longer than any request is late: so a broker that sends again knows what became of the first request."""
SEGMENT_BYTES: Final = 1_000
FETCH_BYTES: Final = 100_000
READ_BYTES: Final = 4_000
DELETE_RETENTION_MS: Final = 2_000
"""Longer than a broker is down or cut off: a follower that missed a tombstone or a marker would be wrong."""


def now_ms() -> int:
    return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def topic_config(broker: BrokerConfig, topic: str) -> Any:
    compacts = topic not in {name for name, _ in PLAIN}
    return broker.topic(
        {
            "min.insync.replicas": "2",
            "segment.bytes": str(SEGMENT_BYTES if compacts else 1_000_000),
            "index.interval.bytes": "200",
            "cleanup.policy": "compact" if compacts else "delete",
            "retention.ms": "-1",
            "delete.retention.ms": str(DELETE_RETENTION_MS),
            "min.cleanable.dirty.ratio": "0",
            "file.delete.delay.ms": "0",
        }
    )


class Network(Protocol):
    """What a broker needs of the others."""

    random: random.Random
    brokers: Mapping[int, Broker]
    cut: set[int]
    """Brokers whose fetches by others fail."""
    markers_in_flight: Counter[int]
    """By the broker that sent them: requests on the wire."""
    states: Mapping[TopicPartition, PartitionState]
    """As ZooKeeper would hold them."""
    held_until_s: dict[int, float]
    """By broker: until when the network holds the markers that it has sent."""


class CoordinatorPartition(Partition):
    """A partition of `__transaction_state`, whose leader's lease ends when another one is elected.

    Leases have a simulation of their own. Without any, a coordinator that was replaced would answer what
    needs no record from its old state, such as that a transaction has a partition already.
    """

    network: Network

    @property
    def is_served(self) -> bool:
        return self.network.states[TRANSACTIONS].leader == self.local_broker_id


class Broker:
    """One broker over all its lives; its files outlive each."""

    def __init__(self, broker_id: int, directory: Path, network: Network) -> None:
        self.broker_id = broker_id
        self.is_alive = False
        self.life = 0
        self.partitions: dict[TopicPartition, Partition] = {}
        self._directory = directory / str(broker_id)
        self._network = network
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._process = Process()
        self._last_producer_id = broker_id * 1_000_000
        self.settings = BrokerConfig(
            {
                "broker.id": str(broker_id),
                "zookeeper.connect": "simulated",
                "group.initial.rebalance.delay.ms": "0",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            }
        )

    # --- Lives ---

    def start(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        self._context = contextvars.copy_context()
        self._process = Process()
        self._context.run(OWNER.set, self._process)
        self._context.run(self._start, states)

    def _start(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        self.is_alive = True
        self.life += 1
        self.partitions = {place: self._open(place) for place in PARTITIONS}
        topics = {
            name: SimpleNamespace(
                topic_id=topic_id,
                assignment=SimpleNamespace(
                    replicas={index: BROKERS for topic, index in PARTITIONS if topic == name}
                ),
                states={},
            )
            for name, topic_id in TOPIC_IDS.items()
        }
        # A namespace in place of a `ClusterView`: what coordinators and markers read of it.
        view: Any = SimpleNamespace(
            topics=topics,
            topic_names={topic_id: name for name, topic_id in TOPIC_IDS.items()},
            topics_version=0,
            brokers=set(BROKERS),
            stopped_topics={},
        )
        self.view = view
        self.markers = TransactionMarkers(self.view, self._connect, self._catch_up)
        self.transactions = transaction_coordinator(
            self.settings, self.view, self._find, self._take_producer_id, self.markers, now_ms
        )
        self.groups = group_coordinator(self.settings, self.view, self._find, lambda _: 10_000, now_ms)
        self.api: Any = SimpleNamespace(now_ms=now_ms, find_replica=self._require, groups=self.groups)
        for place, state in states.items():
            self._take(place, state)
        self.spawn(self._fetch_all())

    def _open(self, place: TopicPartition) -> Partition:
        topic, index = place
        directory = self._directory / f"{topic}-{index}"
        log = PartitionLog.open(
            directory,
            topic_config(self.settings, topic),
            clean_shutdown=not directory.exists(),
            recovery_point=0,
            log_start_offset=0,
            now_ms=now_ms(),
        )
        high_watermark = self._high_watermarks.get(place, 0)
        kind = CoordinatorPartition if place == TRANSACTIONS else Partition
        partition = kind(topic, index, TOPIC_IDS[topic], log, self.broker_id, valid_lease(), high_watermark)
        if isinstance(partition, CoordinatorPartition):
            partition.network = self._network
        return partition

    def crash(self) -> None:
        """As kill -9: what was written stays, nobody is notified, and this life writes nothing more."""
        self.is_alive = False
        self._process.kill()

    def spawn(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Run `work` as a part of this broker: it, and the tasks that it makes, end with it."""
        task: asyncio.Task[Answer] = asyncio.get_running_loop().create_task(work, context=self._context)
        return task

    def call(self, work: Callable[[], Answer]) -> Answer:
        """As `spawn`, for a function that others call here."""
        return self._context.run(work)

    # --- Roles ---

    def take(self, place: TopicPartition, state: PartitionState) -> None:
        """What ZooKeeper says, as this broker hears it."""
        if self.is_alive:
            self._context.run(self._take, place, state)

    def _take(self, place: TopicPartition, state: PartitionState) -> None:
        partition = self.partitions[place]
        partition.update_state(state, BROKERS, now_ms())
        current = partition.state
        assert current is not None
        self.view.topics[place[0]].states[place[1]] = current
        if place == TRANSACTIONS:
            self.transactions.shards.follow(0)
        elif place == OFFSETS:
            self.groups.shards.follow(0)

    def _find(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get((topic, index))

    def _require(self, topic: str, index: int) -> Partition:
        return self.partitions[topic, index]

    async def _take_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    async def _catch_up(self) -> bool:
        return True

    # --- Following ---

    async def _fetch_all(self) -> None:
        source = self._network.random
        while True:
            await asyncio.sleep(source.random() * FETCH_PAUSE_S)
            answers = [
                (partition, *result)
                for partition in self.partitions.values()
                if (result := self._fetch(partition)) is not None
            ]
            await asyncio.sleep(source.random() * DELAY_S_MAX)
            for partition, leader_epoch, answer in answers:
                if isinstance(answer, Divergence):
                    partition.truncate_to_divergence(answer, leader_epoch=leader_epoch)
                elif partition.leader_epoch == leader_epoch:
                    records, high_watermark, log_start_offset = answer
                    partition.append_from_leader(
                        records,
                        leader_epoch=leader_epoch,
                        high_watermark=high_watermark,
                        log_start_offset=log_start_offset,
                        now_ms=now_ms(),
                    )
            if source.random() < 0.1:
                self._high_watermarks = {
                    place: partition.high_watermark for place, partition in self.partitions.items()
                }

    def _fetch(self, partition: Partition) -> tuple[int, Divergence | tuple[bytes, int, int]] | None:
        """The leader's answer, with the epoch that it belongs to."""
        state = partition.state
        if state is None or partition.is_leader:
            return None
        leader = self._network.brokers.get(state.leader)
        if leader is None or not leader.is_alive:
            return None
        if {self.broker_id, leader.broker_id} & self._network.cut:
            return None
        source = leader.partitions[partition.topic, partition.index]
        offset, last_epoch = partition.fetch_position()
        is_level = (offset, partition.high_watermark) == (source.log.log_end_offset, source.high_watermark)
        if is_level and self._network.random.random() < IDLE_SHARE:
            return None  # it would wait for news; fetching all the time takes most of a history's time
        try:
            result = leader.call(
                lambda: source.read_as_follower(
                    self.broker_id,
                    LIFE,
                    offset,
                    last_epoch,
                    FETCH_BYTES,
                    leader_epoch=state.leader_epoch,
                    min_one_batch=True,
                    now_ms=now_ms(),
                )
            )
        except ProtocolError:
            return None
        if isinstance(result, Divergence):
            return state.leader_epoch, result
        records = b"" if result.slice is None else bytes(result.slice.read())
        return state.leader_epoch, (records, source.high_watermark, source.log.log_start_offset)

    # --- Markers ---

    def _connect(self, target: int) -> Any:
        return MarkerPeer(self._network, self.broker_id, target)

    # --- Compaction ---

    def compact(self, place: TopicPartition, map_bytes: int) -> None:
        """One pass over the local log, as the compaction worker does it."""
        partition = self.partitions[place]
        log = partition.log
        plan = plan_compaction(
            facts := log.segment_facts(),
            log.config,
            first_dirty_offset=log.first_dirty_offset,
            high_watermark=partition.last_stable_offset,
            now_ms=now_ms(),
        )
        if plan is None:
            return
        job = CompactionJob(
            log.directory,
            log.config,
            tuple(facts),
            plan.first_dirty_offset,
            plan.end_offset,
            now_ms(),
            log.producers.last_offsets(),
            map_bytes=map_bytes,
            aborted=tuple(log.aborted_transactions(0, plan.end_offset)),
            marker_epochs=log.producers.marker_epochs(),
        )
        for message in run_compaction(job, lambda _count: None):
            if isinstance(message, CompactedGroup):
                assert log.take_compacted(message, now_ms())
            else:
                log.first_dirty_offset = message.map_end_offset


class MarkerPeer:
    """In place of `server/peers.py`'s `Peer`: carries markers to the handler of another broker.

    The request outlives the broker that sent it: it is on the wire.
    """

    def __init__(self, network: Network, origin: int, target: int) -> None:
        self._network = network
        self._origin = origin
        self._target = target

    async def ask(self, _api_key: int, _version: int, body: Any) -> Any:
        source = self._network.random
        delay_s = source.random() * (LATE_S_MAX if source.random() < LATE_SHARE else DELAY_S_MAX)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(
            self._deliver(body, delay_s, answer), context=contextvars.Context()
        )
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise PeerUnavailable("no answer in time") from None
        finally:
            del task

    async def _deliver(self, body: Any, delay_s: float, answer: asyncio.Future[Any]) -> None:
        network = self._network
        network.markers_in_flight[self._origin] += 1
        await asyncio.sleep(delay_s)
        held_s = network.held_until_s.get(self._origin, 0.0) - asyncio.get_running_loop().time()
        if held_s > 0:
            await asyncio.sleep(held_s)
        network.markers_in_flight[self._origin] -= 1
        broker = self._network.brokers[self._target]
        if not broker.is_alive:
            return
        try:
            handled: Any = broker.call(
                lambda: write_txn_markers.handle(broker.api, namespace(body), cast(Any, None))
            )
            result = handled if isinstance(handled, dict) else await handled
        except ProtocolError:
            return
        await asyncio.sleep(self._network.random.random() * DELAY_S_MAX)
        if broker.is_alive and not answer.done():
            answer.set_result(namespace(result))

    def close(self) -> None:
        pass


def namespace(value: Any) -> Any:
    """A decoded body as handlers see it: fields are attributes."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: namespace(item) for name, item in value.items()})
    if isinstance(value, list):
        return [namespace(item) for item in value]
    return value
