from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest
from tests.unit.broker.api.brokers import LocalBroker, run
from tests.unit.broker.api.topic_requests import delete

from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.protocol.wire import NULL_UUID


async def test_topics_are_deleted_by_id(broker: LocalBroker) -> None:
    topic_id = broker.create("t")
    request = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": uuid4()}]
    assert await delete(broker, request, 6) == [("t", "none"), (None, "unknown_topic_id")]
    assert await delete(broker, request[:1], 6) == [(None, "unknown_topic_id")]


@pytest.mark.parametrize(
    ("version", "error"),
    [(2, "invalid_request"), (3, "topic_deletion_disabled"), (5, "topic_deletion_disabled")],
)
def test_a_broker_may_not_allow_deletion(version: int, error: str, broker: LocalBroker) -> None:
    """KIP-322: a client that knows the error does not take it for a mistake in the request."""
    broker.create("t")
    broker.context.config.values["delete.topic.enable"] = False
    assert run(delete(broker, ["t", "nowhere"], version)) == [("t", error), ("nowhere", error)]
    assert "t" in broker.view.topics


async def test_a_topic_that_a_request_names_more_than_once_stays(broker: LocalBroker) -> None:
    """As in Apache Kafka: by name, by id, or by one and the other."""
    ids = {name: broker.create(name, (2,)) for name in ("a", "b", "c", "d")}
    named = [{"name": name, "topic_id": NULL_UUID} for name in ("a", "a", "c", "d")]
    by_id = [{"name": None, "topic_id": ids[name]} for name in ("b", "b", "c")]
    assert await delete(broker, [*named, *by_id], 6) == [
        ("a", "invalid_request"),
        ("a", "invalid_request"),
        ("c", "invalid_request"),
        ("d", "none"),
        ("b", "invalid_request"),
        ("b", "invalid_request"),
        ("c", "invalid_request"),
    ]
    assert sorted(broker.view.topics) == ["a", "b", "c"]


async def test_a_topic_to_delete_has_either_a_name_or_an_id(broker: LocalBroker) -> None:
    """One of both, of which the other means another topic, would delete what nobody meant."""
    ids = {name: broker.create(name, (2,)) for name in ("a", "b")}
    request = [{"name": "a", "topic_id": ids["b"]}, {"name": None, "topic_id": NULL_UUID}]
    assert await delete(broker, request, 6) == [("a", "invalid_request"), (None, "invalid_request")]
    assert sorted(broker.view.topics) == ["a", "b"]


async def test_a_deletion_nobody_carries_out_times_out_and_stands(broker: LocalBroker) -> None:
    broker.create("t")
    broker.cluster.controller_is_down = True

    assert await delete(broker, ["t"], 5) == [("t", "request_timed_out")]
    assert broker.view.pending_deletions == {"t"}
    assert await delete(broker, ["t"], 5, timeout_ms=0) == [("t", "none")]


async def test_the_topics_of_a_request_are_deleted_together_and_a_bad_one_fails_alone(
    broker: LocalBroker,
) -> None:
    names = [f"t{number}" for number in range(300)]
    for name in names:
        broker.create(name, (2,))
    answers = await delete(broker, ["nowhere", *names], 5)
    assert answers[0] == ("nowhere", "unknown_topic_or_partition")
    assert answers[1:] == [(name, "none") for name in names]
    assert broker.cluster.topics_per_call == [300]
    assert broker.view.topics == {}


async def test_a_zookeeper_that_fails_after_a_deletion_is_an_answer_not_a_lost_connection(
    broker: LocalBroker,
) -> None:
    broker.create("t", (2,))
    broker.cluster.removal_failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert await delete(broker, ["t", "nowhere"], 5) == [
        ("t", "request_timed_out"),
        ("nowhere", "unknown_topic_or_partition"),
    ]


async def test_a_deletion_does_not_wait_for_files_on_a_failed_disk(broker: LocalBroker) -> None:
    topic_id = broker.create("t", (2,))
    broker.create("u", (2,))
    broker.view.set_brokers(
        replace(registration, offline=frozenset({(topic_id, 0)}) if number == 2 else frozenset())
        for number, registration in list(broker.view.brokers.items())
    )
    for name, awaited in (("t", {1, 3}), ("u", {1, 2, 3})):
        assert await delete(broker, [name], 5) == [(name, "none")]
        assert broker.cluster.awaited_brokers == awaited


async def test_the_timeout_is_for_all_topics_that_are_deleted(broker: LocalBroker) -> None:
    names = [f"t{number}" for number in range(50)]
    for name in names:
        broker.create(name, (2,))
    broker.cluster.controller_is_down = True
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert {error for _, error in await delete(broker, names, 5, timeout_ms=200)} == {"request_timed_out"}
    assert loop.time() - started_s < 5, "ten seconds if each had its own"
