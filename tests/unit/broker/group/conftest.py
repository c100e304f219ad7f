"""A coordinator that most tests of this package play with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.group.local_coordinator import LocalCoordinator, loaded


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCoordinator]:
    """It leads its partition alone, and has loaded it. Tests with other options call `loaded`."""
    async with loaded(tmp_path) as coordinator:
        yield coordinator
