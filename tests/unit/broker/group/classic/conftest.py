from __future__ import annotations

import pytest
from tests.unit.broker.group.classic.played_group import PlayedGroup


@pytest.fixture
def played() -> PlayedGroup:
    return PlayedGroup()
