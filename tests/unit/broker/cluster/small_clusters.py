"""A ZooKeeper in memory with the standing nodes, sessions to it, and views filled by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from uuid import UUID

from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.zookeeper import Create
from mainstem_broker.replica.partition_state import PartitionState

TOPIC_ID = UUID(int=1)
ENDPOINT = znodes.Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)


def empty_server() -> ZooKeeperServer:
    """As the first broker's `connect` leaves it."""
    server = ZooKeeperServer()
    for path in znodes.PERSISTENT_PATHS:
        server.ensure(path)
    server.multi([Create(znodes.CONTROLLER_EPOCH, b"0")], 0)
    return server


async def session_with(
    server: ZooKeeperServer, listener: Callable[[str], None] = lambda _: None
) -> SimulatedZooKeeper:
    """A session that has begun."""
    running = asyncio.Event()
    running.set()
    zookeeper = SimulatedZooKeeper(server, random.Random(1), 1.0, listener, running)
    await zookeeper.start(1)
    return zookeeper


def register(server: ZooKeeperServer, broker_id: int, session: int, *, life: int = 0) -> None:
    """A broker's registration and the number of its life; each life is one more write of that node."""
    path = znodes.incarnation_path(broker_id)
    if server.get(path) is None:
        server.multi([Create(path, znodes.encode_incarnation(0))], 0)
    registration = znodes.BrokerRegistration(broker_id, (ENDPOINT,), None)
    server.multi([Create(znodes.broker_path(broker_id), registration.encode(0), ephemeral=True)], session)
    node = server.get(path)
    assert node is not None
    assert node.version == life


def create_topic(server: ZooKeeperServer, replicas: Mapping[int, tuple[int, ...]], topic: str = "t") -> None:
    """A topic as whoever creates it leaves it: without states."""
    assignment = znodes.TopicAssignment(topic, TOPIC_ID, replicas)
    server.multi([Create(znodes.topic_path(topic), assignment.encode())], 0)


def view_of(
    live: Mapping[int, int], replicas: Mapping[int, tuple[int, ...]] | None = None, topic: str = "t"
) -> ClusterView:
    """A view of these brokers with their lives, and of one topic if `replicas` are given."""
    view = ClusterView()
    view.set_brokers(
        znodes.BrokerRegistration(broker, (ENDPOINT,), None, incarnation=life)
        for broker, life in live.items()
    )
    if replicas is not None:
        view.set_topic(znodes.TopicAssignment(topic, TOPIC_ID, replicas), {})
    return view


def written_states(server: ZooKeeperServer, topic: str = "t") -> dict[int, PartitionState]:
    """The states that ZooKeeper holds of a topic, by partition."""
    states = {}
    for partition in map(int, server.children(znodes.partitions_path(topic))):
        node = server.get(znodes.state_path(topic, partition))
        if node is not None:
            states[partition] = znodes.decode_state(node.data, node.version)
    return states


def feed(server: ZooKeeperServer) -> list[znodes.Change]:
    """The entries of the feed of changes, oldest first."""
    nodes = [server.get(f"{znodes.CHANGES}/{name}") for name in server.children(znodes.CHANGES)]
    return [znodes.Change.decode(node.data) for node in nodes if node is not None]
