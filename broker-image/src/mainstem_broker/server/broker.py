"""The broker as a whole: starts its parts in order, carries the cluster's news to them, stops them.

Start, in an order in which nothing is promised before it can be kept:

1. bind the listeners (a taken port is found out first; clients are still refused);
2. connect to ZooKeeper, learn the cluster's id;
3. take the data directories, recover the logs (in threads);
4. load the cluster's state, open the replicas that are this broker's;
5. accept clients, register in ZooKeeper.

Stop: leave ZooKeeper, so that the cluster knows at once; close listeners and connections; flush and close
the logs, which marks a clean stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.controller import ElectionPolicy, must_claim
from mainstem_broker.cluster.member import ClusterMember, Delta
from mainstem_broker.cluster.view import Topic
from mainstem_broker.cluster.znodes import BrokerRegistration, Claim, Endpoint
from mainstem_broker.config import BrokerConfig, TopicConfig
from mainstem_broker.errors import InvalidSetting, StartupError
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.server.deathwatch import Deathwatch
from mainstem_broker.server.listeners import Listener, SocketOptions, parse_listeners
from mainstem_broker.server.peers import LeaderPeer, Peer
from mainstem_broker.server.router import Router
from mainstem_broker.server.upkeep import Upkeep

logger = structlog.get_logger(__name__)


class Broker:
    """One broker process. `start` once, `stop` once, on one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        """Bind the listeners and put the parts together; nothing is read or written yet.

        Raises:
            StartupError: the listeners cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        self._background: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Future[None] | None = None
        pairs = parse_listeners(config)
        options = SocketOptions(
            config.integer("socket.send.buffer.bytes"),
            config.integer("socket.receive.buffer.bytes"),
            config.integer("socket.listen.backlog.size"),
            config.integer("socket.request.max.bytes"),
        )
        self._listeners = [Listener(endpoint, options, self._may_accept) for endpoint, _ in pairs]
        broker_id = config.integer("broker.id")
        self._logs = LogManager(
            _log_directories(config),
            broker_id=broker_id,
            recovery_threads_per_directory=config.integer("num.recovery.threads.per.data.dir"),
            schedule_unlink=self._schedule_unlink,
        )
        registration = BrokerRegistration(
            broker_id, tuple(advertised for _, advertised in pairs), config.optional_string("broker.rack")
        )
        self._member = ClusterMember(
            registration,
            config.string("zookeeper.connect"),
            session_timeout_ms=config.integer("zookeeper.session.timeout.ms"),
            connection_timeout_ms=config.integer("zookeeper.connection.timeout.ms"),
            on_change=self._on_change,
            policy_of=self._election_policy,
        )
        self._replicas = ReplicaManager(
            broker_id,
            self._logs,
            self._member,
            self._connect_leader,
            _now_ms,
            config.integer("replica.lag.time.max.ms"),
        )
        self.context = BrokerContext(broker_id, config, self._member, self._replicas)
        self._deathwatch = Deathwatch(
            self._member, broker_id, lambda: self.context.config.string("inter.broker.listener.name")
        )
        self._upkeep = Upkeep(self.context, self._logs, self._listeners)

    # --- Start and stop ---

    async def start(self) -> None:
        """Serve.

        Raises:
            StartupError: something has to be put right first; the message says what.
        """
        cluster_id = await self._member.connect()
        self._logs.prepare(cluster_id)
        await self._member.load()
        self._take_broker_config()
        self._loading = asyncio.ensure_future(
            asyncio.to_thread(self._logs.load_all, self._topic_config, _now_ms(), _log_progress)
        )
        await asyncio.shield(self._loading)
        await self._remove_deleted()
        self._open_replicas()
        for listener in self._listeners:
            listener.start(Router(self.context, listener.name).handle)
        await self._member.join(stopped_uncleanly=not self._logs.stopped_cleanly)
        self._upkeep.start()
        logger.info(
            "broker started",
            broker_id=self.context.broker_id,
            cluster_id=cluster_id,
            partitions=len(self._logs.logs),
        )

    async def stop(self) -> None:
        """Stop cleanly. Safe to call after a failed start."""
        await self._upkeep.stop()
        await self._deathwatch.stop()
        await self.context.groups.stop()
        await self._replicas.stop()
        await self._member.leave()
        for listener in self._listeners:
            listener.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        if await self._logs_are_loaded():
            await asyncio.to_thread(self._logs.close, self._replicas.high_watermarks())
        else:
            self._logs.release()
        logger.info("broker stopped", broker_id=self.context.broker_id)

    async def _logs_are_loaded(self) -> bool:
        """Whether all logs were recovered, after waiting for the threads that are at it.

        If they were not, the stop must not count as clean: the next start has to recover the rest.
        """
        if self._loading is None:
            return False
        await asyncio.wait([self._loading])
        return self._loading.exception() is None

    def _may_accept(self) -> bool:
        open_connections = sum(len(listener.connections) for listener in self._listeners)
        return open_connections < self.context.config.integer("max.connections")

    # --- The cluster's news ---

    def _on_change(self, delta: Delta) -> None:
        """Called by the member, on the loop, after its view has changed."""
        for topic, topic_id in delta.deleted:
            self._replicas.drop(topic, topic_id)
            # Also if there was none: whoever deleted the topic waits for all that were to hold it.
            self._spawn(self._member.administration.forget_deleted_topic(topic_id))
        if delta.deleted:
            self.context.groups.topics_deleted({topic_id for _, topic_id in delta.deleted})
            self.context.groups.follow_all()
        topics: Collection[str] = {
            name for kind, _, name in (entity.partition("/") for entity in delta.configs) if kind == "topics"
        }
        if any(entity.startswith("brokers/") for entity in delta.configs):
            self._take_broker_config()
            topics = self.context.view.topics
        self._replicas.update_configs(topics, self._topic_config)
        for name, index in delta.partitions:
            self._update_replica(name, index)
            if name == OFFSETS_TOPIC:
                self.context.groups.follow(index)
        self._replicas.follow_leaders()
        self._deathwatch.look_again()
        if delta.brokers:
            self._replicas.consider_all_isrs()
        if delta.partitions or delta.brokers:
            self._claim()

    def _update_replica(self, name: str, index: int) -> None:
        topic = self.context.view.topics.get(name)
        if topic is None or index not in topic.states:
            return
        if self.context.broker_id in topic.assignment.replicas[index]:
            self._replicas.update(
                name,
                index,
                topic.topic_id,
                topic.states[index],
                topic.assignment.replicas[index],
                self._topic_config(name),
            )

    def _open_replicas(self) -> None:
        for topic in self.context.view.topics.values():
            for index in topic.states:
                self._update_replica(topic.name, index)
                if topic.name == OFFSETS_TOPIC:
                    self.context.groups.follow(index)
        self._replicas.follow_leaders()

    async def _remove_deleted(self) -> None:
        """Drop logs of topics that were deleted while this broker was down.

        A log whose topic nobody knows of, and nobody noted as deleted, is set aside and kept: it may be
        all that is left of something that was lost elsewhere.
        """
        deleted = await self._member.administration.deleted_topics()
        for topic, partition in list(self._logs.logs):
            topic_id = self._logs.topic_id(topic, partition)
            known = self.context.view.topics.get(topic)
            if topic_id is None or (known is not None and known.topic_id == topic_id):
                continue
            if topic_id in deleted:
                self._logs.delete(topic, partition)
            else:
                self._logs.set_aside(topic, partition)
        for topic_id in deleted:
            await self._member.administration.forget_deleted_topic(topic_id)

    def _topic_config(self, name: str) -> TopicConfig:
        topic = self.context.view.topics.get(name)
        overrides = {} if topic is None else topic.config
        try:
            return self.context.config.topic(overrides)
        except InvalidSetting as error:
            # Written to ZooKeeper by hand; the topic must stay usable, so the wrong settings do not count.
            logger.error("topic settings ignored", topic=name, reason=str(error))
            return self.context.config.topic({})

    def _take_broker_config(self) -> None:
        dynamic, for_all = self.context.view.dynamic_broker_config(self.context.broker_id)
        try:
            self.context.config = self.context.config.with_dynamic(dynamic, for_all)
        except InvalidSetting as error:
            logger.error("dynamic broker settings ignored", reason=str(error))

    def _connect_leader(self, leader: int) -> LeaderPeer:
        """A way to fetch from a broker, at whatever address it is registered."""
        config = self.context.config
        broker_id = self.context.broker_id
        listener = config.string("inter.broker.listener.name")

        def endpoint() -> Endpoint | None:
            registration = self.context.view.brokers.get(leader)
            return None if registration is None else registration.endpoint(listener)

        def incarnation() -> int:
            registration = self.context.view.brokers.get(broker_id)
            return -1 if registration is None else registration.incarnation

        timeout_s = config.integer("replica.socket.timeout.ms") / 1000
        return LeaderPeer(
            Peer(endpoint, f"broker-{broker_id}-fetcher", timeout_s),
            broker_id=broker_id,
            incarnation=incarnation,
            wait_ms_max=config.integer("replica.fetch.wait.max.ms"),
            bytes_max=config.integer("replica.fetch.response.max.bytes"),
            partition_bytes_max=config.integer("replica.fetch.max.bytes"),
        )

    def _election_policy(self, topic: Topic) -> ElectionPolicy:
        config = self._topic_config(topic.name)
        return ElectionPolicy(config.min_insync_replicas, config.unclean_leader_election_enable)

    def _claim(self) -> None:
        """Say how far logs here reach of which nobody can be trusted to lead (see `controller.py`)."""
        view = self.context.view
        me = view.brokers.get(self.context.broker_id)
        if me is None:
            return
        for partition in self._replicas:
            topic = view.topics.get(partition.topic)
            state = None if topic is None else topic.states.get(partition.index)
            if topic is None or state is None or self.context.broker_id not in state.isr + state.elr:
                continue
            known = topic.claims.get(partition.index, {}).get(self.context.broker_id)
            if must_claim(state, view.brokers) and (known is None or known.incarnation != me.incarnation):
                offset, epoch = partition.fetch_position()
                claim = Claim(self.context.broker_id, me.incarnation, epoch, offset)
                self._spawn(self._member.claim(partition.topic, partition.index, claim))

    # --- Files to unlink later ---

    def _schedule_unlink(self, paths: Sequence[Path], delay_ms: int) -> None:
        """Called by logs, from any thread."""
        self._loop.call_soon_threadsafe(self._unlink_later, tuple(paths), delay_ms)

    def _unlink_later(self, paths: Sequence[Path], delay_ms: int) -> None:
        def unlink() -> None:
            self._spawn(asyncio.to_thread(unlink_all, paths))

        self._loop.call_later(delay_ms / 1000, unlink)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed", reason=str(error))


def _log_directories(config: BrokerConfig) -> list[Path]:
    names = [name.strip() for name in config.string("log.dirs").split(",") if name.strip()]
    if not names:
        raise StartupError("log.dirs names no directory: add one to the properties file.")
    return [Path(name).absolute() for name in dict.fromkeys(names)]


def _log_progress(done: int, total: int) -> None:
    if done == total or done % 100 == 0:
        logger.info("logs recovered", done=done, total=total)


def _now_ms() -> int:
    return int(time.time() * 1000)
