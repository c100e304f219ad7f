"""Warnings of the log layer are captured: damage is what these tests are made of."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.log.logs import open_log

from mainstem_broker.log.partition_log import PartitionLog


@pytest.fixture(autouse=True)
def warnings() -> Iterator[Sequence[MutableMapping[str, Any]]]:
    """What was logged during the test."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """An empty one with the defaults of Kafka."""
    return open_log(tmp_path)
