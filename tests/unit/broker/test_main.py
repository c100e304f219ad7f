"""The process: what it says when it cannot start, and how it stops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.support.ports import own_ports
from tests.support.waiting import wait_until


def command(properties: Path, *overrides: str) -> list[str]:
    extra = [item for override in overrides for item in ("--override", override)]
    return [sys.executable, "-m", "mainstem_broker", str(properties), *extra]


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(f"broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path / 'data'}\n")
    return path


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["log.segment.bytes=1"], "Invalid value 1 for log.segment.bytes: it must be at least 1048576."),
        (["listeners=here"], "listeners has 'here'; write it as NAME://host:port."),
        (["zookeeper.connect=:x"], "zookeeper.connect is ':x'"),
        (["broker.rack=${file:/none:a}"], "${file:/none:a} cannot be filled in: /none cannot be read"),
        (["broker.rack=a\\", "listeners=here"], "listeners has 'here'; write it as NAME://host:port."),
        (["=1"], "--override '=1' is not of the form name=value."),
        (["no equals sign"], "--override 'no equals sign' is not of the form name=value."),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence_and_exit_code_1(
    properties: Path, overrides: list[str], sentence: str
) -> None:
    port = f"listeners=PLAINTEXT://127.0.0.1:{own_ports()}"
    ended = subprocess.run(
        command(properties, port, *overrides), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    last_line = ended.stderr.strip().splitlines()[-1]
    assert last_line.startswith("mainstem broker: " + sentence)
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_a_properties_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        command(tmp_path / "none"), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"The properties file {tmp_path / 'none'} cannot be read" in ended.stderr


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(
    properties: Path, tmp_path: Path, servers: str, shell: KazooClient, number: signal.Signals
) -> None:
    arguments = command(
        properties,
        f"listeners=PLAINTEXT://127.0.0.1:{own_ports()}",
        f"zookeeper.connect={servers}",
        "what.is.this=1",
    )
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(arguments, stderr=log) as process:
        try:
            wait_until(lambda: b"broker started" in (tmp_path / "log").read_bytes(), "the broker starts", 30)
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["event"] for line in lines} >= {
        "broker started",
        "broker stopped",
        "unknown setting ignored",
    }
    assert all(line.keys() >= {"event", "level", "timestamp"} for line in lines)
    assert shell.get_children("/brokers/ids") == []
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
