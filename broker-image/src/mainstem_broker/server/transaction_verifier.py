"""Asks coordinators whether partitions are part of transactions, and has them added (AddPartitionsToTxn).

Belongs here: the choice of the broker, connections, and requests that share a message. Does not: which
batches need it, and what the answer means (`api/transaction_verification.py`).

A coordinator is sent one message at a time; questions that come up meanwhile share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.errors import CoordinatorNotAvailable, PeerUnavailable, ProtocolError, UnknownServerError
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.server.peers import Peer
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator
from mainstem_broker.txn.transaction import CLIENT_VERSION_2, Producer

logger = structlog.get_logger(__name__)

ADD_PARTITIONS_TO_TXN_KEY: Final = 24
VERSION: Final = 5
"""From version 4 on brokers ask, for several transactions at once; 5 knows TRANSACTION_ABORTABLE."""
TRANSACTIONS_AT_ONCE_MAX: Final = 1_000

Codes = Mapping[TopicPartition, int]


class _Question(NamedTuple):
    """One transaction in a message, and the future of its answer."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    add: bool
    answer: asyncio.Future[Codes]


class CoordinatorVerifier:
    """Implements `TransactionVerifier`. `connect` makes the connection to a broker."""

    def __init__(
        self,
        view: ClusterView,
        broker_id: int,
        coordinator: TransactionCoordinator,
        connect: Callable[[int], Peer],
    ) -> None:
        self._view = view
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._connect = connect
        self._queues: dict[int, list[_Question]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._peers: dict[int, Peer] = {}

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Codes:
        """As `TransactionVerifier.verify`."""
        producer = Producer(producer_id, producer_epoch)
        leader = self._leader(transactional_id)
        if leader == self._broker_id:
            return await self._verify_here(transactional_id, producer, partitions, add)
        if leader is None:
            return dict.fromkeys(partitions, CoordinatorNotAvailable.code)
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        question = _Question(transactional_id, producer, tuple(partitions), add, answer)
        self._queues.setdefault(leader, []).append(question)
        if leader not in self._senders:
            self._senders[leader] = asyncio.create_task(self._send_all(leader))
        return await answer

    async def stop(self) -> None:
        """Send nothing any more; questions without an answer are cancelled."""
        for queue in self._queues.values():
            for question in queue:
                question.answer.cancel()
        tasks = [*self._senders.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    def _leader(self, transactional_id: str) -> int | None:
        """The broker that leads the partition of the transactional id; None if none does."""
        topic = self._view.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        state = topic.states.get(self._coordinator.partition_of(transactional_id))
        return None if state is None or state.leader not in self._view.brokers else state.leader

    async def _verify_here(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], add: bool
    ) -> Codes:
        try:
            if add:
                await self._coordinator.add_partitions(
                    transactional_id, producer, frozenset(partitions), CLIENT_VERSION_2
                )
                return dict.fromkeys(partitions, 0)
            missing = self._coordinator.missing_partitions(transactional_id, producer, partitions)
        except ProtocolError as error:
            return dict.fromkeys(partitions, error.code)
        return {partition: missing[partition].code if partition in missing else 0 for partition in partitions}

    async def _send_all(self, broker_id: int) -> None:
        """Send what is queued for a broker, until nothing is."""
        try:
            while queue := self._queues.pop(broker_id, None):
                message, later = _split(queue)
                if later:
                    self._queues[broker_id] = later
                try:
                    answers = await self._ask(broker_id, message)
                except Exception as error:  # an answer is awaited whatever happens
                    if not isinstance(error, PeerUnavailable):
                        logger.exception("transactions not verified", coordinator=broker_id)
                    answers = [dict.fromkeys(one.partitions, CoordinatorNotAvailable.code) for one in message]
                except asyncio.CancelledError:
                    for question in message:
                        question.answer.cancel()
                    raise
                for question, answer in zip(message, answers, strict=True):
                    if not question.answer.done():
                        question.answer.set_result(answer)
        finally:
            del self._senders[broker_id]

    async def _ask(self, broker_id: int, questions: list[_Question]) -> list[Codes]:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = self._connect(broker_id)
        response = await peer.ask(
            ADD_PARTITIONS_TO_TXN_KEY,
            VERSION,
            {"transactions": [_transaction(question) for question in questions]},
        )
        if response.error_code != 0:
            return [dict.fromkeys(question.partitions, response.error_code) for question in questions]
        results = {result.transactional_id: result for result in response.results_by_transaction}
        return [_codes(question, results.get(question.transactional_id)) for question in questions]


def _split(queue: list[_Question]) -> tuple[list[_Question], list[_Question]]:
    """The requests in the next message, and those that wait: answers are matched by transactional id."""
    message: dict[str, _Question] = {}
    later: list[_Question] = []
    for question in queue:
        if question.transactional_id in message or len(message) == TRANSACTIONS_AT_ONCE_MAX:
            later.append(question)
        else:
            message[question.transactional_id] = question
    return list(message.values()), later


def _transaction(question: _Question) -> Body:
    by_topic: dict[str, list[int]] = {}
    for name, index in question.partitions:
        by_topic.setdefault(name, []).append(index)
    return {
        "transactional_id": question.transactional_id,
        "producer_id": question.producer.producer_id,
        "producer_epoch": question.producer.epoch,
        "verify_only": not question.add,
        "topics": [{"name": name, "partitions": indexes} for name, indexes in by_topic.items()],
    }


def _codes(question: _Question, result: Entity | None) -> Codes:
    topics: Iterable[Entity] = () if result is None else result.topic_results
    codes = {
        (topic.name, partition.partition_index): int(partition.partition_error_code)
        for topic in topics
        for partition in topic.results_by_partition
    }
    return {partition: codes.get(partition, UnknownServerError.code) for partition in question.partitions}
