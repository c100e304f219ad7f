"""The order of starts in the local stack, and what it does about processes that ended (R36)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from mainstem.errors import StackError
from mainstem.local import stack as module
from mainstem.local.child_process import ProcessExit
from mainstem.local.stack import Stack

ALL: Final = ["ZooKeeper", "Broker 1", "Broker 2", "Schema registry"]


class PlayedProcess:
    """A process of the stack that runs from its start on."""

    log: list[str]
    """What was done with all of them."""
    broken: set[str]
    """Names of those that do not become ready."""

    def __init__(self, name: str, _command: object, log_path: Path) -> None:
        self.name, self.log_path = name, log_path
        self.running = self.exited_unexpectedly = False

    @property
    def pid(self) -> int | None:
        return ALL.index(self.name) + 1 if self.running else None

    def start(self) -> None:
        self.log.append(f"start {self.name}")
        self.running, self.exited_unexpectedly = True, False

    def wait_until(self, ready: Callable[[], bool], _timeout_s: float) -> None:
        if self.name in self.broken:
            raise StackError(f"{self.name} was not ready.")
        assert ready()

    def end(self) -> None:
        self.running, self.exited_unexpectedly = False, True

    abort_start = end

    def request_stop(self) -> None:
        self.log.append(f"stop {self.name}")
        self.running = False

    def wait_stopped(self, _timeout_s: float) -> None:
        self.log.append(f"await {self.name}")

    def exit(self) -> ProcessExit:
        return ProcessExit(self.name, "killed by SIGKILL", self.log_path)


class PlayedZooKeeper:
    """ZooKeeper on port 2181."""

    port = 2181

    def __init__(self, directory: Path, *_: int) -> None:
        self.process = PlayedProcess("ZooKeeper", [], directory)
        self.avoided: list[int] = []

    def start(self, _timeout_s: float, avoid: list[int]) -> None:
        self.avoided = avoid
        self.process.start()

    def start_again(self, _timeout_s: float) -> None:
        self.process.start()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One that is started, with two brokers and a schema registry."""
    monkeypatch.setattr(PlayedProcess, "log", [], raising=False)
    monkeypatch.setattr(PlayedProcess, "broken", set(), raising=False)
    monkeypatch.setattr(module, "ChildProcess", PlayedProcess)
    monkeypatch.setattr(module, "ZooKeeperProcess", PlayedZooKeeper)
    monkeypatch.setattr(module, "hold_port", lambda _port: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "registry_is_ready", lambda _url: True)
    answer = SimpleNamespace(broker_ids={1, 2}, cluster_id="c")
    monkeypatch.setattr(module, "ask_cluster", lambda _port: answer)
    with Stack(tmp_path / "stack", 2, port=9092, schema_registry_port=8081) as started:
        yield started


def process(stack: Stack, name: str) -> Any:
    return next(process for process in stack._processes() if process.name == name)


def pids(stack: Stack) -> list[int | None]:
    state = json.loads((stack.data_directory / "stack.json").read_text())
    return [
        state["zookeeper"]["pid"],
        *(broker["pid"] for broker in state["brokers"]),
        state["schema_registry"]["pid"],
    ]


def test_everything_starts_after_what_it_needs_and_stops_before_it(stack: Stack) -> None:
    assert PlayedProcess.log == [f"start {name}" for name in ALL]
    assert pids(stack) == [1, 2, 3, 4]
    zookeeper: Any = stack._zookeeper
    assert zookeeper.avoided == [9092, 9093]
    assert len(stack._held_ports) == 2, "nobody else gets the port of a broker that is down for a while"
    PlayedProcess.log.clear()
    stack.stop()
    assert stack._held_ports == []
    assert PlayedProcess.log == [
        *("stop Schema registry", "await Schema registry"),
        *("stop Broker 1", "stop Broker 2", "await Broker 1", "await Broker 2"),
        *("stop ZooKeeper", "await ZooKeeper"),
    ]
    assert not (stack.data_directory / "stack.json").exists()


@pytest.mark.parametrize("name", ALL)
def test_what_ended_by_itself_is_named_and_started_again(stack: Stack, name: str) -> None:
    process(stack, name).end()
    (ended,) = stack.unexpected_exits()
    assert str(ended) == f"{name} was killed by SIGKILL. Log: {process(stack, name).log_path}"
    PlayedProcess.log.clear()
    stack.restart(name)
    assert PlayedProcess.log == [f"start {name}"]
    assert stack.unexpected_exits() == []
    assert pids(stack) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ALL[1:])
