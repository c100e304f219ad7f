from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.api.topics import PARTITIONS_PER_TOPIC_MAX, check_topic_name
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.config import TOPIC_SETTINGS
from mainstem_broker.errors import InvalidTopic
from mainstem_broker.protocol.wire import Body


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    if assignments is not None:
        partitions = replicas = -1
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in (assignments or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


async def create(
    broker: LocalBroker,
    *topics: dict[str, Any],
    timeout_ms: int = 20,
    validate_only: bool = False,
    version: int = 7,
) -> Body:
    asked = {"topics": topics, "timeout": timeout_ms, "validate_only": validate_only}
    return await broker.answer("CreateTopics", version, asked)


def results(body: Body) -> list[tuple[str, str]]:
    return [(result["name"], ErrorCode(result["error_code"]).name) for result in body["topics"]]


def refusal(broker: LocalBroker, asked: dict[str, Any]) -> tuple[str, str]:
    """(error, message) of a topic that must be refused, with nothing created."""
    before = dict(broker.view.topics)
    body = run(create(broker, asked))
    assert broker.view.topics == before
    (result,) = body["topics"]
    return ErrorCode(result["error_code"]).name, result["error_message"] or ""


# --- Names ---


@pytest.mark.parametrize("name", ["t", "T-1_b.c", "...", "a" * 249, "-", "0"])
def test_a_name_may_be_made_of_letters_digits_dots_underscores_and_dashes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (None, "must not be empty"),
        ("", "must not be empty"),
        (".", r"must not be '\.'"),
        ("..", r"must not be '\.\.'"),
        ("a" * 250, "at most 249 characters, this one 250"),
        ("a b", "characters other than"),
        ("ä", "characters other than"),
        ("a/b", "characters other than"),
        ("a\n", "characters other than"),
        ("\N{ARABIC-INDIC DIGIT ONE}", "characters other than"),
    ],
)
def test_a_name_that_no_topic_can_have_is_refused_with_the_rule(name: str | None, reason: str) -> None:
    with pytest.raises(InvalidTopic, match=reason):
        check_topic_name(name)


