"""The settings that `up` gives to brokers, and how often it starts a process again."""

from __future__ import annotations

import pytest

from mainstem.cli.up import RestartBudget, broker_settings_of
from mainstem.errors import BadInput


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
