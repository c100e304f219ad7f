"""Nodes that a later version has written: what they are about is stopped, and said so (R44)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer
from tests.unit.broker.cluster.small_clusters import (
    TOPIC_ID,
    create_topic,
    empty_server,
    register,
    session_with,
    written_states,
)

from mainstem_broker.cluster import config_entities, znodes
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.feed_reader import FeedReader
from mainstem_broker.cluster.member_state import Event
from mainstem_broker.cluster.producer_ids import ProducerIds
from mainstem_broker.cluster.view import ClusterView, Delta
from mainstem_broker.cluster.zookeeper import Create, SetData
from mainstem_broker.errors import CoordinatorNotAvailable, NewerFormat

STATE = znodes.state_path("t", 0)


@pytest.mark.parametrize(
    ("decode", "version"),
    [
        (lambda data: znodes.BrokerRegistration.decode(1, data, 0), 5),
        (lambda data: znodes.TopicAssignment.decode("t", data, 0), 3),
        (lambda data: znodes.decode_state(data, 0), 1),
        (lambda data: znodes.Claim.decode(1, data), 1),
        (znodes.Change.decode, 1),
        (znodes.decode_incarnation, 1),
        (znodes.decode_offline, 1),
        (znodes.decode_config, 1),
        (znodes.decode_producer_id_block, 1),
        (znodes.decode_deleted_topic, 1),
    ],
)
def test_a_node_of_a_later_version_is_never_misread(decode: Callable[[bytes], Any], version: int) -> None:
    with pytest.raises(NewerFormat, match=f"version {version + 1}.*up to {version}"):
        decode(json.dumps({"version": version + 1}).encode())


class Broker:
    """What broker 1 knows of a cluster of brokers 1 and 2 with topic t, led by broker 2, as controller."""

    def __init__(self, server: ZooKeeperServer, zookeeper: SimulatedZooKeeper) -> None:
        self.server = server
        self.view = ClusterView()
        self.events: list[Event] = []
        self.controllership = Controllership(zookeeper, 1, self.view, lambda _: ElectionPolicy())
        self.reader = FeedReader(zookeeper, self.view, self.controllership, self.events.append)

    async def read(self) -> Delta:
        delta = Delta()
        await self.reader.read_feed(delta)
        return delta

    async def load(self) -> Delta:
        delta = Delta()
        await self.reader.load(delta)
        return delta

    def write(self, path: str, *, newer: bool) -> bytes:
        """Write a node again, in a later version or in the present one, and return what it was."""
        node = self.server.get(path)
        assert node is not None
        body = json.loads(node.data)
        body["version"] += 1 if newer else -1
        self.server.multi([SetData(path, json.dumps(body).encode(), node.version)], 0)
        return node.data

    def announce(self, change: znodes.Change, *, newer: bool = False) -> None:
        body = json.loads(change.encode())
        body["version"] += newer
        self.server.multi([Create(znodes.CHANGE_PREFIX, json.dumps(body).encode(), sequential=True)], 0)


async def cluster() -> Broker:
    server = empty_server()
    zookeeper = await session_with(server)
    for broker_id in (1, 2):
        register(server, broker_id, zookeeper.session_id)
    create_topic(server, {0: (2, 1), 1: (2, 1)})
    broker = Broker(server, zookeeper)
    await broker.load()
    await broker.controllership.seek(lambda: None)
    await broker.controllership.lead(Delta())
    await broker.read()
    assert written_states(server)[0].leader == 2
    return broker


@pytest.mark.parametrize("path", [STATE, znodes.topic_path("t"), znodes.topic_config_path("t")])
async def test_a_topic_with_a_node_in_a_newer_format_is_stopped_until_it_can_be_read(path: str) -> None:
    """R44: one line in the log says what to do, and the controller leaves the topic alone."""
    broker = await cluster()
    if path == znodes.topic_config_path("t"):
        broker.server.multi([Create(path, znodes.encode_config({}))], 0)
    broker.write(path, newer=True)
    with capture_logs() as lines:
        delta = await broker.load()
        await broker.load()
    assert delta.partitions == {("t", 0), ("t", 1)}, "its replicas hear of it"
    errors = [line for line in lines if "its topic is stopped" in line["event"]]
    assert [line["path"] for line in errors] == [path]
    assert "upgrade this broker" in errors[0]["event"]
    assert broker.view.newer_formats()[0].startswith(f"{path}: its format has version ")

    before = written_states(broker.server) if path != STATE else None
    broker.view.set_brokers(one for one in broker.view.brokers.values() if one.broker_id == 1)
    broker.controllership.look_again()
    await broker.controllership.lead(Delta())
    assert before is None or written_states(broker.server) == before

    broker.write(path, newer=False)
    delta = await broker.load()
    assert broker.view.newer_formats() == []
    assert delta.partitions >= {("t", 0), ("t", 1)}
    broker.controllership.look_again()
    await broker.controllership.lead(Delta())


async def test_a_topic_that_is_deleted_is_not_reported_any_more() -> None:
    broker = await cluster()
    broker.write(STATE, newer=True)
    await broker.load()
    assert broker.view.newer_formats()
    topic_id = broker.view.topics["t"].topic_id
    broker.announce(znodes.Change(deleted=(("t", topic_id),)))
    await broker.read()
    assert broker.view.newer_formats() == []


async def test_an_entry_of_the_feed_in_a_newer_format_has_everything_read() -> None:
    """R44: what it announces is in nodes that have versions of their own."""
    broker = await cluster()
    broker.server.multi([Create(znodes.topic_config_path("t"), znodes.encode_config({"x": "1"}))], 0)
    with capture_logs() as lines:
        for _ in range(2):
            broker.announce(znodes.Change(), newer=True)
            await broker.read()
    assert broker.view.topics["t"].config == {"x": "1"}
    (line,) = lines
    assert "upgrade this broker" in line["event"]
    assert broker.view.newer_formats()[0].startswith(znodes.CHANGES)


async def test_a_broker_that_cannot_read_a_registration_is_no_controller_and_buries_nobody() -> None:
    """R44, R20: the broker that is registered so is alive."""
    broker = await cluster()
    broker.write(znodes.broker_path(2), newer=True)
    await broker.reader.read_brokers(Delta())
    assert broker.view.brokers.keys() == {1, 2}
    assert broker.view.newer_formats()[0].startswith(znodes.broker_path(2))
    await broker.controllership.lead(Delta())
    assert not broker.controllership.is_held
    assert broker.server.get(znodes.CONTROLLER) is None
    assert written_states(broker.server)[0].leader == 2

    await broker.controllership.seek(lambda: None)
    assert not broker.controllership.is_held
    assert broker.server.get(znodes.CONTROLLER) is None

    broker.write(znodes.broker_path(2), newer=False)
    broker.events.clear()
    await broker.reader.read_brokers(Delta())
    assert Event.CONTROLLER_CHANGED in broker.events
    assert broker.view.newer_formats() == []
    await broker.controllership.seek(lambda: None)
    assert broker.controllership.is_held


async def test_settings_in_a_newer_format_leave_the_former_ones_in_effect() -> None:
    """R44."""
    broker = await cluster()
    path = config_entities.config_path("brokers/2")
    broker.server.multi([Create(path, znodes.encode_config({"x": "1"}))], 0)
    broker.announce(znodes.Change(configs=("brokers/2",)))
    await broker.read()
    broker.write(path, newer=True)
    broker.announce(znodes.Change(configs=("brokers/2",)))
    await broker.read()
    assert broker.view.broker_configs["2"] == {"x": "1"}
    assert broker.view.newer_formats()[0].startswith(path)


async def test_a_claim_in_a_newer_format_elects_nobody() -> None:
    """R44, R19."""
    broker = await cluster()
    claims = {number: znodes.Claim(number, 0, 0, 5).encode() for number in (1, 2)}
    broker.server.multi(
        [Create(znodes.claim_path("t", 0, number), data) for number, data in claims.items()], 0
    )
    broker.write(znodes.claim_path("t", 0, 2), newer=True)
    broker.announce(znodes.Change(claims=(("t", 0),)))
    await broker.read()
    assert broker.view.topics["t"].claims[0].keys() == {1}


async def test_no_producer_id_is_given_from_a_block_in_a_newer_format() -> None:
    """R44, R11: the same id given twice would let one producer hide the batches of another."""
    server = empty_server()
    node = server.get(znodes.PRODUCER_ID_BLOCK)
    assert node is not None
    server.multi([SetData(znodes.PRODUCER_ID_BLOCK, b'{"version": 2}', node.version)], 0)
    with pytest.raises(CoordinatorNotAvailable, match="upgrade this broker"):
        await ProducerIds(await session_with(server), 1).take()


async def test_a_deleted_topic_in_a_newer_format_is_left_to_brokers_that_read_it() -> None:
    """R44: its files stay, and the start goes on."""
    server = empty_server()
    path = f"{znodes.DELETED_TOPICS}/{znodes.encode_uuid(TOPIC_ID)}"
    server.multi([Create(path, b'{"version": 2}')], 0)
    assert await Administration(await session_with(server), 1).deleted_topics() == {}
