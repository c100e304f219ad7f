"""The broker as a whole: starts its parts in order, carries the cluster's news to them, stops them.

Start, in an order in which nothing is promised before it can be kept:

1. bind the listeners and the HTTP port (a taken port is found out first; clients are still refused);
2. connect to ZooKeeper, learn the cluster's id;
3. take the data directories, recover the logs (in threads);
4. load the cluster's state, open the replicas that are this broker's;
5. listen, register in ZooKeeper, and serve when the view shows this broker: clients that come in between
   wait for some milliseconds instead of being told of a cluster without it.

Stop: give the leaderships to others (controlled shutdown); leave ZooKeeper, so that the cluster knows at
once; close listeners and connections; flush and close the logs, which marks a clean stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint
from mainstem_broker.cluster.zookeeper import ZooKeeper
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.office import Office
from mainstem_broker.server.cluster_news import ClusterNews
from mainstem_broker.server.deathwatch import Deathwatch
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.listeners import Listener, SocketOptions, parse_listeners
from mainstem_broker.server.peers import LeaderPeer, Peer
from mainstem_broker.server.request_times import RequestTimes
from mainstem_broker.server.router import Router
from mainstem_broker.server.upkeep import Upkeep

if TYPE_CHECKING:
    from mainstem_broker.server.health_server import HealthServer

logger = structlog.get_logger(__name__)

CONTROLLED_SHUTDOWN_MS_MAX: Final = 15_000
"""Kafka's three tries with five seconds between them."""


class Broker:
    """One broker process. `start` once, `stop` once, on one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        """Bind the listeners and put the parts together; nothing is read or written yet.

        Raises:
            StartupError: the listeners cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        self.failed = asyncio.Event()
        """Set when no data directory is left, and the broker has to stop."""
        self._unlinking: set[asyncio.Future[None]] = set()
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
            recovery_threads_per_directory=self._recovery_threads,
            schedule_unlink=self._schedule_unlink,
            on_failure=self._on_disk_failure,
        )
        registration = BrokerRegistration(
            broker_id, tuple(advertised for _, advertised in pairs), config.optional_string("broker.rack")
        )
        session_timeout_ms = config.integer("zookeeper.session.timeout.ms")
        office = Office(time.monotonic)
        self._member = ClusterMember(
            registration,
            lambda listener: ZooKeeper(config.string("zookeeper.connect"), session_timeout_ms, listener),
            office,
            now_s=time.monotonic,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=config.integer("zookeeper.connection.timeout.ms"),
            on_settings=lambda: self._news.take_broker_config(),  # noqa: PLW0108  # made below
            on_change=self._on_change,
            policy_of=lambda topic: self._news.election_policy(topic),  # noqa: PLW0108  # made below
        )
        self._replicas = ReplicaManager(
            broker_id,
            self._logs,
            self._member.states,
            office,
            self._connect_leader,
            _now_ms,
            config.integer("replica.lag.time.max.ms"),
        )
        self.context = BrokerContext(broker_id, config, self._member, self._replicas)
        self._news = ClusterNews(self.context, self._logs)
        self._deathwatch = Deathwatch(
            self._member, broker_id, lambda: self.context.config.string("inter.broker.listener.name")
        )
        self._upkeep = Upkeep(self.context, self._logs, self._listeners, self._news)
        self._times: dict[int, RequestTimes] = {}
        self._health = Health(self.context, office)
        self._health_server = self._make_health_server(config.integer("http.port"))

    # --- Start and stop ---

    async def start(self) -> None:
        """Serve.

        Raises:
            StartupError: something has to be put right first; the message says what.
        """
        if self._health_server is not None:
            self._health_server.start()
        cluster_id = await self._member.connect()
        self._logs.prepare(cluster_id)
        await self._member.load()
        self._news.take_broker_config()
        self._news.take_quotas()
        self._loading = asyncio.ensure_future(
            asyncio.to_thread(self._logs.load_all, self._news.topic_config, _now_ms(), _log_progress)
        )
        await asyncio.shield(self._loading)
        await self._news.open()
        for listener in self._listeners:
            listener.listen()
        await self._member.join(stopped_uncleanly=not self._logs.stopped_cleanly)
        for listener in self._listeners:
            listener.start(Router(self.context, listener.name, self._times).handle)
        self._upkeep.start()
        self._health.phase = Phase.RUNNING
        logger.info(
            "broker started",
            broker_id=self.context.broker_id,
            cluster_id=cluster_id,
            partitions=len(self._logs.logs),
        )

    async def stop(self) -> None:
        """Stop cleanly. Safe to call after a failed start."""
        self._health.phase = Phase.STOPPING
        if self.context.config.flag("controlled.shutdown.enable"):
            await self._member.retire(CONTROLLED_SHUTDOWN_MS_MAX)
        await self._upkeep.stop()
        await self._deathwatch.stop()
        await self.context.groups.stop()
        await self._replicas.stop()
        await self._member.leave()
        for listener in self._listeners:
            listener.close()
        await self._news.stop()
        await asyncio.gather(*self._unlinking, return_exceptions=True)
        if await self._logs_are_loaded():
            await asyncio.to_thread(self._logs.close, self._replicas.high_watermarks())
        else:
            self._logs.release()
        if self._health_server is not None:
            await asyncio.to_thread(self._health_server.close)
        logger.info("broker stopped", broker_id=self.context.broker_id)

    async def _logs_are_loaded(self) -> bool:
        """Whether all logs were recovered, after waiting for the threads that are at it.

        If they were not, the stop must not count as clean: the next start has to recover the rest.
        """
        if self._loading is None:
            return False
        await asyncio.wait([self._loading])
        return self._loading.exception() is None

    def _make_health_server(self, port: int) -> HealthServer | None:
        if port == 0:
            return None
        # Its libraries take 0.1 s to import, a third of the start-up of a broker that does without.
        from mainstem_broker.server.health_server import HealthServer
        from mainstem_broker.server.metrics import Metrics

        def connections() -> dict[str, int]:
            return {listener.name: len(listener.connections) for listener in self._listeners}

        metrics = Metrics(self.context, self._health, self._logs, self._times, connections)
        return HealthServer(port, self._health, metrics)

    def _recovery_threads(self) -> int:
        return self.context.config.integer("num.recovery.threads.per.data.dir")

    def _may_accept(self) -> bool:
        open_connections = sum(len(listener.connections) for listener in self._listeners)
        return open_connections < self.context.config.integer("max.connections")

    # --- The cluster's news ---

    def _on_change(self, delta: Delta) -> None:
        self._news.take(delta)
        self._deathwatch.look_again()

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

    # --- Disks ---

    def _on_disk_failure(self, directory: Path) -> None:
        """Called by logs, from any thread, once or more."""
        self._loop.call_soon_threadsafe(self._take_offline, directory)

    def _take_offline(self, directory: Path) -> None:
        if directory in self._logs.failed:
            return
        logger.error("data directory failed", path=str(directory))
        self._news.disk_failed(directory)
        if not self._logs.usable_directories:
            self.failed.set()

    # --- Files to unlink later ---

    def _schedule_unlink(self, paths: Sequence[Path], delay_ms: int) -> None:
        """Called by logs, from any thread."""
        self._loop.call_soon_threadsafe(self._unlink_later, tuple(paths), delay_ms)

    def _unlink_later(self, paths: Sequence[Path], delay_ms: int) -> None:
        def unlink() -> None:
            task = asyncio.ensure_future(asyncio.to_thread(unlink_all, paths))
            self._unlinking.add(task)
            task.add_done_callback(self._unlinking.discard)

        self._loop.call_later(delay_ms / 1000, unlink)


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
