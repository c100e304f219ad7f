"""Puts the transaction coordinator together: its settings, and what it needs to know of its topic and
replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.replica.partition import Partition
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator, TransactionSettings
from mainstem_broker.txn.markers import MarkerWriter


def transaction_coordinator(
    config: BrokerConfig,
    view: ClusterView,
    find_replica: Callable[[str, int], Partition | None],
    take_producer_id: Callable[[], Awaitable[int]],
    markers: MarkerWriter,
    now_ms: Callable[[], int],
) -> TransactionCoordinator:
    """The coordinator of all transactional ids whose partition of `__transaction_state` is led here."""

    def partition_count() -> int:
        topic = view.topics.get(TRANSACTIONS_TOPIC)
        return 0 if topic is None else len(topic.assignment.replicas)

    settings = TransactionSettings(
        timeout_ms_max=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiry_interval_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )
    return TransactionCoordinator(
        settings,
        partition_count,
        lambda index: find_replica(TRANSACTIONS_TOPIC, index),
        take_producer_id,
        markers,
        now_ms,
    )
