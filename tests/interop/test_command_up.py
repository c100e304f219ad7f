"""`mainstem up`: real processes, started, killed and stopped (R36)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.command_line import MAINSTEM, environment, mainstem, mainstem_fails
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

from mainstem.local.child_process import spawn

pytestmark = pytest.mark.processes

StartUp = Callable[..., "RunningUp"]


class RunningUp:
    """A `mainstem up` process on `directory`."""

    def __init__(self, directory: Path, *arguments: str, java_home: str | None = None) -> None:
        self.directory = directory
        self._log = (directory.parent / f"{directory.name}.out").open("w+b")
        self.process = spawn(
            [*MAINSTEM, "up", "--data", str(directory), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(),
        )

    def await_ready(self) -> dict[str, Any]:
        """Wait for `stack.json`; what it says."""
        path = self.directory / "stack.json"
        wait_until(lambda: path.exists() or self.process.poll() is not None, "the stack is ready")
        assert self.process.poll() is None, self.output()
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def output(self) -> str:
        return Path(self._log.name).read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Starts `mainstem up` on a folder of this test's own, with free ports."""
    with ExitStack() as running:

        def start(*arguments: str, directory: Path | None = None) -> RunningUp:
            started = RunningUp(directory or tmp_path / "stack", *arguments)
            running.callback(started.close)
            return started

        yield start


def pids_of(state: dict[str, Any]) -> list[int]:
    return [state["zookeeper"]["pid"], *(broker["pid"] for broker in state["brokers"])]


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_stack_runs_stops_on_ctrl_c_and_goes_on_where_it_was(start_up: StartUp) -> None:
    port = own_ports(2)
    first = start_up("--port", str(port))
    state = first.await_ready()
    assert state["bootstrap_servers"] == f"127.0.0.1:{port}"
    assert [(broker["id"], broker["port"]) for broker in state["brokers"]] == [(1, port)]
    assert state["pid"] == first.process.pid
    assert all(is_alive(pid) for pid in pids_of(state))
    address = ["-b", state["bootstrap_servers"]]
    mainstem("topic", "create", "kept", *address)
    mainstem("produce", "kept", *address, stdin=b"a\nb\n")
    assert first.stop() == 0
    assert "Stopped. All data is in" in first.output()
    assert not any(is_alive(pid) for pid in pids_of(state))
    assert not (first.directory / "stack.json").exists()

    second = start_up("--port", str(port), "--brokers", "2")
    again = second.await_ready()
    assert [(broker["id"], broker["port"]) for broker in again["brokers"]] == [(1, port), (2, port + 1)]
    assert again["cluster_id"] == state["cluster_id"]
    assert again["zookeeper"]["port"] == state["zookeeper"]["port"]
    assert mainstem("consume", "kept", *address).stdout == b"a\nb\n"
    assert second.stop(signal.SIGTERM) == 0
    fewer = mainstem_fails("up", "--data", second.directory, "--port", str(port), "--brokers", "1")
    assert "holds the data of 2 brokers" in fewer


def test_what_kills_it_kills_everything_and_acknowledged_records_stay(start_up: StartUp) -> None:
    port = own_ports()
    first = start_up("--port", str(port))
    state = first.await_ready()
    address = ["-b", state["bootstrap_servers"]]
    mainstem("topic", "create", "kept", *address)
    mainstem("produce", "kept", *address, stdin=b"a\nb\n")
    first.stop(signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in pids_of(state)), "no process is left")
    assert (first.directory / "stack.json").exists()  # nobody was left to remove it

    second = start_up("--port", str(port))
    wait_until(lambda: not (first.directory / "stack.json").exists(), "the old state is removed")
    second.await_ready()
    assert mainstem("consume", "kept", *address).stdout == b"a\nb\n"
    assert second.stop() == 0


def test_a_broker_that_dies_is_restarted_and_reported_in_one_line(start_up: StartUp) -> None:
    running = start_up("--port", str(own_ports()))
    state = running.await_ready()
    broker_pid = state["brokers"][0]["pid"]
    os.kill(broker_pid, signal.SIGKILL)

    def restarted() -> bool:
        now = json.loads((running.directory / "stack.json").read_text())["brokers"][0]["pid"]
        return now not in (None, broker_pid)

    wait_until(restarted, "the broker is started again")
    wait_until(lambda: "Broker 1 killed" in running.output(), "the exit is reported")
    now_pid = json.loads((running.directory / "stack.json").read_text())["brokers"][0]["pid"]
    log = running.directory / "broker-1" / "server.log"
    (line,) = [line for line in running.output().splitlines() if "Broker 1" in line]
    assert line == f"✗ Broker 1 killed by SIGKILL, now pid {now_pid}, log {log}"
    mainstem("topic", "list", "-b", state["bootstrap_servers"])
    assert running.stop() == 0


def test_a_port_that_is_taken_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sentence = mainstem_fails("up", "--data", tmp_path / "stack", "--port", str(port))
    expected = (
        f"Port {port} of 127.0.0.1 is taken by another program: stop it, or choose other ports with --port "
    )
    assert sentence.startswith(expected)
    assert not (tmp_path / "stack" / "stack.json").exists()


def test_a_stack_in_the_background_reports_its_own_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        error = mainstem_fails("up", "--detach", "--data", tmp_path / "stack", "--port", str(port))
    assert error.startswith(f"Port {port} of 127.0.0.1 is taken by another program: stop it, or choose")


def test_preferred_leaders_lead_again_once_a_broker_is_back(start_up: StartUp) -> None:
    """The brokers themselves would wait for leader.imbalance.check.interval.seconds, 300."""
    running = start_up("--port", str(own_ports(2)), "--brokers", "2")
    state = running.await_ready()
    address = ["-b", state["bootstrap_servers"]]
    mainstem("topic", "create", "t", "--partitions", "4", *address)

    def led_by_preferred() -> list[bool]:
        described = json.loads(mainstem("topic", "describe", "t", "-o", "json", *address).stdout)
        return [partition["leader"] == partition["replicas"][0] for partition in described["partitions"]]

    os.kill(state["brokers"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: not all(led_by_preferred()), "another broker leads")
    wait_until(lambda: all(led_by_preferred()), "the preferred leaders lead again")
    assert running.stop() == 0


def test_ready_is_reported_to_programs_as_json(start_up: StartUp) -> None:
    running = start_up("--port", str(own_ports()), "--output", "json")
    state = running.await_ready()
    wait_until(lambda: "\n}\n" in running.output(), "it is reported")
    assert running.stop() == 0
    text = running.output()
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == state
