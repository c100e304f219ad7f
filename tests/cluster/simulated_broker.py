"""A broker without sockets, files and threads: the real member, manager, fetchers, news and handlers.

Replaced are ZooKeeper, the network, the clock and the disk. A broker has lives: `start` begins one,
`crash` ends it in the middle of whatever it does, `stop` ends it cleanly. Its disks stay.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

from tests.cluster.invariants import Ledger
from tests.cluster.memory_log import MemoryLog, MemoryLogs
from tests.cluster.memory_segments import read_slice
from tests.cluster.network import Network
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer
from tests.cluster.virtual_time import OWNER, Process

from mainstem_broker.api import delete_records, fetch, produce
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.member import BeginLease, ClusterMember
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.broker_settings import RACK_AWARE_REPLICA_SELECTOR
from mainstem_broker.errors import PeerUnavailable, StorageError
from mainstem_broker.log.files import FileSlice, TruncatedSlice
from mainstem_broker.protocol.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from mainstem_broker.protocol.wire import Body
from mainstem_broker.quota.client_quotas import ClientQuotas
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.server.cluster_changes import ClusterChanges
from mainstem_broker.server.groups import group_coordinator
from mainstem_broker.server.peers import LeaderPeer, Peer
from mainstem_broker.server.transactions import transaction_coordinator

T = TypeVar("T")

SESSION_TIMEOUT_MS = 1_500
LAG_MS_MAX = 600
FETCH_WAIT_MS = 300
GRANT_S = 0.8
PROBE_S_MAX = 0.02
RESTART_S = 0.5
EPOCH_MS = 1_700_000_000_000

CONSUMER = ReplicaState()


def rack_of(broker_id: int) -> str:
    return f"rack-{broker_id}"


_CONTEXT = RequestContext(11, "simulated", "", "PLAINTEXT")


@cache
def broker_config(broker_id: int) -> BrokerConfig:
    return BrokerConfig(
        {
            "broker.id": str(broker_id),
            "zookeeper.connect": "simulated",
            "min.insync.replicas": "2",
            "replica.selector.class": RACK_AWARE_REPLICA_SELECTOR,
        }
    )


class SimulatedBroker:
    """One broker over all its lives."""

    def __init__(
        self, broker_id: int, server: ZooKeeperServer, network: Network, source: random.Random, ledger: Ledger
    ) -> None:
        self.broker_id = broker_id
        self.disks = MemoryLogs()
        self.running = asyncio.Event()
        """Cleared while the process is paused: nothing reaches it and nothing leaves it."""
        self.running.set()
        self.alive = False
        self.listening = False
        """Whether connections are accepted: others may see that they are refused."""
        self.joined = False
        """Whether the broker is registered in its present life."""
        self.stopped_cleanly = True
        self.failed = asyncio.Event()
        """Set when no data directory is left: the process has to be stopped."""
        self._server = server
        self._network = network
        self._random = source
        self.ledger = ledger
        self.tasks = Process()
        """All that this process does; kept by the loop (`virtual_time.py`)."""
        self.lease: Lease
        self.member: ClusterMember
        self.replicas: ReplicaManager
        self.zookeeper: SimulatedZooKeeper
        self.context: BrokerContext

    # --- Lives ---

    async def start(self, *, stops_early: bool = False) -> None:
        """Begin a life; returns when the broker serves.

        With `stops_early` it returns when the logs are recovered, as if SIGTERM came then; `stop` follows.
        """
        loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self.tasks)
        self.alive = True
        self.failed.clear()
        try:
            await self.spawn(self._start(loop, stops_early))
        except StorageError:  # as by a full disk: the process ends, and is started again, as Kubernetes does
            self.crash(lose_unsynced=False)
            self.stopped_cleanly = False
            await asyncio.sleep(RESTART_S)
            await self.start(stops_early=stops_early)

    async def _start(self, loop: asyncio.AbstractEventLoop, stops_early: bool) -> None:
        self.disks.begin_life(self._on_disk_failure)
        self.stopped_cleanly &= not self.disks.failed
        config = broker_config(self.broker_id)
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"broker-{self.broker_id}", 9092)
        lease = self.lease = Lease(loop.time, SESSION_TIMEOUT_MS / 1000, GRANT_S)

        def connect(listener: Any) -> SimulatedZooKeeper:
            self.zookeeper = SimulatedZooKeeper(
                self._server, self._random, SESSION_TIMEOUT_MS / 1000, listener, self.running
            )
            return self.zookeeper

        self.member = ClusterMember(
            BrokerRegistration(self.broker_id, (endpoint,), rack_of(self.broker_id)),
            connect,
            lease,
            now_s=loop.time,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection_timeout_ms=60_000,
            on_settings=lambda: self._cluster_changes.take_broker_config(),  # noqa: PLW0108  # made below
            on_change=self._on_change,
            policy_of=lambda topic: self._cluster_changes.election_policy(topic),  # noqa: PLW0108  # made below
        )
        self.replicas = ReplicaManager(
            self.broker_id,
            cast(Any, self.disks),
            self.member.states,
            lease,
            self._connect_leader,
            self.now_ms,
            LAG_MS_MAX,
        )
        groups = group_coordinator(
            config,
            self.member.view,
            self.replicas.find,
            lambda group_id: self.context.group_config(group_id).session_timeout_ms,
            self.now_ms,
        )
        quotas = ClientQuotas(11, 1_000)
        transactions = transaction_coordinator(
            config,
            self.member.view,
            self.replicas.find,
            self.member.producer_ids.take,
            cast(Any, None),  # no clients use transactions here
            self.now_ms,
        )
        self.context = SimulatedContext(
            self.broker_id,
            config,
            self.member,
            self.replicas,
            groups,
            transactions,
            quotas,
            cast(Any, None),  # for the same reason
        )
        self._cluster_changes = ClusterChanges(self.context, cast(Any, self.disks))
        await self.member.connect()
        await self.member.load()
        may_be_restored = self.member.may_be_restored([self.disks.tree_position])
        if stops_early:
            return
        await self._cluster_changes.open(may_be_restored=may_be_restored)
        lease.begin_listening()
        self.listening = True
        await self.member.join(stopped_uncleanly=not self.stopped_cleanly)
        self.stopped_cleanly = False
        self.joined = True
        self._network.brokers[self.broker_id] = self
        self.spawn(self._upkeep())

    def crash(self, *, lose_unsynced: bool) -> None:
        """End the process at once, and, with the machine, what the disks have not written yet."""
        self._leave_network()
        self.zookeeper.kill()
        if lose_unsynced:
            self.disks.lose_unsynced()

    async def stop(self) -> None:
        """End the process cleanly, as SIGTERM does."""
        await self.spawn(self._stop())
        self._leave_network()

    async def _stop(self) -> None:
        await self.member.retire(3_000)
        await self.replicas.stop()
        await self.member.leave()
        await self._cluster_changes.stop()
        self.stopped_cleanly = self.disks.close() and (self.stopped_cleanly or self.member.has_joined)
        self.disks.high_watermarks = self.replicas.high_watermarks()
        self.disks.checkpoint_tree_position(self.member.tree_position)

    def _leave_network(self) -> None:
        self.alive = self.joined = self.listening = False
        self._network.brokers.pop(self.broker_id, None)
        self.running.set()
        self.tasks.kill()
        self.tasks = Process()

    def spawn(self, work: Coroutine[Any, Any, T] | Any) -> asyncio.Task[T]:
        """Run `work` as a part of this process: it and all tasks that it makes end with it."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, context=self._context)
        return task

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(LAG_MS_MAX / 2000 * (0.8 + 0.4 * self._random.random()))
            await self.running.wait()
            await self._probe_all()
            await self.replicas.consider_all_isrs()
            await self._cluster_changes.try_again()
            if self._random.random() < 0.5:
                self.disks.sync()
            if self._random.random() < 0.3:
                self.disks.high_watermarks = self.replicas.high_watermarks()
                self.disks.checkpoint_tree_position(self.member.tree_position)
                self.disks.write_down_starts()
            self._apply_retention()

    def _apply_retention(self) -> None:
        """What `server/maintenance.py` does."""
        for partition in self.replicas:
            try:
                partition.apply_retention(self.now_ms())
            except StorageError:
                continue
            self.ledger.deleted(partition.index, partition.log.log_start_offset)

    async def _probe_all(self) -> None:
        """What `server/failure_detector.py` does while ZooKeeper is away."""
        if not (self.lease.is_cut_off or self.lease.is_in_aftermath):
            return
        for broker_id in sorted(self.member.view.brokers.keys() - {self.broker_id}):
            connected_s = self.lease.now_s()
            await asyncio.sleep(self._random.random() * PROBE_S_MAX)
            is_cut = (self.broker_id, broker_id) in self._network.cut
            if not is_cut and not self.ledger.brokers[broker_id].listening:
                self.lease.note_refusal(broker_id, connected_s)

    def _on_disk_failure(self, directory: Path) -> None:
        """What `server/broker.py` does, in a moment, as there."""
        asyncio.get_running_loop().call_soon(self._take_offline, directory, context=self._context)

    def _take_offline(self, directory: Path) -> None:
        if not self.alive or directory in self.disks.failed:
            return
        elsewhere = [
            partition
            for partition in self.replicas
            if cast(MemoryLog, partition.log).disk.directory != directory
        ]
        self._cluster_changes.disk_failed(directory)
        self.ledger.disk_failed(self, elsewhere)
        if not self.disks.usable_directories:
            self.failed.set()

    async def _on_change(self, delta: Delta, begin_lease: BeginLease | None) -> None:
        await self._cluster_changes.take(delta, begin_lease)
        for partition in self.replicas:
            if partition.is_leader:
                self.ledger.leads(self.broker_id, partition)

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether the replica is on a disk that broke, in this life."""
        return (topic, index) in self.replicas.offline

    @staticmethod
    def now_ms() -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    # --- Requests to it ---

    async def produce(self, topic: str, index: int, batch: bytes, acks: int, timeout_s: float) -> Body:
        """One partition's answer to a produce."""
        data = SimpleNamespace(index=index, records=batch)
        request: Any = SimpleNamespace(
            acks=acks,
            timeout=timedelta(seconds=timeout_s),
            topic_data=(SimpleNamespace(name=topic, partition_data=(data,)),),
        )
        replica = self.replicas.find(topic, index)
        end_before = 0 if replica is None else replica.log.log_end_offset
        answer = produce.handle(self.context, request, _CONTEXT)
        if replica is not None and replica.log.log_end_offset > end_before:
            self.ledger.appended(index, replica.leader_epoch)
        body = answer if isinstance(answer, dict) else await cast(Any, answer)
        partition: Body = body["responses"][0]["partition_responses"][0]
        return partition

    async def fetch(self, request: Any) -> Body:
        answer = fetch.handle(self.context, request, _CONTEXT)
        body: Body = answer if isinstance(answer, dict) else await cast(Any, answer)
        for topic in body["responses"]:
            for partition in topic["partitions"]:
                if isinstance(partition["records"], FileSlice):
                    try:
                        partition["records"] = read_slice(partition["records"])
                    except TruncatedSlice as error:  # `server/connection.py` closes the connection then
                        raise PeerUnavailable("the connection was closed") from error
        return body

    async def delete_records(self, topic: str, index: int, offset: int, timeout_s: float) -> None:
        """Answer a DeleteRecords for one partition."""
        partitions = (SimpleNamespace(partition_index=index, offset=offset),)
        request: Any = SimpleNamespace(
            timeout=timedelta(seconds=timeout_s), topics=(SimpleNamespace(name=topic, partitions=partitions),)
        )
        await delete_records.handle(self.context, request, _CONTEXT)

    # --- Following ---

    def _connect_leader(self, leader: int) -> LeaderPeer:
        def incarnation() -> int:
            registration = self.member.view.brokers.get(self.broker_id)
            return -1 if registration is None else registration.incarnation

        return LeaderPeer(
            cast(Peer, SimulatedPeer(self._network, self.broker_id, leader)),
            broker_id=self.broker_id,
            incarnation=incarnation,
            wait_ms_max=FETCH_WAIT_MS,
            bytes_max=10_000,
            partition_bytes_max=2_000,
            grant=self.lease.grant,
        )


