"""A cluster that an earlier run has left is used only if all its nodes work; else it is made anew (R38)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.e2e.machine import cluster
from tests.e2e.machine.commands import MachineError
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import Places

NODES = ("mainstem-control-plane", "mainstem-worker", "mainstem-worker2", "mainstem-worker3")


@pytest.mark.parametrize(
    ("nodes", "answering", "fault"),
    [
        (NODES, NODES, ""),
        (NODES, NODES[:2], "These nodes do not answer: mainstem-worker2, mainstem-worker3."),
        (NODES, NODES[1:], "These nodes do not answer: mainstem-control-plane."),
        (NODES[:3], NODES[:3], "It has 2 workers, not 3."),
        (NODES[1:], NODES[1:], "It has no control plane."),
    ],
)
def test_nodes_can_be_used_that_are_all_there_and_answer(
    nodes: Sequence[str], answering: Sequence[str], fault: str
) -> None:
    assert cluster.fault_of(nodes, answering, 3) == fault


class PlayedMachine:
    """kind, Docker and kubectl of a cluster whose nodes Kubernetes still calls ready."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.deleted = False

    def run(self, command: Sequence[Any], **_: Any) -> str:
        match list(command):
            case ["kind", "get", "clusters", *_]:
                return "mainstem\n"
            case ["kind", "get", "nodes", *_]:
                return "\n".join(NODES)
        return ""

    def succeeds(self, command: Sequence[Any], *_: Any) -> bool:
        return command[:2] == ["docker", "exec"] and command[2] not in self.stopped

    def delete(self, *_: Any) -> None:
        self.deleted = True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedMachine]:
    played = PlayedMachine()
    seconds = count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    for name, value in {
        "run": played.run,
        "succeeds": played.succeeds,
        "delete": played.delete,
        "time": clock,
    }.items():
        monkeypatch.setattr(cluster, name, value)
    yield played
    assert next(seconds) < 60, "it is decided within a short time"


@pytest.mark.parametrize("stopped", [(), NODES[1:], NODES[3:]])
def test_a_cluster_with_stopped_nodes_is_removed_at_once(
    machine: PlayedMachine, tmp_path: Path, stopped: Sequence[str]
) -> None:
    machine.stopped = set(stopped)
    engine = cast(Engine, SimpleNamespace(environment={}))
    assert cluster.stands(engine, Places(tmp_path, tmp_path)) is not bool(stopped)
    assert machine.deleted is bool(stopped)


def test_a_cluster_whose_nodes_kubernetes_does_not_call_ready_is_removed(
    machine: PlayedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[Any], **settings: Any) -> str:
        if command[0] == "kubectl":
            raise MachineError("timed out waiting for the condition")
        return machine.run(command, **settings)

    monkeypatch.setattr(cluster, "run", run)
    engine = cast(Engine, SimpleNamespace(environment={}))
    assert not cluster.stands(engine, Places(tmp_path, tmp_path))
    assert machine.deleted
