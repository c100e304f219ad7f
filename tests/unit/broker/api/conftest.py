from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.api.brokers import LocalBroker


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path)
