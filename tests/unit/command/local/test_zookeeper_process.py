"""Finding Java, the jars and a port."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from mainstem.errors import StackError
from mainstem.local import zookeeper_process
from mainstem.local.zookeeper_process import Java, ZooKeeperProcess, find_jars, find_java, java_version


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


LAST_RUN = 5000
CHOSEN = 7000


@pytest.mark.parametrize(
    ("fixed", "preferred", "taken", "avoided", "port"),
    [
        (0, 2181, (), (), 2181),
        (0, 2181, (2181,), (), LAST_RUN),
        (0, 2181, (), (2181,), LAST_RUN),
        (0, 0, (), (), LAST_RUN),
        (0, 2181, (2181, LAST_RUN), (), CHOSEN),
        # A port that is kept for a broker looks free.
        (0, 2181, (2181,), (LAST_RUN,), CHOSEN),
        (2182, 2181, (), (), 2182),
        (2182, 2181, (2182,), (), None),
        (2182, 2181, (), (2182,), None),
    ],
)
def test_zookeeper_takes_the_first_port_that_nobody_has_or_is_to_have(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fixed: int,
    preferred: int,
    taken: Collection[int],
    avoided: Collection[int],
    port: int | None,
) -> None:
    """The port that was given, else the preferred one, that of the last run, or any."""
    (tmp_path / "zoo.cfg").write_text(f"tickTime=500\nclientPort={LAST_RUN}\n")
    started: list[int] = []
    monkeypatch.setattr(zookeeper_process, "port_is_free", lambda port: port not in taken)
    monkeypatch.setattr(zookeeper_process, "free_ports", lambda: CHOSEN)
    monkeypatch.setattr(ZooKeeperProcess, "_run", lambda _self, port, _timeout_s: started.append(port))
    process = ZooKeeperProcess(tmp_path, fixed, preferred)
    if port is None:
        with pytest.raises(StackError, match=r"Port 2182 of 127\.0\.0\.1 is taken"):
            process.start(1, avoided)
    else:
        process.start(1, avoided)
    assert started == ([] if port is None else [port])


@pytest.mark.parametrize(("taken", "starts"), [(0, 1), (2, 3), (9, 3)])
@pytest.mark.parametrize("is_taken", [True, False])
def test_another_port_is_tried_if_somebody_takes_it_before_zookeeper_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, starts: int, is_taken: bool
) -> None:
    """Any other reason is reported at once."""
    started: list[int] = []

    def run(_self: object, port: int, _timeout_s: float) -> None:
        started.append(port)
        if len(started) <= taken:
            raise StackError("ZooKeeper stopped with exit code 1")

    ports = iter(range(7000, 7010))
    monkeypatch.setattr(zookeeper_process, "free_ports", lambda: next(ports))
    monkeypatch.setattr(ZooKeeperProcess, "_run", run)
    monkeypatch.setattr(ZooKeeperProcess, "_port_was_taken", lambda _self: is_taken)
    process = ZooKeeperProcess(tmp_path)
    fails = taken > (2 if is_taken else 0)
    if fails:
        with pytest.raises(StackError, match="exit code 1"):
            process.start(1)
    else:
        process.start(1)
    assert started == list(range(7000, 7000 + (starts if is_taken else 1)))