def test_a_process_whose_restart_fails_is_named_until_a_restart_succeeds(stack: Stack, name: str) -> None:
    process(stack, name).end()
    PlayedProcess.broken.add(name)
    for _ in range(2):
        with pytest.raises(StackError, match=f"{name} was not ready"):
            stack.restart(name)
        assert [ended.name for ended in stack.unexpected_exits()] == [name]
        assert pids(stack)[ALL.index(name)] is None
    PlayedProcess.broken.clear()
    stack.restart(name)
    assert stack.unexpected_exits() == []
    assert pids(stack) == [1, 2, 3, 4]


def test_zookeeper_is_started_again_before_the_brokers_that_need_it(stack: Stack) -> None:
    """A broker that starts without ZooKeeper waits for it without an end, so nobody waits for that broker."""
    for name in ("Broker 1", "ZooKeeper"):
        process(stack, name).end()
    assert [ended.name for ended in stack.unexpected_exits()] == ["ZooKeeper", "Broker 1"]
    with pytest.raises(StackError, match="ZooKeeper was killed by SIGKILL"):
        stack.restart("Broker 1")
    for ended in stack.unexpected_exits():
        stack.restart(ended.name)
    assert stack.unexpected_exits() == []


@pytest.mark.parametrize(
    ("answer", "is_ready"), [(None, False), ({1}, False), ({1, 2}, True), ({1, 2, 3}, True)]
)
def test_a_broker_is_ready_once_it_answers_and_lists_all_others(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, answer: set[int] | None, is_ready: bool
) -> None:
    seen = None if answer is None else SimpleNamespace(broker_ids=answer, cluster_id="c")
    monkeypatch.setattr(module, "ask_cluster", lambda _port: seen)
    assert stack._lists_all(1, [1, 2]) is is_ready


def test_a_stack_that_cannot_start_stops_what_it_started_and_says_why(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.stop()
    PlayedProcess.log.clear()
    PlayedProcess.broken.add("Broker 2")
    with pytest.raises(StackError, match="Broker 2 was not ready"):
        stack.start()
    assert PlayedProcess.log[-2:] == ["stop ZooKeeper", "await ZooKeeper"]
    assert "stop Broker 1" in PlayedProcess.log
    assert not stack._folder.is_open


@pytest.mark.parametrize(("looks", "is_taken"), [(4, False), (1000, True)])
def test_a_port_that_somebody_has_is_waited_for_a_little_and_then_named(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, looks: int, is_taken: bool
) -> None:
    """The children of a stack that was just killed still have theirs."""
    stack.stop()
    tries: list[int] = []

    def hold(port: int) -> Any:
        tries.append(port)
        return None if len(tries) < looks else SimpleNamespace(close=lambda: None)

    now_s = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda _seconds: None)
    monkeypatch.setattr(module, "hold_port", hold)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_PORT_TIMEOUT_SECONDS", 10)
    monkeypatch.setattr(module, "free_ports", lambda _count: 7000)
    if is_taken:
        with pytest.raises(
            StackError, match=r"Port 9092 of 127\.0\.0\.1 is taken by another program: .*--port 7000"
        ):
            stack.start()
        assert not stack._folder.is_open
    else:
        stack.start()
        assert tries == [9092] * looks + [9093]


@pytest.mark.parametrize(
    ("running", "silent", "answer"),
    [
        ([1, 2], [], True),
        ([1, 2], [9092], True),
        ([2], [], True),
        ([1], [9092], False),
        ([], [], False),
    ],
)
def test_any_broker_that_answers_elects_preferred_leaders(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, running: list[int], silent: list[int], answer: bool
) -> None:
    asked: list[int] = []

    def elect(address: tuple[str, int]) -> bool:
        asked.append(address[1])
        if address[1] in silent:
            raise ConnectionRefusedError
        return True

    monkeypatch.setattr(module, "restore_preferred_leaders", elect)
    for broker_id in stack.broker_ids:
        process(stack, f"Broker {broker_id}").running = broker_id in running
    assert stack.restore_preferred_leaders() is answer
    assert len(asked) <= len(silent) + 1
