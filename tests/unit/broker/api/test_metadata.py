from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, make, read_by_client, run
from tests.unit.broker.protocol.schema_strategies import request_schema

from mainstem_broker.api.context import RequestContext
from mainstem_broker.api.metadata import handle_describe_cluster
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.errors import TopicAlreadyExists
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import PartitionState


def named(*names: str | None, create: bool | None = False) -> dict[str, Any]:
    requests: dict[str, Any] = {"topics": [{"name": name} for name in names]}
    if create is not None:
        requests["allow_auto_topic_creation"] = create
    return requests


def summary(body: Body) -> list[tuple[str | None, str]]:
    return [(topic["name"], ErrorCode(topic["error_code"]).name) for topic in body["topics"]]


async def ask(broker: LocalBroker, version: int, requested: dict[str, Any]) -> Body:
    return await broker.answer("Metadata", version, requested)


# --- All topics ---


def test_version_0_asks_for_all_topics_by_an_empty_list(broker: LocalBroker) -> None:
    broker.create("b")
    broker.create("a")
    assert summary(run(ask(broker, 0, {"topics": []}))) == [("a", "none"), ("b", "none")]


async def test_later_versions_ask_for_all_by_null_and_for_none_by_an_empty_list(broker: LocalBroker) -> None:
    broker.create("a")
    assert summary(await ask(broker, 1, {"topics": None})) == [("a", "none")]
    nothing = await ask(broker, 1, {"topics": []})
    assert (summary(nothing), len(nothing["brokers"])) == ([], 3)


def test_all_topics_are_reported_after_the_latest_news_was_heard(broker: LocalBroker) -> None:
    broker.cluster.on_catch_up = lambda: broker.create("made at another broker")
    assert summary(run(ask(broker, 12, {"topics": None}))) == [("made at another broker", "none")]


# --- What is reported ---


def test_partitions_tell_their_leader_epoch_replicas_and_who_is_gone(broker: LocalBroker) -> None:
    topic_id = broker.create("t", (1, 2, 3))
    broker.set_state("t", 1, PartitionState(2, 7, (2,), 1, 1))
    broker.set_live(1, 2)
    (topic,) = run(ask(broker, 12, {"topics": None}))["topics"]
    assert (topic["topic_id"], topic["is_internal"]) == (topic_id, False)
    first, second, third = topic["partitions"]
    assert [partition["partition_index"] for partition in topic["partitions"]] == [0, 1, 2]
    assert (first["leader_id"], first["leader_epoch"], first["error_code"]) == (1, 0, 0)
    assert (second["leader_id"], second["leader_epoch"]) == (2, 7)
    assert ErrorCode(third["error_code"]).name == "leader_not_available"
    assert (third["leader_id"], third["leader_epoch"]) == (-1, 0), (
        "the real epoch: -1 would end fencing (franz-go#1331)"
    )
    assert (third["replica_nodes"], third["isr_nodes"], third["offline_replicas"]) == ((3,), (3,), [3])


async def test_a_topic_without_any_partition_state_is_no_success(broker: LocalBroker) -> None:
    """Clients would report success for a topic of no partitions."""
    broker.cluster.controller_is_down = True

    await ask(broker, 12, named("t", create=True))
    body = await ask(broker, 12, named("t"))
    assert summary(body) == [("t", "leader_not_available")]
    assert body["topics"][0]["partitions"] == ()


@pytest.mark.parametrize("version", range(13))
def test_brokers_controller_and_cluster_are_reported(broker: LocalBroker, version: int) -> None:
    body = run(ask(broker, version, {"topics": []}))
    client = read_by_client(3, version, body)
    assert [(b.node_id, b.host, b.port) for b in client.brokers] == [
        (1, "host1", 9091),
        (2, "host2", 9092),
        (3, "host3", 9093),
    ]
    if version >= 1:
        assert client.controller_id == 2
        assert client.brokers[0].rack == "rack1"
    if version >= 2:
        assert client.cluster_id == "the-cluster"


def test_brokers_without_the_listener_the_client_came_through_are_left_out(broker: LocalBroker) -> None:
    context = RequestContext(1, None, "peer", "OTHER")
    request = make(request_schema(60, 1), {})
    assert handle_describe_cluster(broker.context, request, context)["brokers"] == []


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(1, "none"), (2, "mismatched_endpoint_type"), (0, "unsupported_endpoint_type")],
)
def test_a_client_that_takes_brokers_for_controllers_gets_an_error(
    broker: LocalBroker, endpoint_type: int, error: str
) -> None:
    """KIP-919: kafka-metadata-quorum and others with --bootstrap-controller."""
    body = run(broker.answer("DescribeCluster", 1, {"endpoint_type": endpoint_type}))
    assert ErrorCode(body["error_code"]).name == error
    assert len(body["brokers"]) == (3 if error == "none" else 0)


