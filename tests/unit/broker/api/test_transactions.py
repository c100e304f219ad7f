"""Requests of transactional producers, in the versions that clients speak (R11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.api import transactions
from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotCoordinator,
    OperationNotAttempted,
    ProducerFenced,
    ProtocolError,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC
from mainstem_broker.txn.states import State


@dataclass
class Requests:
    """Requests to a broker that coordinates all transactional ids."""

    broker: LocalBroker

    async def init(self, version: int = 4, **fields: Any) -> Body:
        request = {"transactional_id": "id", "transaction_timeout": 60_000, **fields}
        return await self.broker.answer("InitProducerId", version, request)

    async def add(self, epoch: int, *indexes: int, version: int = 3, topic: str = "t") -> list[int]:
        request = {
            "v3_and_below_transactional_id": "id",
            "v3_and_below_producer_id": 1000,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": indexes}],
        }
        body = await self.broker.answer("AddPartitionsToTxn", version, request)
        (result,) = body["results_by_topic_v3_and_below"]
        return [partition["partition_error_code"] for partition in result["results_by_partition"]]

    async def add_as_broker(
        self, epoch: int, *indexes: int, verify_only: bool, version: int = 5
    ) -> list[int]:
        transaction = {
            "transactional_id": "id",
            "producer_id": 1000,
            "producer_epoch": epoch,
            "verify_only": verify_only,
            "topics": [{"name": "t", "partitions": indexes}],
        }
        body = await self.broker.answer("AddPartitionsToTxn", version, {"transactions": [transaction]})
        assert body["error_code"] == 0
        (result,) = body["results_by_transaction"][0]["topic_results"]
        return [partition["partition_error_code"] for partition in result["results_by_partition"]]

    async def end(self, epoch: int, *, committed: bool = True, version: int = 5) -> Body:
        request = {
            "transactional_id": "id",
            "producer_id": 1000,
            "producer_epoch": epoch,
            "committed": committed,
        }
        return await self.broker.answer("EndTxn", version, request)

    async def describe(self, transactional_id: str = "id") -> Body:
        request = {"transactional_ids": [transactional_id]}
        (state,) = (await self.broker.answer("DescribeTransactions", 0, request))["transaction_states"]
        assert isinstance(state, dict)
        return state

    async def listed(self, version: int = 1, **filters: Any) -> list[str]:
        body = await self.broker.answer("ListTransactions", version, filters)
        assert body["error_code"] == 0
        return [state["transaction_state"] for state in body["transaction_states"]]


@pytest.fixture
async def requests(broker: LocalBroker) -> AsyncIterator[Requests]:
    broker.create("t", (1, 1))
    broker.create(TRANSACTIONS_TOPIC)
    shards = broker.context.transactions.shards
    shards.follow(0)
    await shards.loading(0)
    yield Requests(broker)
    await shards.stop()


async def test_a_transaction_of_each_protocol(requests: Requests) -> None:
    answer = await requests.init()
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (0, 1000, 0)
    assert await requests.add(0, 0, 1) == [0, 0]
    assert "producer_id" not in await requests.end(0, version=4)
    assert (await requests.describe())["transaction_state"] == "PrepareCommit"


async def test_the_second_protocol_answers_with_the_next_epoch(requests: Requests) -> None:
    await requests.init()
    assert await requests.add_as_broker(0, 0, verify_only=False) == [0]
    answer = await requests.end(0)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (0, 1000, 1)


async def test_brokers_verify_partitions(requests: Requests) -> None:
    await requests.init()
    await requests.add(0, 0)
    assert await requests.add_as_broker(0, 0, 1, verify_only=True) == [0, TransactionAbortable.code]
    assert await requests.add_as_broker(0, 1, verify_only=True, version=4) == [InvalidTxnState.code]


@dataclass
class TwoIds:
    """Two transactional ids of partitions 0 and 1 of `__transaction_state`; the record of the first one's
    next change is not replicated before `release`."""

    broker: LocalBroker
    names: list[str]
    request: Body

    async def add(self) -> list[int]:
        """Add a partition to both in one message, as a leader does; the error codes in the answer's order."""
        body = await self.broker.answer("AddPartitionsToTxn", 5, self.request)
        results = body["results_by_transaction"]
        assert [result["transactional_id"] for result in results] == self.names
        return [
            partition["partition_error_code"]
            for result in results
            for partition in result["topic_results"][0]["results_by_partition"]
        ]

    def release(self) -> None:
        self.broker.set_state(TRANSACTIONS_TOPIC, 0, PartitionState(1, 0, (1,), 1, 2))


