"""Carries what the member has learnt of the cluster to this broker's own replicas, and acts on nothing else.

The member awaits `take` whenever its view has changed; `open` is called once before. There may be ten
thousand partitions, and a broker that dies changes all of them: what goes over many of them does so in turns.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.config_entities import quota_entity
from mainstem_broker.cluster.controller import (
    ElectionPolicy,
    has_valid_leader,
    heir_of,
    must_claim,
)
from mainstem_broker.cluster.reassignment import move_of, moving_partitions, successor
from mainstem_broker.cluster.restores import is_doubted, is_outdated
from mainstem_broker.cluster.view import Delta, Topic
from mainstem_broker.cluster.znodes import NO_LOG, Claim
from mainstem_broker.config.broker_config import readable_settings
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.lease import NO_INCARNATION
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.runtime.turns import batches_in_turns, in_turns
from mainstem_broker.security.acl import ResourcePattern
from mainstem_broker.security.authorizer import UNREADABLE
from mainstem_broker.server.log_worker import LogWorker
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

logger = structlog.get_logger(__name__)

FOLLOWING_INTERVAL_S: Final = 0.25
"""Between two times that fetchers look for new followers while many logs are created: each look goes over all
partitions, and breaks off a fetch that is waiting."""


class ClusterChanges:
    """From the view to replicas and settings."""

    def __init__(self, broker: BrokerContext, logs: LogManager) -> None:
        self._broker = broker
        self._logs = logs
        self._background: set[asyncio.Task[None]] = set()
        self._worker = LogWorker(broker, logs, self.topic_config, self._take_created, self._take_deleted)
        self._followed_s = -math.inf
        self._is_open = False
        self._awaiting_lease: dict[TopicPartition, None] | None = None
        """Between a new registration and the beginning of its lease: the partitions to lead then, in order. A
        replica that is elected in an incarnation without a lease would not take the role."""
        self._unled: dict[TopicPartition, int] = {}
        """Partitions that this broker could claim one day, since they have no leader, or one that is gone; by
        partition the incarnation of the last claim that is written or being written, or -1."""

    async def open(self, *, may_be_restored: bool = False) -> None:
        """Open the replicas that the view gives to this broker, and remove the files of deleted topics.

        `may_be_restored`: the view may be older than the logs here.
        """
        await self._remove_deleted(may_be_restored)
        topics = self._broker.view.topics.values()
        replicas = [(topic, index) for topic in topics for index in topic.states]
        async for topic, index in in_turns(replicas):
            self._open_replica(topic, index)
            self._follow_coordinated(topic.name, index)
        await self._worker.idle()
        self._is_open = True
        self._broker.replicas.follow_leaders()
        self._report_offline()

    async def stop(self) -> None:
        await self._worker.stop()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def take(self, delta: Delta, begin_lease: Callable[[], None] | None = None) -> None:
        """Follow what has changed in the view.

        `begin_lease` is given after a new registration (see `ClusterMember`). A replica whose leadership has
        ended loses it before, also if it was elected again since. One that was elected gets the role
        afterwards.
        """
        replicas, view = self._broker.replicas, self._broker.view
        for topic, topic_id in delta.deleted:
            replicas.drop(topic, topic_id)
            self._broker.topic_configs.forget(topic)
            await asyncio.sleep(0)
        if delta.deleted:
            deleted = {topic_id for _, topic_id in delta.deleted}
            # Also if there was none here: the deletion waits for all brokers that were to hold the topic.
            self._forget_deleted(deleted)
            self._broker.groups.topics_deleted(delta.deleted)
            self._broker.groups.shards.follow_all()
            self._broker.transactions.shards.follow_all()
        topics: Collection[str] = {
            name for kind, _, name in (entity.partition("/") for entity in delta.configs) if kind == "topics"
        }
        if any(entity.startswith("brokers/") for entity in delta.configs):
            self.take_broker_config()
            topics = view.topics
        if any(entity.startswith(("users/", "clients/")) for entity in delta.configs):
            self.take_quotas()
        self.take_acls(delta.acls)
        await replicas.update_configs(
            [view.topics[name].topic_id for name in topics if name in view.topics], self.topic_config
        )
        await self._update_replicas(sorted(delta.partitions), begin_lease)
        if replicas.undeleted:
            self._worker.delete()
        replicas.follow_leaders()
        await self._hand_over(delta)
        if delta.brokers:
            self._broker.follower_sessions.close_absent(view.brokers.keys())
            await replicas.consider_all_isrs()
            opened = [(partition.topic, partition.index) for partition in replicas]
            await self._look_for_unled([*opened, *sorted(replicas.unopened)])
        elif delta.partitions:
            await self._look_for_unled(sorted(delta.partitions))

    async def _update_replicas(
        self, partitions: Iterable[TopicPartition], begin_lease: Callable[[], None] | None
    ) -> None:
        if begin_lease is not None:
            self._awaiting_lease = {}
        try:
            async for key in in_turns(partitions):
                self._update_partition(key)
            if begin_lease is not None:
                begin_lease()
        finally:
            elected, self._awaiting_lease = self._awaiting_lease or {}, None
        async for key in in_turns(elected):
            self._update_partition(key)

    def _update_partition(self, key: TopicPartition) -> None:
        if self._awaiting_lease is not None and self._is_elected(key):
            self._awaiting_lease[key] = None
            self._suspend_if_replaced(key)
            return
        self._update_replica(*key)
        self._follow_coordinated(*key)

    def _suspend_if_replaced(self, key: TopicPartition) -> None:
        """End a former leadership after which another broker may have led: the lease would renew it.

        If this broker was elected in the very next epoch, nobody has led in between, and it goes on.
        """
        partition = self._broker.replicas.find(*key)
        if partition is None or partition.state is None:
            return
        elected_epoch = self._broker.view.topics[key[0]].states[key[1]].leader_epoch
        if partition.state.leader == self._broker.broker_id and partition.leader_epoch < elected_epoch - 1:
            self._broker.replicas.suspend(*key)

    def _is_elected(self, key: TopicPartition) -> bool:
        """Whether this broker leads the partition, in whatever incarnation."""
        topic = self._broker.view.topics.get(key[0])
        state = None if topic is None else topic.states.get(key[1])
        return state is not None and state.leader == self._broker.broker_id

    def _follow_coordinated(self, name: str, index: int) -> None:
        """Begin or end to coordinate what a partition of a coordinator's topic holds."""
        if name == OFFSETS_TOPIC:
            self._broker.groups.shards.follow(index)
        elif name == TRANSACTIONS_TOPIC:
            self._broker.transactions.shards.follow(index)

    async def _hand_over(self, delta: Delta) -> None:
        """Pass on what is led here and should be led elsewhere: by request, moved away, or at the end."""
        view, replicas = self._broker.view, self._broker.replicas
        async for topic_id, index in in_turns(sorted(delta.elections)):
            name = view.topic_names.get(topic_id, "")
            partition = replicas.find(name, index)
            if partition is not None and partition.is_leader:
                replicas.hand_over(partition, view.topics[name].assignment.replicas[index][0])
        moving = [
            (name, index)
            for name in sorted(view.moving_topics)
            for index in moving_partitions(view.topics[name].assignment)
        ]
        async for name, index in in_turns(moving):
            partition, topic = replicas.find(name, index), view.topics.get(name)
            if partition is None or topic is None or not partition.is_leader or partition.state is None:
                continue
            brokers = view.brokers_for(topic.topic_id, index)
            leader = successor(partition.state, move_of(topic.assignment, index), brokers)
            if leader is not None:
                replicas.hand_over(partition, leader)
        me = view.brokers.get(self._broker.broker_id)
        if me is not None and me.leaving:
            await self._hand_over_all()

    async def _hand_over_all(self) -> None:
        """This broker is about to stop."""
        async for partition in in_turns(self._broker.replicas.led_here()):
            if partition.is_leader and partition.state is not None:
                brokers = self._broker.view.brokers_for(partition.topic_id, partition.index)
                heir = heir_of(partition.state, partition.replicas, brokers)
                if heir is not None:
                    self._broker.replicas.hand_over(partition, heir)

    def _take_created(self, partitions: Collection[TopicPartition]) -> None:
        """Open the replicas whose logs have been created."""
        for key in partitions:
            self._update_partition(key)
        if not self._is_open:
            return
        self._claim_unled(partitions)
        now_s = time.monotonic()
        if not self._broker.opening or now_s - self._followed_s > FOLLOWING_INTERVAL_S:
            self._followed_s = now_s
            self._broker.replicas.follow_leaders()

    def _take_deleted(self, topic_ids: Collection[UUID]) -> None:
        if self._is_open:
            known_ids = self._broker.view.topic_names
            self._forget_deleted(topic_id for topic_id in topic_ids if topic_id not in known_ids)

    def _forget_deleted(self, topic_ids: Iterable[UUID]) -> None:
        """Note of deleted topics that nothing of them is left here, where that is so."""
        undeleted = self._worker.undeleted_topics()
        for topic_id in topic_ids:
            if topic_id not in undeleted:
                self._spawn(self._broker.member.administration.forget_deleted_topic(topic_id))

    async def try_again(self) -> None:
        """What failed for a reason that passes, as a full disk or a lost answer; called periodically."""
        replicas = self._broker.replicas
        self._worker.delete(again=True)
        async for key in in_turns(sorted(replicas.unopened)):
            self._update_partition(key)
        await self._look_for_unled(sorted(self._unled))

    def disk_failed(self, directory: Path) -> None:
        """A data directory is lost, while this broker runs: others lead what was there."""
        self._broker.replicas.fail(directory)
        self._broker.groups.shards.follow_all()
        self._broker.transactions.shards.follow_all()
        self._report_offline()

    def _report_offline(self) -> None:
        offline = self._broker.replicas.offline
        if offline:
            logger.error("replicas offline", count=len(offline))
            self._broker.member.report_offline((topic_id, index) for (_, index), topic_id in offline.items())

    def _open_replica(self, topic: Topic, index: int) -> None:
        """At the start. A log that is in no directory is not made anew while one of them does not work."""
        held = self._broker.broker_id in topic.assignment.replicas[index]
        if held and self._logs.failed and self._logs.get(topic.name, index) is None:
            self._broker.replicas.begin_offline(topic.name, index, topic.topic_id)
        else:
            self._update_replica(topic.name, index)

    def _update_replica(self, name: str, index: int) -> None:
        topic = self._broker.view.topics.get(name)
        if topic is None or index not in topic.states:
            return
        if name in self._broker.view.stopped_topics:
            self._broker.replicas.suspend(name, index)
            return
        replicas = topic.assignment.replicas[index]
        if self._broker.broker_id not in replicas:
            self._broker.replicas.drop_replica(name, index, topic.topic_id)
            return
        key = name, index
        state = topic.states[index]
        is_there = not self._worker.is_busy(key) and self._logs.get(name, index) is not None
        # Or a log of an earlier topic of this name, which is to be deleted first.
        if is_there and self._broker.replicas.undeleted.get(key, topic.topic_id) == topic.topic_id:
            self._broker.replicas.update(
                name, index, topic.topic_id, state, replicas, self.topic_config(name)
            )
        elif self._broker.replicas.offline.get(key) == topic.topic_id:
            pass  # it is on a disk that has failed
        elif self._awaits_claims(state):
            # An empty log would say that there were no records. It is created when somebody leads.
            self._broker.replicas.unopened.add(key)
        else:
            self._worker.create(key, is_led=state.leader == self._broker.broker_id)

    def _awaits_claims(self, state: PartitionState) -> bool:
        """Whether the logs decide who leads, as after a restore of ZooKeeper (`cluster/restores.py`)."""
        return is_doubted(state) or is_outdated(state, self._broker.view.restores)

    async def _remove_deleted(self, may_be_restored: bool) -> None:
        """Drop logs of topics that were deleted, or replicas moved away, while this broker was down.

        A log whose topic neither exists nor is recorded as deleted is set aside and kept: it may be
        all that is left of something that was lost elsewhere. So is the log of a replica that an older view
        gives to other brokers (KAFKA-16234): it may have been moved here since.
        """
        administration = self._broker.member.administration
        patiently = self._broker.member.with_patience
        deleted = await patiently(administration.deleted_topics)
        undeleted = self._broker.replicas.undeleted
        for topic, partition in list(self._logs.logs):
            topic_id = self._logs.topic_id(topic, partition)
            cluster_topic = self._broker.view.topics.get(topic)
            if topic_id is None or topic in self._broker.view.stopped_topics:
                continue
            if cluster_topic is not None and cluster_topic.topic_id == topic_id:
                holders = cluster_topic.assignment.replicas.get(partition)
                if holders is not None and self._broker.broker_id not in holders:
                    if may_be_restored or not self._was_moved_away(cluster_topic, partition):
                        self._logs.set_aside(topic, partition)
                    else:
                        undeleted[topic, partition] = topic_id
                continue
            if topic_id in deleted:
                undeleted[topic, partition] = topic_id
            else:
                self._logs.set_aside(topic, partition)
        self._worker.delete()
        await self._worker.idle()
        if self._logs.failed:
            return  # what they hold is not known: the next start finds it, if they work again
        undeleted_topics = self._worker.undeleted_topics()
        for topic_id in deleted:
            if topic_id not in undeleted_topics:
                await patiently(partial(administration.forget_deleted_topic, topic_id))

    def is_of_no_topic(self, name: str, topic_id: UUID) -> bool:
        """Whether there is certainly no topic of this name with this id. Any thread may call it."""
        view = self._broker.view
        topic = view.topics.get(name)
        return name not in view.stopped_topics and (topic is None or topic.topic_id != topic_id)

    def _was_moved_away(self, topic: Topic, partition: int) -> bool:
        """Whether a log that is left here may be from before a move: the end of one raises the leader epoch
        above those of the logs that it removes."""
        log, state = self._logs.get(topic.name, partition), topic.states.get(partition)
        return log is not None and state is not None and log.epochs.latest_epoch < state.leader_epoch

    # --- Settings ---

    def topic_config(self, name: str) -> TopicConfig:
        """A topic's settings: its own over the broker's."""
        topic = self._broker.view.topics.get(name)
        return self._broker.topic_configs.get(name, {} if topic is None else topic.config)

    def election_policy(self, topic: Topic) -> ElectionPolicy:
        config = self._broker.topic_configs.get(topic.name, topic.config)
        return ElectionPolicy(config.min_insync_replicas, config.unclean_leader_election_enable)

    def take_broker_config(self) -> None:
        """Put the view's dynamic settings into effect, but for those that are no values of theirs.

        Such were written to ZooKeeper by hand, or by brokers of another version. The others must hold, and
        in place of the wrong ones what held before, if anything did.
        """
        own, for_all = self._broker.view.dynamic_broker_config(self._broker.broker_id)
        own, wrong = readable_settings(own, self._broker.config.dynamic)
        for_all, wrong_for_all = readable_settings(for_all, self._broker.config.dynamic_default)
        for reason in wrong + wrong_for_all:
            logger.error("dynamic broker settings ignored", reason=reason)
        self._broker.config = self._broker.config.with_dynamic(own, for_all)
        config, replicas = self._broker.config, self._broker.replicas
        replicas.leader_throttle.set_rate(config.integer("leader.replication.throttled.rate"))
        replicas.follower_throttle.set_rate(config.integer("follower.replication.throttled.rate"))

    def take_quotas(self) -> None:
        """Put the view's client quotas into effect."""
        self._broker.quotas.replace(
            {
                entity: config
                for path, config in self._broker.view.entity_configs.items()
                if (entity := quota_entity(path)) is not None
            }
        )

    # --- Authorization ---

    def take_acls(self, patterns: Iterable[ResourcePattern]) -> None:
        """Put the view's rules about the resources of these patterns into effect."""
        authorizer, view = self._broker.authorizer, self._broker.view
        if authorizer is None:
            return
        for pattern in patterns:
            is_unreadable = pattern in view.unreadable_acls
            authorizer.set_rules(pattern, [UNREADABLE] if is_unreadable else view.acls.get(pattern, ()))

    # --- Claims ---

    async def _look_for_unled(self, partitions: Sequence[TopicPartition]) -> None:
        """Claim those of the partitions that this broker has to claim.

        Whether it has to changes with the state of a partition and with the brokers of the cluster. A change
        of brokers concerns all partitions. Those that have no valid leader are looked at again periodically,
        for a claim may not have been written.
        """
        async for keys in batches_in_turns(partitions):
            self._claim_unled(keys)

    def _claim_unled(self, keys: Iterable[TopicPartition]) -> None:
        """Write the claims that are due, in the background, each once: the view may take a while to show
        thousands."""
        claims = {key: claim for key in keys if (claim := self._due_claim(key)) is not None}
        if claims:
            self._unled.update((key, claim.incarnation) for key, claim in claims.items())
            self._spawn(self._write_claims(claims))

    async def _write_claims(self, claims: Mapping[TopicPartition, Claim]) -> None:
        written: Collection[TopicPartition] = ()
        try:
            written = await self._broker.member.states.claim(claims)
        finally:
            for key in claims.keys() - set(written):
                if self._unled.get(key) == claims[key].incarnation:
                    self._unled[key] = NO_INCARNATION

    def _due_claim(self, key: TopicPartition) -> Claim | None:
        """How far the log reaches, if nobody can be trusted to lead and that is not written yet (see
        `controller.py`)."""
        view = self._broker.view
        broker_id = self._broker.broker_id
        name, index = key
        topic = view.topics.get(name)
        state = None if topic is None else topic.states.get(index)
        if (
            topic is None
            or state is None
            or name in view.stopped_topics
            or broker_id not in state.isr + state.elr
            or has_valid_leader(state, brokers := view.brokers_for(topic.topic_id, index))
            or (position := self._position(key, state)) is None
        ):
            self._unled.pop(key, None)
            return None
        claimed_incarnation = self._unled.setdefault(key, NO_INCARNATION)
        me = view.brokers.get(broker_id)
        current_claim = topic.claims.get(index, {}).get(broker_id)
        if (
            me is None
            or me.incarnation == claimed_incarnation
            or not must_claim(state, brokers)
            or (current_claim is not None and current_claim.incarnation == me.incarnation)
        ):
            return None
        offset, epoch = position
        claim = Claim(broker_id, me.incarnation, epoch, offset)
        if not claim.has_log:
            logger.error(
                "no log of a replica: it was moved or deleted since the backup of ZooKeeper",
                partition=f"{name}-{index}",
            )
        return claim

    def _position(self, key: TopicPartition, state: PartitionState) -> tuple[int, int] | None:
        """Where the log of a replica ends, and the epoch of its last record; None if it is not known."""
        partition = self._broker.replicas.find(*key)
        if partition is not None:
            # Not the latest epoch, which may have no record: a broker that did not know of a restore may have
            # led with an empty or an older log.
            end = partition.log.log_end_offset
            return end, partition.log.epochs.epoch_of(end - 1)
        if key not in self._broker.replicas.unopened or not is_doubted(state):
            return None
        is_absent = self._logs.get(*key) is None and not self._worker.is_busy(key)
        return (NO_LOG, NO_LOG) if is_absent else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed", reason=str(error))
