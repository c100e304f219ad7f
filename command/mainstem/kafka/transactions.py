"""Transactions of a cluster: those that coordinators know, those that hang in partitions, and the end of
either.

A transaction hangs if a partition waits for its marker and no coordinator will write one. Consumers with
isolation level read_committed then wait at its first record for ever (KIP-664). `cli/transaction.py` has the
commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Final

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Broker, Cluster
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.routed_requests import ask_broker, ask_transaction_coordinator

_OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_TRIES_MAX: Final = 50
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Listing:
    """A transactional id in a list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator describes it; `started_ms` is None if no transaction has
    begun."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN_STATES


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a partition waits for, as its leader sees it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_written_ms: int


# --- What coordinators know ---


def list_transactions(
    cluster: Cluster, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), open_for_ms: int = -1
) -> list[Listing]:
    """The transactional ids that match, of all coordinators.

    Args:
        states: Kafka's names, such as "Ongoing"; none for all.
        open_for_ms: shortest time for which the transaction has been open; -1 for any.

    Raises:
        BadInput: a state does not exist.
        ClusterUnreachable, ClusterRefused: a broker does not answer, or is still loading.
    """
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest

    request = ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=open_for_ms,
    )
    listings = []
    for broker in cluster.description().brokers:
        answer = _ready(lambda broker=broker: ask_broker(cluster, broker, request))  # type: ignore[misc]
        if answer.unknown_state_filters:
            raise BadInput(
                f"There is no state '{answer.unknown_state_filters[0]}': the states are Empty, Ongoing,"
                " PrepareCommit, PrepareAbort, CompleteCommit and CompleteAbort."
            )
        listings += [
            Listing(one.transactional_id, broker.broker_id, one.producer_id, one.transaction_state)
            for one in answer.transaction_states
        ]
    return sorted(listings, key=lambda one: one.transactional_id)


def _ready(ask: Callable[[], Any]) -> Any:
    """The answer of a coordinator that may still load its state."""
    for attempt in range(_TRIES_MAX):
        answer = ask()
        if answer.error_code.name != "coordinator_load_in_progress":
            break
        time.sleep(_PAUSE_SECONDS * (attempt > 0))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The transactions could not be listed: {reason_of(answer)} Try again later.")
    return answer


def describe_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """A transactional id.

    Raises:
        BadInput: there is none of that name.
        ClusterUnreachable, ClusterRefused: its coordinator is not ready.
    """
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    (state,) = ask_transaction_coordinator(
        cluster,
        transactional_id,
        request,
        lambda answer: answer.transaction_states[0].error_code,
        _description_schema(),
    ).transaction_states
    if state.error_code.name == "transactional_id_not_found":
        raise BadInput(
            f"There is no transactional id '{transactional_id}': `mainstem transaction list` shows them."
        )
    if state.error_code.value != 0:
        raise ClusterRefused(f"Transactional id {transactional_id} cannot be described: {reason_of(state)}")
    return Transaction(
        transactional_id,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        int(state.transaction_timeout.total_seconds() * 1000),
        state.transaction_start_time if state.transaction_start_time >= 0 else None,
        tuple(sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)),
    )


def _description_schema() -> Any:
    """kio's schema with the start time as a number: kio refuses the -1 of an id without transactions."""
    from kio.schema.describe_transactions.v0 import response
    from kio.static.primitive import i64

    state = _changed(
        response.TransactionState,
        {"transaction_start_time": (i64, field(metadata={"kafka_type": "int64"}))},
    )
    states: Any = tuple[state, ...]  # type: ignore[valid-type]
    return _changed(response.DescribeTransactionsResponse, {"transaction_states": (states, field())})


def _changed(schema: Any, changes: dict[str, tuple[Any, Any]]) -> Any:
    """A schema with other types for some of its fields."""
    constants = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")
    kept = {one.name: (one.type, field(metadata=dict(one.metadata))) for one in fields(schema)}
    return make_dataclass(
        schema.__name__,
        [(name, kind, how) for name, (kind, how) in (kept | changes).items()],
        namespace={name: getattr(schema, name) for name in constants},
        frozen=True,
        kw_only=True,
    )


def abort_transaction(cluster: Cluster, transaction: Transaction) -> None:
    """Abort the open transaction of a transactional id and fence its producer; return when that is done.

    The coordinator aborts it for a new producer of the id, which is given up at once. That one has the
    timeout of the described transaction: the cluster's transaction.max.timeout.ms permits it.

    Raises:
        ClusterUnreachable, ClusterRefused: the coordinator is not ready, or does not end it in time.
    """
    from datetime import timedelta

    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
    from kio.static.primitive import i32Timedelta

    transactional_id = transaction.transactional_id
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=transaction.timeout_ms)),
    )
    for _ in range(_TRIES_MAX):
        answer = ask_transaction_coordinator(
            cluster, transactional_id, request, lambda answer: answer.error_code
        )
        if answer.error_code.name != "concurrent_transactions":
            break
        time.sleep(_PAUSE_SECONDS)
    if answer.error_code.value != 0:
        raise ClusterRefused(f"Transactional id {transactional_id} cannot be fenced: {reason_of(answer)}")


