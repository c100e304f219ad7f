"""Compiled modules are used only where they fit the sources."""

from __future__ import annotations

import ast
import sys
import sysconfig
from pathlib import Path

import pytest

from mainstem_broker import compiled


@pytest.fixture(name="folder")
def compiled_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "COMPILED", tmp_path)
    monkeypatch.setattr(compiled, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return tmp_path


def test_without_compiled_modules_the_broker_is_plain_python(folder: Path) -> None:
    finders = list(sys.meta_path)
    assert not compiled.use_compiled()
    assert sys.meta_path == finders


def test_modules_of_other_sources_or_another_python_are_not_used(folder: Path) -> None:
    (folder / "stamp").write_text(f"another {compiled.stamp_of_sources()}")
    assert not compiled.use_compiled()


def test_modules_that_this_machine_cannot_load_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MODULES", ("made_elsewhere.py",))
    package = folder / "mainstem_broker"
    package.mkdir()
    (package / f"made_elsewhere{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"of another C library")
    (folder / "stamp").write_text(compiled.stamp_of_sources())
    finders = list(sys.meta_path)
    assert not compiled.use_compiled()
    assert sys.meta_path == finders


def test_every_change_of_a_source_changes_the_stamp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "package"
    (package / "log").mkdir(parents=True)
    (package / "log" / "one.py").write_text("ONE = 1\n")
    monkeypatch.setattr(compiled, "PACKAGE", package)
    stamps = {compiled.stamp_of_sources()}
    (package / "log" / "one.py").write_text("ONE = 2\n")
    stamps.add(compiled.stamp_of_sources())
    (package / "log" / "one.py").rename(package / "log" / "two.py")
    stamps.add(compiled.stamp_of_sources())
    assert len(stamps) == 3


@pytest.mark.parametrize("module", compiled.MODULES)
def test_what_is_compiled_means_the_same_as_plain_python(module: str) -> None:
    source = (compiled.PACKAGE / module).read_text()
    assert "__del__" not in source
    assert "weakref" not in source
    handlers = [
        statement
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Try | ast.TryStar)
        for statement in [*node.handlers, *node.finalbody]
    ]
    waits = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncWith, ast.AsyncFor)
    assert not [node.lineno for each in handlers for node in ast.walk(each) if isinstance(node, waits)]
