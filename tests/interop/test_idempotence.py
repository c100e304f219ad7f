"""Idempotent producers over the wire: what is sent again is stored once, at its first offset (R11)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewTopic
from kio.schema.errors import ErrorCode
from tests.interop.test_command_basics import mainstem
from tests.support.clusters import Cluster, RunCluster, StartCluster, partition_directory
from tests.support.load import read_all
from tests.support.lossy_proxy import LossyProxy
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, fetch, list_offset, produce

MESSAGES: Final = 300
PATIENCE_SECONDS: Final = 60
"""Clients wait after each lost answer, and the machine may be busy."""
OUTSTANDING_MAX: Final = 500


def sequence_batch(producer_id: int, sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    return encode_batch(
        [Message(b"%d" % (sequence + number)) for number in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def init_producer_id(connection: Connection, version: int = 4, **fields: object) -> Any:
    asked: dict[str, Any] = {"transactional_id": None, "transaction_timeout": 60_000}
    if version >= 3:
        asked |= {"producer_id": -1, "producer_epoch": -1}
    return connection.ask("init_producer_id", version, **{**asked, **fields})


def remembered(connection: Connection, topic: str) -> Sequence[Any]:
    """What a replica of partition 0 remembers of producers."""
    answer = connection.ask("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    (told,) = answer.topics[0].partitions
    assert told.error_code == ErrorCode.none
    producers: Sequence[Any] = told.active_producers
    return producers


# --- Ids ---


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own_from_every_broker(local_stack: Cluster, version: int) -> None:
    answers = []
    for address in local_stack.brokers.values():
        with Connection(address) as connection:
            answers += [init_producer_id(connection, version) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == len(answers)


def test_a_producer_that_asks_again_gets_the_next_epoch_which_ends_the_one_before(
    leader: Connection, topic: str
) -> None:
    """KIP-360: for a producer that does not know any more what came of its batches."""
    producer_id = init_producer_id(leader).producer_id
    produce(leader, topic, 0, sequence_batch(producer_id, 0))
    bumped = init_producer_id(leader, producer_id=producer_id, producer_epoch=0)
    assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (ErrorCode.none, producer_id, 1)
    assert produce(leader, topic, 0, sequence_batch(producer_id, 0, epoch=1)).base_offset == 1
    late = produce(leader, topic, 0, sequence_batch(producer_id, 1))
    assert late.error_code == ErrorCode.invalid_producer_epoch


# --- Sequence numbers ---


def test_r11_a_batch_sent_again_keeps_its_offset_and_gaps_are_refused(leader: Connection, topic: str) -> None:
    producer_id = init_producer_id(leader).producer_id
    batches = [sequence_batch(producer_id, start, 10) for start in range(0, 50, 10)]
    for acks in (1, -1, 1):
        for number, batch in enumerate(batches):
            answer = produce(leader, topic, 0, batch, acks=acks)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number * 10)
    gap = produce(leader, topic, 0, sequence_batch(producer_id, 60))
    assert gap.error_code == ErrorCode.out_of_order_sequence_number
    old = produce(leader, topic, 0, sequence_batch(producer_id, 0, epoch=1))
    assert old.error_code == ErrorCode.none
    fenced = produce(leader, topic, 0, sequence_batch(producer_id, 50))
    assert fenced.error_code == ErrorCode.invalid_producer_epoch
    headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert [(one.base_offset, one.base_sequence, one.producer_epoch) for one in headers] == [
        *((start, start, 0) for start in range(0, 50, 10)),
        (50, 0, 1),
    ]


def test_a_partition_tells_which_producers_it_remembers(leader: Connection, topic: str) -> None:
    producer_id = init_producer_id(leader).producer_id
    produce(leader, topic, 0, sequence_batch(producer_id, 0, 3))
    produce(leader, topic, 0, sequence_batch(producer_id, 0, 4, epoch=1))
    (found,) = remembered(leader, topic)
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer_id, 1, 3)
    assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, -1)
    answer = leader.ask("describe_producers", 0, topics=[{"name": "there-is-none", "partition_indexes": [7]}])
    assert answer.topics[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def test_a_producer_is_forgotten_by_the_brokers_clock_whatever_its_records_say(
    own_stack: StartCluster,
) -> None:
    """As in redpanda#3824, where a producer's wrong clock made its state expire at once."""
    cluster = own_stack(
        settings={"producer.id.expiration.ms": "1500", "producer.id.expiration.check.interval.ms": "20"}
    )
    with TopicFactory(cluster) as new_topic, Connection(cluster.brokers[1]) as connection:
        topic = new_topic()
        long_ago = encode_batch(
            [Message(b"x", timestamp_ms=1)], producer_id=5, producer_epoch=0, base_sequence=0
        )
        begun = time.monotonic()
        assert produce(connection, topic, 0, long_ago).error_code == ErrorCode.none
        wait_until(lambda: not remembered(connection, topic), "the producer is forgotten")
        assert time.monotonic() - begun >= 1.5
        assert produce(connection, topic, 0, sequence_batch(5, 40)).base_offset == 1


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_r11_a_restarted_broker_recognises_what_it_had(own_stack: StartCluster, how: str) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(config={"segment.bytes": "2000"})
        with Connection(cluster.brokers[1]) as connection:
            producer_id = init_producer_id(connection).producer_id
            for number in range(40):
                produce(connection, topic, 0, sequence_batch(producer_id, number * 5, 5))
        (cluster.stop_broker if how == "stop" else cluster.kill_broker)(1)
        cluster.start_broker(1)
        with Connection(cluster.brokers[1]) as connection:
            # After a crash it is elected anew, a moment after it serves.
            wait_until(
                lambda: list_offset(connection, topic, 0, -1).error_code == ErrorCode.none, "it leads again"
            )
            for start in range(175, 200, 5):  # all that may have been in flight
                again = produce(connection, topic, 0, sequence_batch(producer_id, start, 5), acks=-1)
                assert (again.error_code, again.base_offset) == (ErrorCode.none, start)
            gap = produce(connection, topic, 0, sequence_batch(producer_id, 201))
            assert gap.error_code == ErrorCode.out_of_order_sequence_number
            new = produce(connection, topic, 0, sequence_batch(producer_id, 200))
            assert (new.error_code, new.base_offset) == (ErrorCode.none, 200)
            fresh = init_producer_id(connection)
            assert fresh.error_code == ErrorCode.none
            assert fresh.producer_id != producer_id