def test_authorized_operations_are_reported_on_request_only(broker: LocalBroker) -> None:
    broker.create("t")
    body = run(ask(broker, 8, named("t")))
    client = read_by_client(3, 8, body)
    assert client.topics[0].topic_authorized_operations == client.cluster_authorized_operations == -(2**31)


# --- Topics that are not there ---


async def test_an_unknown_topic_is_unknown_after_the_latest_news_was_heard(broker: LocalBroker) -> None:
    assert summary(await ask(broker, 9, named("t"))) == [("t", "unknown_topic_or_partition")]
    broker.cluster.on_catch_up = lambda: broker.create("t")
    assert summary(await ask(broker, 9, named("t"))) == [("t", "none")]
    assert broker.cluster.times_caught_up == 2
    await ask(broker, 9, named("t"))
    assert broker.cluster.times_caught_up == 2, "what is known is answered at once"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250])
@pytest.mark.parametrize("create", [False, True])
def test_a_name_that_no_topic_can_have_is_reported(broker: LocalBroker, name: str, create: bool) -> None:
    broker.create("t")
    assert summary(run(ask(broker, 9, named("t", name, create=create)))) == [
        ("t", "none"),
        (name, "invalid_topic_exception"),
    ]
    assert list(broker.view.topics) == ["t"]


async def test_a_topic_is_found_by_its_id(broker: LocalBroker) -> None:
    topic_id, other = broker.create("t"), uuid4()

    request = {"topics": [{"topic_id": topic_id, "name": None}, {"topic_id": other, "name": None}]}
    body = await ask(broker, 12, request)
    assert summary(body) == [("t", "none"), (None, "unknown_topic_id")]
    assert body["topics"][1]["topic_id"] == other


def test_a_topic_with_neither_name_nor_id_is_no_topic(broker: LocalBroker) -> None:
    request = {"topics": [{"topic_id": UUID(int=0), "name": None}], "allow_auto_topic_creation": True}
    assert summary(run(ask(broker, 12, request))) == [(None, "invalid_topic_exception")]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("requested", [{"name": None}, {"name": "t", "topic_id": UUID(int=1)}])
def test_before_version_12_topics_are_asked_for_by_name_only(
    broker: LocalBroker, version: int, requested: dict[str, Any]
) -> None:
    """Their answers have no room for a topic without a name."""
    broker.create("t", topic_id=UUID(int=1))
    body = run(ask(broker, version, {"topics": [requested]}))
    assert summary(body) == [(requested["name"] or "", "invalid_request")]


# --- Creation by asking ---


async def test_asking_for_an_unknown_topic_creates_it_where_client_and_broker_allow(
    broker: LocalBroker,
) -> None:
    body = await ask(broker, 4, named("t", create=True))
    assert summary(body) == [("t", "none")], "led at once: the answer can tell"
    assert list(broker.view.topics) == ["t"]


def test_clients_before_version_4_always_allow_it(broker: LocalBroker) -> None:
    run(ask(broker, 1, named("t", create=None)))
    assert list(broker.view.topics) == ["t"]


def test_a_broker_that_does_not_allow_it_creates_nothing(broker: LocalBroker) -> None:
    broker.context.config.values["auto.create.topics.enable"] = False
    assert summary(run(ask(broker, 4, named("t", create=True)))) == [("t", "unknown_topic_or_partition")]
    assert broker.view.topics == {}


def test_a_topic_that_another_client_created_meanwhile_is_retried(broker: LocalBroker) -> None:
    broker.cluster.failure = TopicAlreadyExists("just now")
    assert summary(run(ask(broker, 4, named("t", create=True)))) == [("t", "leader_not_available")]


@pytest.mark.parametrize("names", [["t"], ["t", "t"], ["t", "u"]])
def test_a_cluster_that_cannot_create_answers_unknown(broker: LocalBroker, names: Sequence[str]) -> None:
    broker.cluster.failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert summary(run(ask(broker, 4, named(*names, create=True)))) == [
        (name, "unknown_topic_or_partition") for name in dict.fromkeys(names)
    ]


@pytest.mark.parametrize(
    ("name", "prefix", "isr"),
    [("__consumer_offsets", "offsets.topic", 1), ("__transaction_state", "transaction.state.log", 2)],
)
def test_a_topic_of_coordinators_is_created_with_their_settings(
    broker: LocalBroker, name: str, prefix: str, isr: int
) -> None:
    """R15: a lag monitor may ask before any group exists, and a plain topic loses offsets to retention."""
    run(ask(broker, 4, named(name, create=True)))
    topic, config = broker.view.topics[name], broker.context.config
    assert len(topic.assignment.replicas) == config.integer(f"{prefix}.num.partitions") == 50
    assert {len(replicas) for replicas in topic.assignment.replicas.values()} == {3}
    settings = config.topic(topic.config)
    assert settings.cleanup_policy == "compact"
    assert settings.segment_bytes == config.integer(f"{prefix}.segment.bytes")
    assert settings.min_insync_replicas == isr
