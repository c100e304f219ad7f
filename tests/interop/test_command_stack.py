"""The local stack as a library: what tests, benches and the demo use."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import wait_until

from mainstem.cluster_probe import ask_cluster
from mainstem.errors import StackError
from mainstem.ports import free_ports
from mainstem.stack import Stack
from mainstem.zookeeper_process import serves

pytestmark = pytest.mark.processes


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
        with pytest.raises(StackError, match="Broker 1 does not run"):
            stack.broker_pid(1)
        stack.start_broker(1)
        with pytest.raises(StackError, match="Broker 1 runs already"):
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
        assert stack.ended_by_themselves() == {}
        pids = [stack.broker_pid(1), stack.broker_pid(2)]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not serves(port)


def test_what_ended_by_itself_is_named_and_started_again(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", port=0) as stack:
        psutil.Process(stack.broker_pid(1)).kill()
        wait_until(stack.ended_by_themselves, "the broker's end is seen")
        assert list(stack.ended_by_themselves()) == ["Broker 1"]
        stack.restart("Broker 1")
        assert stack.ended_by_themselves() == {}


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


def test_zookeeper_leaves_a_port_that_is_a_brokers_now(tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", port=0) as first:
        port = first.zookeeper_port
    with Stack(tmp_path / "stack", port=port) as second:
        assert second.broker_port(1) == port
        assert second.zookeeper_port != port
        assert second.cluster_id == first.cluster_id


def test_ports_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="does not leave room for 3 brokers"):
        Stack(tmp_path / "stack", brokers=3, port=65_534).start()
    with pytest.raises(StackError, match="at least one broker"):
        Stack(tmp_path / "stack", brokers=0, port=free_ports())
