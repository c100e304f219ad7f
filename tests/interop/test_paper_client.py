"""The paper's client against running brokers and ZooKeeper (R16, R17). Deaths are in `tests/faults`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from tests.support.clusters import MainstemCluster, SharedCluster, StartCluster
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until

from mainstem import Consumer, Message, MessageSet, Producer
from mainstem.paper_client.errors import RebalanceFailed, SendFailed
from mainstem.paper_client.stream import MessageStream
from mainstem.paper_client.znodes import GroupPaths
from mainstem.paper_client.zookeeper import GroupSession, RegistrationGone


@pytest.fixture
def zookeeper(local_stack: SharedCluster, reference: bool) -> str:
    if reference:
        pytest.skip("this Apache Kafka has no ZooKeeper")
    return f"127.0.0.1:{local_stack.zookeeper_port}"


@pytest.fixture
def tree(zookeeper: str) -> Iterator[Any]:
    """A ZooKeeper client of another program."""
    client = KazooClient(zookeeper)
    client.start(20)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def group(tree: Any) -> Iterator[str]:
    name = f"group-{uuid4().hex[:8]}"
    yield name
    tree.delete(f"/consumers/{name}", recursive=True)


def send(zookeeper: str, topic: str, *payloads: bytes) -> None:
    with Producer(zookeeper) as producer:
        producer.send(topic, MessageSet(*(Message(payload) for payload in payloads)))


def test_the_papers_sample_runs_as_written(own_stack: StartCluster, reference: bool) -> None:
    """§3: the sample producer code, and the sample consumer code, in Python. It names its topic."""
    if reference:
        pytest.skip("this Apache Kafka has no ZooKeeper")
    cluster = own_stack(1)
    assert isinstance(cluster, MainstemCluster)
    zookeeper = f"127.0.0.1:{cluster.zookeeper_port}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("topic1", 1, 1)])["topic1"].result(ANSWER_SECONDS)
    group = "sample"

    producer = Producer(zookeeper)
    message = Message(b"test message str")
    message_set = MessageSet(message)
    producer.send("topic1", message_set)

    got: list[bytes] = []
    consumer = Consumer(zookeeper, group)
    streams = consumer.create_message_streams("topic1", 1)

    def consume() -> None:
        for message in streams[0]:
            got.append(message.payload)  # noqa: PERF401  # the sample: some bytes are worked on

    worker = threading.Thread(target=consume)
    worker.start()
    wait_until(lambda: got == [b"test message str"], "the message is delivered")
    producer.send("topic1", MessageSet(Message(b"another")))
    wait_until(lambda: len(got) == 2, "the stream went on")
    assert worker.is_alive(), "a stream never ends, as long as its consumer lives"
    consumer.close()
    worker.join(60)
    assert not worker.is_alive()


def test_a_group_goes_on_where_it_stopped_and_rewinds_when_its_offset_is_set_back(
    zookeeper: str, tree: Any, group: str, topic: str
) -> None:
    """§3.2: offsets are in the offset registry. §3.1: a consumer can go back to an old offset."""
    send(zookeeper, topic, b"0", b"1", b"2")

    def first_of_a_new_consumer(count: int) -> list[int]:
        with Consumer(zookeeper, group) as consumer:
            (stream,) = consumer.create_message_streams(topic, 1)
            return [next(stream).offset for _ in range(count)]

    assert first_of_a_new_consumer(2) == [0, 1]
    assert first_of_a_new_consumer(1) == [1], "what was in work is delivered again"
    assert first_of_a_new_consumer(2) == [1, 2]
    tree.set(f"/consumers/{group}/offsets/{topic}/0", b"0")
    assert first_of_a_new_consumer(3) == [0, 1, 2]
    assert tree.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"2"
    assert tree.get_children(f"/consumers/{group}/ids") == []
    assert tree.get_children(f"/consumers/{group}/owners/{topic}") == []


def test_streams_share_what_their_consumer_has_and_keyed_messages_keep_their_order(
    zookeeper: str, tree: Any, group: str, new_topic: TopicFactory
) -> None:
    topic = new_topic(partitions=4)
    with Producer(zookeeper) as producer:
        producer.send(topic, MessageSet(*(Message(b"%d" % n, b"key %d" % (n % 20)) for n in range(400))))
    got: list[list[Any]] = [[], []]

    def read(stream: MessageStream, into: list[Any]) -> None:
        for message in stream:
            into.append(message)  # noqa: PERF402  # it never ends, and is looked at meanwhile

    with Consumer(zookeeper, group, auto_commit_interval_ms=100) as consumer:
        streams = consumer.create_message_streams(topic, 2)
        readers = [threading.Thread(target=read, args=pair) for pair in zip(streams, got, strict=True)]
        for reader in readers:
            reader.start()
        wait_until(lambda: sum(map(len, got)) == 400, "all is delivered")
        assert [{message.partition for message in some} for some in got] == [{0, 1}, {2, 3}]
        owners = [tree.get(f"/consumers/{group}/owners/{topic}/{n}")[0].decode()[-2:] for n in range(4)]
        assert owners == ["-0", "-0", "-1", "-1"]
        wait_until(
            lambda: len(tree.get_children(f"/consumers/{group}/offsets/{topic}")) > 0,
            "offsets are committed automatically",
        )
    for some in got:
        for key in {message.key for message in some}:
            numbers = [int(message.payload) for message in some if message.key == key]
            assert numbers == sorted(numbers)


def test_offsets_are_committed_when_the_user_asks(zookeeper: str, tree: Any, group: str, topic: str) -> None:
    send(zookeeper, topic, b"0", b"1")
    with Consumer(zookeeper, group) as consumer:
        (stream,) = consumer.create_message_streams(topic, 1)
        next(stream)
        next(stream)
        consumer.commit_offsets()
        assert tree.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"1"


def test_a_group_that_begins_at_the_largest_offset_gets_what_comes_then(
    zookeeper: str, tree: Any, group: str, topic: str
) -> None:
    send(zookeeper, topic, b"old")
    with Consumer(zookeeper, group, auto_offset_reset="largest", auto_commit_interval_ms=100) as consumer:
        (stream,) = consumer.create_message_streams(topic, 1)
        wait_until(lambda: tree.exists(f"/consumers/{group}/offsets/{topic}/0"), "its start is fixed")
        send(zookeeper, topic, b"new")
        assert next(stream).payload == b"new"


def test_a_topic_may_come_later_and_grow(zookeeper: str, group: str, new_topic: TopicFactory) -> None:
    topic = f"topic-{uuid4().hex[:12]}"
    with Consumer(zookeeper, group) as consumer:
        (stream,) = consumer.create_message_streams(topic, 1)
        new_topic(name=topic)
        send(zookeeper, topic, b"first")
        assert next(stream).payload == b"first"


def test_who_cannot_claim_its_partitions_in_all_its_tries_says_so_and_leaves(
    zookeeper: str, tree: Any, group: str, topic: str
) -> None:
    tree.create(f"/consumers/{group}/owners/{topic}/0", b"somebody-0", ephemeral=True, makepath=True)
    consumer = Consumer(
        zookeeper,
        group,
        zookeeper_session_timeout_ms=1_000,
        rebalance_backoff_ms=100,
        rebalance_max_retries=11,
    )
    (stream,) = consumer.create_message_streams(topic, 1)
    sentence = rf"after 11 retries in 1100 ms, since partition 0 of {topic} is somebody-0's"
    with pytest.raises(RebalanceFailed, match=sentence):
        next(stream)
    wait_until(lambda: tree.get_children(f"/consumers/{group}/ids") == [], "it has left the group")
    consumer.close()


def test_who_has_lost_its_session_neither_claims_nor_sets_an_offset_back(
    zookeeper: str, tree: Any, group: str, topic: str
) -> None:
    session = GroupSession(
        zookeeper, GroupPaths(group, topic), "late", 10_000, on_change=lambda: None, on_lost=lambda: None
    )
    session.start()
    try:
        session.register(1)
        assert session.claim(0, 0) is None
        assert session.claim(0, 0) is None, "claimed once more, after an answer that was lost"
        session.store(0, 5)
        # As when its session has ended and another consumer has gone on.
        tree.delete(f"/consumers/{group}/ids/{session.consumer_id}")
        tree.set(f"/consumers/{group}/offsets/{topic}/0", b"9")
        writes: list[Callable[[], object]] = [
            lambda: session.store(0, 6),
            lambda: session.release(0, 6),
            lambda: session.claim(1, 0),
            session.check,
        ]
        for write in writes:
            with pytest.raises(RegistrationGone):
                write()
        assert tree.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"9"
        assert tree.exists(f"/consumers/{group}/owners/{topic}/1") is None
    finally:
        session.stop()


def test_a_message_that_is_too_large_is_reported(zookeeper: str, topic: str) -> None:
    with Producer(zookeeper) as producer, pytest.raises(SendFailed, match="1 of 2 messages were not ackn"):
        producer.send(topic, MessageSet(Message(b"small"), Message(bytes(2_000_000))))
