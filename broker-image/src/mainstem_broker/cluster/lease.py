"""Renews this broker's lease by heartbeats of its own.

The ZooKeeper client does not report when its pings were answered, so this reads a node periodically. What the
lease means and who checks it: `replica/lease.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.zookeeper import ZooKeeperSession, ZooKeeperUnavailable
from mainstem_broker.replica.lease import Lease

logger = structlog.get_logger(__name__)

HEARTBEATS_PER_SESSION: Final = 6
REPORT_INTERVAL_S: Final = 60.0
"""Of an outage that lasts: often enough to be found in a log, seldom enough not to fill it."""


class LeaseKeeper:
    """Sends heartbeats for as long as `run` runs, and reports outages of ZooKeeper in the log."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        lease: Lease,
        session_timeout_ms: int,
        now_s: Callable[[], float],
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_return` is called when an outage has ended, and again when its aftermath has."""
        self._zookeeper = zookeeper
        self._lease = lease
        self._session_timeout_s = session_timeout_ms / 1000
        self._now_s = now_s
        self._on_return = on_return
        self._heartbeat_due = asyncio.Event()
        self._reported_s: float | None = None
        """When the outage that lasts was reported; None if there is none."""

    def renew_soon(self) -> None:
        """Send the next heartbeat now: the session has changed."""
        self._heartbeat_due.set()

    async def run(self) -> None:
        is_in_aftermath = False
        while True:
            self._heartbeat_due.clear()
            silence_s = self._lease.silence_s
            # The lease counts from when the heartbeat was sent: the server may have taken it at once.
            sent_s = self._now_s()
            try:
                await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            except ZooKeeperUnavailable:
                self._report_outage()  # the lease stays valid until the time that is known
            except Exception:
                logger.exception("heartbeat failed")  # without another one the lease would run out
            else:
                # The event of a lost session comes before an answer in the next one.
                self._lease.answered(sent_s)
                self._report_return(silence_s)
            if self._lease.is_in_aftermath != is_in_aftermath:
                is_in_aftermath = self._lease.is_in_aftermath
                self._on_return()
            try:
                async with asyncio.timeout(self._session_timeout_s / HEARTBEATS_PER_SESSION):
                    await self._heartbeat_due.wait()
            except TimeoutError:
                pass

    def _report_outage(self) -> None:
        now_s = self._now_s()
        if not self._lease.is_cut_off or (
            self._reported_s is not None and now_s - self._reported_s < REPORT_INTERVAL_S
        ):
            return
        self._reported_s = now_s
        logger.warning(
            "ZooKeeper does not answer: leaders go on while their followers grant it; elections, settings,"
            " topics and changes of in-sync sets wait",
            silence_s=_whole_seconds(self._lease.silence_s),
        )

    def _report_return(self, silence_s: float) -> None:
        if self._reported_s is not None:
            self._reported_s = None
            logger.info("ZooKeeper answers again", silence_s=_whole_seconds(silence_s))


def _whole_seconds(silence_s: float) -> int | None:
    """None where no heartbeat has been answered yet."""
    return round(silence_s) if math.isfinite(silence_s) else None
