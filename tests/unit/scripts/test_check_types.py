"""What mypy found is kept for other checkouts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts import check_types as subject


class Checkouts:
    """`main` of checkouts with the same cache, where a stand-in for mypy notes what it found there before."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exit_code = 0
        self.kept = folder / "cache" / "types"
        self._folder = folder
        self._patch = monkeypatch
        monkeypatch.setattr(subject, "_KEPT", self.kept)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: self._run())

    def check(self, checkout: str) -> list[str]:
        """Check the types in a checkout; the checkouts whose results mypy read."""
        self._checkout = checkout
        self._patch.setattr(subject, "_FOUND", self._folder / checkout / ".mypy_cache")
        assert subject.main() == self.exit_code
        return self._read

    def _run(self) -> SimpleNamespace:
        found = self._folder / self._checkout / ".mypy_cache"
        found.mkdir(parents=True, exist_ok=True)
        self._read = sorted(path.name for path in found.iterdir())
        (found / self._checkout).touch()
        return SimpleNamespace(returncode=self.exit_code)


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkouts:
    return Checkouts(tmp_path, monkeypatch)


def test_a_new_checkout_begins_with_what_was_found_in_another_one(checkouts: Checkouts) -> None:
    assert checkouts.check("one") == []
    assert checkouts.check("two") == ["one"]
    assert checkouts.check("three") == ["one", "two"]
    assert checkouts.check("one") == ["one"], "its own is newer"


def test_what_was_found_beside_errors_is_not_kept(checkouts: Checkouts) -> None:
    checkouts.exit_code = 1
    checkouts.check("one")
    assert not checkouts.kept.exists()


def test_a_cache_that_cannot_be_written_is_none(checkouts: Checkouts) -> None:
    checkouts.kept.parent.write_text("a file in its place")
    assert checkouts.check("one") == []
    assert checkouts.check("two") == []


def test_nothing_is_left_behind_beside_the_copies(checkouts: Checkouts, tmp_path: Path) -> None:
    checkouts.check("one")
    shutil.rmtree(tmp_path / "one")
    checkouts.check("one")
    assert [path.name for path in checkouts.kept.parent.iterdir()] == ["types"]
    assert [path.name for path in (tmp_path / "one").iterdir()] == [".mypy_cache"]
