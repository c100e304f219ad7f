"""Both formats of tables, for tests of what holds for both."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.loader.table.commits_of_loads import Tables

from mainstem_loader.columns import TableFormat


@pytest.fixture(params=list(TableFormat))
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    return Tables(tmp_path, request.param)


@pytest.fixture
def iceberg_tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path, TableFormat.ICEBERG)
