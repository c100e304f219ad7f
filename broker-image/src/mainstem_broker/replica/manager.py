"""All replicas of this broker: opens, finds, updates and drops them as the cluster's state says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from uuid import UUID

import structlog

from mainstem_broker.config import TopicConfig
from mainstem_broker.errors import ProtocolError, StorageError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.partition import Partition, PartitionState

logger = structlog.get_logger(__name__)


class ReplicaManager:
    """Owner of the partitions map. Called on the event loop only."""

    def __init__(self, broker_id: int, logs: LogManager) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._partitions: dict[tuple[str, int], Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def find(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def update(
        self, topic: str, index: int, topic_id: UUID, state: PartitionState, config: TopicConfig, now_ms: int
    ) -> None:
        """Take a partition's new state, opening its log if this broker did not have it.

        A log that cannot be opened is logged and left out, so that it harms no other partition.
        """
        partition = self._partitions.get((topic, index))
        if partition is None:
            try:
                log = self._logs.get_or_create(topic, index, topic_id, config, now_ms)
            except ProtocolError as error:
                logger.error("replica not opened", topic=topic, partition=index, reason=str(error))
                return
            partition = Partition(topic, index, topic_id, log, self._broker_id)
            self._partitions[topic, index] = partition
        partition.update_state(state)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: partition.high_watermark for key, partition in self._partitions.items()}

    def update_configs(self, topics: Collection[str], config_of: Callable[[str], TopicConfig]) -> None:
        """Give the replicas of these topics their new settings."""
        configs: dict[str, TopicConfig] = {}
        for partition in self:
            topic = partition.topic
            if topic in topics:
                if topic not in configs:
                    configs[topic] = config_of(topic)
                partition.log.update_config(configs[topic])

    def drop(self, topic: str, topic_id: UUID) -> None:
        """Delete all local replicas of a topic that was deleted."""
        gone = [key for key, partition in self._partitions.items() if partition.topic_id == topic_id]
        for key in gone:
            partition = self._partitions.pop(key)
            partition.take_offline()
            try:
                self._logs.delete(partition.topic, partition.index)
            except StorageError as error:
                logger.error("replica not deleted", partition=repr(partition), reason=str(error))
        if gone:
            logger.info("replicas deleted", topic=topic, topic_id=str(topic_id), count=len(gone))
