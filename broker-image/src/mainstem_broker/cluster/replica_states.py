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
        on_newer_assignment: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """`on_newer_assignment` is told of topics whose assignment turns out to be newer than the view's."""
        self._on_newer_assignment = on_newer_assignment
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
        assignment has changed: a replica that was moved away must not come back by its old leader's word.

        Returns the state that holds now: the new one, the one that someone else wrote first, or the old
        one; None if it is not known.
        """
        known = self._view.topics.get(topic)
        if known is None:
            return None
        if not set(state.isr) <= set(known.assignment.replicas.get(partition, ())):
            return await self.read_state(topic, partition)  # the leader has not been told yet, see above
        entry = znodes.Change(states=((known.topic_id, partition, state),)).encode()
        try:
            await self._zookeeper.multi(
                [
                    Check(znodes.topic_path(topic), known.assignment.version),
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
            await self._look_for_newer_assignment(topic, known.assignment.version)
            return await self.read_state(topic, partition)
        except ZooKeeperUnavailable:
            return None
        return state

    async def _look_for_newer_assignment(self, topic: str, version: int) -> None:
        """The feed brings it as a rule, but not if somebody wrote it by hand."""
        try:
            node = await self._zookeeper.get(znodes.topic_path(topic))
        except ZooKeeperUnavailable:
            return
        if node is not None and node.version > version:
            self._on_newer_assignment(topic)

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state as ZooKeeper has it now; None if it does not answer or the partition is gone."""
        try:
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
