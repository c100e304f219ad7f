"""The local stack as a library: what tests, benches and the demo use."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

from mainstem.errors import StackError
from mainstem.kafka.probe import ask_cluster
from mainstem.local.stack import Stack
from mainstem.local.zookeeper_process import serves

pytestmark = pytest.mark.processes


def stack_json(stack: Stack) -> Any:
    return json.loads((stack.data_directory / "stack.json").read_text())


def test_brokers_and_zookeeper_are_stopped_killed_and_started_one_by_one(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", brokers=2, port=0) as stack:
        first_port, second_port = (stack.broker_port(broker_id) for broker_id in stack.broker_ids)
        assert stack.bootstrap_servers == f"127.0.0.1:{first_port},127.0.0.1:{second_port}"
        answer = ask_cluster(first_port)
        assert answer is not None
        assert answer.broker_ids == {1, 2}
        assert answer.cluster_id == stack.cluster_id

        stack.kill_broker(1)
        assert ask_cluster(first_port) is None
        assert json.loads((tmp_path / "stack" / "stack.json").read_text())["brokers"][0]["pid"] is None
        with pytest.raises(StackError, match="Broker 1 is not running"):
            stack.broker_pid(1)
        stack.start_broker(1)
        with pytest.raises(StackError, match="Broker 1 is already running"):
            stack.start_broker(1)
        stack.stop_broker(2)
        assert ask_cluster(second_port) is None
        stack.start_broker(2)

        port = stack.zookeeper_port
        stack.kill_zookeeper()
        assert not serves(port)
        stack.start_zookeeper()
        assert serves(port)
        stack.stop_zookeeper()
        stack.start_zookeeper()
        assert stack.zookeeper_port == port
        assert stack.unexpected_exits() == []
        pids = [stack.broker_pid(1), stack.broker_pid(2)]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not serves(port)


def test_a_process_whose_restart_fails_is_named_until_a_restart_succeeds(tmp_path: Path) -> None:
    """R36."""
    settings: dict[str, str] = {}
    registry_port = own_ports()
    with Stack(
        tmp_path / "stack", port=0, own_settings={1: settings}, schema_registry_port=registry_port
    ) as stack:
        psutil.Process(stack.broker_pid(1)).kill()
        wait_until(stack.unexpected_exits, "the broker's exit is seen")
        settings["num.partitions"] = "many"
        for _ in range(2):
            with pytest.raises(StackError, match=r"^Broker 1 stopped with exit code 1: .*num\.partitions"):
                stack.restart("Broker 1")
            (process_exit,) = stack.unexpected_exits()
            assert str(process_exit).startswith("Broker 1 stopped with exit code 1: ")
            assert stack_json(stack)["brokers"][0]["pid"] is None
        settings.clear()
        stack.restart("Broker 1")
        assert stack.unexpected_exits() == []
        assert stack_json(stack)["brokers"][0]["pid"] == stack.broker_pid(1)

        psutil.Process(stack_json(stack)["schema_registry"]["pid"]).kill()
        wait_until(stack.unexpected_exits, "the registry's exit is seen")
        with (
            socket.create_server(("127.0.0.1", registry_port)),
            pytest.raises(StackError, match=r"^Schema registry stopped with exit code 1: "),
        ):
            stack.restart("Schema registry")
        assert [process_exit.name for process_exit in stack.unexpected_exits()] == ["Schema registry"]
        assert stack_json(stack)["schema_registry"]["pid"] is None
        stack.restart("Schema registry")
        assert stack.unexpected_exits() == []


def test_zookeeper_is_started_again_before_the_brokers_that_need_it(tmp_path: Path) -> None:
    """R36. A broker that starts without ZooKeeper waits for it without an end."""
    with Stack(tmp_path / "stack", port=0) as stack:
        zookeeper_pid, port = stack.process_id("ZooKeeper"), stack.zookeeper_port
        psutil.Process(stack.broker_pid(1)).kill()
        psutil.Process(zookeeper_pid).kill()
        wait_until(lambda: len(stack.unexpected_exits()) == 2, "both exits are seen")
        assert [process_exit.name for process_exit in stack.unexpected_exits()] == ["ZooKeeper", "Broker 1"]

        started = time.monotonic()
        with pytest.raises(StackError, match=r"^ZooKeeper was killed by SIGKILL"):
            stack.restart("Broker 1")
        assert time.monotonic() - started < 10, "the wait for the broker ends with ZooKeeper, not after 120 s"
        assert [process_exit.name for process_exit in stack.unexpected_exits()] == ["ZooKeeper", "Broker 1"]

        with socket.create_server(("127.0.0.1", port)):
            for _ in range(2):
                with pytest.raises(StackError, match=f"another program took its port {port}"):
                    stack.restart("ZooKeeper")
        for process_exit in stack.unexpected_exits():
            stack.restart(process_exit.name)
        assert stack.zookeeper_port == port
        assert stack.unexpected_exits() == []


def test_everything_listens_on_loopback_only(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", port=0) as stack:
        state = stack.state()
        for pid in (state["zookeeper"]["pid"], state["brokers"][0]["pid"]):
            listening = [
                connection
                for connection in psutil.Process(pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert listening
            assert all(connection.laddr.ip in ("127.0.0.1", "::ffff:127.0.0.1") for connection in listening)


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack", port=0, broker_settings={"log.retention.ms": "never"})
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(StackError, match=r"Broker 1 stopped with exit code 1: .*log\.retention\.ms"):
        stack.start()
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before
    assert not (tmp_path / "stack" / "stack.json").exists()


def test_zookeeper_takes_another_port_when_its_own_is_taken(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", port=0) as first:
        port = first.zookeeper_port
    with socket.create_server(("127.0.0.1", port)), Stack(tmp_path / "stack", port=0) as second:
        assert second.zookeeper_port != port
        assert second.cluster_id == first.cluster_id


def test_ports_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="does not leave room for 3 brokers"):
        Stack(tmp_path / "stack", brokers=3, port=65_534).start()
    with pytest.raises(StackError, match="at least one broker"):
        Stack(tmp_path / "stack", brokers=0, port=own_ports())
