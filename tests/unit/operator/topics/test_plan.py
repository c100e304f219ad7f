"""What is changed of topics so that they are as their Topics say, and what is remembered of it (R25)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.resources import TopicSpec, topic_of
from mainstem_operator.brokers.topic_state import PartitionState, TopicState
from mainstem_operator.topics.plan import TopicPlan, TopicsSeen, plan_topics, topic_status

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
REFUSED = Condition("Ready", False, "InvalidConfig", "retention.ms must be a number.")


def topic(name: str = "clicks", created: str = "2026-01-01T00:00:00Z", **config: Any) -> TopicSpec:
    metadata = {"name": name, "namespace": "prod", "creationTimestamp": created}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    spec = {"clusterRef": {"name": "events"}, "topicName": "clicks", "config": settings}
    return topic_of({"metadata": metadata, "spec": spec})


def seen(**settings: str) -> TopicsSeen:
    clicks = TopicState("clicks", "id", {0: PartitionState(0, (0,), frozenset({0}))})
    present = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicsSeen({"clicks": clicks}, {"clicks": present}, {}, {0: None})


def plan(spec: TopicSpec, status: dict[str, Any], there: TopicsSeen) -> TopicPlan:
    (result,) = plan_topics([spec], {spec.identity.key: status}, there)
    return result


def test_a_setting_that_was_removed_is_taken_back_even_if_the_same_edit_was_refused_at_first() -> None:
    status = topic_status(topic(segment_ms=7), plan(topic(segment_ms=7), {}, seen()), (), seen(), {}, NOW)
    assert status["managedSettings"] == ["segment.ms"]
    # The edit removes one setting and gives another a value that brokers refuse: they change neither.
    there = seen(segment_ms="7")
    wrong = plan(topic(retention_ms="soon"), status, there)
    assert wrong.alter == {"retention.ms": "soon", "segment.ms": None}
    status = topic_status(topic(retention_ms="soon"), wrong, (REFUSED,), there, status, NOW)
    right = plan(topic(retention_ms="9"), status, there)
    assert right.alter == {"retention.ms": "9", "segment.ms": None}
    status = topic_status(topic(retention_ms="9"), right, (), there, status, NOW)
    assert status["managedSettings"] == ["retention.ms"]
    # It is no longer this Topic's: what somebody else sets stays.
    assert plan(topic(retention_ms="9"), status, seen(segment_ms="8", retention_ms="9")).alter == {}


def test_a_topic_that_loses_its_name_to_an_older_one_remembers_what_it_has_set() -> None:
    younger, older = topic("younger", "2026-02-01T00:00:00Z"), topic("older")
    status = {"managedSettings": ["segment.ms"]}
    plans = plan_topics([younger, older], {younger.identity.key: status}, seen(segment_ms="7"))
    result = next(item for item in plans if item.spec is younger)
    assert result.idle
    there = topic_status(younger, result, (), seen(segment_ms="7"), status, NOW)
    assert there["managedSettings"] == ["segment.ms"]


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ("false", "False"), ("0.5", "0.50"), ("604800000", " 604800000"), ("7", "007"),
        ("0.5", ".5"), ("compact,delete", "compact, delete"), ("compact,delete", "delete,compact"),
    ],
)  # fmt: skip
def test_a_setting_that_is_spelled_otherwise_is_not_set_again(present: str, wanted: str) -> None:
    """Brokers print the value that they have parsed; an idle operator writes nothing."""
    assert plan(topic(some_setting=wanted), {}, seen(some_setting=present)).alter == {}


@pytest.mark.parametrize(
    ("present", "wanted"),
    [("false", "True"), ("0.5", "0.51"), ("7", "70"), ("1", "true"), ("compact,delete", "compact")],
)
def test_a_setting_of_another_value_is_set(present: str, wanted: str) -> None:
    assert plan(topic(some_setting=wanted), {}, seen(some_setting=present)).alter == {"some.setting": wanted}