@pytest.fixture
async def two_ids(broker: LocalBroker) -> AsyncIterator[TwoIds]:
    broker.create("t")
    broker.create(TRANSACTIONS_TOPIC, (1, 1))
    shards = broker.context.transactions.shards
    for index in (0, 1):
        shards.follow(index)
        await shards.loading(index)
    names = sorted(("a", "b"), key=broker.context.transactions.partition_of)
    assert [broker.context.transactions.partition_of(name) for name in names] == [0, 1]
    messages = []
    for name in names:
        init = {"transactional_id": name, "transaction_timeout": 60_000}
        producer = await broker.answer("InitProducerId", 4, init)
        messages.append(
            {
                "transactional_id": name,
                "producer_id": producer["producer_id"],
                "producer_epoch": producer["producer_epoch"],
                "verify_only": False,
                "topics": [{"name": "t", "partitions": [0]}],
            }
        )
    broker.set_state(TRANSACTIONS_TOPIC, 0, PartitionState(1, 0, (1, 2), 1, 1))  # broker 2 fetches nothing
    yield TwoIds(broker, names, {"transactions": messages})
    await shards.stop()


async def test_r12_transactions_of_one_message_wait_for_their_replicas_side_by_side(two_ids: TwoIds) -> None:
    ids = two_ids
    adding = asyncio.create_task(ids.add())
    for _ in range(10):
        await asyncio.sleep(0)
    assert ids.broker.context.transactions.transaction(ids.names[1]).state is State.ONGOING
    assert not adding.done()
    ids.release()
    assert await adding == [0, 0]


async def test_r12_a_record_that_is_not_replicated_holds_up_no_other_transaction_of_its_message(
    two_ids: TwoIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ADD_TIMEOUT_S", 0.01)
    assert await two_ids.add() == [CoordinatorNotAvailable.code, 0]
    two_ids.release()
    assert await two_ids.add() == [0, 0]


async def test_partitions_are_added_together_or_not_at_all(requests: Requests) -> None:
    await requests.init()
    assert await requests.add(0, 0, 7) == [OperationNotAttempted.code, UnknownTopicOrPartition.code]
    assert await requests.listed() == ["Empty"]


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
async def test_a_client_adds_no_topic_of_the_brokers_to_its_transaction(
    requests: Requests, topic: str
) -> None:
    """As in Apache Kafka; a marker would be written there. Offsets are added by AddOffsetsToTxn."""
    requests.broker.create(OFFSETS_TOPIC)
    await requests.init()
    assert await requests.add(0, 0, topic=topic) == [TopicAuthorizationFailed.code]
    assert await requests.listed() == ["Empty"]


async def test_a_producer_that_was_replaced_gets_the_error_that_its_version_knows(requests: Requests) -> None:
    await requests.init()
    await requests.init()
    assert await requests.add(0, 0, version=1) == [InvalidProducerEpoch.code]
    assert await requests.add(0, 0, version=2) == [ProducerFenced.code]
    assert (await requests.end(0, version=1))["error_code"] == InvalidProducerEpoch.code
    assert (await requests.end(0, version=2))["error_code"] == ProducerFenced.code
    old = {"producer_id": 1000, "producer_epoch": 0}
    assert (await requests.init(3, **old))["error_code"] == InvalidProducerEpoch.code
    assert (await requests.init(4, **old))["error_code"] == ProducerFenced.code


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_id": 1000}, InvalidRequest),
        ({"transactional_id": ""}, InvalidRequest),
        *(
            ({"transaction_timeout": timeout_ms}, InvalidTransactionTimeout)
            for timeout_ms in (0, -1, 900_001)
        ),
    ],
)
async def test_a_producer_names_its_epoch_its_id_and_a_bounded_timeout(
    requests: Requests, fields: dict[str, Any], error: type[ProtocolError]
) -> None:
    assert (await requests.init(3, **fields))["error_code"] == error.code


