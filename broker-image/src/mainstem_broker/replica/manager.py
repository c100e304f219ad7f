"""All replicas of this broker: opens, finds, updates and drops them as the cluster's state says.

It also owns the fetchers: one for each broker that leads partitions which this one holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import ProtocolError, StorageError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.replica.fetcher import Fetcher, Leader
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.log_flusher import LogFlusher
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState
from mainstem_broker.replica.throttle import Throttle, is_throttled_follower
from mainstem_broker.runtime.turns import batches_in_turns, in_turns

logger = structlog.get_logger(__name__)


HANDOVER_DELAY_S: Final = 0.02
"""Between two tries to hand a partition over: while another proposal is under way, or its heir behind."""
RETRY_DELAY_S: Final = 0.2
"""Between two tries to learn what became of a write whose answer was lost: at first, doubling in between."""
RETRY_DELAY_S_MAX: Final = 2.0
"""And at last: an outage of ZooKeeper may leave thousands of them."""
FEED_PATIENCE_S: Final = 1.0
"""For the feed to tell of an election: that of a thousand leaders takes some hundred milliseconds."""


class Coordination(Protocol):
    """The cluster as replicas need it."""

    def live_incarnations(self) -> Mapping[int, int]:
        """The present incarnation of each live broker that is not stopping."""
        ...

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        """Write a leader's proposal; returns the state that holds now, or None if that is not known."""
        ...

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state that holds now, or None if it cannot be read at the moment."""
        ...

    async def announce(self, topic: str, partition: int, state: PartitionState) -> None:
        """Announce in the feed a state that was written without an entry there."""
        ...


class ReplicaManager:
    """Owner of the partitions map and the fetchers. Called on the event loop only.

    `connect` returns the connection to a leader; `now_ms` is the clock; `lag_ms_max` is
    replica.lag.time.max.ms.
    """

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        coordination: Coordination,
        lease: Lease,
        connect: Callable[[int], Leader],
        now_ms: Callable[[], int],
        lag_ms_max: int,
    ) -> None:
        self._broker_id = broker_id
        self.logs = logs
        self._coordination = coordination
        self.lease = lease
        self._connect = connect
        self._now_ms = now_ms
        self._lag_ms_max = lag_ms_max
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_topic: dict[UUID, dict[Partition, None]] = {}
        self._by_leader: dict[int, dict[Partition, None]] = {}
        """Those with a state, by the leader that it names (`NO_LEADER` for none). Used as ordered sets."""
        self._leaders: dict[Partition, int] = {}
        """Under which leader each is in `_by_leader`."""
        self.unopened: set[tuple[str, int]] = set()
        """Replicas whose log could not be opened, as on a full disk: to be tried again."""
        self.undeleted: dict[tuple[str, int], UUID] = {}
        """Topic ids of logs without a replica that are to be deleted, or could not be, as on a full disk."""
        self.offline: dict[tuple[str, int], UUID] = {}
        """Topic ids of the replicas whose disk failed; they come back with the next start, if it is well."""
        self._fetchers: dict[int, Fetcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heirs: dict[Partition, int] = {}
        self._stopped = False
        self.isr_shrinks = self.isr_expansions = 0
        """In-sync sets that lost or gained members by what this broker wrote as leader, since the start."""
        self.leader_throttle = Throttle(now_ms)
        self.follower_throttle = Throttle(now_ms)
        self.flusher = LogFlusher(now_ms, self._flushed, self._flush_failed)

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
        """Take a partition's new state, creating its log if this broker did not have it.

        That takes an fsync, so while requests are served the log is there already (`server/log_worker.py`).
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
                self.not_opened(topic, index, error)
                return
            self.unopened.discard((topic, index))
            self.undeleted.pop((topic, index), None)  # moved back before its log was deleted
            log.update_config(config)
            mark = self.logs.high_watermarks.get((topic, index), 0)
            partition = Partition(topic, index, topic_id, log, self._broker_id, self.lease, mark)
            partition.request_flush = self._request_flush
            self._partitions[topic, index] = partition
            self._by_topic.setdefault(topic_id, {})[partition] = None
        elif partition.state is None:  # it was suspended, and has missed changes of settings
            partition.log.update_config(config)
        is_new = state.leader == self._broker_id and state.leader_epoch > partition.leader_epoch
        if is_new and state.recovering:
            logger.warning(
                "leading though not in sync (unclean.leader.election.enable): records that only the former"
                " in-sync replicas have are lost",
                partition=repr(partition),
                from_offset=partition.log.log_end_offset,
            )
        partition.update_state(state, replicas, now_ms)
        self._note_leader(partition)
        self._consider_epoch(partition)

    def _note_leader(self, partition: Partition) -> None:
        """Keep `_by_leader`; to be called after each change of a partition's state."""
        leader = None if partition.state is None else partition.state.leader
        before = self._leaders.get(partition)
        if leader == before:
            return
        if before is not None:
            del self._leaders[partition]
            del self._by_leader[before][partition]
            if not self._by_leader[before]:
                del self._by_leader[before]
        if leader is not None:
            self._leaders[partition] = leader
            self._by_leader.setdefault(leader, {})[partition] = None

    def _remove(self, key: tuple[str, int]) -> None:
        """Take a replica out, and answer the requests that wait for it."""
        partition = self._partitions.pop(key)
        of_topic = self._by_topic[partition.topic_id]
        del of_topic[partition]
        if not of_topic:
            del self._by_topic[partition.topic_id]
        partition.take_offline()
        self._note_leader(partition)

    def suspend(self, topic: str, index: int) -> None:
        """Give up the role of a replica, if it is here, until the next `update`; its log stays as it is."""
        partition = self._partitions.get((topic, index))
        if partition is not None and partition.state is not None:
            partition.take_offline()
            self._note_leader(partition)

    def led_here(self) -> list[Partition]:
        """The replicas whose newest state names this broker as leader; not all of them can act on it."""
        return list(self._by_leader.get(self._broker_id, ()))

    def not_opened(self, topic: str, index: int, error: BaseException) -> None:
        """A replica's log could not be opened; opening it is tried again."""
        logger.error("replica not opened", topic=topic, partition=index, reason=str(error))
        self.unopened.add((topic, index))

    def fail(self, directory: Path) -> None:
        """The disk of a data directory failed: its replicas are no longer here."""
        for key in self.logs.fail(directory):
            self.undeleted.pop(key, None)  # a start with this disk finds it again
            partition = self._partitions.get(key)
            if partition is not None:
                self.offline[key] = partition.topic_id  # first: requests that wait are answered by it
                self._remove(key)

    # --- Flushes ---

    def _request_flush(self, partition: Partition) -> None:
        self.flusher.request(partition.log)

    def _flushed(self, log: PartitionLog) -> None:
        partition = self._partitions.get((log.topic, log.partition))
        if partition is not None and partition.log is log:
            partition.flushed()

    def _flush_failed(self, log: PartitionLog, error: StorageError) -> None:
        """Nothing is logged: the periodic flush tries again, and reports its failure once a second."""
        partition = self._partitions.get((log.topic, log.partition))
        if partition is not None and partition.log is log:
            partition.flush_failed(error)

    def begin_offline(self, topic: str, index: int, topic_id: UUID) -> None:
        """At the start: a replica whose log is in a failed data directory."""
        self.offline[topic, index] = topic_id

    def follow_leaders(self) -> None:
        """Begin and end fetchers so that every replica follows its leader; call after updates."""
        if self._stopped:
            return
        leaders = self._by_leader.keys() - {NO_LEADER, self._broker_id}
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
                    self._write_truncations,
                )
            else:
                fetcher.wake()

    async def _write_truncations(self) -> None:
        await asyncio.to_thread(self.logs.write_truncations)

    def _following(self, leader: int) -> Callable[[], list[Partition]]:
        def partitions() -> list[Partition]:
            following = list(self._by_leader.get(leader, ()))
            if self.follower_throttle.may_pass():
                return following
            return [partition for partition in following if not is_throttled_follower(partition)]

        return partitions

    def _charge_follower(self, partition: Partition, size_bytes: int) -> None:
        if self.follower_throttle.is_limited and is_throttled_follower(partition):
            self.follower_throttle.charge(size_bytes)

    # --- The in-sync sets of partitions that are led here ---

    def consider_isr(self, partition: Partition) -> None:
        """Propose another in-sync set, if it is due; called after fetches and periodically."""
        if partition.is_leader:
            self._consider_isr(partition, self._coordination.live_incarnations())

    def _consider_epoch(self, partition: Partition) -> None:
        """Propose a later epoch for a leader whose log has later ones than its state."""
        before, proposal = partition.state, partition.propose_epoch()
        if before is not None and proposal is not None:
            logger.warning(
                "leader epoch raised above those of the log",
                partition=repr(partition),
                before=before.leader_epoch,
                after=proposal.leader_epoch,
            )
            self._spawn(self._propose(partition, before, proposal, {}))

    def _consider_isr(self, partition: Partition, incarnations: Mapping[int, int]) -> None:
        before = partition.state
        assert before is not None
        proposal = partition.propose_isr(incarnations, self._now_ms(), self._lag_ms_max)
        if proposal is not None:
            joined = {
                broker: proposal.incarnations[broker]
                for broker in proposal.isr
                if broker not in before.isr and broker in proposal.incarnations
            }
            self._spawn(self._propose(partition, before, proposal, joined))

    async def consider_all_isrs(self) -> None:
        """As `consider_isr`, for all partitions that are led here."""
        async for some in batches_in_turns(self.led_here()):
            incarnations = self._coordination.live_incarnations()
            for partition in some:
                if partition.is_leader:
                    self._consider_isr(partition, incarnations)
                else:
                    self._consider_epoch(partition)

    def hand_over(self, partition: Partition, heir: int) -> None:
        """Hand a leadership over to another in-sync replica; the last call for a partition counts."""
        if not partition.is_leader or heir == self._broker_id:
            return
        is_under_way = partition in self._heirs
        self._heirs[partition] = heir
        if not is_under_way:
            self._spawn(self._hand_over(partition))

    async def _hand_over(self, partition: Partition) -> None:
        """Try until it is done, or the heir is out of sync, as one that stops fetching soon is."""
        try:
            while partition.is_leader and partition.state is not None:
                heir = self._heirs[partition]
                if heir not in partition.state.isr:
                    return
                incarnations = self._coordination.live_incarnations()
                proposal = partition.propose_handover(heir, incarnations)
                if proposal is not None:
                    await self._propose(partition, partition.state, proposal, {heir: incarnations[heir]})
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
        """Write a proposal that replaces the state `before`, and give the partition the state that holds
        then.

        While the outcome is unknown, the partition goes by the stricter of both sets.
        """
        if partition.state is not before:
            return  # a new state, or a failed disk, came before this began: there is no proposal any more
        try:
            held = await self._coordination.change_state(partition.topic, partition.index, proposal, joined)
        except Exception:
            logger.exception("proposal failed", partition=repr(partition))
            held = None
        pause_s = RETRY_DELAY_S
        while held is None:
            if partition.state is not before:
                return  # the feed has brought a newer state meanwhile
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_DELAY_S_MAX)
            try:
                held = await self._coordination.read_state(partition.topic, partition.index)
            except Exception:
                logger.exception("state not read", partition=repr(partition))
        if partition.state is before and held.partition_epoch == before.partition_epoch:
            partition.isr_refused()
        elif held.leader_epoch != before.leader_epoch and held != proposal:
            # Others have elected since, and may have moved this replica away: that is for the feed to tell,
            # together with the assignment. Nothing may be followed on the strength of a log that is to go.
            self._spawn(self._announce_missing(partition, before, held))
        elif partition.state is not None:
            logger.info(
                "partition state changed",
                partition=repr(partition),
                leader=held.leader,
                isr=held.isr,
                elr=held.elr,
            )
            self.isr_shrinks += not set(before.isr) <= set(held.isr)
            self.isr_expansions += not set(held.isr) <= set(before.isr)
            partition.update_state(held, partition.replicas, self._now_ms())
            self._note_leader(partition)

    async def _announce_missing(
        self, partition: Partition, before: PartitionState, held: PartitionState
    ) -> None:
        """Announce an election that is missing in the feed, such as a state that a person wrote."""
        await asyncio.sleep(FEED_PATIENCE_S)
        if partition.state is before:
            await self._coordination.announce(partition.topic, partition.index, held)

    async def stop(self) -> None:
        """End all fetchers, proposals and flushes; none begins any more."""
        self._stopped = True
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers), *self._tasks, return_exceptions=True)
        await self.flusher.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: partition.high_watermark for key, partition in self._partitions.items()}

    async def update_configs(
        self, topic_ids: Iterable[UUID], config_of: Callable[[str], TopicConfig]
    ) -> None:
        """Give the replicas of these topics their new settings."""
        changed = [partition for topic_id in topic_ids for partition in self._by_topic.get(topic_id, ())]
        async for partition in in_turns(changed):
            if partition.state is None:
                continue  # taken away meanwhile
            partition.log.update_config(config_of(partition.topic))
            partition.settings_changed()
            self.consider_isr(partition)

    def drop(self, topic: str, topic_id: UUID) -> None:
        """Remove all local replicas of a topic that was deleted; their logs are `undeleted` then."""
        gone = list(self._by_topic.get(topic_id, ()))
        if self.unopened:
            self.unopened = {key for key in self.unopened if key[0] != topic}
        for partition in gone:
            self._delete(partition)
        if gone:
            logger.info("replicas deleted", topic=topic, topic_id=str(topic_id), count=len(gone))

    def drop_replica(self, topic: str, index: int, topic_id: UUID) -> None:
        """Remove the local replica of a partition that was moved to other brokers, if there is one.

        Its log is `undeleted` then.
        """
        self.unopened.discard((topic, index))
        partition = self._partitions.get((topic, index))
        if partition is not None and partition.topic_id == topic_id:
            self._delete(partition)
            logger.info("replica moved to another broker", partition=repr(partition))

    def _delete(self, partition: Partition) -> None:
        key = partition.topic, partition.index
        self._remove(key)
        self.undeleted[key] = partition.topic_id
