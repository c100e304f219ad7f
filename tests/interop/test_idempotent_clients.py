"""Stock clients with idempotence on: every record once, in order, at the acknowledged offset (R11)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewTopic
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, RunCluster, SharedCluster
from tests.support.load import read_all
from tests.support.lossy_proxy import LossyProxy
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.wire import Connection

MESSAGES: Final = 300
PATIENCE_SECONDS: Final = 60
"""Clients wait after each lost answer, and the machine may be busy."""


Send = Callable[..., list[int]]
"""Sends so many numbered messages to partition 0 and returns the acknowledged offsets.

    send(servers, topic, count, then=None)

`then` is called when all are acknowledged, if there is one, and as many messages follow, with numbers from 0
again.
"""
Then = Callable[[], None] | None


IDEMPOTENT: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "max.in.flight": 5,
    "batch.num.messages": 3,
    "linger.ms": 1,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "log_level": 0,
}


def by_confluent(servers: str, topic: str, count: int, then: Then = None) -> list[int]:
    producer: Any = confluent_kafka.Producer({**IDEMPOTENT, "bootstrap.servers": servers})
    reports: list[tuple[bytes, int]] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error:
            failures.append(error)
        else:
            reports.append((message.value(), message.offset()))

    def send() -> None:
        reports.clear()
        for number in range(count):
            producer.produce(topic, value=b"%d" % number, partition=0, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert not failures

    send()
    if then is not None:
        then()
        send()
    return [offset for _, offset in sorted(reports, key=lambda one: int(one[0]))]


def by_kafka_python(servers: str, topic: str, count: int, then: Then = None) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        enable_idempotence=True,
        batch_size=200,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50,
    )

    def send() -> list[int]:
        answers = [producer.send(topic, value=b"%d" % number, partition=0) for number in range(count)]
        return [answer.get(PATIENCE_SECONDS).offset for answer in answers]

    try:
        reported = send()
        if then is not None:
            then()
            reported = send()
        return reported
    finally:
        producer.close(timeout=5)


def by_aiokafka(servers: str, topic: str, count: int, then: Then = None) -> list[int]:
    async def send(producer: Any) -> list[int]:
        answers = [await producer.send(topic, value=b"%d" % number, partition=0) for number in range(count)]
        reported = await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)
        return [one.offset for one in reported]

    async def run() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, max_batch_size=200, retry_backoff_ms=10
        )
        await producer.start()
        try:
            reported = await send(producer)
            if then is not None:
                await asyncio.to_thread(then)
                reported = await send(producer)
            return reported
        finally:
            await producer.stop()

    return asyncio.run(run())


every_sender = pytest.mark.parametrize(
    "send", [by_confluent, by_kafka_python, by_aiokafka], ids=["confluent-kafka", "kafka-python", "aiokafka"]
)


def assert_once_and_in_order(servers: str, topic: str, offsets: list[int], count: int) -> None:
    records = read_all(servers, topic, 0)
    assert [records[offset] for offset in sorted(records)] == [b"%d" % number for number in range(count)]
    assert offsets == sorted(records), "other offsets were acknowledged"


@every_sender
def test_stock_clients_produce_with_idempotence(local_stack: SharedCluster, topic: str, send: Send) -> None:
    offsets = send(local_stack.bootstrap_servers, topic, MESSAGES)
    assert_once_and_in_order(local_stack.bootstrap_servers, topic, offsets, MESSAGES)


@every_sender
def test_a_producer_goes_on_when_its_topic_was_deleted_and_made_again(
    local_stack: SharedCluster, new_topic: TopicFactory, send: Send
) -> None:
    """It counts on, by the topic's name; the new topic's log has never heard of it."""
    topic = new_topic()
    servers = local_stack.bootstrap_servers

    def make_anew() -> None:
        new_topic.admin.delete_topics([topic], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)
        made = NewTopic(topic, 1, 1)
        new_topic.admin.create_topics([made], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)

    offsets = send(servers, topic, 20, make_anew)
    assert_once_and_in_order(servers, topic, offsets, 20)


@pytest.fixture(scope="module")
def lossy(run_cluster: RunCluster) -> Iterator[tuple[LossyProxy, Cluster]]:
    """A broker whose clients are sent through a proxy that loses every third answer to a Produce."""
    with (
        LossyProxy(lambda number: number % 3 == 1) as proxy,
        run_cluster(1, {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}) as cluster,
    ):
        proxy.target_port = int(cluster.brokers[1].rpartition(":")[2])
        yield proxy, cluster


@every_sender
def test_r11_answers_that_are_lost_make_no_record_twice_and_none_out_of_order(
    lossy: tuple[LossyProxy, Cluster], send: Send
) -> None:
    proxy, cluster = lossy
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        lost_before = proxy.lost_count
        offsets = send(cluster.bootstrap_servers, topic, MESSAGES // 2)
        assert proxy.lost_count > lost_before
        assert_once_and_in_order(cluster.bootstrap_servers, topic, offsets, MESSAGES // 2)


def remembered(connection: Connection, topic: str) -> Sequence[Any]:
    """What a replica of partition 0 remembers of producers."""
    answer = connection.ask("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    (reported,) = answer.topics[0].partitions
    assert reported.error_code == ErrorCode.none
    producers: Sequence[Any] = reported.active_producers
    return producers


GIVE_UP_MS = 6_000
"""Long enough for a busy machine to deliver what nothing keeps it from delivering."""


def test_a_client_that_gave_records_up_goes_on_under_the_next_epoch(run_cluster: RunCluster) -> None:
    """librdkafka then asks for it (KIP-360), for it cannot know which of them were stored."""
    losing = threading.Event()
    with (
        LossyProxy(lambda _: losing.is_set()) as proxy,
        run_cluster(1, {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}) as cluster,
        TopicFactory(cluster) as new_topic,
    ):
        proxy.target_port = int(cluster.brokers[1].rpartition(":")[2])
        topic = new_topic()
        reports: dict[int, int] = {}
        given_up: list[int] = []
        producer: Any = confluent_kafka.Producer(
            {**IDEMPOTENT, "bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": GIVE_UP_MS}
        )

        def delivered(error: Any, message: Any) -> None:
            number = int(message.value())
            if error:
                given_up.append(number)
            else:
                reports[number] = message.offset()

        def send(numbers: range) -> None:
            for number in numbers:
                producer.produce(topic, value=b"%d" % number, partition=0, on_delivery=delivered)
            assert producer.flush(PATIENCE_SECONDS) == 0

        send(range(10))
        losing.set()
        send(range(10, 20))
        losing.clear()
        send(range(20, 30))

        assert given_up == list(range(10, 20))
        assert sorted(reports) == [*range(10), *range(20, 30)]
        records = read_all(cluster.bootstrap_servers, topic, 0)
        numbers = [int(records[offset]) for offset in sorted(records)]
        assert numbers == sorted(set(numbers))
        assert all(records[offset] == b"%d" % number for number, offset in reports.items())
        with Connection(cluster.brokers[1]) as connection:
            (one,) = remembered(connection, topic)
        assert one.producer_epoch == 1
