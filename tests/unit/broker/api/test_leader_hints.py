"""Refused produces and fetches say who leads (KIP-951)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.api.brokers import LocalBroker, batch
from tests.unit.broker.replica.replicas import state_of

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import FencedLeaderEpoch, NotLeaderOrFollower
from mainstem_broker.protocol.wire import Body

TOPIC_ID = UUID(int=7)


def led_by(broker: LocalBroker, leader: int, epoch: int = 4, topic: str = "t") -> UUID:
    """A topic with replicas on brokers 1 and 2."""
    assignment = TopicAssignment(topic, TOPIC_ID, {0: (1, 2)})
    broker.view.set_topic(assignment, {})
    broker.set_state(topic, 0, state_of(leader, epoch, (1, 2), epoch))
    return assignment.topic_id


async def produce(broker: LocalBroker, version: int, acks: int = 1, timeout_ms: int = 10) -> Body:
    data = [{"index": 0, "records": batch([b"x"])}]
    request = {"acks": acks, "timeout": timeout_ms, "topic_data": [{"name": "t", "partition_data": data}]}
    return await broker.answer("Produce", version, request)


async def fetch(broker: LocalBroker, version: int, epoch: int = -1, topic_id: UUID = TOPIC_ID) -> Body:
    position = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": epoch,
    }
    topic: dict[str, Any] = {"partitions": [position]}
    topic |= {"topic": "t"} if version < 13 else {"topic_id": topic_id}
    request = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic]}
    return await broker.answer("Fetch", version, request)


def hint_of(body: Body) -> tuple[int, dict[str, int] | None, list[dict[str, Any]]]:
    """(error code, leader of the only partition, endpoints)."""
    (topic,) = body["responses"]
    (answer,) = topic.get("partition_responses") or topic["partitions"]
    endpoints = [dict(node) for node in body.get("node_endpoints") or ()]
    leader = answer.get("current_leader")
    if leader is not None and leader["leader_id"] == -1:
        leader = None
    return answer["error_code"], leader, endpoints


BROKER_2 = {"node_id": 2, "host": "host2", "port": 9092, "rack": "rack2"}


@pytest.mark.parametrize("is_fetch", [False, True], ids=["produce", "fetch"])
async def test_who_asks_a_follower_learns_the_leader_and_its_endpoint(
    broker: LocalBroker, is_fetch: bool
) -> None:
    led_by(broker, 2)
    error, leader, endpoints = hint_of(await (fetch(broker, 16) if is_fetch else produce(broker, 10)))
    assert error == NotLeaderOrFollower.code
    assert leader == {"leader_id": 2, "leader_epoch": 4}
    assert endpoints == [BROKER_2]


async def test_a_consumer_with_an_old_epoch_learns_the_new_one(broker: LocalBroker) -> None:
    led_by(broker, 1)
    error, leader, endpoints = hint_of(await fetch(broker, 17, epoch=3))
    assert error == FencedLeaderEpoch.code
    assert leader == {"leader_id": 1, "leader_epoch": 4}
    assert [node["node_id"] for node in endpoints] == [1]


async def test_without_a_leader_there_is_no_hint(broker: LocalBroker) -> None:
    led_by(broker, -1)
    for body in (await produce(broker, 10), await fetch(broker, 16)):
        assert hint_of(body) == (NotLeaderOrFollower.code, None, [])


async def test_a_leader_that_is_not_alive_is_named_without_an_endpoint(broker: LocalBroker) -> None:
    led_by(broker, 2)
    broker.set_live(1, 3)
    assert hint_of(await produce(broker, 10))[1:] == ({"leader_id": 2, "leader_epoch": 4}, [])


async def test_who_is_elected_and_cannot_serve_does_not_name_itself(broker: LocalBroker) -> None:
    led_by(broker, 1)
    broker.replicas.lease.end()
    error, leader, endpoints = hint_of(await produce(broker, 10))
    assert error == NotLeaderOrFollower.code
    assert (leader, endpoints) == (None, [])


async def test_a_leader_that_is_replaced_while_a_produce_waits_names_the_new_one(broker: LocalBroker) -> None:
    led_by(broker, 1)
    waiting = asyncio.ensure_future(produce(broker, 10, acks=-1, timeout_ms=5_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.set_state("t", 0, state_of(2, 5, (1, 2), 5))
    error, leader, endpoints = hint_of(await waiting)
    assert error == NotLeaderOrFollower.code
    assert leader == {"leader_id": 2, "leader_epoch": 5}
    assert endpoints == [BROKER_2]
