"""What a commit names outlives a power loss (R29)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import Loads

from mainstem_loader.columns import TableFormat
from mainstem_loader.table.commits import CommitOutcome, LoadCommit, WarehouseTable


@pytest.mark.parametrize("table_format", list(TableFormat))
def test_files_and_their_names_are_on_the_disk_before_a_commit_names_them(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: TableFormat
) -> None:
    """A table whose log outlived a power loss, and whose rows did not, would have offsets without rows."""
    synced: set[Path] = set()
    named: set[Path] = set()
    fsync, commit = os.fsync, WarehouseTable.commit

    def note_and_sync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def look_and_commit(self: WarehouseTable, load: LoadCommit) -> CommitOutcome:
        for folder, files in ((self.folder, load.files), (self.dead_letter_folder, load.dead_files)):
            named.update(Path(folder.url) / written.path for written in files)
        assert {*named, *(path.parent for path in named)} <= synced
        return commit(self, load)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    monkeypatch.setattr(WarehouseTable, "commit", look_and_commit)
    loads = Loads(cluster, tmp_path, table_format)
    loads.send({"n": 1}, b"nonsense")
    loads.load(max_rejected_share=1)
    assert len(named) == 2
