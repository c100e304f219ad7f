"""The broker as a whole: starts its parts in order, carries the cluster's news to them, stops them.

Start, in an order in which nothing is promised before it can be kept:

1. bind the listeners and the HTTP port (a taken port is found out first; clients are still refused);
2. connect to ZooKeeper, learn the cluster's id;
3. take the data directories, recover the logs (in threads);
4. load the cluster's state, open the replicas that are this broker's, read the keys of tokens;
5. listen, register in ZooKeeper, and serve when the view shows this broker: clients that come in between
   wait for some milliseconds instead of getting a view of the cluster without it.

Stop: give the leaderships to others (controlled shutdown); leave ZooKeeper, so that the cluster knows at
once; close listeners and connections; flush and close the logs, which marks a clean stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mainstem_broker.api.context import CATCH_UP_TIMEOUT_MS, BrokerContext
from mainstem_broker.cluster.member import BeginLease, ClusterMember
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint
from mainstem_broker.cluster.zookeeper import ZooKeeper
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.quota.client_quotas import ClientQuotas
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.security.audit_log import AUTHENTICATION
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism
from mainstem_broker.server.audit_topic import AUDIT_TIMEOUT_S, AuditTopic
from mainstem_broker.server.authorization import authorizer_of
from mainstem_broker.server.client_software import ClientSoftware, count_software
from mainstem_broker.server.cluster_changes import ClusterChanges
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.failure_detector import FailureDetector
from mainstem_broker.server.groups import group_coordinator
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.listener_security import ListenerSecurity
from mainstem_broker.server.listeners import Listener, SocketOptions, inter_broker_protocol, parse_listeners
from mainstem_broker.server.loop_lag import LoopLag
from mainstem_broker.server.maintenance import Maintenance
from mainstem_broker.server.peer_security import PeerSecurity
from mainstem_broker.server.peers import LeaderPeer, Peer
from mainstem_broker.server.request_memory import RequestMemory
from mainstem_broker.server.request_times import RequestTimes
from mainstem_broker.server.router import Router
from mainstem_broker.server.tls_context import TlsContext
from mainstem_broker.server.transaction_markers import TransactionMarkers
from mainstem_broker.server.transaction_verifier import CoordinatorVerifier
from mainstem_broker.server.transactions import transaction_coordinator

if TYPE_CHECKING:
    from mainstem_broker.server.health_server import HealthServer

logger = structlog.get_logger(__name__)

_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
CONTROLLED_SHUTDOWN_MS_MAX: Final = 15_000
"""Kafka's three tries with five seconds between them."""


