"""Questions to coordinators of other brokers: which broker, one message at a time, shared by transactions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace as Values
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.replica.replicas import state_of

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.errors import NotCoordinator, PeerUnavailable
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body
from mainstem_broker.server.peers import Peer
from mainstem_broker.server.transaction_verifier import CoordinatorVerifier
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator

US, THEM = 1, 2
ONE: TopicPartition = ("t", 0)
TWO: TopicPartition = ("t", 1)


class PlayedPeer:
    """Answers that every partition is part of its transaction, once it is allowed to."""

    def __init__(self) -> None:
        self.asked: list[Body] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: Exception | None = None
        self.top_level_code = 0
        self.silent_about: set[str] = set()

    async def ask(self, _key: int, _version: int, body: Body) -> Any:
        self.asked.append(body)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        results = [
            Values(
                transactional_id=transaction["transactional_id"],
                topic_results=[
                    Values(
                        name=topic["name"],
                        results_by_partition=[
                            Values(partition_index=index, partition_error_code=0)
                            for index in topic["partitions"]
                        ],
                    )
                    for topic in transaction["topics"]
                ],
            )
            for transaction in body["transactions"]
            if transaction["transactional_id"] not in self.silent_about
        ]
        return Values(error_code=self.top_level_code, results_by_transaction=results)

    def close(self) -> None:
        pass


class PlayedCoordinator:
    """The coordinator of this broker: no transaction is known to it."""

    def partition_of(self, transactional_id: str) -> int:
        return 1 if transactional_id.startswith("ours") else 0

    def missing_partitions(self, *_: object) -> dict[TopicPartition, Exception]:
        return {TWO: NotCoordinator("It is not.")}

    async def add_partitions(self, *_: object) -> None:
        raise NotCoordinator("It is not.")


def made(peer: PlayedPeer, leader: int = THEM) -> CoordinatorVerifier:
    view = ClusterView(cluster_id="c")
    view.set_brokers(
        BrokerRegistration(broker, (Endpoint("P", "PLAINTEXT", "host", 9092),), None) for broker in (US, THEM)
    )
    assignment = TopicAssignment(TRANSACTIONS_TOPIC, UUID(int=5), {0: (leader,), 1: (US,)})
    view.set_topic(assignment, {})
    view.set_state(TRANSACTIONS_TOPIC, 0, state_of(leader, 0, (leader,)))
    view.set_state(TRANSACTIONS_TOPIC, 1, state_of(US, 0, (US,)))
    return CoordinatorVerifier(
        view, US, cast(TransactionCoordinator, PlayedCoordinator()), lambda _: cast(Peer, peer)
    )


async def verify(verifier: CoordinatorVerifier, transactional_id: str, *, add: bool = False) -> list[str]:
    codes = await verifier.verify(transactional_id, 7, 3, [ONE, TWO], add=add)
    return [ErrorCode(codes[partition]).name for partition in (ONE, TWO)]


@pytest.mark.parametrize("add", [False, True])
async def test_the_leader_of_the_ids_partition_is_asked(add: bool) -> None:
    peer = PlayedPeer()
    verifier = made(peer)
    assert await verify(verifier, "a", add=add) == ["none", "none"]
    (transaction,) = peer.asked[0]["transactions"]
    assert transaction == {
        "transactional_id": "a",
        "producer_id": 7,
        "producer_epoch": 3,
        "verify_only": not add,
        "topics": [{"name": "t", "partitions": [0, 1]}],
    }


async def test_questions_that_come_up_meanwhile_share_the_next_message() -> None:
    peer = PlayedPeer()
    peer.may_answer.clear()
    verifier = made(peer)
    tasks = [asyncio.create_task(verify(verifier, at)) for at in ("a", "b", "c", "b")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    peer.may_answer.set()
    assert await asyncio.gather(*tasks) == [["none", "none"]] * 4
    request = [[one["transactional_id"] for one in body["transactions"]] for body in peer.asked]
    assert sorted(name for names in request for name in names) == ["a", "b", "b", "c"]
    assert all(len(set(names)) == len(names) for names in request)


async def test_a_coordinator_that_cannot_be_reached_is_not_available() -> None:
    peer = PlayedPeer()
    peer.failure = PeerUnavailable("It is gone.")
    verifier = made(peer)
    assert await verify(verifier, "a") == ["coordinator_not_available"] * 2
    peer.failure = ValueError("a mistake of ours")
    assert await verify(verifier, "a") == ["coordinator_not_available"] * 2
    peer.failure = None
    assert await verify(verifier, "a") == ["none", "none"]


async def test_an_error_for_the_whole_message_is_that_of_each_partition() -> None:
    peer = PlayedPeer()
    peer.top_level_code = ErrorCode.coordinator_load_in_progress.value
    assert await verify(made(peer), "a") == ["coordinator_load_in_progress"] * 2


async def test_what_is_not_answered_is_an_error() -> None:
    peer = PlayedPeer()
    peer.silent_about = {"a"}
    assert await verify(made(peer), "a") == ["unknown_server_error"] * 2


async def test_without_a_live_leader_nobody_is_asked() -> None:
    peer = PlayedPeer()
    assert await verify(made(peer, leader=3), "a") == ["coordinator_not_available"] * 2
    assert peer.asked == []


async def test_the_coordinator_of_this_broker_is_asked_without_a_message() -> None:
    peer = PlayedPeer()
    verifier = made(peer)
    assert await verify(verifier, "ours") == ["none", "not_coordinator"]
    assert await verify(verifier, "ours", add=True) == ["not_coordinator"] * 2
    assert peer.asked == []


async def test_a_stop_ends_what_waits() -> None:
    peer = PlayedPeer()
    peer.may_answer.clear()
    verifier = made(peer)
    tasks = [asyncio.create_task(verify(verifier, at)) for at in ("a", "a")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await verifier.stop()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
