"""Finding Java and the jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.errors import StackError
from mainstem.local import zookeeper_process
from mainstem.local.zookeeper_process import Java, find_jars, find_java, java_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("something else", None),
    ],
)
def test_the_feature_release_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert java_version(text) == version


def _fake_java(directory: Path, says: str) -> None:
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"Java 17 or newer is needed and no java was found.*install it"):
        find_java()


@pytest.mark.processes
def test_a_java_that_is_too_old_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(StackError, match=rf"{tmp_path}/java is Java 11, and Java 17"):
        find_java()


@pytest.mark.processes
def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    _fake_java(tmp_path / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(str(tmp_path / "bin" / "java"), 21)


def test_the_class_path_holds_zookeeper_and_little_else() -> None:
    names = [Path(jar).name for jar in find_jars().split(":")]
    assert any(name.startswith("zookeeper-3.") for name in names)
    assert len(names) == len(zookeeper_process._JAR_NAMES)


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(StackError, match=r"mainstem\[loader\]"):
        find_jars()
