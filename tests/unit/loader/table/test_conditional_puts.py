"""A bucket's store is tried before it is trusted with a table (R29)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError
from tests.unit.loader.table.commits_of_loads import Tables, load

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table import conditional_puts, delta_store, iceberg_store
from mainstem_loader.table.conditional_puts import WRITERS, check_conditional_puts
from mainstem_loader.table.delta import commit_files
from mainstem_loader.table.folder import Folder

BUCKET = Folder("s3://bucket")


def test_a_store_that_keeps_conditions_is_taken_and_nothing_is_left_of_the_trial(tmp_path: Path) -> None:
    check_conditional_puts(Folder.of(tmp_path))
    assert list(tmp_path.iterdir()) == []


class OneOfAllWins:
    """Commits of which one of each round is stored; the others are acknowledged, or refused."""

    def __init__(self, *, acknowledged: bool) -> None:
        self._acknowledged = acknowledged
        self._lock = threading.Lock()
        self._count = 0

    def __call__(self, *arguments: Any) -> None:
        with self._lock:
            self._count += 1
            if self._count % WRITERS == 1:
                commit_files(*arguments)
            elif not self._acknowledged:
                raise CommitFailedError("another commit has this version")


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_store_that_overwrites_commits_is_refused_and_one_that_refuses_them_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acknowledged: bool
) -> None:
    monkeypatch.setattr(conditional_puts, "commit_files", OneOfAllWins(acknowledged=acknowledged))
    if acknowledged:
        with pytest.raises(WarehouseError, match="supports conditional writes"):
            check_conditional_puts(Folder.of(tmp_path))
    else:
        check_conditional_puts(Folder.of(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_tried_before_the_first_commit_to_a_table_and_not_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Folder] = []
    for module in (delta_store, iceberg_store):
        monkeypatch.setattr(module, "check_conditional_puts", tried.append)

    def check_in_bucket() -> Any:
        table: Any = tables.open()
        with monkeypatch.context() as patch:
            patch.setattr(table._store, "_warehouse", BUCKET)
            patch.setattr(table._store, "_folder", BUCKET / "t", raising=False)
            table._checked = table._store.check(table._table)
        return table

    table = check_in_bucket()
    assert tried == [BUCKET], "disks are not tried"
    table.commit(load(table, "a", None, 3))
    assert check_in_bucket()._checked == {}
    assert tried == [BUCKET]