# --- What partitions wait for ---


def open_transactions(cluster: Cluster, partitions: Collection[TopicPartition]) -> list[OpenTransaction]:
    """The transactions that the leaders of these partitions wait for.

    Raises:
        ClusterUnreachable, ClusterRefused: a leader is missing, or does not answer.
    """
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

    transactions = []
    for broker, led in _by_leader(cluster, partitions):
        by_topic: dict[str, list[int]] = {}
        for topic, index in led:
            by_topic.setdefault(topic, []).append(index)
        request = DescribeProducersRequest(
            topics=tuple(
                TopicRequest(name=topic, partition_indexes=tuple(indexes))
                for topic, indexes in by_topic.items()
            )
        )
        for described in ask_broker(cluster, broker, request).topics:
            for partition in described.partitions:
                if partition.error_code.value != 0:
                    raise ClusterRefused(
                        f"Partition {partition.partition_index} of {described.name} cannot be described:"
                        f" {reason_of(partition)}"
                    )
                transactions += [
                    OpenTransaction(
                        described.name,
                        partition.partition_index,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp,
                    )
                    for producer in partition.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
    return sorted(transactions, key=lambda one: (one.topic, one.partition, one.start_offset))


def _by_leader(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> Iterator[tuple[Broker, list[TopicPartition]]]:
    brokers = {broker.broker_id: broker for broker in cluster.description().brokers}
    topics = cluster.topics()
    led: dict[int, list[TopicPartition]] = {}
    for topic, index in partitions:
        cluster_topic = topics.get(topic)
        partition = (
            next((one for one in cluster_topic.partitions if one.number == index), None)
            if cluster_topic
            else None
        )
        if partition is None:
            raise BadInput(f"There is no partition {index} of topic {topic}.")
        if partition.leader not in brokers:
            raise ClusterRefused(f"Partition {index} of {topic} has no leader now: try again later.")
        led.setdefault(partition.leader, []).append((topic, index))
    for leader, keys in sorted(led.items()):
        yield brokers[leader], keys


def hanging_transactions(
    cluster: Cluster, partitions: Collection[TopicPartition], silent_for_ms: int
) -> list[OpenTransaction]:
    """The transactions that no coordinator will end, among those whose producer has been silent for so long.

    A coordinator ends a transaction that is open in its records with this partition; it aborts it at its
    timeout. One that it has ended while it was asked does not hang: its marker is in the partition by then.
    """
    latest_ms = time.time() * 1000 - silent_for_ms
    suspects = [one for one in open_transactions(cluster, partitions) if one.last_written_ms <= latest_ms]
    if not suspects:
        return []
    owners = {
        listing.producer_id: listing.transactional_id
        for listing in list_transactions(cluster, producer_ids={one.producer_id for one in suspects})
    }
    described = {
        producer_id: describe_transaction(cluster, transactional_id)
        for producer_id, transactional_id in owners.items()
    }
    unowned = [
        suspect
        for suspect in suspects
        if (owner := described.get(suspect.producer_id)) is None
        or not owner.is_open
        or (suspect.topic, suspect.partition) not in owner.partitions
    ]
    if not unowned:
        return []
    still_open = {
        _identity(one)
        for one in open_transactions(cluster, list({(one.topic, one.partition) for one in unowned}))
    }
    return [one for one in unowned if _identity(one) in still_open]


def _identity(transaction: OpenTransaction) -> tuple[str, int, int, int]:
    """What does not change while the transaction is open."""
    return transaction.topic, transaction.partition, transaction.producer_id, transaction.start_offset


def abort_in_partition(cluster: Cluster, transaction: OpenTransaction) -> None:
    """Write an abort marker to the partition, past all coordinators.

    Raises:
        ClusterUnreachable, ClusterRefused: the leader does not answer, or refuses.
    """
    from kio.schema.write_txn_markers.v1.request import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    key = (transaction.topic, transaction.partition)
    ((broker, _),) = _by_leader(cluster, [key])
    topic = WritableTxnMarkerTopic(
        name=transaction.topic,
        partition_indexes=(transaction.partition,),
    )
    marker = WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
    )
    answer = ask_broker(cluster, broker, WriteTxnMarkersRequest(markers=(marker,)))
    partition = answer.markers[0].topics[0].partitions[0]
    if partition.error_code.value != 0:
        raise ClusterRefused(
            f"The transaction in partition {transaction.partition} of {transaction.topic} cannot be aborted:"
            f" {reason_of(partition)}"
        )
