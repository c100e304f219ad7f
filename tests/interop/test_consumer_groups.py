"""Groups of KIP-848 with the clients that ask for them: librdkafka and Apache Kafka's own (R14, R15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kio.schema.errors import ErrorCode
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.group_members import Member, share_evenly
from tests.support.kafka_tools import run_tool
from tests.support.load import Load
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection

PARTITIONS = 6
PER_PARTITION = 5
LOAD_PER_SECOND = 1_000  # six members in Python, beside other tests, read more than that
PATIENT_SESSION_MS = 30_000

Begin = Callable[..., Member]


@pytest.fixture
def topic(group_topic: TopicFactory) -> str:
    """A topic of 6 partitions with 5 records each."""
    topic = group_topic(PARTITIONS)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": group_topic.cluster.bootstrap_servers})
    for number in range(PARTITIONS * PER_PARTITION):
        producer.produce(topic, b"record", partition=number % PARTITIONS)
    assert producer.flush(ANSWER_SECONDS) == 0
    return topic


@pytest.fixture
def begin(group_stack: SharedCluster, group: str, topic: str) -> Iterator[Begin]:
    """Starts members of `group`, which end with the test."""
    with ExitStack() as started:

        def start(kind: str = "confluent", **how: Any) -> Member:
            member = Member(
                kind, group_stack.bootstrap_servers, group, topic, **{"protocol": "consumer", **how}
            )
            return started.enter_context(member)

        yield start


def tool(cluster: ReachableCluster, *arguments: str) -> list[list[str]]:
    """The words of each line that `kafka-consumer-groups` prints."""
    servers = cluster.bootstrap_servers
    printed = run_tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", servers, *arguments)
    return [line.split() for line in printed.splitlines() if line.strip()]


def words(printed: list[list[str]]) -> set[str]:
    return {word for line in printed for word in line}


def test_members_share_partitions_and_keep_what_stays_theirs(begin: Begin) -> None:
    first = begin()
    share_evenly([first], PARTITIONS)
    second = begin()
    share_evenly([first, second], PARTITIONS)
    third = begin()
    members = [first, second, third]
    share_evenly(members, PARTITIONS)
    assert first.told("lost") == second.told("lost") == []
    # Counted: it gave up what it no longer has, once, and never anything else.
    assert sum(map(len, first.told("revoked"))) == PARTITIONS - len(first.owned)
    wait_until(
        lambda: len({record for one in members for record in one.records}) == PARTITIONS * PER_PARTITION,
        "all is read",
    )
    third.kill()
    share_evenly([first, second], PARTITIONS)
    second.stop()
    share_evenly([first], PARTITIONS)


def test_a_static_member_comes_back_without_a_change_for_the_others(
    group_stack: SharedCluster, group: str, begin: Begin
) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=group_stack.bootstrap_servers.split(","))
    session = {"consumer.session.timeout.ms": str(PATIENT_SESSION_MS)}  # its process takes a while to start
    admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, session)])
    admin.close()
    one, two = begin(instance_id="one"), begin(instance_id="two")
    share_evenly([one, two], PARTITIONS)
    owned, events = one.owned, list(two.events)
    one.stop()
    back = begin(instance_id="one")
    wait_until(lambda: back.owned == owned, "it has its partitions again")
    assert [event for event in two.events[len(events) :] if "assigned" in event or "revoked" in event] == []


def test_members_of_a_pattern_read_topics_that_come(
    group_stack: SharedCluster, group_topic: TopicFactory
) -> None:
    """librdkafka sends what begins with `^` to the broker."""
    prefix = f"events-{uuid4().hex[:6]}"
    first = group_topic(1, name=f"{prefix}.a")
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": group_stack.bootstrap_servers,
            "group.id": f"group-{prefix}",
            "group.protocol": "consumer",
        }
    )

    def assigned() -> set[str]:
        consumer.poll(0.1)
        return {one.topic for one in consumer.assignment()}

    try:
        consumer.subscribe([rf"^{prefix}\.(a|b)$"])
        wait_until(lambda: assigned() == {first}, "the topic is assigned")
        second = group_topic(1, name=f"{prefix}.b")
        group_topic(1, name=f"{prefix}.c")
        wait_until(lambda: assigned() == {first, second}, "the new topic is assigned")
    finally:
        consumer.close()


def test_the_java_client_is_a_member_and_its_tools_describe_the_group(
    group_stack: SharedCluster, group: str, topic: str, begin: Begin
) -> None:
    java, ours = begin("java"), begin()
    members = [java, ours]
    wait_until(
        lambda: (
            len(ours.owned) == PARTITIONS / 2
            and len({record for one in members for record in one.records}) == PARTITIONS * PER_PARTITION
        ),
        "both read",
    )

    def state() -> tuple[str, list[str], str]:
        words = tool(group_stack, "--describe", "--group", group, "--state", "--verbose")[-1]
        return words[0], words[3:5], words[-1]

    # A member says that it has what it was given with a heartbeat of its own: reconciling until then.
    wait_until(lambda: state() == (group, ["uniform", "Stable"], "2"), "the group is stable")
    rows = tool(group_stack, "--describe", "--group", group, "--members", "--verbose")
    described = {row[3]: row for row in rows if row[0] == group}
    mine = described["rdkafka"]
    assert mine[4] == str(PARTITIONS // 2)
    assert f"{topic}:{','.join(map(str, sorted(ours.owned)))}" in mine
    assert [group, "Consumer"] in tool(group_stack, "--list", "--type", "consumer")
    assert group not in {row[0] for row in tool(group_stack, "--list", "--type", "classic")}
    assert "empty." in words(tool(group_stack, "--delete", "--group", group))
    java.stop()
    ours.stop()
    wait_until(
        lambda: tool(group_stack, "--describe", "--group", group, "--state")[-1][-2:] == ["Empty", "0"],
        "the members have left",
    )
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "2", "--execute")
    assert {row[-1] for row in tool(group_stack, *reset) if row[0] == group} == {"2"}
    logs = [
        path
        for path in group_stack.data_directory.rglob("__consumer_offsets-*/*.log")
        if group.encode() in path.read_bytes()
    ]
    printed = run_tool("DumpLogSegments", "--offsets-decoder", "--files", str(logs[0]))
    kinds = {
        kind
        for kind in range(3, 17)
        for line in printed.splitlines()
        if f'"type":"{kind}"' in line and f'"{group}"' in line
    }
    assert kinds == {3, 5, 6, 7, 8}, printed[-3_000:]
    assert "successful." in words(tool(group_stack, "--delete", "--group", group))


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_group_is_upgraded_and_downgraded_while_it_reads(
    assignor: str, group_stack: SharedCluster, group: str, topic: str, begin: Begin
) -> None:
    """One member after the other is replaced, under load, there and back: nothing is left out."""

    def kind() -> str:
        admin: Any = AdminClient({"bootstrap.servers": group_stack.bootstrap_servers, "log_level": 0})
        return str(admin.describe_consumer_groups([group])[group].result(ANSWER_SECONDS).type.name)

    def classic() -> Member:
        return begin(protocol="classic", assignor=assignor)

    everyone = members = [classic(), classic()]
    share_evenly(members, PARTITIONS)
    with Load(group_stack.bootstrap_servers, topic, PARTITIONS, "load", "all", LOAD_PER_SECOND) as load:
        load.resume()
        assert kind() == "CLASSIC"
        for replacement in (begin, begin, classic, classic):
            come = replacement()
            everyone = [*everyone, come]
            share_evenly([*members, come], PARTITIONS)
            if replacement is begin:
                assert kind() == "CONSUMER"
            members[0].stop()
            members = [members[1], come]
            share_evenly(members, PARTITIONS)
        assert kind() == "CLASSIC"
        load.wait_for_progress(100)
        load.pause()
        expected = load.acknowledged_places()
    wait_until(
        lambda: expected <= {record for one in everyone for record in tuple(one.records)},
        "every acknowledged record was processed",
    )
    if assignor == "cooperative-sticky":
        assert [one.told("lost") for one in everyone] == [[]] * 6


# --- Over the wire ---


def heartbeat(connection: Connection, group: str, version: int, **how: Any) -> Any:
    """A join unless `how` says otherwise."""
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 1_000,
        "subscribed_topic_names": ["no-such-topic"],
        "server_assignor": None,
        "topic_partitions": [],
        **({"subscribed_topic_regex": None} if version >= 1 else {}),
        **how,
    }
    return connection.ask("consumer_group_heartbeat", version, **fields)


def test_version_0_is_given_a_member_id_and_version_1_has_to_bring_one(
    coordinator: Connection, group: str
) -> None:
    given = heartbeat(coordinator, group, 0, member_id="")
    assert (given.error_code, given.member_epoch) == (ErrorCode.none, 1)
    assert given.member_id
    assert heartbeat(coordinator, group, 1, member_id="").error_code == ErrorCode.invalid_request
    assert given.heartbeat_interval.total_seconds() == 0.2