def test_the_command_shows_what_a_stopped_broker_remembered(own_stack: StartCluster) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        with Connection(cluster.brokers[1]) as connection:
            for sequence in (0, 4):
                produce(connection, topic, 0, sequence_batch(9, sequence, 4, epoch=2))
        cluster.stop_broker(1)
        (snapshot,) = partition_directory(cluster, topic).glob("*.snapshot")
        shown = json.loads(mainstem("log", "dump", snapshot, "-o", "json").stdout)
        assert (shown["producer_id"], shown["producer_epoch"]) == (9, 2)
        assert (shown["first_sequence"], shown["last_sequence"], shown["last_offset"]) == (4, 7, 7)
        assert "First sequence" in mainstem("log", "dump", snapshot).stdout.decode()
        cluster.start_broker(1)


def replicated_topic(new_topic: TopicFactory, replicas: int) -> str:
    """A topic of one partition, two of whose replicas have to be in sync."""
    name = f"replicated-{replicas}"
    wanted = NewTopic(name, 1, replicas, config={"min.insync.replicas": "2"})
    new_topic.admin.create_topics([wanted], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)
    return name


def broker_at(cluster: Cluster, address: str) -> int:
    (found,) = (broker_id for broker_id, its_address in cluster.brokers.items() if its_address == address)
    return found


