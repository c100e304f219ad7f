"""Places of warehouses: used as they are written, by all parts of a load, or refused (R29)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.table.folder import Folder, shortened


def test_a_tilde_is_the_home_folder_for_all_parts_of_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Folder.of("~/warehouse").url == str(tmp_path / "warehouse")
    assert Folder.of("~").url == str(tmp_path)
    for other in ("./~/warehouse", "~other/warehouse", "a/~"):
        assert Folder.of(other).url == other


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("", "has no name"),
        ("file:/warehouse", "write ./file:/warehouse"),
        ("s3:bucket", "write ./s3:bucket"),
        ("a\x7fb", "'a.x7fb'"),
    ],
)
def test_a_place_that_the_library_would_read_otherwise_is_refused(where: str, words: str) -> None:
    with pytest.raises(WarehouseError, match=words):
        Folder.of(where)


@pytest.mark.parametrize("where", ["C:/warehouse", "./file:/warehouse", "/a:b", "x=1;y, 'z'"])
def test_colons_and_other_characters_of_folders_are_taken(where: str) -> None:
    assert Folder.of(where).url == where


def test_a_table_whose_name_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="more than 255 bytes"):
        WarehouseTable(tmp_path, "ü" * 128)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "begins_with", "size_bytes"),
    [
        ("clicks", "clicks", 6),
        ("x" * 150, "x" * 150, 150),
        ("x" * 151, "x" * 117 + "-", 150),
        ("\u00fc" * 127, "\u00fc" * 58 + "-", 149),
    ],
)
def test_long_names_of_tables_leave_room_in_names_of_files(
    name: str, begins_with: str, size_bytes: int
) -> None:
    part = shortened(name)
    assert part.startswith(begins_with)
    assert len(part.encode()) == size_bytes
    assert shortened(f"{name}y") != part
