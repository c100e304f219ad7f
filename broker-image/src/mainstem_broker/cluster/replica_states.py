"""What replicas ask of the cluster: states of partitions, and who has which records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Operation,
    SetData,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.replica.state import PartitionState

logger = structlog.get_logger(__name__)


class ReplicaStates:
    """Reads and writes of broker `broker_id` about the partitions that it leads or holds."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        broker_id: int,
        view: ClusterView,
        on_stale_assignment: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """`on_stale_assignment` is told of topics whose assignment in the view turns out to be old."""
        self._on_stale_assignment = on_stale_assignment
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._view = view

    def lives(self) -> Mapping[int, int]:
        """The present incarnation of each live broker that is not about to stop."""
        return {
            broker_id: broker.incarnation
            for broker_id, broker in self._view.brokers.items()
            if not broker.leaving
        }

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        """As leader of a partition, replace its state: what a leader may change is its in-sync set.

        `joined` are the lives of the new members; if one has ended meanwhile, nothing is written. Nor if the
        leader or this broker has not heard yet of a replica that was moved away: it must not come back.

        Returns the state that holds now: the new one, the one that someone else wrote first, or the old
        one; None if it is not known.
        """
        known = self._view.topics.get(topic)
        if known is None:
            return None
        if known.assignment.version < state.assignment_version:
            self._on_stale_assignment(topic)
            return await self.read_state(topic, partition)
        if not set(state.isr) <= set(known.assignment.replicas.get(partition, ())):
            return await self.read_state(topic, partition)  # the leader will hear of it in a moment
        entry = znodes.Change(states=((known.topic_id, partition, state),)).encode()
        try:
            await self._zookeeper.multi(
                [
                    *(Check(znodes.incarnation_path(broker), life) for broker, life in joined.items()),
                    SetData(
                        znodes.state_path(topic, partition),
                        znodes.encode_state(state),
                        state.partition_epoch - 1,
                    ),
                    Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                ]
            )
        except Conflict:
            return await self.read_state(topic, partition)
        except ZooKeeperUnavailable:
            return None
        return state

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state as ZooKeeper has it now; None if it does not answer or the partition is gone."""
        try:
            # A server that lags behind would tell of the past, as if nothing had been written.
            await self._zookeeper.sync()
            node = await self._zookeeper.get(znodes.state_path(topic, partition))
        except ZooKeeperUnavailable:
            return None
        return None if node is None else znodes.decode_state(node.data, node.version)

    async def claim(self, topic: str, partition: int, claim: znodes.Claim) -> None:
        """Say how far this broker's log reaches."""
        path = znodes.claim_path(topic, partition, self._broker_id)
        entry = znodes.Change(claims=((topic, partition),)).encode()
        try:
            node = await self._zookeeper.get(path)
            write: Operation = (
                Create(path, claim.encode()) if node is None else SetData(path, claim.encode(), node.version)
            )
            await self._zookeeper.multi([write, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except (Conflict, ZooKeeperUnavailable) as error:
            logger.warning("claim not written", topic=topic, partition=partition, reason=str(error))