class Broker:
    """One broker process. `start` once, `stop` once, on one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        """Bind the listeners and put the parts together; nothing is read or written yet.

        Raises:
            StartupError: the listeners cannot be had.
        """
        self._listeners: list[Listener] = []
        try:
            self._put_together(config)
        except BaseException:
            for listener in self._listeners:
                listener.close()
            raise

    def _put_together(self, config: BrokerConfig) -> None:
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
        limits = ConnectionLimits(lambda: self.context.config)
        disk = DiskReads()
        memory_bytes = config.integer("queued.max.request.bytes")
        self._request_memory = RequestMemory(memory_bytes) if memory_bytes > 0 else None
        self._peer_security = PeerSecurity(config, inter_broker_protocol(config, pairs))
        for endpoint, _ in pairs:
            # Of a listener that brokers share with clients nobody can tell who connects.
            is_between_brokers = len(pairs) > 1 and endpoint.listener == config.inter_broker_listener
            security = ListenerSecurity(
                config,
                endpoint,
                self._scram_credential,
                self._record_login,
                is_between_brokers=is_between_brokers,
            )
            self._listeners.append(
                Listener(
                    endpoint,
                    options,
                    limits,
                    disk,
                    security,
                    self._request_memory,
                    is_between_brokers=is_between_brokers,
                )
            )
        broker_id = config.integer("broker.id")
        self._logs = LogManager(
            [Path(folder).absolute() for folder in config.log_directories],
            broker_id=broker_id,
            recovery_threads_per_directory=self._recovery_threads,
            schedule_unlink=self._schedule_unlink,
            on_failure=self._on_disk_failure,
        )
        registration = BrokerRegistration(
            broker_id, tuple(advertised for _, advertised in pairs), config.optional_string("broker.rack")
        )
        session_timeout_ms = config.integer("zookeeper.session.timeout.ms")
        lease = self._lease = Lease(_now_s, session_timeout_ms / 1000)
        self._member = ClusterMember(
            registration,
            lambda listener: ZooKeeper(config.string("zookeeper.connect"), session_timeout_ms, listener),
            lease,
            now_s=_now_s,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=config.integer("zookeeper.connection.timeout.ms"),
            on_settings=lambda: self._cluster_changes.take_broker_config(),  # noqa: PLW0108  # made below
            on_change=self._on_change,
            policy_of=lambda topic: self._cluster_changes.election_policy(topic),  # noqa: PLW0108  # made below
        )
        self._replicas = ReplicaManager(
            broker_id,
            self._logs,
            self._member.states,
            lease,
            self._connect_leader,
            _now_ms,
            config.integer("replica.lag.time.max.ms"),
        )
        groups = group_coordinator(
            config,
            self._member.view,
            self._replicas.find,
            lambda group_id: self.context.group_config(group_id).session_timeout_ms,
            _now_ms,
        )
        quotas = ClientQuotas(
            config.integer("quota.window.num"),
            1000 * config.integer("quota.window.size.seconds"),
            config.integer("controller.quota.window.num"),
            1000 * config.integer("controller.quota.window.size.seconds"),
        )
        self._transaction_markers = TransactionMarkers(
            self._member.view,
            self._connect_for_transactions,
            lambda: self._member.catch_up(CATCH_UP_TIMEOUT_MS),
        )
        transactions = transaction_coordinator(
            config,
            self._member.view,
            self._replicas.find,
            self._member.producer_ids.take,
            self._transaction_markers,
            _now_ms,
        )
        self._verifier = CoordinatorVerifier(
            self._member.view,
            broker_id,
            transactions,
            self._connect_for_transactions,
        )
        self.context = BrokerContext(
            broker_id,
            config,
            self._member,
            self._replicas,
            groups,
            transactions,
            quotas,
            self._verifier,
            authorizer_of(config),
            disk=disk,
        )
        self._audit_topic = None
        if (audit_topic := config.optional_string("audit.log.topic")) is not None:
            self._audit_topic = AuditTopic(audit_topic, broker_id, self._member.view, self._connect_for_audit)
            self.context.audit.publish = self._audit_topic.add
        self._cluster_changes = ClusterChanges(self.context, self._logs)
        self._failure_detector = FailureDetector(
            self._member,
            lease,
            broker_id,
            lambda: self.context.config.inter_broker_listener,
            self._peer_security,
        )
        self._maintenance = Maintenance(
            self.context,
            self._logs,
            self._listeners,
            self._cluster_changes,
            self._tls_contexts(),
            limits,
        )
        self._times: dict[int, RequestTimes] = {}
        self._loop_lag = LoopLag()
        self._health = Health(self.context, lease)
        self._health_server = self._make_health_server(config.integer("http.port"))

    # --- Start and stop ---

    async def start(self) -> None:
        """Serve.

        Raises:
            StartupError: something has to be put right first; the message says what.
        """
        self._loop_lag.start()
        if self._health_server is not None:
            self._health_server.start()
        cluster_id = await self._member.connect()
        if any(it.security is not None and it.security.has_scram for it in self._listeners):
            await self._member.read_scram_secret()
        self._logs.prepare(cluster_id)
        await self._member.load()
        self._cluster_changes.take_broker_config()
        self._cluster_changes.take_quotas()
        self._cluster_changes.take_acls([*self._member.view.acls, *self._member.view.unreadable_acls])
        self._loading = asyncio.ensure_future(
            asyncio.to_thread(
                self._logs.load_all,
                self._cluster_changes.topic_config,
                self._cluster_changes.is_of_no_topic,
                _now_ms(),
                _log_progress,
            )
        )
        await asyncio.shield(self._loading)
        self._member.producer_ids.largest_used = self._logs.largest_producer_id()
        may_be_restored = self._member.may_be_restored(self._logs.tree_positions)
        await self._cluster_changes.open(may_be_restored=may_be_restored)
        await self._maintenance.refresh_keys()  # a client whose token is refused does not try again
        await self._maintenance.look_up_hosts()
        self._lease.begin_listening()
        for listener in self._listeners:
            listener.listen()
        await self._member.join(stopped_uncleanly=not self._logs.stopped_cleanly)
        for listener in self._listeners:
            listener.start(Router(self.context, listener.name, self._times).handle)
        self._member.producer_ids.prefetch()
        self._maintenance.start()
        self._failure_detector.start()
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
        await self._maintenance.stop()
        if self._audit_topic is not None:
            await self._audit_topic.stop()
        await self._failure_detector.stop()
        await self.context.groups.shards.stop()
        await self.context.transactions.shards.stop()
        await self._transaction_markers.stop()
        await self._verifier.stop()
        await self._replicas.stop()
        await self._member.leave()
        for listener in self._listeners:
            listener.close()
        self.context.close()
        await self._cluster_changes.stop()
        await asyncio.gather(*self._unlinking, return_exceptions=True)
        if await self._logs_are_loaded():
            await asyncio.to_thread(
                self._logs.close,
                self._replicas.high_watermarks(),
                self._member.tree_position,
                # The registration tells the cluster of an unclean stop. Without one the next start has to.
                is_clean=self._logs.stopped_cleanly or self._member.has_joined,
            )
        else:
            self._logs.release()
        if self._health_server is not None:
            await asyncio.to_thread(self._health_server.close)
        self._loop_lag.stop()
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

        def software() -> Mapping[ClientSoftware, int]:
            return count_software(
                connection.software for listener in self._listeners for connection in listener.connections
            )

        metrics = Metrics(
            self.context,
            self._health,
            self._logs,
            self._times,
            connections,
            software,
            self._loop_lag.times,
            self._request_memory,
        )
        return HealthServer(port, self._health, metrics)

    def _scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        return self.context.scram_login(user, mechanism)

    def _record_login(self, **fields: str) -> None:
        self.context.audit.record(AUTHENTICATION, **fields)

    def _tls_contexts(self) -> list[TlsContext]:
        securities = [self._peer_security, *(listener.security for listener in self._listeners)]
        return [security.tls for security in securities if security is not None and security.tls is not None]

    def _recovery_threads(self) -> int:
        return self.context.config.integer("num.recovery.threads.per.data.dir")

    # --- The cluster's news ---

    async def _on_change(self, delta: Delta, begin_lease: BeginLease | None) -> None:
        await self._cluster_changes.take(delta, begin_lease)
        self._failure_detector.look_again()

    def _endpoint_of(self, broker_id: int) -> Endpoint | None:
        """Where other brokers reach a broker, at whatever address it is registered."""
        registration = self.context.view.brokers.get(broker_id)
        listener = self.context.config.inter_broker_listener
        return None if registration is None else registration.endpoint(listener)

    def _connect_for_transactions(self, leader: int) -> Peer:
        """A connection for what coordinators and leaders ask each other about transactions."""
        timeout_s = self.context.config.integer("replica.socket.timeout.ms") / 1000
        client_id = f"broker-{self.context.broker_id}-transactions"
        return Peer(lambda: self._endpoint_of(leader), client_id, timeout_s, self._peer_security)

    def _connect_for_audit(self, leader: int) -> Peer:
        """A connection for records of the audit log."""
        client_id = f"broker-{self.context.broker_id}-audit"
        return Peer(lambda: self._endpoint_of(leader), client_id, AUDIT_TIMEOUT_S, self._peer_security)

    def _connect_leader(self, leader: int) -> LeaderPeer:
        """A way to fetch from a broker."""
        config = self.context.config
        broker_id = self.context.broker_id

        def incarnation() -> int:
            registration = self.context.view.brokers.get(broker_id)
            return -1 if registration is None else registration.incarnation

        timeout_s = config.integer("replica.socket.timeout.ms") / 1000
        return LeaderPeer(
            Peer(
                lambda: self._endpoint_of(leader),
                f"broker-{broker_id}-fetcher",
                timeout_s,
                self._peer_security,
            ),
            broker_id=broker_id,
            incarnation=incarnation,
            wait_ms_max=config.integer("replica.fetch.wait.max.ms"),
            bytes_max=config.integer("replica.fetch.response.max.bytes"),
            partition_bytes_max=config.integer("replica.fetch.max.bytes"),
            grant=self._lease.grant,
        )

    # --- Disks ---

    def _on_disk_failure(self, directory: Path) -> None:
        """Called by logs, from any thread, once or more."""
        self._loop.call_soon_threadsafe(self._take_offline, directory)

    def _take_offline(self, directory: Path) -> None:
        if directory in self._logs.failed:
            return
        logger.error("data directory failed", path=str(directory))
        self._cluster_changes.disk_failed(directory)
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


def _log_progress(done: int, total: int) -> None:
    if done == total or done % 100 == 0:
        logger.info("logs recovered", done=done, total=total)


def _now_s() -> float:
    """Unlike `time.monotonic`, goes on while the machine is suspended (where there is such a clock)."""
    return time.clock_gettime(_BOOT_CLOCK)


def _now_ms() -> int:
    return int(time.time() * 1000)