def test_r11_a_new_leader_recognises_what_the_old_one_acknowledged(own_stack: StartCluster) -> None:
    cluster = own_stack(3)
    with TopicFactory(cluster) as new_topic:
        topic = replicated_topic(new_topic, 3)
        old_leader = new_topic.leader_address(topic)
        with Connection(old_leader) as connection:
            producer_id = init_producer_id(connection).producer_id
            for number in range(8):
                answer = produce(connection, topic, 0, sequence_batch(producer_id, number * 3, 3), acks=-1)
                assert answer.error_code == ErrorCode.none
        dead = broker_at(cluster, old_leader)
        cluster.kill_broker(dead)

        def sent_again() -> Any:
            for broker, address in cluster.brokers.items():
                if broker != dead:
                    with Connection(address) as connection:
                        batch = sequence_batch(producer_id, 21, 3)
                        answer = produce(connection, topic, 0, batch, acks=-1)
                        if answer.error_code == ErrorCode.none:
                            return address, answer
            return None

        new_leader, answer = wait_until(sent_again, "another broker leads", 30)
        assert answer.base_offset == 21
        with Connection(new_leader) as connection:
            fourth = produce(connection, topic, 0, sequence_batch(producer_id, 9, 3), acks=-1)
            assert (fourth.error_code, fourth.base_offset) == (ErrorCode.none, 9)
            new = produce(connection, topic, 0, sequence_batch(producer_id, 24), acks=-1)
            assert (new.error_code, new.base_offset) == (ErrorCode.none, 24)


# --- Stock clients, with it switched on ---

Send = Callable[[str, str, int], list[int]]
"""Sends so many numbered messages to partition 0 and returns the offsets it was told."""


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


def by_confluent(servers: str, topic: str, count: int) -> list[int]:
    producer: Any = confluent_kafka.Producer({**IDEMPOTENT, "bootstrap.servers": servers})
    told: list[tuple[bytes, int]] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error:
            failures.append(error)
        else:
            told.append((message.value(), message.offset()))

    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not failures
    return [offset for _, offset in sorted(told, key=lambda one: int(one[0]))]


def by_kafka_python(servers: str, topic: str, count: int) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        enable_idempotence=True,
        batch_size=200,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50,
    )
    try:
        answers = [producer.send(topic, value=b"%d" % number, partition=0) for number in range(count)]
        return [answer.get(PATIENCE_SECONDS).offset for answer in answers]
    finally:
        producer.close(timeout=5)


def by_aiokafka(servers: str, topic: str, count: int) -> list[int]:
    async def send() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, max_batch_size=200, retry_backoff_ms=10
        )
        await producer.start()
        try:
            answers = [
                await producer.send(topic, value=b"%d" % number, partition=0) for number in range(count)
            ]
            told = await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)
            return [one.offset for one in told]
        finally:
            await producer.stop()

    return asyncio.run(send())


every_sender = pytest.mark.parametrize(
    "send", [by_confluent, by_kafka_python, by_aiokafka], ids=["confluent-kafka", "kafka-python", "aiokafka"]
)


def assert_once_and_in_order(servers: str, topic: str, offsets: list[int], count: int) -> None:
    records = read_all(servers, topic, 0)
    assert [records[offset] for offset in sorted(records)] == [b"%d" % number for number in range(count)]
    assert offsets == sorted(records), "the client was told other offsets"


@every_sender
def test_stock_clients_produce_with_idempotence(local_stack: Cluster, topic: str, send: Send) -> None:
    offsets = send(local_stack.bootstrap_servers, topic, MESSAGES)
    assert_once_and_in_order(local_stack.bootstrap_servers, topic, offsets, MESSAGES)


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