@given(st.text())
def test_every_name_that_is_taken_is_the_name_of_a_file(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopic:
        return
    assert name.isascii()
    assert not set(name) & set("/\0")
    assert len(f"{name}-9999") <= 255


# --- CreateTopics ---


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_and_led_before_the_answer(broker: LocalBroker, version: int) -> None:
    body = run(create(broker, topic("t", 3, configs={"retention.ms": "5"}), version=version))
    assert results(body) == [("t", "none")]
    created = broker.view.topics["t"]
    assert created.all_led(range(3))
    assert created.config == {"retention.ms": "5"}
    (result,) = body["topics"]
    assert result["topic_id"] == created.topic_id
    assert (result["num_partitions"], result["replication_factor"]) == (3, 1)


def test_the_answer_tells_the_topics_settings(broker: LocalBroker) -> None:
    """KIP-525."""
    (result,) = run(create(broker, topic("t", configs={"retention.ms": "5"})))["topics"]
    told = {config["name"]: config for config in result["configs"]}
    assert told.keys() == TOPIC_SETTINGS.keys()
    assert (told["retention.ms"]["value"], told["retention.ms"]["config_source"]) == ("5", 1)
    assert (told["segment.bytes"]["value"], told["segment.bytes"]["config_source"]) == ("1073741824", 5)


def test_counts_of_minus_one_are_the_brokers_defaults(broker: LocalBroker) -> None:
    """KIP-464."""
    broker.context.config.values["num.partitions"] = 4
    run(create(broker, topic("t", -1, -1)))
    assert len(broker.view.topics["t"].assignment.replicas) == 4


def test_partitions_spread_over_the_live_brokers(broker: LocalBroker) -> None:
    broker.set_live(1, 3)
    run(create(broker, topic("t", 4), timeout_ms=0))
    leaders = [replicas[0] for replicas in broker.view.topics["t"].assignment.replicas.values()]
    assert sorted(leaders) == [1, 1, 3, 3]


def test_a_manual_assignment_is_taken_as_it_is(broker: LocalBroker) -> None:
    body = run(create(broker, topic("t", assignments={1: [3], 0: [2]})))
    assert results(body) == [("t", "none")]
    assert broker.view.topics["t"].assignment.replicas == {0: (2,), 1: (3,)}


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (topic("a b"), "invalid_topic_exception", "characters other than"),
        (topic("t", 0), "invalid_partitions", "at least one partition"),
        (topic("t", -2), "invalid_partitions", "at least one partition"),
        (topic("t", PARTITIONS_PER_TOPIC_MAX + 1), "policy_violation", "At most 10000 partitions"),
        (topic("t", 1, 0), "invalid_replication_factor", "larger than 0"),
        (topic("t", 1, 4), "invalid_replication_factor", "larger than the number of available brokers: 3"),
        (topic("t", assignments={0: []}), "invalid_replica_assignment", "are none"),
        (topic("t", assignments={0: [1, 1]}), "invalid_replica_assignment", "name a broker twice"),
        (
            topic("t", assignments={0: [1], 2: [1]}),
            "invalid_replica_assignment",
            "number its partitions 0 to n-1",
        ),
        (topic("t", assignments={1: [1]}), "invalid_replica_assignment", "number its partitions 0 to n-1"),
        (topic("t", assignments={-1: [1]}), "invalid_replica_assignment", "number its partitions 0 to n-1"),
        (
            topic("t", assignments={0: [1, 2], 1: [1]}),
            "invalid_replica_assignment",
            "the same number of replicas",
        ),
        (
            topic("t", assignments={0: [9]}),
            "invalid_replica_assignment",
            r"no live brokers with the ids \[9\]",
        ),
        (topic("t", assignments={0: [1]}) | {"num_partitions": 1}, "invalid_request", "leave out one"),
        (topic("t", configs={"retention": "1"}), "invalid_config", "Unknown topic config name: retention"),
        (
            topic("t", configs={"retention.ms": "soon"}),
            "invalid_config",
            "retention.ms: it must be of type long",
        ),
        (topic("t", configs={"retention.ms": None}), "invalid_config", "needs a value"),
    ],
)
def test_what_cannot_be_created_is_refused_with_the_reason(
    broker: LocalBroker, asked: dict[str, Any], error: str, message: str
) -> None:
    got = refusal(broker, asked)
    assert got[0] == error
    assert re.search(message, got[1])


def test_a_partition_numbered_twice_is_refused(broker: LocalBroker) -> None:
    asked = topic("t", assignments={0: [1]})
    asked["assignments"] *= 2
    assert refusal(broker, asked)[0] == "invalid_replica_assignment"


def test_a_name_that_is_taken_is_refused_also_while_it_is_deleted(broker: LocalBroker) -> None:
    broker.create("t")
    assert refusal(broker, topic("t")) == ("topic_already_exists", "Topic 't' already exists.")
    broker.view.pending_deletions.add("t")
    assert refusal(broker, topic("t"))[1] == "Topic 't' already exists and is being deleted."


@pytest.mark.parametrize(("existing", "name"), [("a.b", "a_b"), ("a_b", "a.b"), ("a_b.c", "a.b_c")])
def test_names_that_differ_only_in_dots_and_underscores_collide(
    broker: LocalBroker, existing: str, name: str
) -> None:
    broker.create(existing)
    assert refusal(broker, topic(name)) == (
        "invalid_topic_exception",
        f"Topic '{name}' collides with existing topic '{existing}'.",
    )


def test_a_topic_named_twice_in_a_request_is_refused_twice_and_others_are_created(
    broker: LocalBroker,
) -> None:
    body = run(create(broker, topic("t"), topic("u"), topic("t", 2)))
    assert results(body) == [("t", "invalid_request"), ("u", "none"), ("t", "invalid_request")]
    assert list(broker.view.topics) == ["u"]


