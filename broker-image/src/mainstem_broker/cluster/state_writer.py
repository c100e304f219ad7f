"""What replicas request from the cluster: states of partitions, and who has which records.

Leaders change in-sync sets by the thousand when a broker comes or goes. What is proposed while another write
is under way goes into one multi after it, with one entry of the feed, as it does when the controller elects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

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
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.partition_state import PartitionState

logger = structlog.get_logger(__name__)


class _Outcome(Enum):
    """What became of a proposal."""

    WRITTEN = auto()
    REFUSED = auto()
    """It was not, and will not be, written."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, eq=False)
class _Proposal:
    """A leader's proposal to replace a partition's state, to be written in the session in which it was
    made."""

    topic: str
    partition: int
    state: PartitionState
    joined: Mapping[int, int]
    session_id: int
    outcome: asyncio.Future[_Outcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class StateWriter:
    """Reads and writes of broker `broker_id` about the partitions that it leads or holds."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        broker_id: int,
        view: ClusterView,
        on_stale_assignment: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """`on_stale_assignment` is called with topics whose assignment in the view proves old."""
        self._on_stale_assignment = on_stale_assignment
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._view = view
        self._proposals: list[_Proposal] = []
        """What is to be written next."""
        self._writing: asyncio.Task[None] | None = None

    def live_incarnations(self) -> Mapping[int, int]:
        """The present incarnation of each live broker that is not stopping."""
        return {
            broker_id: broker.incarnation
            for broker_id, broker in self._view.brokers.items()
            if not broker.leaving
        }

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        """As leader of a partition, replace its state: what a leader may change is its in-sync set.

        `joined` are the incarnations of the new members; if one has ended meanwhile, nothing is written. Nor
        if the leader or this broker has not heard yet of a replica that was moved away: it must not come
        back.

        Returns the state that holds now: the new one, the one that someone else wrote first, or the old
        one; None if it is not known.
        """
        proposal = _Proposal(topic, partition, state, joined, self._zookeeper.session_id)
        self._proposals.append(proposal)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_proposals(), name="states of partitions")
        match await proposal.outcome:
            case _Outcome.WRITTEN:
                return state
            case _Outcome.REFUSED:
                return await self.read_state(topic, partition)
            case _Outcome.UNKNOWN:
                return None

    async def _write_proposals(self) -> None:
        """Write all that there are, and those that come meanwhile."""
        batch: list[_Proposal] = []
        try:
            while self._proposals:
                batch = self._proposals[: znodes.STATES_PER_MULTI]
                del self._proposals[: znodes.STATES_PER_MULTI]
                await self._write([proposal for proposal in batch if self._is_valid(proposal)])
        finally:
            # Callers must not wait for an answer that does not come, for any reason.
            for proposal in (*batch, *self._proposals):
                _settle(proposal, _Outcome.UNKNOWN)
            self._proposals.clear()
            self._writing = None

    def _is_valid(self, proposal: _Proposal) -> bool:
        """Whether it may be written, as far as this broker knows; if not, it is settled."""
        topic = self._view.topics.get(proposal.topic)
        if topic is None or proposal.session_id != self._zookeeper.session_id:
            _settle(proposal, _Outcome.UNKNOWN)
        elif self._view.lacks_assignment_of(proposal.topic, proposal.state):
            self._on_stale_assignment(proposal.topic)
            _settle(proposal, _Outcome.REFUSED)
        elif not set(proposal.state.isr) <= set(topic.assignment.replicas.get(proposal.partition, ())):
            _settle(proposal, _Outcome.REFUSED)  # the leader will hear of it in a moment
        return not proposal.outcome.done()

    async def _write(self, proposals: Sequence[_Proposal]) -> None:
        """Write them together. If one cannot be written, write the others."""
        if not proposals:
            return
        try:
            await self._write_together(proposals)
            outcome = _Outcome.WRITTEN
        except ZooKeeperUnavailable:
            outcome = _Outcome.UNKNOWN
        except Conflict:
            if len(proposals) > 1:
                half = len(proposals) // 2
                for part in (proposals[:half], proposals[half:]):
                    await self._write([proposal for proposal in part if self._is_valid(proposal)])
                return
            outcome = _Outcome.REFUSED
        for proposal in proposals:
            _settle(proposal, outcome)

    async def _write_together(self, proposals: Sequence[_Proposal]) -> None:
        joined = {life for proposal in proposals for life in proposal.joined.items()}
        states = tuple(
            (self._view.topics[proposal.topic].topic_id, proposal.partition, proposal.state)
            for proposal in proposals
        )
        await self._zookeeper.multi(
            [
                *(Check(znodes.incarnation_path(broker), life) for broker, life in sorted(joined)),
                *(
                    SetData(
                        znodes.state_path(proposal.topic, proposal.partition),
                        znodes.encode_state(proposal.state),
                        proposal.state.partition_epoch - 1,
                    )
                    for proposal in proposals
                ),
                Create(znodes.CHANGE_PREFIX, znodes.Change(states=states).encode(), sequential=True),
            ]
        )

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state as ZooKeeper has it now; None if it does not answer or the partition is gone."""
        try:
            # A server that lags behind would tell of the past, as if nothing had been written.
            await self._zookeeper.sync()
            node = await self._zookeeper.get(znodes.state_path(topic, partition))
        except ZooKeeperUnavailable:
            return None
        return None if node is None else znodes.decode_state(node.data, node.version)

    async def announce(self, topic: str, partition: int, state: PartitionState) -> None:
        """Announce in the feed a state that was written without an entry there."""
        cluster_topic = self._view.topics.get(topic)
        if cluster_topic is None:
            return
        # With the topic: the assignment that the state goes with may be unheard of as well.
        entry = znodes.Change(topics=(topic,), states=((cluster_topic.topic_id, partition, state),)).encode()
        try:
            await self._zookeeper.multi([Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except ZooKeeperUnavailable as error:
            logger.warning("state not announced", topic=topic, partition=partition, reason=str(error))

    async def claim(self, claims: Mapping[TopicPartition, znodes.Claim]) -> Collection[TopicPartition]:
        """Say how far this broker's logs reach. Returns the partitions of which that is written now."""
        keys = list(claims)
        written: list[TopicPartition] = []
        for start in range(0, len(keys), znodes.STATES_PER_MULTI):
            written += await self._claim_together(keys[start : start + znodes.STATES_PER_MULTI], claims)
        return written

    async def _claim_together(
        self, keys: Sequence[TopicPartition], claims: Mapping[TopicPartition, znodes.Claim]
    ) -> Sequence[TopicPartition]:
        """Write these in one multi. If one cannot be written, as its topic is gone, write the others."""
        paths = [znodes.claim_path(topic, partition, self._broker_id) for topic, partition in keys]
        entry = znodes.Change(claims=tuple(keys)).encode()
        try:
            nodes = await self._zookeeper.get_many(paths)
            writes: list[Operation] = [
                Create(path, claims[key].encode())
                if node is None
                else SetData(path, claims[key].encode(), node.version)
                for key, path, node in zip(keys, paths, nodes, strict=True)
            ]
            await self._zookeeper.multi([*writes, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except (Conflict, ZooKeeperUnavailable) as error:
            if isinstance(error, Conflict) and len(keys) > 1:
                half = len(keys) // 2
                return [
                    *await self._claim_together(keys[:half], claims),
                    *await self._claim_together(keys[half:], claims),
                ]
            logger.warning("claims not written", partitions=len(keys), first=keys[0], reason=str(error))
            return ()
        return keys


def _settle(proposal: _Proposal, outcome: _Outcome) -> None:
    if not proposal.outcome.done():
        proposal.outcome.set_result(outcome)
