from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.api.brokers import LocalBroker, coordinating_broker


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path)


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    broker = await coordinating_broker(tmp_path)
    yield broker
    await broker.context.groups.shards.stop()
