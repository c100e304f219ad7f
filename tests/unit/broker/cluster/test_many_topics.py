"""Topics created, grown and deleted many at once, over a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer
from tests.unit.broker.cluster.small_clusters import create_topic, empty_server, feed, session_with

from mainstem_broker.cluster import administration as module
from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.administration import TOPICS_BYTES_PER_MULTI, Administration, NewTopic
from mainstem_broker.cluster.zookeeper import Create, Delete, Node, Operation, SetData, ZooKeeperUnavailable
from mainstem_broker.errors import InvalidPartitions, TopicAlreadyExists, UnknownTopicOrPartition


def new_topic(name: str, config: Mapping[str, str] | None = None, partitions: int = 1) -> NewTopic:
    replicas = dict.fromkeys(range(partitions), (1, 2, 3))
    return NewTopic(znodes.TopicAssignment(name, UUID(int=len(name)), replicas), config or {})


class Noting:
    """A session that notes the multis, and does `before_multi` first."""

    def __init__(self, zookeeper: SimulatedZooKeeper) -> None:
        self._zookeeper = zookeeper
        self.multis: list[int] = []
        self.sizes_bytes: list[int] = []
        self.before_multi: list[Any] = []

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._zookeeper.get_many(paths)

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        self.multis.append(len(operations))
        self.sizes_bytes.append(sum(len(one.path) + len(getattr(one, "data", b"")) for one in operations))
        if self.before_multi:
            self.before_multi.pop(0)()
        return await self._zookeeper.multi(operations)


async def noting(server: ZooKeeperServer) -> tuple[Noting, Administration]:
    session = Noting(await session_with(server))
    return session, Administration(session, 1)  # type: ignore[arg-type]  # as much as is used


def config_of(server: ZooKeeperServer, topic: str) -> dict[str, str]:
    node = server.get(znodes.topic_config_path(topic))
    assert node is not None
    return znodes.decode_config(node.data)


async def test_five_hundred_topics_take_two_transactions() -> None:
    server = empty_server()
    session, administration = await noting(server)
    topics = [new_topic(f"t{number}", {"retention.ms": str(number)}, 6) for number in range(500)]
    assert await administration.create_topics(topics) == {}
    assert len(session.multis) == 2
    assert [len(entry.topics) for entry in feed(server)] == [250, 250]
    assert config_of(server, "t499") == {"retention.ms": "499"}


async def test_transactions_stay_below_what_zookeeper_takes() -> None:
    server = empty_server()
    session, administration = await noting(server)
    largest = [new_topic(f"large{number}", partitions=10_000) for number in range(3)]
    assert await administration.create_topics([new_topic("a"), *largest, new_topic("b")]) == {}
    assert len(session.multis) == 2
    assert max(session.sizes_bytes) <= TOPICS_BYTES_PER_MULTI


async def test_a_topic_that_exists_fails_alone() -> None:
    server = empty_server()
    create_topic(server, {0: (1,)}, "t1")
    session, administration = await noting(server)
    errors = await administration.create_topics([new_topic(f"t{number}") for number in range(3)])
    assert {name: type(error) for name, error in errors.items()} == {"t1": TopicAlreadyExists}
    assert [entry.topics for entry in feed(server)] == [("t0", "t2")]
    assert len(session.multis) == 2


async def test_settings_that_come_or_go_meanwhile_do_not_stand_in_the_way() -> None:
    server = empty_server()
    leftover = znodes.topic_config_path("t0")
    server.multi([Create(leftover, znodes.encode_config({"retention.ms": "1"}))], 0)
    session, administration = await noting(server)
    session.before_multi = [
        lambda: server.multi([Delete(leftover)], 0),
        lambda: server.multi([Create(leftover, b"{}")], 0),
    ]
    assert await administration.create_topics([new_topic("t0", {"segment.ms": "2"}), new_topic("t1")]) == {}
    assert config_of(server, "t0") == {"segment.ms": "2"}
    assert len(session.multis) == 3


# --- Deletion ---


def ids(count: int, first: int = 0) -> dict[str, UUID]:
    return {f"t{number}": topic_id_of(f"t{number}") for number in range(first, first + count)}


def topic_id_of(name: str) -> UUID:
    return UUID(int=len(name))  # as `new_topic` makes them


async def with_topics(count: int, partitions: int = 1) -> tuple[ZooKeeperServer, Noting, Administration]:
    server = empty_server()
    session, administration = await noting(server)
    topics = [new_topic(f"t{number}", partitions=partitions) for number in range(count)]
    assert await administration.create_topics(topics) == {}
    session.multis.clear()
    session.sizes_bytes.clear()
    return server, session, administration


def markers(server: ZooKeeperServer) -> set[str]:
    return {name for name in ids(600) if server.get(znodes.deletion_path(name)) is not None}


async def test_five_hundred_deletions_take_two_transactions() -> None:
    server, session, administration = await with_topics(500)
    assert await administration.delete_topics(ids(500)) == {}
    assert len(session.multis) == 2
    assert markers(server) == ids(500).keys()
    assert [len(entry.deletions) for entry in feed(server)[-2:]] == [250, 250]


async def test_topics_that_are_gone_or_were_made_again_or_are_being_deleted_are_left_out() -> None:
    server, session, administration = await with_topics(3)
    await administration.delete_topic("t0", topic_id_of("t0"))
    session.multis.clear()
    requested = {**ids(2), "t2": UUID(int=77), "gone": UUID(int=1)}
    assert await administration.delete_topics(requested) == {}
    assert session.multis == [3], "one check, one marker and the feed"
    assert markers(server) == {"t0", "t1"}


async def test_a_topic_that_goes_while_others_are_deleted_gets_no_marker() -> None:
    server, session, administration = await with_topics(3)
    session.before_multi = [lambda: server.multi([Delete(znodes.topic_path("t1"))], 0)]
    assert await administration.delete_topics(ids(3)) == {}
    assert markers(server) == {"t0", "t2"}
    assert len(session.multis) == 2


# --- Growth ---


def replicas_of(server: ZooKeeperServer, topic: str) -> dict[int, tuple[int, ...]]:
    node = server.get(znodes.topic_path(topic))
    assert node is not None
    return dict(znodes.TopicAssignment.decode(topic, node.data, 0).replicas)


async def test_five_hundred_topics_grow_by_two_transactions() -> None:
    server, session, administration = await with_topics(500)
    assert await administration.grow_topics({key: {1: (3,), 2: (1,)} for key in ids(500)}) == {}
    assert len(session.multis) == 2
    assert replicas_of(server, "t499") == {0: (1, 2, 3), 1: (3,), 2: (1,)}
    assert [len(entry.topics) for entry in feed(server)[-2:]] == [250, 250]


async def test_large_topics_that_grow_stay_below_what_zookeeper_takes() -> None:
    server, session, administration = await with_topics(4, partitions=10_000)
    assert await administration.grow_topics({key: {10000: (1,)} for key in ids(4)}) == {}
    assert len(session.multis) == 2
    assert max(session.sizes_bytes) <= TOPICS_BYTES_PER_MULTI
    assert {len(replicas_of(server, name)) for name in ids(4)} == {10_001}


async def test_topics_that_are_gone_or_have_other_partitions_fail_alone() -> None:
    server, session, administration = await with_topics(3)
    requested = {"t0": {1: (1,)}, "gone": {1: (1,)}, "t1": {2: (1,)}, "t2": {1: (1,)}}
    errors = await administration.grow_topics(requested)
    assert {name: type(error) for name, error in errors.items()} == {
        "gone": UnknownTopicOrPartition,
        "t1": InvalidPartitions,
    }
    assert [len(replicas_of(server, name)) for name in ids(3)] == [2, 1, 2]
    assert len(session.multis) == 1


async def test_a_topic_that_grows_meanwhile_fails_alone() -> None:
    server, session, administration = await with_topics(2)
    grown = znodes.TopicAssignment("t0", topic_id_of("t0"), {0: (1, 2, 3), 1: (2,)}).encode()
    session.before_multi = [lambda: server.multi([SetData(znodes.topic_path("t0"), grown)], 0)]
    errors = await administration.grow_topics({"t0": {1: (1,)}, "t1": {1: (1,)}})
    assert {name: type(error) for name, error in errors.items()} == {"t0": InvalidPartitions}
    assert (replicas_of(server, "t0")[1], replicas_of(server, "t1")[1]) == ((2,), (1,))


# --- Outages ---


OUTAGES: dict[str, Callable[[Administration], Awaitable[Mapping[str, Exception]]]] = {
    "create": lambda one: one.create_topics([new_topic(f"new{number}") for number in range(5)]),
    "delete": lambda one: one.delete_topics(ids(5)),
    "grow": lambda one: one.grow_topics({name: {1: (1,)} for name in ids(5)}),
}


@pytest.mark.parametrize("name", OUTAGES)
async def test_after_an_outage_nothing_more_is_tried_and_the_rest_is_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOPICS_PER_MULTI", 2)
    server, session, administration = await with_topics(5)

    def fail() -> None:
        raise ZooKeeperUnavailable("no answer")

    session.multis.clear()
    session.before_multi = [lambda: None, fail]
    errors = await OUTAGES[name](administration)
    assert sorted(one[-1] for one in errors) == ["2", "3", "4"]
    assert {type(error) for error in errors.values()} == {ZooKeeperUnavailable}
    assert len(session.multis) == 2
    sizes = [len(replicas_of(server, topic)) for topic in ids(5)]
    assert sizes == ([2, 2, 1, 1, 1] if name == "grow" else [1] * 5)
    assert markers(server) == ({"t0", "t1"} if name == "delete" else set())
    assert (server.get(znodes.topic_path("new1")) is not None) == (name == "create")
