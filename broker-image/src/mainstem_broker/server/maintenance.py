"""The broker's periodic work: retention, due flushes, checkpoints, expired producers, idle connections,
certificates that have changed, hosts of settings.

Each kind of work is one task that wakes at its interval; what blocks on the disk runs in threads. A
failure is logged and tried again at the next turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.errors import ProtocolError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.server.cluster_changes import ClusterChanges
from mainstem_broker.server.compaction import Compactor
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.listeners import Listener
from mainstem_broker.server.tls_context import TlsContext

logger = structlog.get_logger(__name__)

FLUSH_CHECK_INTERVAL_MS: Final = 1_000
"""How often flush.ms and freshly sealed segments are looked at; the look costs no disk access."""
IDLE_CHECK_INTERVAL_MS: Final = 10_000
CERTIFICATE_CHECK_INTERVAL_MS: Final = 1_000
HOST_LOOKUP_INTERVAL_MS: Final = 10_000
TRY_AGAIN_INTERVAL_MS: Final = 1_000


class Maintenance:
    """Starts and stops the tasks."""

    def __init__(
        self,
        broker: BrokerContext,
        logs: LogManager,
        listeners: Sequence[Listener],
        news: ClusterChanges,
        tls_contexts: Sequence[TlsContext] = (),
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._limits = limits
        self._tls_contexts = tls_contexts
        self._broker = broker
        self._cluster_changes = news
        self._logs = logs
        self._listeners = listeners
        self._compactor = Compactor(broker, logs)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._broker.config
        for work, interval_ms in (
            (self._apply_retention, config.integer("log.retention.check.interval.ms")),
            (self._flush_due, FLUSH_CHECK_INTERVAL_MS),
            (self._checkpoint_recovery_points, config.integer("log.flush.offset.checkpoint.interval.ms")),
            (self._checkpoint_start_offsets, config.integer("log.flush.start.offset.checkpoint.interval.ms")),
            (
                self._checkpoint_high_watermarks,
                config.integer("replica.high.watermark.checkpoint.interval.ms"),
            ),
            (
                self._checkpoint_tree_position,
                config.integer("replica.high.watermark.checkpoint.interval.ms"),
            ),
            (self._expire_producers, config.integer("producer.id.expiration.check.interval.ms")),
            (self._close_idle, IDLE_CHECK_INTERVAL_MS),
            (self._reload_certificates, CERTIFICATE_CHECK_INTERVAL_MS),
            (self.refresh_keys, CERTIFICATE_CHECK_INTERVAL_MS),
            (self.look_up_hosts, HOST_LOOKUP_INTERVAL_MS),
            (self._rebalance_leaders, 1000 * config.integer("leader.imbalance.check.interval.seconds")),
            (self._try_again, TRY_AGAIN_INTERVAL_MS),
            # Half the lag, so that a follower is out after at most one and a half times it, as in Kafka.
            (self._consider_isrs, config.integer("replica.lag.time.max.ms") // 2),
        ):
            self._tasks.append(asyncio.create_task(_repeat(work, max(interval_ms, 1) / 1000)))
        self._tasks.append(asyncio.create_task(self._compactor.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._compactor.stop()

    async def _apply_retention(self) -> None:
        for partition in self._broker.replicas:
            await asyncio.sleep(0)  # let requests through between two partitions
            if partition.state is None:
                continue  # deleted meanwhile
            try:
                deleted = partition.apply_retention(self._broker.now_ms())
            except ProtocolError as error:
                logger.error("retention failed", partition=repr(partition), reason=str(error))
                continue
            for segment in deleted:
                logger.info("segment deleted", partition=repr(partition), segment=segment)

    async def _flush_due(self) -> None:
        now_ms = self._broker.now_ms()
        for log in list(self._logs.logs.values()):
            if log.flush_is_due(now_ms):
                try:
                    await self._broker.replicas.flusher.flush(log)
                except ProtocolError as error:
                    logger.error("flush failed", directory=str(log.directory), reason=str(error))

    async def _checkpoint_recovery_points(self) -> None:
        await asyncio.to_thread(self._logs.checkpoint_recovery_points)

    async def _checkpoint_start_offsets(self) -> None:
        await asyncio.to_thread(self._logs.checkpoint_log_start_offsets)

    async def _checkpoint_high_watermarks(self) -> None:
        marks = self._broker.replicas.high_watermarks()
        await asyncio.to_thread(self._logs.checkpoint_high_watermarks, marks)

    async def _checkpoint_tree_position(self) -> None:
        await asyncio.to_thread(self._logs.checkpoint_tree_position, self._broker.member.tree_position)

    async def _expire_producers(self) -> None:
        expiration_ms = self._broker.config.integer("producer.id.expiration.ms")
        for log in list(self._logs.logs.values()):
            await asyncio.sleep(0)  # let requests through between two logs
            log.producers.expire(self._broker.now_ms(), expiration_ms)

    async def _consider_isrs(self) -> None:
        await self._broker.replicas.consider_all_isrs()

    async def _rebalance_leaders(self) -> None:
        config = self._broker.config
        if config.flag("auto.leader.rebalance.enable"):
            await self._broker.member.rebalance_leaders(
                config.integer("leader.imbalance.per.broker.percentage")
            )

    async def _try_again(self) -> None:
        await self._cluster_changes.try_again()

    async def _reload_certificates(self) -> None:
        for context in self._tls_contexts:
            context.reload_if_changed()

    async def refresh_keys(self) -> None:
        """Read the keys of tokens again that are due. To be called once before clients are served."""
        all_tokens = [it.tokens for it in self._listeners if it.tokens is not None]
        await asyncio.gather(*(tokens.refresh_if_due() for tokens in all_tokens))

    async def look_up_hosts(self) -> None:
        """Look up hosts of limits that are not known yet. To be called once before clients are served."""
        if self._limits is None:
            return
        for host in self._limits.hosts_to_look_up():
            try:
                found = await asyncio.to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                logger.warning(
                    "host not found; it has the limit of all addresses until it is",
                    setting="max.connections.per.ip.overrides",
                    host=host,
                    reason=str(error),
                )
                continue
            self._limits.take_addresses(host, (str(address[0]) for *_, address in found))

    async def _close_idle(self) -> None:
        idle_ms = self._broker.config.integer("connections.max.idle.ms")
        if idle_ms >= 0:
            for listener in self._listeners:
                listener.close_idle(idle_ms / 1000)


async def _repeat(work: Callable[[], Awaitable[None]], interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except ProtocolError as error:
            logger.error("upkeep failed", work=work.__name__, reason=str(error))
        except Exception:
            logger.exception("upkeep failed", work=work.__name__)
