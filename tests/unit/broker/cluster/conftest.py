"""Brokers of a cluster in this process, over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.cluster.members import Member, joined


@pytest.fixture
async def one(servers: str) -> AsyncIterator[Member]:
    """Broker 1, alone."""
    async with joined(1, servers) as member:
        yield member
