"""What is changed of topics so that they are as their Topics say, and what is remembered of it (R25)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from mainstem_operator.api import names
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.brokers.topic_state import MoveState, PartitionState, TopicState
from mainstem_operator.topics.plan import TopicPlan, TopicsSeen, plan_topics, refused, topic_status

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


# --- Partitions, replicas and claims ---


def manifest(topic_name: str = "clicks", **spec: Any) -> TopicSpec:
    metadata = {"name": "clicks", "namespace": "prod", "creationTimestamp": "2026-01-01T00:00:00Z"}
    fields = {"clusterRef": {"name": "events"}, "topicName": topic_name, "config": {"retention.ms": 9}}
    return topic_of({"metadata": metadata, "spec": {**fields, **spec}})


def moved(*targets: tuple[int, ...]) -> dict[tuple[str, int], MoveState]:
    """Moves of partitions 0, 1, ... that are under way."""
    return {
        ("clicks", number): MoveState(target, frozenset(target) - {number})
        for number, target in enumerate(targets)
    }


def three(moves: dict[tuple[str, int], MoveState] | None = None) -> TopicsSeen:
    """A topic of three partitions, each with a replica on the broker of its number."""
    partitions = {number: PartitionState(number, (number,), frozenset({number})) for number in range(3)}
    clicks = TopicState("clicks", "id", partitions)
    return TopicsSeen({"clicks": clicks}, {}, moves or {}, dict.fromkeys(range(3)))


def test_a_topic_grows_and_its_replicas_become_more_or_fewer() -> None:
    assert plan(manifest(partitions=5), {}, three()).grow == 5
    assert plan(manifest(partitions=3), {}, three()).grow is None
    more = plan(manifest(replicas=2), {}, three()).move
    assert {key: len(replicas) for key, replicas in more.items()} == {("clicks", n): 2 for n in range(3)}
    assert all(number in replicas for (_, number), replicas in more.items()), "the copy that is there stays"
    begun = plan(manifest(replicas=2), {}, three(moved((0, 1), (1, 2))))
    assert begun.move.keys() == {("clicks", 2)}
    assert begun.under_way == {("clicks", 0), ("clicks", 1)}
    assert plan(manifest(replicas=1), {}, three()).move == {}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"partitions": 2},
            "NotSupported",
            "has 3 partitions and 2 are requested: their number can only grow",
        ),
        ({"replicas": 4}, "NotEnoughBrokers", "4 replicas need as many brokers, and 3 are alive."),
    ],
)
def test_what_cannot_be_is_reported_and_the_rest_of_the_edit_is_done(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    result = plan(manifest(**spec), {}, three())
    assert (result.grow, result.move, result.alter) == (None, {}, {"retention.ms": "9"})
    status = topic_status(manifest(**spec), result, (), three(), {}, NOW)
    (ready,) = [item for item in status["conditions"] if item["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", reason)
    assert words in ready["message"]


def test_a_topic_is_created_as_its_topic_says_and_else_as_the_brokers_do() -> None:
    nothing = TopicsSeen({}, {}, {}, dict.fromkeys(range(3)))
    assert plan(manifest(partitions=5, replicas=3), {}, nothing).create == (5, 3, {"retention.ms": "9"})
    assert plan(manifest(config={"retention.ms": None}), {}, nothing).create == (-1, -1, {})
    few = plan(manifest(replicas=4), {}, nothing)
    assert (few.create, [item.reason for item in few.refusals]) == (None, ["NotEnoughBrokers"])
    internal = plan(manifest("__state"), {}, nothing)
    assert (internal.idle, [item.reason for item in internal.refusals]) == (True, ["InternalTopic"])


def test_a_topic_that_others_have_made_anew_is_reported() -> None:
    assert plan(manifest(), {"topicId": "id"}, three()).recreated is False
    assert plan(manifest(), {"topicId": "other"}, three()).recreated is True
    assert plan(manifest(), {}, three()).recreated is False
    assert plan(manifest(), {"topicId": "id"}, TopicsSeen({}, {}, {}, {})).recreated is True


@pytest.mark.parametrize(
    ("metadata", "owner", "reasons"),
    [
        ({}, "older", ["ResourceConflict"]),
        ({"annotations": {names.PAUSE: "true"}}, None, ["ResourceConflict"]),
        ({"annotations": {names.MANAGED: "false"}}, "younger", []),
        ({"deletionTimestamp": "2026-03-01T00:00:00Z"}, "younger", []),
    ],
    ids=["there", "paused", "not managed", "being deleted"],
)
def test_of_two_topics_that_claim_one_the_oldest_has_it_until_it_gives_it_up(
    metadata: dict[str, Any], owner: str | None, reasons: list[str]
) -> None:
    pair = []
    for name, month, more in (("younger", 2, {}), ("older", 1, metadata)):
        common = {"name": name, "namespace": "prod", "creationTimestamp": f"2026-0{month}-01T00:00:00Z"}
        spec = {"clusterRef": {"name": "events"}, "topicName": "clicks", "partitions": 5}
        pair.append(topic_of({"metadata": {**common, **more}, "spec": spec}))
    plans = {item.spec.identity.name: item for item in plan_topics(pair, {}, three())}
    assert [name for name, item in plans.items() if item.grow] == ([owner] if owner else [])
    younger = plans["younger"]
    assert [item.reason for item in younger.refusals] == reasons
    if reasons:
        assert "The Topic older is older and claims the topic clicks too" in younger.refusals[0].message
        status = topic_status(younger.spec, younger, (), three(), {}, NOW)
        assert not status.keys() & {"topicId", "partitions", "replicas"}, "of the other's topic"


def test_settings_of_moves_are_left_to_who_moves() -> None:
    """Throttles go with their moves; and what limits the operator's own is not overwritten."""
    throttle, mine = "leader.replication.throttled.replicas", {"managedSettings": ["retention.ms"]}
    status = {"managedSettings": [throttle, "retention.ms"]}
    there = seen(**{throttle: "0:1", "retention.ms": "7"})
    assert plan(topic(), status, there).alter == {"retention.ms": None}
    limited = TopicsSeen(there.topics, there.settings, {}, there.racks, [("clicks", "retention.ms")])
    assert plan(topic(retention_ms="9"), mine, limited).alter == {}
    # null leaves a setting to others.
    assert plan(topic(retention_ms=None), mine, there).alter == {}


