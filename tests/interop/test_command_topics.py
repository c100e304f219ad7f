"""`mainstem topic` against a running cluster (R36)."""

from __future__ import annotations

import pytest
from tests.support.clusters import SharedCluster
from tests.support.command_line import mainstem_fails_here, mainstem_here, mainstem_json_here
from tests.support.topics import TopicFactory, unique_name


def test_a_topic_is_created_listed_described_altered_and_deleted(local_stack: SharedCluster) -> None:
    topic = unique_name("life-of-a-topic")
    created = mainstem_json_here(
        *("topic", "create", topic, "--partitions", "2", "--replication-factor", "1"),
        *("--config", "retention.ms=60000", "--config", "segment.bytes=1048576"),
        cluster=local_stack,
    )
    assert created == {"topic": topic, "created": True, "partitions": 2, "replication_factor": 1}
    listed = {row["topic"]: row for row in mainstem_json_here("topic", "list", cluster=local_stack)}
    assert listed[topic] == {
        "topic": topic,
        "partitions": 2,
        "replication_factor": 1,
        "state": "ok",
    }
    mainstem_here("produce", topic, "--partition", "1", cluster=local_stack, stdin=b"a\nb\nc\n")
    described = mainstem_json_here("topic", "describe", topic, cluster=local_stack)
    assert described["settings"] == {"retention.ms": "60000", "segment.bytes": "1048576"}
    assert described["records"] == 3
    assert [(row["earliest"], row["latest"]) for row in described["partitions"]] == [(0, 0), (0, 3)]
    assert all(row["leader"] in (1, 2, 3) for row in described["partitions"])
    mainstem_here(
        *("topic", "alter", topic, "--partitions", "4"),
        *("--config", "retention.ms=120000", "--delete-config", "segment.bytes"),
        cluster=local_stack,
    )
    altered = mainstem_json_here("topic", "describe", topic, cluster=local_stack)
    assert altered["settings"] == {"retention.ms": "120000"}
    assert len(altered["partitions"]) == 4
    shown = mainstem_here("topic", "describe", topic, cluster=local_stack).stdout.decode()
    assert "retention.ms=120000" in shown
    assert shown.splitlines()[-1].split() == ["total", "3"]
    mainstem_here("topic", "delete", topic, "--yes", cluster=local_stack)
    assert topic not in mainstem_here("topic", "list", cluster=local_stack).stdout.decode()


def test_a_topic_that_does_not_say_is_replicated_over_the_brokers_there_are(
    local_stack: SharedCluster,
) -> None:
    topic = unique_name("replicated-unasked")
    created = mainstem_json_here("topic", "create", topic, cluster=local_stack)
    assert created["replication_factor"] == min(3, len(local_stack.brokers))
    described = mainstem_json_here("topic", "describe", topic, cluster=local_stack)
    assert {row["leader"] for row in described["partitions"]} <= local_stack.brokers.keys()
    mainstem_here("topic", "delete", topic, "--yes", cluster=local_stack)


def test_creating_a_topic_twice_is_refused_unless_accepted(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic(partitions=2)
    sentence = mainstem_fails_here("topic", "create", topic, cluster=local_stack)
    assert f"Topic {topic} was not created" in sentence
    assert "--if-not-exists" in sentence
    accepted = mainstem_json_here("topic", "create", topic, "--if-not-exists", cluster=local_stack)
    assert (accepted["created"], accepted["partitions"]) == (False, 2)


def test_an_unknown_topic_is_answered_with_similar_names(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic(prefix="flights-of-2013")
    similar = topic.replace("flights", "flight")
    for command in ("describe", "alter"):
        more = ["--partitions", "3"] if command == "alter" else []
        sentence = mainstem_fails_here("topic", command, similar, *more, cluster=local_stack, exit_code=2)
        assert sentence == f"There is no topic {similar}: did you mean {topic}?"
    sentence = mainstem_fails_here("topic", "describe", "zzz", cluster=local_stack, exit_code=2)
    assert sentence == "There is no topic zzz: create it with `mainstem topic create zzz`."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topic", "create", "two words"], "two words"),
        (["topic", "create", "x" * 250], "249"),
        (["topic", "create", "t", "--config", "no.such.setting=1"], "no.such.setting"),
        (["topic", "create", "t", "--config", "retention.ms=soon"], "retention.ms"),
        (["topic", "create", "t", "--replication-factor", "9"], "cannot have more replicas than"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_brokers_refusal_is_shown_in_its_words(
    arguments: list[str], message: str, local_stack: SharedCluster
) -> None:
    sentence = mainstem_fails_here(*arguments, cluster=local_stack)
    assert "was not created: " in sentence
    assert message in sentence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topic", "create", "t", "--config", "retention.ms"], "--config takes NAME=VALUE"),
        (["topic", "alter", "t"], "Name the change"),
        (["topic", "alter", "t", "--config", "a=1", "--delete-config", "a"], "both in --config and in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_contradictions_are_refused_before_anything_is_done(
    arguments: list[str], message: str, local_stack: SharedCluster
) -> None:
    assert message in mainstem_fails_here(*arguments, cluster=local_stack, exit_code=2)


def test_a_topic_never_shrinks(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic(partitions=3)
    sentence = mainstem_fails_here("topic", "alter", topic, "--partitions", "2", cluster=local_stack)
    assert f"Topic {topic} did not grow to 2 partitions" in sentence


def test_deleting_without_a_terminal_needs_a_yes(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic()
    assert "needs --yes" in mainstem_fails_here("topic", "delete", topic, cluster=local_stack, exit_code=2)


def test_nothing_is_deleted_when_one_of_several_is_unknown(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    mainstem_fails_here("topic", "delete", topic, "no-such-topic", "--yes", cluster=local_stack, exit_code=2)
    assert topic in mainstem_here("topic", "list", cluster=local_stack).stdout.decode()
