from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts import compile as subject


class Checkouts:
    """`main` of checkouts with the same cache, where a stand-in counts what mypyc would have compiled."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds = 0
        self.sources = "sources 1"
        self.compiler = "cc 12"
        self.cache = folder / "cache"
        self._folder = folder
        self._patch = monkeypatch
        monkeypatch.setattr(subject, "_CACHE", self.cache)
        monkeypatch.setattr(subject, "_build", self._build)
        monkeypatch.setattr(subject, "_missing", lambda: None)
        monkeypatch.setattr(subject, "stamp_of_sources", lambda: self.sources)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=self.compiler))

    def compile(self, checkout: str) -> str:
        """Compile in a checkout; what its brokers load then."""
        modules = self._folder / checkout / "_compiled"
        modules.parent.mkdir(exist_ok=True)
        stamp = modules / "stamp"
        self._patch.setattr(subject, "COMPILED", modules)
        self._patch.setattr(subject, "STAMP", stamp)
        self._patch.setattr(subject, "_LOCK", self._folder / checkout / "lock")
        self._patch.setattr(subject, "are_made", lambda: stamp.exists() and stamp.read_text() == self.sources)
        assert subject.main() == 0
        assert stamp.read_text() == self.sources
        return (modules / "module.so").read_text()

    def _build(self, folder: Path) -> None:
        self.builds += 1
        (folder / "lib").mkdir()
        (folder / "lib" / "module.so").write_text(f"{self.sources} by {self.compiler}")


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkouts:
    return Checkouts(tmp_path, monkeypatch)


def test_of_the_same_sources_modules_are_compiled_once_for_all_checkouts(checkouts: Checkouts) -> None:
    for checkout in ("one", "one", "two"):
        assert checkouts.compile(checkout) == "sources 1 by cc 12"
    assert checkouts.builds == 1


def test_other_sources_and_other_compilers_compile_anew(checkouts: Checkouts) -> None:
    checkouts.compile("one")
    checkouts.sources = "sources 2"
    assert checkouts.compile("one") == "sources 2 by cc 12"
    checkouts.compiler = "cc 14"
    assert checkouts.compile("two") == "sources 2 by cc 14"
    checkouts.sources, checkouts.compiler = "sources 1", "cc 12"
    assert checkouts.compile("two") == "sources 1 by cc 12"
    assert checkouts.builds == 3


def test_a_cache_that_cannot_be_written_costs_only_time(
    checkouts: Checkouts, capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts.cache.write_text("no directory")
    for checkout in ("one", "two"):
        assert checkouts.compile(checkout) == "sources 1 by cc 12"
    assert checkouts.builds == 2
    assert "not kept for other checkouts: " in capsys.readouterr().out


def test_the_cache_keeps_eight(checkouts: Checkouts) -> None:
    for number in range(10):
        checkouts.sources = f"sources {number}"
        checkouts.compile("one")
    assert len(list(checkouts.cache.iterdir())) == 8
