"""Apache Kafka's own tools look after our groups (R15, R36)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.group_members import Member
from tests.support.kafka_tools import run_tool
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until

PARTITIONS = 2
PER_PARTITION = 10


def groups(cluster: ReachableCluster, *arguments: str) -> str:
    """What `kafka-consumer-groups` prints."""
    servers = cluster.bootstrap_servers
    return run_tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", servers, *arguments)


def rows(table: str) -> list[list[str]]:
    """The words of each line below the table's head."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    head = next(index for index, words in enumerate(lines) if words[0] in ("GROUP", "TOPIC"))
    return lines[head + 1 :]


@pytest.fixture
def topic(group_topic: TopicFactory) -> str:
    """A topic of 2 partitions with 10 records each."""
    topic = group_topic(PARTITIONS)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": group_topic.cluster.bootstrap_servers})
    for number in range(PARTITIONS * PER_PARTITION):
        producer.produce(topic, b"record", partition=number % PARTITIONS)
    assert producer.flush(ANSWER_SECONDS) == 0
    return topic


@pytest.fixture
def running(group_stack: SharedCluster, group: str, topic: str) -> Iterator[Member]:
    """A Java member that has read everything."""
    with Member("java", group_stack.bootstrap_servers, group, topic, instance_id="one") as member:
        wait_until(lambda: len(member.records) >= PARTITIONS * PER_PARTITION, "the member reads")
        yield member


def offsets_of(cluster: ReachableCluster, group: str) -> list[tuple[str, str]]:
    """(partition, committed offset) as the tool shows them."""
    return sorted((words[2], words[3]) for words in rows(groups(cluster, "--describe", "--group", group)))


def test_a_running_group_is_listed_and_described(
    group_stack: SharedCluster, group: str, topic: str, running: Member
) -> None:
    assert group in groups(group_stack, "--list").splitlines()
    listed = {words[0]: words[1:] for words in rows(groups(group_stack, "--list", "--state"))}
    assert listed[group] == ["Stable"]
    (state,) = rows(groups(group_stack, "--describe", "--group", group, "--state"))
    assert state[-3:] == ["range", "Stable", "1"]
    (member,) = rows(groups(group_stack, "--describe", "--group", group, "--members", "--verbose"))
    assert (member[0], member[2], member[3]) == (group, "one", "/127.0.0.1")
    assert member[1].startswith("one-")
    assert f"{topic}:0,1" in member
    wait_until(
        lambda: offsets_of(group_stack, group) == [("0", "10"), ("1", "10")],
        "the tool shows what was committed",
        step_seconds=0.5,
    )


def test_a_group_at_rest_is_reset_in_every_way_and_deleted(
    group_stack: SharedCluster, group: str, topic: str, running: Member
) -> None:
    running.kill()
    wait_until(
        lambda: (
            rows(groups(group_stack, "--describe", "--group", group, "--state"))[0][-2:] == ["Empty", "0"]
        ),
        "the killed member is gone",
        step_seconds=0.2,
    )
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    for how, offset in (
        (("--to-earliest",), "0"),
        (("--to-latest",), "10"),
        (("--to-offset", "4"), "4"),
        (("--shift-by", "-1"), "3"),
        (("--to-datetime", "2020-01-01T00:00:00.000"), "0"),
        (("--by-duration", "PT0S"), "10"),
    ):
        assert {words[3] for words in rows(groups(group_stack, *reset, *how, "--execute"))} == {offset}
        assert offsets_of(group_stack, group) == [("0", offset), ("1", offset)], how
    dry = groups(group_stack, *reset, "--to-earliest", "--dry-run")
    assert {words[3] for words in rows(dry)} == {"0"}
    deleted = groups(group_stack, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert rows(deleted) == [[topic, "0", "Successful"]]
    assert offsets_of(group_stack, group) == [("1", "10")]
    assert "was successful" in groups(group_stack, "--delete", "--group", group)
    assert "does not exist" in groups(group_stack, "--delete", "--group", group)
    assert group not in groups(group_stack, "--list").splitlines()
