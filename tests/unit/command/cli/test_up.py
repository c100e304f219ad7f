"""The settings that `up` gives to brokers, and what it does about processes that end."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mainstem.cli import up
from mainstem.cli.output import Output
from mainstem.cli.up import RestartBudget, broker_settings_of
from mainstem.errors import BadInput, StackError
from mainstem.local.child_process import ProcessExit

if TYPE_CHECKING:
    from mainstem.local.stack import Stack


def test_durations_are_given_to_brokers_in_milliseconds() -> None:
    """R36. As in `topic` and `config`; a broker takes numbers only."""
    pairs = ["log.retention.ms=7d", "log.retention.check.interval.ms=5000", "num.partitions=3"]
    assert broker_settings_of(pairs) == {
        "log.retention.ms": "604800000",
        "log.retention.check.interval.ms": "5000",
        "num.partitions": "3",
    }
    assert broker_settings_of(None) == {}


def test_a_setting_that_brokers_do_not_know_is_refused_with_similar_names() -> None:
    """R36."""
    with pytest.raises(BadInput, match=r"no setting log\.retention\.mss: did you mean log\.retention\.ms"):
        broker_settings_of(["log.retention.mss=7d"])


def test_a_process_that_ends_now_and_then_is_started_again_for_ever() -> None:
    budget = RestartBudget(limit=3, window_seconds=60)
    assert all(budget.allows("Broker 1", now_seconds=31.0 * number) for number in range(100))


def test_a_process_that_ends_again_and_again_is_given_up() -> None:
    budget = RestartBudget(limit=3, window_seconds=60)
    assert [budget.allows("Broker 1", now_seconds=float(second)) for second in (0, 10, 20)] == [
        True,
        True,
        False,
    ]


def test_each_process_has_its_own_budget() -> None:
    budget = RestartBudget(limit=2, window_seconds=60)
    assert budget.allows("Broker 1", 0)
    assert budget.allows("Broker 2", 1)
    assert not budget.allows("Broker 1", 2)


class PlayedStack:
    """A stack whose broker 1 has ended at some of the looks at it. Its restarts fail so often at first."""

    def __init__(self, ends_at: Collection[int], refusals: int = 0) -> None:
        self.looks = self.restarts = 0
        self.elections: list[int] = []
        self._ends_at, self._refusals = ends_at, refusals

    def unexpected_exits(self) -> list[ProcessExit]:
        self.looks += 1
        if self.looks not in self._ends_at:
            return []
        return [ProcessExit("Broker 1", "killed by SIGKILL", Path("/stack/broker-1/server.log"))]

    def restart(self, _name: str) -> None:
        self.restarts += 1
        if self.restarts <= self._refusals:
            raise StackError("Broker 1 stopped with exit code 1: no space. Log: server.log")

    def process_id(self, _name: str) -> int:
        return 7

    def restore_preferred_leaders(self) -> bool:
        """Every other time all partitions are led by their preferred leaders."""
        self.elections.append(self.restarts)
        return len(self.elections) % 2 == 0


class Ended(Exception):
    """For tests that end the supervision."""


def supervise(
    monkeypatch: pytest.MonkeyPatch, stack: PlayedStack, pause_s: float = 1.0, *, elect: bool = True
) -> None:
    """Supervise the stack for a hundred pauses, whatever their length."""
    pauses = 0

    def sleep(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses > 100:
            raise Ended

    monkeypatch.setattr(up, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: pauses * pause_s))
    up._supervise(Output(), cast("Stack", stack), elect=elect)


@pytest.mark.parametrize(
    ("refusals", "words"), [(0, "killed by SIGKILL, now pid 7"), (2, "exit code 1: no space")]
)
def test_a_broker_that_cannot_be_kept_running_is_given_up_after_three_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusals: int, words: str
) -> None:
    """R36: also one of which a start fails. Each restart is reported."""
    stack = PlayedStack(range(1, 100), refusals)
    with pytest.raises(StackError) as error:
        supervise(monkeypatch, stack)
    assert str(error.value) == (
        "Broker 1 was killed by SIGKILL. Log: /stack/broker-1/server.log\n"
        "It ended 3 times within a minute, so the stack stops."
    )
    assert stack.restarts == 2
    assert " ".join(capsys.readouterr().err.split()).count(words) == 2


def test_a_broker_that_ends_now_and_then_is_restarted_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = PlayedStack(range(1, 50))
    with pytest.raises(Ended):
        supervise(monkeypatch, stack, pause_s=20)
    assert stack.restarts == 49


@pytest.mark.parametrize(("elect", "elections"), [(True, [0, 0, 1, 1]), (False, [])])
def test_preferred_leaders_are_elected_until_they_lead_and_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, elect: bool, elections: list[int]
) -> None:
    stack = PlayedStack({5})
    with pytest.raises(Ended):
        supervise(monkeypatch, stack, elect=elect)
    assert stack.elections == elections