def test_to_validate_is_to_answer_as_if_and_to_create_nothing(broker: LocalBroker) -> None:
    async def test() -> None:
        body = await create(broker, topic("t", 2), topic("u", 0), validate_only=True)
        assert results(body) == [("t", "none"), ("u", "invalid_partitions")]
        assert body["topics"][0]["num_partitions"] == 2
        assert body["topics"][0]["topic_id"].int == 0
        assert broker.view.topics == {}

    run(test())


def test_a_controller_that_is_slow_makes_the_request_time_out_and_the_topic_stands(
    broker: LocalBroker,
) -> None:
    broker.cluster.controller_is_down = True
    assert results(run(create(broker, topic("t")))) == [("t", "request_timed_out")]
    assert "t" in broker.view.topics


def test_a_timeout_of_zero_does_not_wait(broker: LocalBroker) -> None:
    broker.cluster.controller_is_down = True
    assert results(run(create(broker, topic("t"), timeout_ms=0))) == [("t", "none")]


def test_a_zookeeper_that_does_not_answer_is_a_timeout_not_a_lost_connection(broker: LocalBroker) -> None:
    broker.cluster.failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert results(run(create(broker, topic("t")))) == [("t", "request_timed_out")]


def test_a_name_that_nearly_fills_a_string_is_refused_in_a_shorter_one(broker: LocalBroker) -> None:
    asked = topic("t", configs={"x" * 32_700: "1"})
    for version in range(2, 8):
        (result,) = run(create(broker, asked, version=version))["topics"]
        assert ErrorCode(result["error_code"]).name == "invalid_config"


# --- DeleteTopics ---


async def delete(
    broker: LocalBroker, asked: list[Any], version: int, timeout_ms: int = 20
) -> list[tuple[Any, str]]:
    field = "topics" if version >= 6 else "topic_names"
    body = await broker.answer("DeleteTopics", version, {field: asked, "timeout": timeout_ms})
    return [(result["name"], ErrorCode(result["error_code"]).name) for result in body["responses"]]


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name_one_by_one(broker: LocalBroker, version: int) -> None:
    async def test() -> None:
        broker.create("t")
        names: list[Any] = ["t", "nowhere"]
        asked = [{"name": name, "topic_id": None} for name in names] if version == 6 else names
        assert await delete(broker, asked, version) == [
            ("t", "none"),
            ("nowhere", "unknown_topic_or_partition"),
        ]
        assert broker.view.topics == {}
        assert broker.replicas.find("t", 0) is None

    run(test())


def test_topics_are_deleted_by_id(broker: LocalBroker) -> None:
    async def test() -> None:
        topic_id = broker.create("t")
        asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": uuid4()}]
        assert await delete(broker, asked, 6) == [("t", "none"), (None, "unknown_topic_id")]
        assert await delete(broker, asked[:1], 6) == [(None, "unknown_topic_id")]

    run(test())


def test_a_deletion_that_names_nothing_finds_nothing(broker: LocalBroker) -> None:
    asked = [{"name": None, "topic_id": UUID(int=0)}]
    assert run(delete(broker, asked, 6)) == [(None, "unknown_topic_or_partition")]


def test_a_broker_may_not_allow_deletion(broker: LocalBroker) -> None:
    broker.create("t")
    broker.context.config.values["delete.topic.enable"] = False
    assert run(delete(broker, ["t"], 5)) == [("t", "invalid_request")]
    assert "t" in broker.view.topics


def test_a_deletion_nobody_carries_out_times_out_and_stands(broker: LocalBroker) -> None:
    broker.create("t")
    broker.cluster.controller_is_down = True

    async def test() -> None:
        assert await delete(broker, ["t"], 5) == [("t", "request_timed_out")]
        assert broker.view.pending_deletions == {"t"}
        assert await delete(broker, ["t"], 5, timeout_ms=0) == [("t", "none")]

    run(test())


# --- CreatePartitions ---


