"""All replicas of this broker: opens, finds, updates and drops them as the cluster's state says.

Also who is to be followed: one fetcher for each broker that leads partitions which this one holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from mainstem_broker.config import TopicConfig
from mainstem_broker.errors import ProtocolError, StorageError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.fetcher import Fetcher, Leader
from mainstem_broker.replica.office import Office
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.state import NO_LEADER, PartitionState
from mainstem_broker.replica.throttle import Throttle

logger = structlog.get_logger(__name__)


HANDOVER_DELAY_S: Final = 0.02
"""Between two tries to hand a partition over: while another proposal is under way, or its heir behind."""
RETRY_DELAY_S: Final = 0.2
"""Between two tries to learn what became of a write whose answer was lost."""
FEED_PATIENCE_S: Final = 1.0
"""For the feed to tell of an election: that of a thousand leaders takes some hundred milliseconds."""


class Coordination(Protocol):
    """What replicas need of the cluster."""

    def lives(self) -> Mapping[int, int]:
        """The present incarnation of each live broker that is not about to stop."""
        ...

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        """Write a leader's proposal; answer the state that holds now, or None if that is not known."""
        ...

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state that holds now, or None if that cannot be learnt at the moment."""
        ...

    async def announce(self, topic: str, partition: int, state: PartitionState) -> None:
        """Tell all brokers of a state that was written without telling them."""
        ...


class ReplicaManager:
    """Owner of the partitions map and the fetchers. Called on the event loop only.

    `connect` answers a way to reach a leader; `now_ms` is the clock; `lag_ms_max` is
    replica.lag.time.max.ms.
    """

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        coordination: Coordination,
        office: Office,
        connect: Callable[[int], Leader],
        now_ms: Callable[[], int],
        lag_ms_max: int,
    ) -> None:
        self._broker_id = broker_id
        self.logs = logs
        self._coordination = coordination
        self._office = office
        self._connect = connect
        self._now_ms = now_ms
        self._lag_ms_max = lag_ms_max
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.unopened: set[tuple[str, int]] = set()
        """Replicas whose log could not be opened, as on a full disk: to be tried again."""
        self.undeleted: dict[tuple[str, int], UUID] = {}
        """Topic ids of logs without a replica that could not be deleted, as on a full disk: likewise."""
        self.offline: dict[tuple[str, int], UUID] = {}
        """Topic ids of the replicas whose disk failed; they come back with the next start, if it is well."""
        self._fetchers: dict[int, Fetcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heirs: dict[Partition, int] = {}
        self._stopped = False
        self.leader_throttle = Throttle(now_ms)
        self.follower_throttle = Throttle(now_ms)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def find(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def update(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        state: PartitionState,
        replicas: tuple[int, ...],
        config: TopicConfig,
    ) -> None:
        """Take a partition's new state, opening its log if this broker did not have it.

        A log that cannot be opened is logged and left out, so that it harms no other partition.
        """
        if self.offline.get((topic, index)) == topic_id:
            return
        now_ms = self._now_ms()
        partition = self._partitions.get((topic, index))
        if partition is None:
            try:
                log = self.logs.get_or_create(topic, index, topic_id, config, now_ms)
            except (ProtocolError, OSError) as error:
                logger.error("replica not opened", topic=topic, partition=index, reason=str(error))
                self.unopened.add((topic, index))
                return
            self.unopened.discard((topic, index))
            self.undeleted.pop((topic, index), None)  # moved back before its log was gone
            mark = self.logs.high_watermarks.get((topic, index), 0)
            partition = Partition(topic, index, topic_id, log, self._broker_id, self._office, mark)
            self._partitions[topic, index] = partition
        is_new = state.leader == self._broker_id and state.leader_epoch > partition.leader_epoch
        if is_new and state.recovering:
            logger.warning(
                "leading though not in sync (unclean.leader.election.enable): records that only the former"
                " in-sync replicas have are lost",
                partition=repr(partition),
                from_offset=partition.log.log_end_offset,
            )
        partition.update_state(state, replicas, now_ms)

    def fail(self, directory: Path) -> None:
        """The disk of a data directory failed: its replicas are no longer here."""
        for key in self.logs.fail(directory):
            self.undeleted.pop(key, None)  # a start with this disk finds it again
            partition = self._partitions.pop(key, None)
            if partition is not None:
                self.offline[key] = partition.topic_id
                partition.take_offline()

    def begin_offline(self, topic: str, index: int, topic_id: UUID) -> None:
        """At the start: a replica whose log is not in the directories that work."""
        self.offline[topic, index] = topic_id

    def follow_leaders(self) -> None:
        """Begin and end fetchers so that every replica follows its leader; call after updates."""
        if self._stopped:
            return
        leaders = {
            partition.state.leader
            for partition in self._partitions.values()
            if partition.state is not None and partition.state.leader not in (NO_LEADER, self._broker_id)
        }
        for broker_id in self._fetchers.keys() - leaders:
            self._spawn(self._fetchers.pop(broker_id).stop())
        for broker_id in leaders:
            fetcher = self._fetchers.get(broker_id)
            if fetcher is None:
                self._fetchers[broker_id] = Fetcher(
                    broker_id,
                    self._connect(broker_id),
                    self._following(broker_id),
                    self._now_ms,
                    self._charge_follower,
                    lambda: self.follower_throttle.is_limited,
                )
            else:
                fetcher.wake()

    def _following(self, leader: int) -> Callable[[], list[Partition]]:
        def partitions() -> list[Partition]:
            following = [
                partition
                for partition in self._partitions.values()
                if partition.state is not None and partition.state.leader == leader
            ]
            if self.follower_throttle.may_pass():
                return following
            return [partition for partition in following if not partition.is_throttled]

        return partitions

    def _charge_follower(self, partition: Partition, size_bytes: int) -> None:
        if self.follower_throttle.is_limited and partition.is_throttled:
            self.follower_throttle.charge(size_bytes)

    # --- The in-sync sets of partitions that are led here ---

    def consider_isr(self, partition: Partition) -> None:
        """Propose another in-sync set, if it is due; called after fetches and at times."""
        before = partition.state
        if before is None or not partition.is_leader:
            return
        proposal = partition.propose_isr(self._coordination.lives(), self._now_ms(), self._lag_ms_max)
        if proposal is not None:
            joined = {
                broker: proposal.incarnations[broker]
                for broker in proposal.isr
                if broker not in before.isr and broker in proposal.incarnations
            }
            self._spawn(self._propose(partition, before, proposal, joined))

    def consider_all_isrs(self) -> None:
        for partition in self:
            self.consider_isr(partition)

    def hand_over(self, partition: Partition, heir: int) -> None:
        """Have another in-sync replica lead a partition that is led here; the last heir named counts."""
        if not partition.is_leader or heir == self._broker_id:
            return
        is_under_way = partition in self._heirs
        self._heirs[partition] = heir
        if not is_under_way:
            self._spawn(self._hand_over(partition))

    async def _hand_over(self, partition: Partition) -> None:
        """Try until it is done, or the heir is out of sync: one that does not fetch soon is."""
        try:
            while partition.is_leader and partition.state is not None:
                heir = self._heirs[partition]
                if heir not in partition.state.isr:
                    return
                lives = self._coordination.lives()
                proposal = partition.propose_handover(heir, lives)
                if proposal is not None:
                    await self._propose(partition, partition.state, proposal, {heir: lives[heir]})
                await asyncio.sleep(HANDOVER_DELAY_S)
        finally:
            del self._heirs[partition]

    async def _propose(
        self,
        partition: Partition,
        before: PartitionState,
        proposal: PartitionState,
        joined: Mapping[int, int],
    ) -> None:
        """Have a proposal to replace the state `before` written, and give the partition what holds then.

        While it is not known whether it was written, the partition keeps to the stricter of both sets.
        """
        if partition.state is not before:
            return  # news, or a failed disk, came before this began: nothing is under way any more
        try:
            held = await self._coordination.change_state(partition.topic, partition.index, proposal, joined)
        except Exception:
            logger.exception("proposal failed", partition=repr(partition))
            held = None
        while held is None:
            if partition.state is not before:
                return  # the feed has brought a newer state meanwhile
            await asyncio.sleep(RETRY_DELAY_S)
            try:
                held = await self._coordination.read_state(partition.topic, partition.index)
            except Exception:
                logger.exception("state not read", partition=repr(partition))
        if partition.state is before and held.partition_epoch == before.partition_epoch:
            partition.isr_refused()
        elif held.leader_epoch != before.leader_epoch and held != proposal:
            # Others have elected since, and may have moved this replica away: that is for the feed to tell,
            # together with the assignment. Nothing may be followed on the strength of a log that is to go.
            self._spawn(self._announce_unheard(partition, before, held))
        elif partition.state is not None:
            logger.info(
                "partition state changed",
                partition=repr(partition),
                leader=held.leader,
                isr=held.isr,
                elr=held.elr,
            )
            partition.update_state(held, partition.replicas, self._now_ms())

    async def _announce_unheard(
        self, partition: Partition, before: PartitionState, held: PartitionState
    ) -> None:
        """Have the feed tell of an election of which it has said nothing, as of a state written by hand."""
        await asyncio.sleep(FEED_PATIENCE_S)
        if partition.state is before:
            await self._coordination.announce(partition.topic, partition.index, held)

    async def stop(self) -> None:
        """End all fetchers and proposals; none begins any more."""
        self._stopped = True
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers), *self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                partition.settings_changed()
                self.consider_isr(partition)

    def drop(self, topic: str, topic_id: UUID) -> None:
        """Delete all local replicas of a topic that was deleted."""
        gone = [partition for partition in self if partition.topic_id == topic_id]
        self.unopened = {key for key in self.unopened if key[0] != topic}
        for partition in gone:
            self._delete(partition)
        if gone:
            logger.info("replicas deleted", topic=topic, topic_id=str(topic_id), count=len(gone))

    def drop_replica(self, topic: str, index: int, topic_id: UUID) -> None:
        """Delete the local replica of a partition that was moved to other brokers, if there is one."""
        self.unopened.discard((topic, index))
        partition = self._partitions.get((topic, index))
        if partition is not None and partition.topic_id == topic_id:
            self._delete(partition)
            logger.info("replica moved away", partition=repr(partition))

    def _delete(self, partition: Partition) -> None:
        del self._partitions[partition.topic, partition.index]
        partition.take_offline()
        self.delete_log(partition.topic, partition.index, partition.topic_id)

    def delete_log(self, topic: str, index: int, topic_id: UUID) -> None:
        """Delete a log that no replica here needs; if the disk refuses, `delete_again` comes back to it."""
        key = topic, index
        try:
            self.logs.delete(topic, index)
        except StorageError as error:
            if key not in self.undeleted:
                logger.error("replica not deleted", partition=f"{topic}-{index}", reason=str(error))
            self.undeleted[key] = topic_id
        else:
            self.undeleted.pop(key, None)

    def delete_again(self) -> None:
        """Try once more to delete the logs that the disk kept."""
        for (topic, index), topic_id in sorted(self.undeleted.items()):
            self.delete_log(topic, index, topic_id)