class SimulatedContext(BrokerContext):
    """With the simulation's clock."""

    def now_ms(self) -> int:
        return SimulatedBroker.now_ms()


class SimulatedPeer:
    """In place of `server/peers.py`'s `Peer`: carries a fetch's body to the leader's handler and back."""

    def __init__(self, network: Network, origin: int, target: int) -> None:
        self._network = network
        self._origin = origin
        self._target = target

    async def ask(self, _api_key: int, _version: int, body: Body) -> Any:
        request = fetch_request(
            [
                (topic["topic_id"], FetchPartition(**partition))
                for topic in body["topics"]
                for partition in topic["partitions"]
            ],
            body["max_wait"] / 1000,
            replica=ReplicaState(**body["replica_state"]),
            max_bytes=body["max_bytes"],
            session=(body["session_id"], body["session_epoch"]),
            forgotten=[
                ForgottenTopic(topic["topic_id"], tuple(topic["partitions"]))
                for topic in body["forgotten_topics_data"]
            ],
        )
        timeout_s = body["max_wait"] / 1000 + 1
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._network.call(
                    self._origin, self._target, lambda broker: broker.fetch(request)
                )
        except TimeoutError:
            raise PeerUnavailable("no answer in time") from None
        return SimpleNamespace(
            error_code=answer["error_code"],
            session_id=answer["session_id"],
            responses=[
                SimpleNamespace(
                    topic_id=topic["topic_id"],
                    partitions=[_fetched(partition) for partition in topic["partitions"]],
                )
                for topic in answer["responses"]
            ],
        )

    def close(self) -> None:
        pass


def _fetched(body: Body) -> SimpleNamespace:
    diverging = body.get("diverging_epoch")
    records = body["records"]
    return SimpleNamespace(
        partition_index=body["partition_index"],
        error_code=body["error_code"],
        high_watermark=body["high_watermark"],
        log_start_offset=body.get("log_start_offset", -1),
        diverging=None if diverging is None else (diverging["epoch"], diverging["end_offset"]),
        records=records or b"",
    )


def fetch_request(
    positions: Iterable[tuple[UUID, FetchPartition]],
    wait_s: float,
    *,
    replica: ReplicaState = CONSUMER,
    max_bytes: int,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[ForgottenTopic] = (),
    rack: str = "",
) -> FetchRequest:
    """A fetch as the handler sees it, of partitions by the ids of their topics."""
    return FetchRequest(
        replica_state=replica,
        max_wait=timedelta(seconds=wait_s),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic_id, [position]) for topic_id, position in positions],
        forgotten_topics_data=list(forgotten),
        rack_id=rack,
    )