async def grow(
    broker: LocalBroker,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
    *,
    version: int = 3,
    validate_only: bool = False,
) -> tuple[str, str]:
    manual = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
    asked = {
        "topics": [{"name": name, "count": count, "assignments": manual}],
        "timeout": 20,
        "validate_only": validate_only,
    }
    (result,) = (await broker.answer("CreatePartitions", version, asked))["results"]
    assert result["name"] == name
    return ErrorCode(result["error_code"]).name, result.get("error_message") or ""


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_and_its_old_partitions_stay(broker: LocalBroker, version: int) -> None:
    broker.create("t", (1, 2))
    assert run(grow(broker, "t", 5, version=version))[0] == "none"
    replicas = broker.view.topics["t"].assignment.replicas
    assert (len(replicas), replicas[0], replicas[1]) == (5, (1,), (2,))
    assert broker.view.topics["t"].all_led(range(5))


def test_a_dead_broker_of_an_old_partition_does_not_hold_up_growth(broker: LocalBroker) -> None:
    async def test() -> None:
        await create(broker, topic("t", assignments={0: [3]}))
        broker.set_live(1, 2)
        broker.view.topics["t"].states.clear()
        broker.cluster.controller_is_down = True
        assert (await grow(broker, "t", 2))[0] == "request_timed_out"
        broker.cluster.controller_is_down = False
        broker.elect("t")
        assert (await grow(broker, "t", 3))[0] == "none"

    run(test())


@pytest.mark.parametrize(
    ("count", "assignments", "error", "message"),
    [
        (2, None, "invalid_partitions", "has 2 partitions, and a topic can only grow: 2 is not more"),
        (1, None, "invalid_partitions", "can only grow"),
        (-1, None, "invalid_partitions", "can only grow"),
        (PARTITIONS_PER_TOPIC_MAX + 3, None, "policy_violation", "At most 10000"),
        (4, [[1]], "invalid_replica_assignment", "grows by 2 partitions, but 1 assignments"),
        (3, [[1, 2]], "invalid_replica_assignment", "the same number of replicas"),
        (3, [[7]], "invalid_replica_assignment", "no live brokers"),
        (3, [[]], "invalid_replica_assignment", "are none"),
    ],
)
def test_growth_that_cannot_be_is_refused_with_the_reason(
    broker: LocalBroker, count: int, assignments: list[list[int]] | None, error: str, message: str
) -> None:
    broker.create("t", (1, 2))
    got = run(grow(broker, "t", count, assignments))
    assert got[0] == error
    assert message in got[1]
    assert len(broker.view.topics["t"].assignment.replicas) == 2


def test_growth_by_hand_is_taken_as_it_is(broker: LocalBroker) -> None:
    broker.create("t", (1,))
    assert run(grow(broker, "t", 3, [[3], [2]]))[0] == "none"
    assert broker.view.topics["t"].assignment.replicas == {0: (1,), 1: (3,), 2: (2,)}


def test_growth_that_is_only_validated_changes_nothing(broker: LocalBroker) -> None:
    broker.create("t", (1,))
    assert run(grow(broker, "t", 3, validate_only=True))[0] == "none"
    assert len(broker.view.topics["t"].assignment.replicas) == 1


def test_an_unknown_topic_does_not_grow(broker: LocalBroker) -> None:
    assert run(grow(broker, "t", 3))[0] == "unknown_topic_or_partition"


# --- DeleteRecords ---


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset(broker: LocalBroker, version: int) -> None:
    """R4; -1 is the high watermark."""
    broker.create("t", (1, 1, 1, 2))
    for index in range(3):
        broker.append("t", [b"a", b"b", b"c"], index=index)

    async def test() -> None:
        offsets = {0: 2, 1: -1, 2: 4, 3: 0, 9: 0}
        asked = {
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": i, "offset": offset} for i, offset in offsets.items()],
                }
            ],
            "timeout": 1000,
        }
        (answer,) = (await broker.answer("DeleteRecords", version, asked))["topics"]
        assert [
            (p["partition_index"], p["low_watermark"], ErrorCode(p["error_code"]).name)
            for p in answer["partitions"]
        ] == [
            (0, 2, "none"),
            (1, 3, "none"),
            (2, -1, "offset_out_of_range"),
            (3, -1, "not_leader_or_follower"),
            (9, -1, "unknown_topic_or_partition"),
        ]
        assert broker.partition("t", 0).log.log_start_offset == 2

    run(test())
