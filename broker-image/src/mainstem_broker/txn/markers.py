"""The interface by which a coordinator has markers written; the broker implements it over its connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mainstem_broker.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers that end one transaction, one for each partition.

    `coordinator_epoch` is the leader epoch of the coordinator's partition: logs refuse markers of an earlier
    one.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool
    client_version: int
    partitions: frozenset[TopicPartition]


class MarkerWriter(Protocol):
    """Has markers written by the leaders of the partitions."""

    def write(self, markers: Markers, done: Callable[[], None]) -> Callable[[], None]:
        """Write the markers until each is replicated or its partition is gone; then call `done` once.

        Returns a function that ends the attempts; `done` is not called after that. `done` may be called
        before this returns, if there are no partitions.
        """
        ...
