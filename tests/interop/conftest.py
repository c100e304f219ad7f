"""What most tests over the wire begin with: a topic of one partition, and a connection to its leader."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import RunCluster, SharedCluster
from tests.support.group_requests import coordinator_address
from tests.support.jvm import SHORT_LIVED
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch, produce


@pytest.fixture(scope="session", autouse=True)
def spark_starts_soon() -> Iterator[None]:
    """A load of some records takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED))
        yield


@pytest.fixture(scope="session")
def group_stack(run_cluster: RunCluster) -> Iterator[SharedCluster]:
    """Three brokers whose groups form at once and notice dead members soon."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
        "group.consumer.session.timeout.ms": "2000",
        "group.consumer.min.session.timeout.ms": "2000",  # Apache Kafka's bounds
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "200",
    }
    with run_cluster(3, settings) as cluster:
        yield SharedCluster(cluster)


@pytest.fixture
def group_topic(group_stack: SharedCluster) -> Iterator[TopicFactory]:
    """Makes topics on `group_stack` that are gone after the test."""
    with TopicFactory(group_stack) as factory:
        yield factory


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture
def coordinator(group_stack: SharedCluster, group: str) -> Iterator[Connection]:
    """A connection to the group's coordinator."""
    with Connection(coordinator_address(group_stack.brokers[1], group)) as connection:
        yield connection


@pytest.fixture
def topic(new_topic: TopicFactory) -> str:
    """A topic of one partition on `local_stack`."""
    return new_topic()


@pytest.fixture
def leader_address(new_topic: TopicFactory, topic: str) -> str:
    return new_topic.leader_address(topic)


@pytest.fixture
def leader(leader_address: str) -> Iterator[Connection]:
    """A connection to the leader of `topic`."""
    with Connection(leader_address) as connection:
        yield connection


@pytest.fixture
def unharmed(local_stack: SharedCluster, topic: str, leader_address: str) -> Iterator[None]:
    """Afterwards all brokers are the processes they were, and `topic` takes and gives a batch."""
    before = {broker_id: local_stack.broker_pid(broker_id) for broker_id in local_stack.brokers}
    yield
    assert {broker_id: local_stack.broker_pid(broker_id) for broker_id in local_stack.brokers} == before
    batch = encode_batch([Message(b"still", b"key"), Message(b"serves", b"key")])
    with Connection(leader_address) as connection:
        answer = produce(connection, topic, 0, batch)
        assert answer.error_code == ErrorCode.none
        assert fetch(connection, topic, 0, answer.base_offset).records[HEADER.size :] == batch[HEADER.size :]
