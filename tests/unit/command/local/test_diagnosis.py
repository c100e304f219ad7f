"""The checks of `mainstem doctor`: what they find, and what they tell to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainstem.kafka.probe import ClusterAnswer
from mainstem.local.diagnosis import (
    CheckState,
    check_brokers,
    check_disk,
    check_jars,
    check_java,
    check_open_files,
    check_packages,
    check_ports,
    check_zookeeper,
)

ANSWER = ClusterAnswer("cluster", frozenset({1}))
STATE: dict[str, Any] = {"zookeeper": {"port": 2181}, "data_directory": "/data/local"}


def test_missing_packages_are_named_with_the_commands_that_need_them() -> None:
    assert check_packages(lambda _name: True).state is CheckState.OK
    check = check_packages(lambda name: name != "pyspark")
    assert (check.state, check.remedy) == (CheckState.FAILED, "pip install 'mainstem[all]'")
    assert "pyspark (for up, demo, load)" in check.finding


@pytest.mark.processes
def test_a_missing_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_java().state is CheckState.OK
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = check_java()
    assert (check.state, check.remedy) == (CheckState.FAILED, "apt-get install openjdk-17-jre-headless")


def test_missing_jars_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_jars().state is CheckState.OK
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert check_jars().remedy == "pip install 'mainstem[loader]'"


def test_a_full_disk_is_found_also_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert check_disk(tmp_path / "a" / "b").state is CheckState.OK
    check = check_disk(tmp_path / "a" / "b", free_bytes=10**8)
    assert check.state is CheckState.FAILED
    assert check.finding == f"0.1 GB free in {tmp_path}."


@pytest.mark.parametrize(
    ("limit", "state"), [(1024, CheckState.FAILED), (4096, CheckState.OK), (-1, CheckState.OK)]
)
def test_too_few_open_files_are_found(limit: int, state: CheckState) -> None:
    assert check_open_files(limit).state is state


def test_a_taken_port_is_named_with_ports_that_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.local.diagnosis.free_ports", lambda count: 10_000 + count)
    check = check_ports(9092, 3, lambda port: port != 9093)
    assert (check.state, check.finding) == (CheckState.FAILED, "Taken by another program: 9093.")
    assert check.remedy == "mainstem up --port 10003"


def test_a_taken_zookeeper_port_is_no_failure() -> None:
    check = check_ports(9092, 3, lambda port: port != 2181)
    assert (check.state, check.finding) == (
        CheckState.OK,
        "9092 to 9094 are free; 2181 is taken, so ZooKeeper will use another port.",
    )
    assert check_ports(9092, 1, lambda _port: True).finding == "9092 and 2181 are free."


def test_zookeeper_is_idle_ok_or_failed() -> None:
    assert check_zookeeper(None, lambda _port: True).state is CheckState.IDLE
    assert check_zookeeper(STATE, lambda port: port == 2181).state is CheckState.OK
    check = check_zookeeper(STATE, lambda _port: False)
    assert (check.state, check.remedy) == (CheckState.FAILED, "tail /data/local/zookeeper/server.log")


def test_brokers_that_do_not_answer_are_named() -> None:
    assert check_brokers({"127.0.0.1:9092": ANSWER}, "").state is CheckState.OK
    check = check_brokers({"127.0.0.1:9092": ANSWER, "127.0.0.1:9093": None}, "tail log")
    assert (check.state, check.finding) == (CheckState.FAILED, "No answer from 127.0.0.1:9093.")
