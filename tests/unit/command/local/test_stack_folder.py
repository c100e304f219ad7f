"""The folder of a local stack."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mainstem.errors import StackError
from mainstem.local.stack_folder import LAYOUT, StackFolder


class DiskUsage(NamedTuple):
    """What of shutil.disk_usage's answer is read."""

    free: int


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StackFolder]:
    made = StackFolder(tmp_path / "stack")
    yield made
    made.close()


def test_a_new_folder_is_made_and_marked_with_its_layout(folder: StackFolder) -> None:
    folder.open(brokers=1)
    assert json.loads((folder.path / "layout.json").read_text())["layout"] == LAYOUT
    assert folder.broker_count() == 0


def test_two_stacks_never_share_a_folder(folder: StackFolder) -> None:
    folder.open(brokers=1)
    with pytest.raises(
        StackError, match=rf"already running in {folder.path} \(process {os.getpid()}\): stop it"
    ):
        StackFolder(folder.path).open(brokers=1)
    folder.close()
    second = StackFolder(folder.path)
    second.open(brokers=1)
    second.close()


def test_brokers_may_be_added_and_never_left_out(folder: StackFolder) -> None:
    folder.open(brokers=1)
    folder.broker_directory(1).mkdir()
    folder.broker_directory(3).mkdir()
    folder.close()
    assert folder.broker_count() == 3
    folder.open(brokers=4)
    folder.close()
    with pytest.raises(StackError, match=r"holds the data of 3 brokers.*start 3 brokers"):
        folder.open(brokers=2)


def test_the_data_of_another_version_is_refused(folder: StackFolder) -> None:
    folder.path.mkdir()
    (folder.path / "layout.json").write_text(json.dumps({"layout": LAYOUT + 1, "mainstem": "9.0.0"}))
    with pytest.raises(StackError, match=r"written by mainstem 9\.0\.0 in layout 2.*use that version"):
        folder.open(brokers=1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"layout": "x", "mainstem": "1"}'])
def test_a_layout_file_that_cannot_be_read_is_named(folder: StackFolder, text: str) -> None:
    folder.path.mkdir()
    (folder.path / "layout.json").write_text(text)
    with pytest.raises(StackError, match=r"layout\.json cannot be read"):
        folder.open(brokers=1)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StackError, match="is not a folder"):
            StackFolder(path).open(brokers=1)


def test_a_folder_that_cannot_be_written_is_named(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object, **names: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may write everywhere, so permissions cannot show it
    with pytest.raises(StackError, match=rf"{folder.path} cannot be used \(Permission denied\)"):
        folder.open(brokers=1)


def test_a_full_disk_is_reported_before_anything_starts(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: DiskUsage(free=2**20))
    with pytest.raises(StackError, match=r"Only 1 MiB are free.*at least 256 MiB"):
        folder.open(brokers=1)


def test_a_comma_in_the_path_is_refused_since_log_dirs_is_a_list(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="comma"):
        StackFolder(tmp_path / "a,b").open(brokers=1)


def test_the_state_is_there_while_it_runs_and_gone_after(folder: StackFolder) -> None:
    folder.open(brokers=1)
    folder.write_state({"brokers": []})
    assert json.loads(folder.state_path.read_text()) == {"brokers": []}
    folder.close()
    assert not folder.state_path.exists()


def test_the_state_of_a_stack_that_was_killed_is_removed(folder: StackFolder) -> None:
    folder.path.mkdir()
    folder.state_path.write_text("{}")
    folder.open(brokers=1)
    assert not folder.state_path.exists()


def test_the_owner_is_known_while_the_folder_is_open(folder: StackFolder) -> None:
    other = StackFolder(folder.path)
    assert other.owner_pid() is None, "the folder does not exist yet"
    folder.open(brokers=1)
    assert other.owner_pid() == os.getpid()
    folder.close()
    assert other.owner_pid() is None, "the process id stays in the file, the lock does not"


def test_the_state_is_read_while_there_is_one(folder: StackFolder) -> None:
    assert folder.read_state() is None
    folder.open(brokers=1)
    folder.write_state({"brokers": []})
    assert StackFolder(folder.path).read_state() == {"brokers": []}
    folder.state_path.write_text("{")
    assert folder.read_state() is None
