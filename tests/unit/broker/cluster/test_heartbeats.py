"""The heartbeats that renew a broker's lease go on whatever ZooKeeper does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.cluster.virtual_time import run_in_virtual_time

from mainstem_broker.cluster.lease import LeaseKeeper
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.replica.lease import Lease

SESSION_MS = 6_000


class Session:
    """Answers once it `is_up`."""

    def __init__(self) -> None:
        self.is_up = False

    async def get(self, _path: str) -> None:
        if not self.is_up:
            raise ZooKeeperUnavailable("the connection broke")


def test_a_broker_whose_first_heartbeats_are_not_answered_gets_its_lease_with_the_first_that_is() -> None:
    """R22: as when ZooKeeper goes right after the registration."""

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        session: Any = Session()
        lease = Lease(loop.time, SESSION_MS / 1000)
        lease.begin(0)
        keeper = asyncio.create_task(LeaseKeeper(session, lease, SESSION_MS, loop.time).run())
        await asyncio.sleep(5)
        session.is_up = True
        await asyncio.sleep(2)
        is_valid = lease.is_valid()
        keeper.cancel()
        return is_valid

    with capture_logs() as logs:
        assert run_in_virtual_time(main())
    assert [(entry["event"].partition(":")[0], entry["silence_s"]) for entry in logs] == [
        ("ZooKeeper does not answer", None),
        ("ZooKeeper answers again", None),
    ]


@pytest.mark.parametrize(("answered_s", "said"), [(None, "since the start"), (2.0, "for 8 s")])
def test_a_lease_says_how_long_zookeeper_has_been_silent(answered_s: float | None, said: str) -> None:
    lease = Lease(lambda: 10.0, SESSION_MS / 1000)
    if answered_s is not None:
        lease.answered(answered_s)
    assert lease.silence == said
