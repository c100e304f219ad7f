"""Iceberg tables in a REST catalog, whose answers get lost (R29)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.loader.table.commits_of_loads import TOPIC_ID, dead_offsets, load

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.commits import CommitOutcome, WarehouseTable
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.query import query


@pytest.fixture
def server(tmp_path: Path) -> Iterator[object]:
    from tests.unit.loader.table.rest_catalog import RestCatalogServer

    with RestCatalogServer(tmp_path) as running:
        yield running


class Lake:
    """Tables of a REST catalog."""

    def __init__(self, server: object, folder: Path) -> None:
        self.warehouse = folder / "warehouse"
        self.catalog = IcebergCatalog(server.uri, "lake.events")  # type: ignore[attr-defined]

    def open(self) -> WarehouseTable:
        table = WarehouseTable(self.warehouse, "t", catalog=self.catalog)
        table.check_store()
        return table

    def offsets(self) -> list[int]:
        answer = query(self.warehouse, "SELECT _offset FROM t ORDER BY 1", self.catalog)
        return [row["_offset"] for row in answer.to_pylist()]


@pytest.fixture
def lake(server: object, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path)


def test_the_catalog_decides_where_the_table_is(lake: Lake, tmp_path: Path) -> None:
    table = lake.open()
    assert table.commit(load(table, "a", None, 3, dead=[1])) is CommitOutcome.COMMITTED
    table.deliver_dead_letters()
    assert Path(table.folder.url).is_relative_to(tmp_path / "served")
    assert lake.offsets() == [0, 1, 2]
    assert dead_offsets(lake.warehouse) == [1]


@pytest.mark.parametrize("fault", ["lost 500", "lost connection", "repeated"])
def test_a_commit_whose_answer_was_lost_is_made_once(lake: Lake, server: object, fault: str) -> None:
    """A catalog that refuses a repeated request has made the first one, and its manifests must stay."""
    table = lake.open()
    table.commit(load(table, "a", None, 3))
    server.commit_faults.append(fault)  # type: ignore[attr-defined]
    assert table.commit(load(table, "b", 3, 5)) is CommitOutcome.COMMITTED
    assert table.commit(load(table, "c", 5, 6)) is CommitOutcome.COMMITTED
    assert lake.offsets() == [0, 1, 2, 3, 4, 5]


def test_a_commit_that_broke_the_catalog_fails_and_is_made_by_the_next_load(
    lake: Lake, server: object
) -> None:
    table = lake.open()
    table.commit(load(table, "a", None, 3))
    server.commit_faults.append("refused 500")  # type: ignore[attr-defined]
    with pytest.raises(WarehouseError, match=r"Iceberg table lake\.events\.t cannot be read or written"):
        table.commit(load(table, "b", 3, 5))
    table = lake.open()
    assert table.committed(TOPIC_ID, 0) == 3
    assert table.commit(load(table, "c", 3, 5)) is CommitOutcome.COMMITTED
    assert lake.offsets() == [0, 1, 2, 3, 4]


def test_of_many_loaders_at_once_exactly_one_moves_each_offset(lake: Lake, server: object) -> None:
    """While answers get lost in each way."""
    outcomes: list[CommitOutcome] = []
    faults = ["lost 500", "repeated", "", "refused 500", "lost connection", "", ""]

    def run(number: int) -> None:
        for step in range(5):
            try:
                table = lake.open()
                start = table.committed(TOPIC_ID, 0)
                fault = faults[(number + step) % len(faults)]
                server.commit_faults.append(fault)  # type: ignore[attr-defined]
                outcomes.append(table.commit(load(table, f"{number}-{step}", start, (start or 0) + 5)))
            except WarehouseError:
                continue

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = lake.open().committed(TOPIC_ID, 0)
    assert end is not None
    assert lake.offsets() == list(range(end))
    # What broke may have been committed all the same, but nothing else was.
    assert 5 * outcomes.count(CommitOutcome.COMMITTED) <= end


def test_a_catalog_that_does_not_answer_is_reported_in_one_sentence(closed_port: int, tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="check that its catalog answers"):
        WarehouseTable(tmp_path, "t", catalog=IcebergCatalog(f"http://127.0.0.1:{closed_port}"))
