"""Notices at once when the process of another broker is gone, long before its ZooKeeper session ends.

A connection to each broker that matters: the controller's to all, everyone's to the controller. If it breaks
and the broker's port then refuses connections, nobody listens there any more: the process has ended, and is
fenced (`Controllership.fence`), so that leaders can be elected in its place. Silence says nothing: a broker
that is paused, or cut off, keeps its office until its session ends (ARCHITECTURE.md, "Failover").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint

logger = structlog.get_logger(__name__)

REFUSALS_WANTED: Final = 3
REFUSAL_INTERVAL_S: Final = 0.1
"""Three refusals in a row outlast the moment in which a broker's backlog is full, and no restart."""
RECONNECT_DELAY_S: Final = 0.5


class Deathwatch:
    """Watches brokers from one broker. `look_again` after the cluster has changed."""

    def __init__(self, member: ClusterMember, broker_id: int, listener: Callable[[], str]) -> None:
        self._member = member
        self._broker_id = broker_id
        self._listener = listener
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}

    def look_again(self) -> None:
        """Begin and end watches as brokers and the controller have come and gone."""
        view = self._member.view
        wanted = {
            (broker.broker_id, broker.incarnation): broker
            for broker in view.brokers.values()
            if broker.broker_id != self._broker_id
            and (self._member.is_controller or broker.broker_id == view.controller_id)
        }
        for key in self._watches.keys() - wanted.keys():
            self._watches.pop(key).cancel()
        for key, broker in wanted.items():
            if key not in self._watches:
                endpoint = broker.endpoint(self._listener())
                if endpoint is not None:
                    self._watches[key] = asyncio.create_task(self._watch(broker, endpoint))

    async def stop(self) -> None:
        watches, self._watches = list(self._watches.values()), {}
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, broker: BrokerRegistration, endpoint: Endpoint) -> None:
        while True:
            try:
                await self._watch_once(broker, endpoint)
            except Exception:
                logger.exception("deathwatch failed", broker_id=broker.broker_id)
            # Also after a connection that ended at once, as where a broker has too many.
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _watch_once(self, broker: BrokerRegistration, endpoint: Endpoint) -> None:
        """Connect, wait for the end of the connection, and see whether the port refuses then."""
        broke = False
        refusals = 0
        while refusals < REFUSALS_WANTED:
            try:
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
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
        logger.warning("broker is gone", broker_id=broker.broker_id, port=endpoint.port)
        await self._member.controllership.fence(broker.broker_id, broker.incarnation)
