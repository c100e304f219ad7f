"""The interface by which leaders of partitions ask the coordinator of a transaction (KIP-890).

The broker implements it over its connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from mainstem_broker.protocol.topic_partition import TopicPartition


class TransactionVerifier(Protocol):
    """Asks the coordinator of a transactional id."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, int]:
        """The error code for each partition, 0 if it is part of the producer's open transaction.

        With `add` the coordinator makes it so. COORDINATOR_NOT_AVAILABLE for a coordinator that cannot be
        reached.
        """
        ...
