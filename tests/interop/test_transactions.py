"""Stock clients with transactions: several partitions and offsets, all or nothing (R9, R11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster, RunCluster, StartCluster, partition_directory
from tests.support.command_line import mainstem, mainstem_fails, mainstem_json
from tests.support.kafka_tools import run_tool
from tests.support.load import read_to_end
from tests.support.waiting import wait_until
from tests.unit.broker.log.logs import DEFAULTS, NOW_MS
from tests.unit.broker.log.transactional import write as append_transactional

from mainstem_broker.log.partition_log import PartitionLog

SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
PARTITIONS: Final = 3
"""The attribute of a batch."""
HANGING_PRODUCER_ID: Final = 987_654
VISIBLE: Final = tuple(f"{when} {index}" for when in ("before", "after") for index in range(PARTITIONS))
"""Records outside transactions, in the order in which `write` gives them to partitions."""


@pytest.fixture(scope="module")
def stack(run_cluster: RunCluster) -> Iterator[Cluster]:
    """Three brokers that no test here breaks."""
    with run_cluster(3, SETTINGS) as cluster:
        yield cluster


def new_topic(cluster: Cluster) -> str:
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = f"topic-{uuid4().hex[:12]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=60)[topic].result(60)
    return topic


def new_id() -> str:
    return f"id-{uuid4().hex[:12]}"


def transactional(cluster: Cluster, transactional_id: str, **settings: Any) -> Any:
    producer: Any = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 1,
            "log_level": 0,
            **settings,
        }
    )
    return producer


def topic_with_hanging_transaction(cluster: Cluster) -> str:
    """A topic with one replica and the records `VISIBLE`. Between the two of partition 0 lies, at offset 1, a
    batch of a transaction that no coordinator knows.

    It is written into the log while the broker is stopped, as it would be there after a fault.
    """
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = f"topic-{uuid4().hex[:12]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=60)[topic].result(60)
    write(plain_producer(cluster), topic, *VISIBLE[:PARTITIONS])
    cluster.stop_broker(1)
    log = PartitionLog.open(
        partition_directory(cluster, topic),
        DEFAULTS,
        clean_shutdown=True,
        recovery_point=0,
        log_start_offset=0,
        now_ms=NOW_MS,
    )
    append_transactional(log, HANGING_PRODUCER_ID)
    log.close()
    cluster.start_broker(1)
    write(plain_producer(cluster), topic, *VISIBLE[PARTITIONS:])
    return topic


def plain_producer(cluster: Cluster) -> Any:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1, "log_level": 0})


def write(producer: Any, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value=value.encode(), partition=number % PARTITIONS)
    producer.flush(30)


def read(cluster: Cluster, topic: str, *, is_committed: bool = True) -> list[str]:
    """The values that a consumer gets from all partitions up to their ends, sorted."""
    servers = cluster.bootstrap_servers
    records = [
        record
        for partition in range(PARTITIONS)
        for record in read_to_end(servers, topic, partition, is_committed=is_committed)
    ]
    return sorted(record.value().decode() for record in records)


def offsets_of(cluster: Cluster, group: str, topic: str, isolation: str = "read_committed") -> list[int]:
    """What the group has committed. With read_committed the client waits for open transactions (KIP-447)."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    try:
        result = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 30)
        return [one.offset for one in result]
    finally:
        consumer.close()


def state_of(cluster: Cluster, transactional_id: str) -> str:
    return str(mainstem_json("transaction", "describe", transactional_id, cluster=cluster)["state"])


def test_confluent_commits_and_aborts(stack: Cluster) -> None:
    topic, producer = new_topic(stack), transactional(stack, new_id())
    producer.init_transactions(30)
    for number in range(3):
        producer.begin_transaction()
        write(producer, topic, f"{number}a", f"{number}b")
        if number == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert read(stack, topic) == ["0a", "0b", "2a", "2b"]
    assert read(stack, topic, is_committed=False) == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_confluent_fences_the_producer_before_it(stack: Cluster) -> None:
    topic, transactional_id = new_topic(stack), new_id()
    zombie = transactional(stack, transactional_id)
    zombie.init_transactions(30)
    zombie.begin_transaction()
    write(zombie, topic, "zombie")
    second = transactional(stack, transactional_id)
    second.init_transactions(30)
    second.begin_transaction()
    write(second, topic, "second")
    second.commit_transaction(30)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(30)
    assert raised.value.args[0].fatal()
    assert read(stack, topic) == ["second"]


def test_confluent_commits_what_it_consumed_with_what_it_produced(stack: Cluster) -> None:
    source, target, group = new_topic(stack), new_topic(stack), f"group-{uuid4().hex[:8]}"
    plain: Any = Producer({"bootstrap.servers": stack.bootstrap_servers})
    write(plain, source, *(str(number) for number in range(9)))
    consumer: Any = Consumer(
        {
            "bootstrap.servers": stack.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    producer = transactional(stack, new_id())
    producer.init_transactions(30)
    seen = 0
    try:
        while seen < 9:
            messages = consumer.consume(3, 1)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, value=message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            producer.commit_transaction(30)
            seen += len(messages)
        assert offsets_of(stack, group, source) == [3, 3, 3]
        producer.begin_transaction()
        write(producer, target, "aborted")
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, 1)], consumer.consumer_group_metadata(), 30
        )
        producer.abort_transaction(30)
    finally:
        consumer.close()
    assert offsets_of(stack, group, source) == [3, 3, 3]
    assert read(stack, target) == [str(number) for number in range(9)]


def test_kafka_python_commits_and_aborts(stack: Cluster) -> None:
    topic = new_topic(stack)
    producer: Any = kafka.KafkaProducer(
        bootstrap_servers=stack.bootstrap_servers, transactional_id=new_id(), transaction_timeout_ms=30_000
    )
    try:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            producer.flush()
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close()
    assert read(stack, topic) == ["0", "2"]