def test_r11_a_producer_that_begins_without_enough_replicas_is_not_reordered(
    own_stack: StartCluster,
) -> None:
    cluster = own_stack(2)
    with TopicFactory(cluster) as new_topic:
        topic = replicated_topic(new_topic, 2)
        leader = new_topic.leader_address(topic)
        (follower,) = cluster.brokers.keys() - {broker_at(cluster, leader)}
        cluster.kill_broker(follower)
        refused = ErrorCode.not_enough_replicas
        with Connection(leader) as connection:
            wait_until(
                lambda: produce(connection, topic, 0, sequence_batch(-1, -1), acks=-1).error_code == refused,
                "the follower left the in-sync set",
                30,
            )
        back = threading.Thread(target=cluster.start_broker, args=(follower,))
        back.start()
        offsets = by_confluent(cluster.bootstrap_servers, topic, MESSAGES)
        back.join()
        # The first question may have come before the follower was out, and stays in the log then.
        records = read_all(cluster.bootstrap_servers, topic, 0)
        asked = sum(value == b"-1" for value in records.values())
        assert [records[offset] for offset in sorted(records)] == [
            *[b"-1"] * asked,
            *(b"%d" % number for number in range(MESSAGES)),
        ]
        assert offsets == sorted(records)[asked:]


@pytest.mark.timeout(180)
def test_r11_leaders_killed_under_load_make_no_record_twice_and_none_out_of_order(
    own_stack: StartCluster,
) -> None:
    cluster = own_stack(3)
    with TopicFactory(cluster) as new_topic:
        topic = replicated_topic(new_topic, 3)
        told: list[tuple[int, int]] = []
        failures: list[Any] = []
        producer: Any = confluent_kafka.Producer(
            {**IDEMPOTENT, "bootstrap.servers": cluster.bootstrap_servers}
        )

        def delivered(error: Any, message: Any) -> None:
            if error:
                failures.append(error)
            else:
                told.append((int(message.value()), message.offset()))

        sent = 0

        def go_on_until_told(count: int, what: str) -> None:
            def is_told() -> bool:
                nonlocal sent
                while sent - len(told) < OUTSTANDING_MAX:
                    producer.produce(topic, value=b"%d" % sent, partition=0, on_delivery=delivered)
                    sent += 1
                producer.poll(0.01)
                return len(told) >= count

            wait_until(is_told, what, 30, step_seconds=0)

        for _ in range(3):
            go_on_until_told(len(told) + 2_000, "the producer makes progress")
            killed = broker_at(cluster, new_topic.leader_address(topic))
            cluster.kill_broker(killed)
            go_on_until_told(len(told) + 1_000, "another leader takes records")
            cluster.start_broker(killed)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert not failures
        records = read_all(cluster.bootstrap_servers, topic, 0)
        assert [records[offset] for offset in sorted(records)] == [b"%d" % number for number in range(sent)]
        assert [offset for _, offset in sorted(told)] == sorted(records)

        def told_by_all() -> set[tuple[int, int, int]]:
            known = set()
            for address in cluster.brokers.values():
                with Connection(address) as connection:
                    (one,) = remembered(connection, topic)
                    known.add((one.producer_id, one.producer_epoch, one.last_sequence))
            return known

        wait_until(lambda: len(told_by_all()) == 1, "all replicas remember the producer alike")


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
        told: dict[int, int] = {}
        given_up: list[int] = []
        producer: Any = confluent_kafka.Producer(
            {**IDEMPOTENT, "bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 1_500}
        )

        def delivered(error: Any, message: Any) -> None:
            number = int(message.value())
            if error:
                given_up.append(number)
            else:
                told[number] = message.offset()

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
        assert sorted(told) == [*range(10), *range(20, 30)]
        records = read_all(cluster.bootstrap_servers, topic, 0)
        numbers = [int(records[offset]) for offset in sorted(records)]
        assert numbers == sorted(set(numbers))
        assert all(records[offset] == b"%d" % number for number, offset in told.items())
        with Connection(cluster.brokers[1]) as connection:
            (one,) = remembered(connection, topic)
        assert one.producer_epoch == 1
