from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.support.waiting import let_pass_async
from tests.unit.broker.api.brokers import LocalBroker, run
from tests.unit.broker.api.topic_requests import create, refusal, results, topic

from mainstem_broker.api.topics import PARTITIONS_PER_TOPIC_MAX, check_topic_name
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS
from mainstem_broker.errors import InvalidTopic


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


async def test_the_answer_waits_until_the_log_of_a_leader_here_is_open(broker: LocalBroker) -> None:
    """On a slow disk, that is longer than a Produce request waits for it."""
    broker.context.opening.add(("t", 0))
    created = asyncio.ensure_future(create(broker, topic("t", assignments={0: [1]}), timeout_ms=60_000))
    await let_pass_async(0.05, "it would have been answered by then")
    assert not created.done()
    broker.context.opening.remove([("t", 0)])
    assert results(await created) == [("t", "none")]
    broker.context.opening.add(("slow", 1))
    both = await create(broker, topic("slow", assignments={0: [2], 1: [1]}), topic("fast"))
    assert results(both) == [("slow", "request_timed_out"), ("fast", "none")]


def test_the_answer_tells_the_topics_settings(broker: LocalBroker) -> None:
    """KIP-525."""
    (result,) = run(create(broker, topic("t", configs={"retention.ms": "5"})))["topics"]
    reported = {config["name"]: config for config in result["configs"]}
    assert reported.keys() == TOPIC_SETTINGS.keys()
    assert (reported["retention.ms"]["value"], reported["retention.ms"]["config_source"]) == ("5", 1)
    assert (reported["segment.bytes"]["value"], reported["segment.bytes"]["config_source"]) == (
        "1073741824",
        5,
    )


def test_counts_of_minus_one_are_the_brokers_defaults(broker: LocalBroker) -> None:
    """KIP-464."""
    broker.context.config.values["num.partitions"] = 4
    run(create(broker, topic("t", -1, -1)))
    assert len(broker.view.topics["t"].assignment.replicas) == 4


TWICE = {"partition_index": 0, "broker_ids": [1]}


@pytest.mark.parametrize(
    ("requested", "error", "message"),
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
        (topic("t", assignments={}) | {"assignments": [TWICE] * 2}, "invalid_replica_assignment", ""),
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
    broker: LocalBroker, requested: dict[str, Any], error: str, message: str
) -> None:
    got = refusal(broker, requested)
    assert got[0] == error
    assert re.search(message, got[1])


async def test_to_validate_is_to_answer_as_if_and_to_create_nothing(broker: LocalBroker) -> None:
    body = await create(broker, topic("t", 2), topic("u", 0), validate_only=True)
    assert results(body) == [("t", "none"), ("u", "invalid_partitions")]
    assert body["topics"][0]["topic_id"].int == 0
    assert broker.view.topics == {}


def test_a_name_that_is_taken_is_refused_also_while_it_is_deleted(broker: LocalBroker) -> None:
    broker.create("t")
    assert refusal(broker, topic("t")) == ("topic_already_exists", "Topic 't' already exists.")
    broker.view.pending_deletions.add("t")
    assert refusal(broker, topic("t"))[1] == "Topic 't' already exists and is being deleted."


@pytest.mark.parametrize(
    "requested", [topic("t", configs={"x": "1"}), topic("t", assignments={1: [1]}), topic("t", -2)]
)
def test_that_a_topic_exists_is_reported_before_all_that_is_wrong_with_the_request(
    broker: LocalBroker, requested: dict[str, Any]
) -> None:
    """As in Apache Kafka: clients that only make sure of a topic take this error for success."""
    broker.create("t")
    assert refusal(broker, requested)[0] == "topic_already_exists"


@pytest.mark.parametrize(("existing", "name"), [("a.b", "a_b"), ("a_b", "a.b"), ("a_b.c", "a.b_c")])
def test_names_that_differ_only_in_dots_and_underscores_collide(
    broker: LocalBroker, existing: str, name: str
) -> None:
    broker.create(existing)
    assert refusal(broker, topic(name)) == (
        "invalid_topic_exception",
        f"Topic '{name}' collides with an existing topic: their names differ only in '.' and '_'.",
    )


def test_a_topic_named_twice_in_a_request_is_refused_twice_and_others_are_created(
    broker: LocalBroker,
) -> None:
    body = run(create(broker, topic("t"), topic("u"), topic("t", 2)))
    assert results(body) == [("t", "invalid_request"), ("u", "none"), ("t", "invalid_request")]
    assert list(broker.view.topics) == ["u"]


async def test_the_topics_of_a_request_are_created_together_and_a_bad_one_fails_alone(
    broker: LocalBroker,
) -> None:
    names = [f"t{number}" for number in range(500)]
    broker.create("t7")
    body = await create(broker, *(topic(name) for name in names), topic("", 1), topic("none", 0))
    failed = {name: error for name, error in results(body) if error != "none"}
    assert failed == {
        "t7": "topic_already_exists",
        "": "invalid_topic_exception",
        "none": "invalid_partitions",
    }
    assert [result["name"] for result in body["topics"]] == [*names, "", "none"]
    assert broker.cluster.topics_per_call == [499]


async def test_topics_of_one_request_collide_as_with_those_that_exist(broker: LocalBroker) -> None:
    body = await create(broker, topic("a.b"), topic("c"), topic("a_b"))
    assert results(body) == [("a.b", "none"), ("c", "none"), ("a_b", "invalid_topic_exception")]


async def test_the_timeout_is_for_all_topics_of_a_request(broker: LocalBroker) -> None:
    broker.cluster.controller_is_down = True
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    body = await create(broker, *(topic(f"t{number}") for number in range(50)), timeout_ms=200)
    assert {error for _, error in results(body)} == {"request_timed_out"}
    assert len(broker.view.topics) == 50, "they stand, and may be led later"
    assert loop.time() - started_s < 5, "ten seconds if each had its own"


def test_a_zookeeper_that_does_not_answer_is_a_timeout_not_a_lost_connection(broker: LocalBroker) -> None:
    broker.cluster.failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert results(run(create(broker, topic("t")))) == [("t", "request_timed_out")]


def test_a_name_that_nearly_fills_a_string_is_refused_in_a_shorter_one(broker: LocalBroker) -> None:
    requested = topic("t", configs={"x" * 32_700: "1"})
    for version in range(2, 8):
        (result,) = run(create(broker, requested, version=version))["topics"]
        assert ErrorCode(result["error_code"]).name == "invalid_config"