def test_aiokafka_commits_and_aborts(stack: Cluster) -> None:
    topic = new_topic(stack)

    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=stack.bootstrap_servers,
            transactional_id=new_id(),
            transaction_timeout_ms=30_000,
        )
        await producer.start()
        try:
            for number in range(3):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
                if number == 1:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()

    asyncio.run(send())
    assert read(stack, topic) == ["0", "2"]


def test_the_command_shows_and_aborts_transactions(stack: Cluster) -> None:
    topic, transactional_id = new_topic(stack), new_id()
    producer = transactional(stack, transactional_id)
    producer.init_transactions(30)
    producer.begin_transaction()
    write(producer, topic, "open", "open")
    described = mainstem_json("transaction", "describe", transactional_id, cluster=stack)
    assert described["state"] == "Ongoing"
    assert described["partitions"] == [{"topic": topic, "partition": index} for index in (0, 1)]
    listed = mainstem_json("transaction", "list", "--state", "Ongoing", cluster=stack)
    assert transactional_id in [one["transactional_id"] for one in listed]
    assert mainstem_json("transaction", "find-hanging", topic, "--silent-for", "0s", cluster=stack) == []
    mainstem("transaction", "abort", transactional_id, cluster=stack)
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert read(stack, topic) == []
    assert "no transactional id" in mainstem_fails(
        "transaction", "describe", "none", cluster=stack, exit_code=2
    )


def test_r12_a_transaction_that_hangs_is_found_and_its_abort_lets_readers_go_on(
    own_stack: StartCluster,
) -> None:
    cluster = own_stack(1, SETTINGS)
    topic = topic_with_hanging_transaction(cluster)
    (found,) = mainstem_json("transaction", "find-hanging", topic, cluster=cluster)
    assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 1)
    assert found["producer_id"] == HANGING_PRODUCER_ID
    assert read(cluster, topic) == ["after 1", "after 2", "before 0", "before 1", "before 2"]
    place = ("--topic", topic, "--partition", "0", "--start-offset", "1")
    mainstem("transaction", "abort", *place, cluster=cluster)
    assert read(cluster, topic) == sorted(VISIBLE)
    assert mainstem_json("transaction", "find-hanging", topic, cluster=cluster) == []
    assert "no open transaction" in mainstem_fails(
        "transaction", "abort", *place, cluster=cluster, exit_code=2
    )


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_outlive_the_broker_that_coordinates_them(
    committed: bool, own_stack: StartCluster
) -> None:
    cluster = own_stack(3, SETTINGS)
    topic, transactional_id = new_topic(cluster), new_id()
    producer = transactional(cluster, transactional_id)
    producer.init_transactions(30)
    producer.begin_transaction()
    write(producer, topic, "a", "b", "c")
    listed = mainstem_json("transaction", "list", cluster=cluster)
    (coordinator,) = [one["coordinator"] for one in listed if one["transactional_id"] == transactional_id]
    cluster.kill_broker(coordinator)
    if committed:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)
    producer.begin_transaction()
    write(producer, topic, "d")
    producer.commit_transaction(60)
    cluster.start_broker(coordinator)
    assert read(cluster, topic) == (["a", "b", "c", "d"] if committed else ["d"])
    wait_until(lambda: state_of(cluster, transactional_id) == "CompleteCommit", "the end is recorded")


# --- Apache Kafka's own programs ---


def test_the_java_producer_uses_the_second_protocol(stack: Cluster) -> None:
    """Its epoch rises with each transaction, and its records are all there."""
    topic, transactional_id = new_topic(stack), new_id()
    run_tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "500", "--record-size", "20", "--throughput", "500"),
        *("--transactional-id", transactional_id, "--transaction-duration-ms", "100"),
        *("--producer-props", f"bootstrap.servers={stack.bootstrap_servers}"),
    )
    described = mainstem_json("transaction", "describe", transactional_id, cluster=stack)
    assert described["producer_epoch"] > 1
    assert len(read(stack, topic)) == 500


def test_kafka_transactions_lists_describes_and_finds_transactions(stack: Cluster) -> None:
    topic, transactional_id = new_topic(stack), new_id()
    producer = transactional(stack, transactional_id)
    producer.init_transactions(30)
    producer.begin_transaction()
    write(producer, topic, "open")

    def transactions(*arguments: str) -> str:
        return run_tool("TransactionsCommand", *("--bootstrap-server", stack.bootstrap_servers), *arguments)

    assert transactional_id in transactions("list")
    described = transactions("describe", "--transactional-id", transactional_id)
    assert "Ongoing" in described and f"{topic}-0" in described
    assert topic not in transactions("find-hanging", "--topic", topic, "--partition", "0")
    producer.abort_transaction(30)


def test_kafka_transactions_finds_and_aborts_a_transaction_that_hangs(own_stack: StartCluster) -> None:
    cluster = own_stack(1, SETTINGS)
    topic = topic_with_hanging_transaction(cluster)
    command = ("TransactionsCommand", "--bootstrap-server", cluster.bootstrap_servers)
    place = ("--topic", topic, "--partition", "0")
    found = [line.split() for line in run_tool(*command, "find-hanging", *place).splitlines()]
    assert [row[:3] for row in found if row[:1] == [topic]] == [[topic, "0", str(HANGING_PRODUCER_ID)]]
    assert "after 0" not in read(cluster, topic)
    run_tool(*command, "abort", *place, "--start-offset", "1")
    assert read(cluster, topic) == sorted(VISIBLE)
    assert topic not in run_tool(*command, "find-hanging", *place)
