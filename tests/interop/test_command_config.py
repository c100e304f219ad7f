"""`mainstem config` and `mainstem broker` against running brokers (R18, R36)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.clusters import Cluster, ReachableCluster, SharedCluster
from tests.support.command_line import mainstem_fails_here, mainstem_here, mainstem_json_here
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until


def get(cluster: ReachableCluster, *arguments: str) -> dict[str, tuple[Any, str]]:
    """Value and source of each setting that is shown."""
    rows = mainstem_json_here("config", "get", *arguments, cluster=cluster)
    return {row["setting"]: (row["value"], row["source"]) for row in rows}


def test_a_topics_setting_is_set_shown_and_removed(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    assert get(local_stack, "--topic", topic) == {}
    assert get(local_stack, "--topic", topic, "--all")["retention.ms"] == ("604800000", "default")

    output = mainstem_here(
        *("config", "set", "--topic", topic, "retention.ms=60000", "cleanup.policy=delete"),
        cluster=local_stack,
    ).stderr.decode()
    assert f"Set retention.ms=60000 for topic {topic} (was 604800000)." in output
    wait_until(
        lambda: (
            get(local_stack, "--topic", topic)
            == {"retention.ms": ("60000", "topic"), "cleanup.policy": ("delete", "topic")}
        ),
        "both are set",
    )
    changed = mainstem_json_here("config", "unset", "--topic", topic, "retention.ms", cluster=local_stack)
    assert changed == [{"setting": "retention.ms", "before": "60000", "after": None}]
    wait_until(
        lambda: get(local_stack, "--topic", topic, "retention.ms")["retention.ms"][1] == "default",
        "it is as before",
    )


def test_a_brokers_setting_comes_from_its_file_from_all_brokers_or_from_itself(own_cluster: Cluster) -> None:
    assert get(own_cluster, "--broker", "1")["broker.id"] == ("1", "its file")
    name = "log.retention.bytes"

    def where(broker: str) -> tuple[Any, str]:
        return get(own_cluster, "--broker", broker, name)[name]

    mainstem_here("config", "set", "--all-brokers", f"{name}=1000000000000", cluster=own_cluster)
    wait_until(
        lambda: {where(broker) for broker in "123"} == {("1000000000000", "all brokers")}, "all have it"
    )
    assert get(own_cluster, "--all-brokers") == {name: ("1000000000000", "all brokers")}
    mainstem_here("config", "unset", "--all-brokers", name, cluster=own_cluster)
    wait_until(lambda: {where(broker)[1] for broker in "123"} == {"default"}, "it is taken back")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get"], "Name the owner of the settings, in one way: --topic, --broker"),
        (["get", "--topic", "a", "--broker", "1"], "Name the owner of the settings, in one way"),
        (["get", "--topic", "no-such-topic"], "There is no topic no-such-topic"),
        (["get", "--broker", "9"], "There is no live broker 9: the live ones are 1, 2, 3."),
        (["get", "--topic", "TOPIC", "retention.m"], "did you mean retention.ms"),
        (["set", "--topic", "TOPIC", "retention.ms"], "config set takes NAME=VALUE, not 'retention.ms'"),
        (["set", "--topic", "TOPIC", "retentoin.ms=1"], "did you mean retention.ms"),
        (["set", "--broker", "1", "log.dirs=/elsewhere"], "log.dirs cannot be changed while brokers run"),
        (["set", "--all-brokers", "log.dirs=/elsewhere"], "set it in each broker's file"),
        (["set", "--user", "ann", "producer_byte_rates=1"], "did you mean producer_byte_rate"),
        (["set", "--client-id", "app", "producer_byte_rate=no"], "a number greater than 0, not 'no'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_refused_before_anything_is_changed(
    arguments: list[str], message: str, local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    given = [new_topic() if argument == "TOPIC" else argument for argument in arguments]
    assert message in mainstem_fails_here("config", *given, cluster=local_stack, exit_code=2)


def test_a_value_that_does_not_fit_is_refused_in_the_brokers_words(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    sentence = mainstem_fails_here(
        "config", "set", "--topic", topic, "retention.ms=soon", cluster=local_stack
    )
    assert sentence.startswith(f"The settings of topic {topic} were not changed: ")
    assert "'soon'" in sentence
    assert get(local_stack, "--topic", topic) == {}


def test_brokers_are_listed_and_described(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic(3)
    rows = mainstem_json_here("broker", "list", cluster=local_stack)
    assert [f"{row['host']}:{row['port']}" for row in rows] == list(local_stack.brokers.values())
    assert sum(row["controller"] for row in rows) == 1
    described = [
        mainstem_json_here("broker", "describe", broker, cluster=local_stack)
        for broker in local_stack.brokers
    ]
    held = [{row["topic"]: row for row in one["topics"]}.get(topic, {"leads": 0}) for one in described]
    assert sum(row["leads"] for row in held) == 3
    assert [one["settings"]["broker.id"] for one in described] == ["1", "2", "3"]
    shown = mainstem_here("broker", "describe", 1, cluster=local_stack).stdout.decode()
    assert f"1 at {local_stack.brokers[1]}" in shown
    assert "There is no live broker 9" in mainstem_fails_here(
        "broker", "describe", 9, cluster=local_stack, exit_code=2
    )