# --- What is reported ---


@pytest.mark.parametrize(
    ("annotations", "present", "status", "reason"),
    [
        ({}, "all", "True", "Synced"),
        ({}, "offline", "False", "Offline"),
        ({}, "nothing", "False", "Creating"),
        ({names.PAUSE: "true"}, "all", "True", "Paused"),
        ({names.PAUSE: "true"}, "nothing", "False", "Paused"),
        ({names.MANAGED: "false"}, "all", "True", "Unmanaged"),
    ],
)
def test_a_topic_is_ready_if_it_is_there_and_all_of_it_can_be_written(
    annotations: dict[str, str], present: str, status: str, reason: str
) -> None:
    metadata = {"name": "clicks", "namespace": "prod", "annotations": annotations}
    spec = topic_of({"metadata": metadata, "spec": {"clusterRef": {"name": "events"}}})
    partitions = {0: PartitionState(0, (0,), frozenset({0})), 1: PartitionState(1, (1,), frozenset({1}))}
    if present == "offline":
        partitions[1] = PartitionState(None, (1,), frozenset())
    topics = {} if present == "nothing" else {"clicks": TopicState("clicks", "id", partitions)}
    there = TopicsSeen(topics, {}, {}, {0: None})
    plans = plan_topics([spec], {}, there)
    result = topic_status(spec, plans[0] if plans else None, (), there, {}, NOW)
    (ready,) = [item for item in result["conditions"] if item["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == (status, reason)
    assert result.get("offlinePartitions", 0) == (1 if present == "offline" else 0)


def test_a_move_is_reported_with_the_time_of_its_begin_until_it_ends() -> None:
    spec = manifest(replicas=2)

    def told(moves: dict[tuple[str, int], MoveState], before: dict[str, Any], minute: int) -> dict[str, Any]:
        there = three(moves)
        now = NOW + dt.timedelta(minutes=minute)
        return topic_status(spec, plan(spec, before, there), (), there, before, now)

    first = told(moved((0, 1), (1, 2)), {}, 0)
    assert first["move"] == {"replicas": 2, "partitionsLeft": 2, "started": "2026-11-21T12:00:00Z"}
    later = told(moved((0, 1)), first, 5)
    assert later["move"] == {**first["move"], "partitionsLeft": 1}
    (moving,) = [item for item in later["conditions"] if item["type"] == "Reassigning"]
    assert (moving["status"], moving["message"]) == ("True", "1 of 3 partitions are being moved.")
    assert "move" not in told({}, later, 9)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("INVALID_CONFIG", "InvalidConfig"),
        ("INVALID_REPLICATION_FACTOR", "NotEnoughBrokers"),
        ("INVALID_PARTITIONS", "NotSupported"),
        ("POLICY_VIOLATION", "NotSupported"),
        ("TOPIC_EXCEPTION", "InvalidName"),
        ("REQUEST_TIMED_OUT", "KafkaError"),
    ],
)
def test_what_brokers_refuse_is_reported_by_its_kind(code: str, reason: str) -> None:
    assert refused(code, "Why.") == Condition("Ready", False, reason, "Why.")
