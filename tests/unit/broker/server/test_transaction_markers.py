"""Markers reach the leaders of their partitions, whoever these are meanwhile (R9, R11)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tests.support.waiting import let_pass_async, wait_until_async

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.errors import InvalidProducerEpoch, NotLeaderOrFollower, PeerUnavailable
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.server import transaction_markers as module
from mainstem_broker.server.peers import Peer
from mainstem_broker.server.transaction_markers import TransactionMarkers
from mainstem_broker.txn.markers import Markers

Partitions = Iterable[tuple[str, int]]


class PlayedPeer:
    """A broker that answers each marker with the code that `codes` has for its partition."""

    def __init__(self, cluster: PlayedCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id

    async def ask(self, _api_key: int, _version: int, body: dict[str, Any]) -> Any:
        self.cluster.arrived(self.broker_id, body)
        if not self.cluster.may_answer.is_set():
            await self.cluster.may_answer.wait()
        if self.broker_id in self.cluster.down:
            raise PeerUnavailable("It is down.")
        return SimpleNamespace(
            markers=[
                SimpleNamespace(
                    producer_id=marker["producer_id"],
                    topics=[
                        SimpleNamespace(
                            name=topic["name"],
                            partitions=[
                                SimpleNamespace(
                                    partition_index=index, error_code=self.cluster.code(topic["name"], index)
                                )
                                for index in topic["partition_indexes"]
                            ],
                        )
                        for topic in marker["topics"]
                    ],
                )
                for marker in body["markers"]
            ]
        )

    def close(self) -> None:
        pass


class PlayedCluster:
    """Brokers 1 and 2; topic "t" has the partitions 0 (led by 1), 1 (led by 2) and 2 (without a leader)."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.view.set_brokers(
            BrokerRegistration(broker, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", broker),), None)
            for broker in (1, 2)
        )
        self.add_topic("t", 1, 2, -1)
        self.requests: list[tuple[int, dict[str, Any]]] = []
        self.codes: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        """The codes that the next requests are answered with; 0 after those."""
        self.down: set[int] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.news: list[tuple[str, int]] = []
        self.zookeeper_is_away = False
        self.times_caught_up = 0
        self._arrived = asyncio.Semaphore(0)
        self.markers = TransactionMarkers(
            self.view, lambda broker: cast(Peer, PlayedPeer(self, broker)), self.catch_up
        )

    def arrived(self, broker_id: int, body: dict[str, Any]) -> None:
        self.requests.append((broker_id, body))
        self._arrived.release()

    async def until_asked(self, times: int) -> None:
        """Wait for so many requests."""
        for _ in range(times):
            await self._arrived.acquire()

    async def catch_up(self) -> bool:
        self.times_caught_up += 1
        if self.zookeeper_is_away:
            return False
        for name, leader in self.news:
            self.add_topic(name, leader)
        return True

    def add_topic(self, name: str, *leaders: int) -> None:
        assignment = TopicAssignment(name, uuid4(), dict.fromkeys(range(len(leaders)), (1, 2)))
        self.view.set_topic(assignment, {})
        for index, leader in enumerate(leaders):
            self.lead(index, leader, name)

    def lead(self, index: int, leader: int, name: str = "t") -> None:
        old = self.view.topics[name].states.get(index)
        version = 1 if old is None else old.partition_epoch + 1
        self.view.set_state(name, index, PartitionState(leader, version, (1, 2), 1, version))

    def code(self, name: str, index: int) -> int:
        codes = self.codes[name, index]
        return codes.pop(0) if codes else 0

    def write(self, partitions: Partitions, producer_id: int = 7) -> asyncio.Future[None]:
        """Begin to write markers; done when the writer says so."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        markers = Markers(producer_id, 3, 5, True, 2, frozenset(partitions))
        self.markers.write(markers, lambda: written.set_result(None))
        return written

    def brokers_asked(self) -> list[int]:
        return [broker for broker, _ in self.requests]


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayedCluster]:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.001)
    played = PlayedCluster()
    yield played
    await played.markers.stop()


async def test_each_leader_gets_the_markers_of_its_partitions(cluster: PlayedCluster) -> None:
    await cluster.write([("t", 0), ("t", 1)])
    assert [(broker, body["markers"]) for broker, body in cluster.requests] == [
        (
            broker,
            [
                {
                    "producer_id": 7,
                    "producer_epoch": 3,
                    "transaction_result": True,
                    "topics": [{"name": "t", "partition_indexes": [index]}],
                    "coordinator_epoch": 5,
                    "transaction_version": 2,
                }
            ],
        )
        for broker, index in ((1, 0), (2, 1))
    ]


async def test_no_partitions_need_no_request(cluster: PlayedCluster) -> None:
    assert cluster.write([]).done()
    assert not cluster.requests


async def test_what_comes_up_while_a_request_is_under_way_shares_the_next_one(cluster: PlayedCluster) -> None:
    cluster.may_answer.clear()
    first = cluster.write([("t", 0)], 1)
    await cluster.until_asked(1)
    others = [cluster.write([("t", 0)], producer_id) for producer_id in (2, 3, 4)]
    cluster.may_answer.set()
    await asyncio.gather(first, *others)
    assert [len(body["markers"]) for _, body in cluster.requests] == [1, 3]


async def test_a_broker_that_is_down_is_asked_again(cluster: PlayedCluster) -> None:
    cluster.down.add(1)
    written = cluster.write([("t", 0), ("t", 1)])
    await cluster.until_asked(4)
    assert not written.done()
    cluster.down.clear()
    await written
    assert cluster.brokers_asked().count(2) == 1


async def test_only_the_partitions_that_failed_are_sent_again_to_the_leader_of_then(
    cluster: PlayedCluster,
) -> None:
    cluster.lead(1, 1)
    cluster.codes["t", 1] = [NotLeaderOrFollower.code]
    cluster.may_answer.clear()
    written = cluster.write([("t", 0), ("t", 1)])
    await cluster.until_asked(1)
    cluster.lead(1, 2)
    cluster.may_answer.set()
    await written
    (_, first), (broker, second) = cluster.requests
    assert first["markers"][0]["topics"] == [{"name": "t", "partition_indexes": [0, 1]}]
    assert (broker, second["markers"][0]["topics"]) == (2, [{"name": "t", "partition_indexes": [1]}])


async def test_a_partition_without_a_leader_is_waited_for(cluster: PlayedCluster) -> None:
    written = cluster.write([("t", 2)])
    await let_pass_async(0.01, "several attempts would have been made")
    assert not cluster.requests
    cluster.lead(2, 2)
    await written
    assert cluster.brokers_asked() == [2]


async def test_partitions_that_are_gone_are_left_out(cluster: PlayedCluster) -> None:
    await cluster.write([("deleted", 0), ("t", 9)])
    assert not cluster.requests


async def test_a_topic_that_this_broker_hears_of_last_is_not_left_out(cluster: PlayedCluster) -> None:
    cluster.news.append(("new", 2))
    await cluster.write([("new", 0)])
    assert cluster.brokers_asked() == [2]


async def test_r12_a_marker_is_kept_while_zookeeper_cannot_say_that_its_topic_is_gone(
    cluster: PlayedCluster,
) -> None:
    """A new coordinator whose view is old must not take the transaction for ended."""
    cluster.news.append(("new", 2))
    cluster.zookeeper_is_away = True
    written = cluster.write([("new", 0)])
    await wait_until_async(lambda: cluster.times_caught_up >= 3, "there were three attempts")
    assert not written.done()
    cluster.zookeeper_is_away = False
    await written
    assert cluster.brokers_asked() == [2]


async def test_r12_a_marker_is_kept_while_its_topic_has_a_newer_format(cluster: PlayedCluster) -> None:
    """What this broker knows of the topic is out of date: it may exist, and may have another leader."""
    cluster.view.stopped_topics["new"] = {"/brokers/topics/new": "version 9"}
    written = cluster.write([("new", 0)])
    await let_pass_async(0.01, "several attempts, which show nothing else")
    assert not written.done()
    del cluster.view.stopped_topics["new"]
    cluster.news.append(("new", 2))
    await written
    assert cluster.brokers_asked() == [2]


async def test_a_topic_that_is_deleted_meanwhile_ends_the_attempts(cluster: PlayedCluster) -> None:
    cluster.down.add(1)
    written = cluster.write([("t", 0)])
    await cluster.until_asked(1)
    cluster.view.remove_topic("t", cluster.view.topics["t"].topic_id)
    await written


async def test_a_log_that_has_a_later_epoch_of_the_producer_needs_no_marker(cluster: PlayedCluster) -> None:
    cluster.codes["t", 0] = [InvalidProducerEpoch.code]
    await cluster.write([("t", 0)])
    assert len(cluster.requests) == 1


async def test_nothing_is_sent_for_a_coordinator_that_was_replaced(cluster: PlayedCluster) -> None:
    cluster.down.add(1)
    markers = Markers(7, 3, 5, True, 2, frozenset({("t", 0)}))
    stop = cluster.markers.write(markers, lambda: pytest.fail("It was not written."))
    await cluster.until_asked(1)
    stop()
    cluster.down.clear()
    requests = len(cluster.requests)
    await let_pass_async(0.01, "several attempts would have been made")
    assert len(cluster.requests) <= requests