async def test_offsets_are_added_before_the_groups_topic_exists(requests: Requests) -> None:
    await requests.init()
    request = {"transactional_id": "id", "producer_id": 1000, "producer_epoch": 0, "group_id": "my-group"}
    assert (await requests.broker.answer("AddOffsetsToTxn", 3, request))["error_code"] == 0
    assert (await requests.describe())["topics"] == [{"topic": OFFSETS_TOPIC, "partitions": [12]}]


async def test_transactions_are_listed_by_state_producer_and_age(requests: Requests) -> None:
    await requests.init()
    await requests.add(0, 0)
    assert await requests.listed(0) == ["Ongoing"]
    assert await requests.listed(state_filters=["Ongoing"]) == ["Ongoing"]
    assert await requests.listed(state_filters=["Empty"]) == []
    assert await requests.listed(producer_id_filters=[1000]) == ["Ongoing"]
    assert await requests.listed(producer_id_filters=[7]) == []
    assert await requests.listed(duration_filter=3_600_000) == []
    body = await requests.broker.answer("ListTransactions", 1, {"state_filters": ["Lost"]})
    assert (body["unknown_state_filters"], body["transaction_states"]) == (["Lost"], [])


async def test_a_transaction_is_described_with_its_partitions(requests: Requests) -> None:
    await requests.init()
    await requests.add(0, 1, 0)
    state = await requests.describe()
    assert state["topics"] == [{"topic": "t", "partitions": [0, 1]}]
    assert (state["producer_id"], state["producer_epoch"], state["transaction_timeout"]) == (1000, 0, 60_000)
    assert (await requests.describe("none"))["error_code"] == TransactionalIdNotFound.code


async def test_ids_of_other_coordinators_and_unknown_ones_are_refused(requests: Requests) -> None:
    assert await requests.add(0, 0) == [InvalidProducerIdMapping.code]
    await requests.broker.context.transactions.shards.stop()
    assert await requests.add(0, 0) == [NotCoordinator.code]
    assert (await requests.end(0))["error_code"] == NotCoordinator.code
    assert (await requests.init())["error_code"] == NotCoordinator.code


async def test_the_topic_of_transactions_is_created_when_the_first_producer_looks_for_its_coordinator(
    broker: LocalBroker,
) -> None:
    request = {"key_type": 1, "key": "id"}
    assert (await broker.answer("FindCoordinator", 3, request))["error_code"] == 0
    config = broker.view.topics[TRANSACTIONS_TOPIC].config
    assert config["cleanup.policy"] == "compact"
    assert config["min.insync.replicas"] == "2"
    assert config["unclean.leader.election.enable"] == "false"
    assert len(broker.view.topics[TRANSACTIONS_TOPIC].assignment.replicas) == 50


async def test_transactions_wait_for_as_many_brokers_as_their_topic_has_replicas(broker: LocalBroker) -> None:
    broker.set_live(1, 2)
    answer = await broker.answer("FindCoordinator", 3, {"key_type": 1, "key": "id"})
    assert answer["error_code"] == CoordinatorNotAvailable.code
    assert "transaction.state.log.replication.factor is 3" in answer["error_message"]
