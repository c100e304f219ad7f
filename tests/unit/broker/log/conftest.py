"""Warnings of the log layer are captured: damage is what these tests are made of."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def warnings() -> Iterator[Sequence[MutableMapping[str, Any]]]:
    """What was logged during the test."""
    with capture_logs() as captured:
        yield captured
