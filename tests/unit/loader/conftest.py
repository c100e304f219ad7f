from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.loader.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        yield running
