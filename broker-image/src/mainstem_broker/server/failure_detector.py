"""Notices at once when the process of another broker is gone, long before its ZooKeeper session ends.

A connection to each broker that matters: the controller's to all, everyone's to the controller. If it breaks
and the broker's port then refuses connections, it no longer listens: the process has ended, and is
fenced (`Controllership.fence`), so that leaders can be elected in its place. Silence says nothing: a broker
that is paused, or cut off, keeps its leaderships until its session ends (docs/internals/failover.md).

While ZooKeeper is unreachable no broker is fenced. Then every broker connects to all others periodically: a
refused connection stands in for the grant of a follower whose process is gone (`replica/lease.py`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint
from mainstem_broker.replica.lease import GRANT_S, Lease
from mainstem_broker.server.peer_security import PeerSecurity

logger = structlog.get_logger(__name__)

REFUSALS_WANTED: Final = 3
REFUSAL_INTERVAL_S: Final = 0.1
"""Three refusals in a row outlast the moment in which a broker's backlog is full, and no restart."""
RECONNECT_DELAY_S: Final = 0.5
PROBE_INTERVAL_S: Final = GRANT_S / 4
"""Between two connections to the same broker while ZooKeeper is away."""


class FailureDetector:
    """Watches brokers from one broker. `look_again` after the cluster has changed."""

    def __init__(
        self,
        member: ClusterMember,
        lease: Lease,
        broker_id: int,
        listener: Callable[[], str],
        security: PeerSecurity | None = None,
    ) -> None:
        self._security = security
        self._member = member
        self._lease = lease
        self._broker_id = broker_id
        self._listener = listener
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._probes: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._probes = asyncio.create_task(self._probe_all(), name="probes")

    def look_again(self) -> None:
        """Begin and end watches as brokers and the controller have come and gone."""
        view = self._member.view
        monitored = {
            (broker.broker_id, broker.incarnation): broker
            for broker in view.brokers.values()
            if broker.broker_id != self._broker_id
            and (self._member.is_controller or broker.broker_id == view.controller_id)
        }
        for key in self._watches.keys() - monitored.keys():
            self._watches.pop(key).cancel()
        for key, broker in monitored.items():
            if key not in self._watches:
                endpoint = broker.endpoint(self._listener())
                if endpoint is not None:
                    self._watches[key] = asyncio.create_task(self._watch(broker, endpoint))

    async def stop(self) -> None:
        tasks, self._watches = list(self._watches.values()), {}
        if self._probes is not None:
            tasks.append(self._probes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe_all(self) -> None:
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            if not (self._lease.is_cut_off or self._lease.is_in_aftermath):
                continue
            others = [
                (broker.broker_id, endpoint)
                for broker in self._member.view.brokers.values()
                if broker.broker_id != self._broker_id
                and (endpoint := broker.endpoint(self._listener())) is not None
            ]
            probes = (self._probe(broker_id, endpoint) for broker_id, endpoint in others)
            for error in await asyncio.gather(*probes, return_exceptions=True):
                if isinstance(error, Exception):
                    logger.error("probe failed", reason=repr(error))

    async def _probe(self, broker_id: int, endpoint: Endpoint) -> None:
        connected_s = self._lease.now_s()
        try:
            async with asyncio.timeout(PROBE_INTERVAL_S):
                _, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=self._tls_context()
                )
        except ConnectionRefusedError:
            self._lease.note_refusal(broker_id, connected_s)
        except OSError:
            pass  # unreachable is not gone; a timeout is an OSError, too
        else:
            writer.close()

    def _tls_context(self) -> ssl.SSLContext | None:
        """Encrypted where brokers are: a listener closes connections that do not begin with TLS."""
        return None if self._security is None else self._security.context

    async def _watch(self, broker: BrokerRegistration, endpoint: Endpoint) -> None:
        while True:
            try:
                await self._watch_once(broker, endpoint)
            except Exception:
                logger.exception("deathwatch failed", broker_id=broker.broker_id)
            # Also after a connection that ended at once, as where a broker has too many.
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _until_connected(self) -> None:
        while not self._member.is_connected:  # noqa: ASYNC110  # an outage takes long, and this little
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _watch_once(self, broker: BrokerRegistration, endpoint: Endpoint) -> None:
        """Connect, wait for the end of the connection, and see whether the port refuses then."""
        broke = False
        refusals = 0
        while refusals < REFUSALS_WANTED:
            try:
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=self._tls_context()
                )
            except ConnectionRefusedError:
                refusals += 1
                await asyncio.sleep(REFUSAL_INTERVAL_S)
                continue
            except OSError:
                return  # unreachable is not gone
            if broke or refusals:
                writer.close()
                return  # it listens
            try:
                await reader.read(1)  # nothing is ever sent: it returns when the connection breaks
            except OSError:
                pass
            finally:
                writer.close()
            broke = True
        if not self._member.is_connected:
            logger.warning(
                "broker is gone: what it leads has no leader until ZooKeeper is back",
                broker_id=broker.broker_id,
            )
            await self._until_connected()
            return  # it may have started again
        logger.warning("broker is gone", broker_id=broker.broker_id, port=endpoint.port)
        await self._member.controllership.fence(broker.broker_id, broker.incarnation)
