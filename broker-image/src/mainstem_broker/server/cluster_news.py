"""Carries what the member has learnt of the cluster to this broker's own replicas, and acts on nothing else.

The member calls `take` on the event loop whenever its view has changed; `open` is called once before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.api.follower_fetch import end_sessions_of_the_gone
from mainstem_broker.cluster.controller import ElectionPolicy, heir_of, must_claim
from mainstem_broker.cluster.reassignment import move_of, moving_partitions, successor
from mainstem_broker.cluster.view import Delta, Topic
from mainstem_broker.cluster.znodes import Claim, quota_entity
from mainstem_broker.config import TopicConfig, readable_settings
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.log.log_manager import LogManager

logger = structlog.get_logger(__name__)

OPENED_TOGETHER: Final = 20
"""New followers after which fetchers look for them: each look goes over all partitions."""


class ClusterNews:
    """From the view to replicas and settings."""

    def __init__(self, broker: BrokerContext, logs: LogManager) -> None:
        self._broker = broker
        self._logs = logs
        self._background: set[asyncio.Task[None]] = set()
        self._to_open: dict[tuple[str, int], None] = {}
        self._opening = False

    async def open(self) -> None:
        """Open the replicas that the view gives to this broker, and remove the files of deleted topics."""
        await self._remove_deleted()
        for topic in self._broker.view.topics.values():
            for index in topic.states:
                self._open_replica(topic, index)
                if topic.name == OFFSETS_TOPIC:
                    self._broker.groups.follow(index)
        self._broker.replicas.follow_leaders()
        self._report_offline()

    async def stop(self) -> None:
        self._to_open.clear()
        await asyncio.gather(*self._background, return_exceptions=True)

    def take(self, delta: Delta) -> None:
        """Follow what has changed in the view."""
        replicas = self._broker.replicas
        for topic, topic_id in delta.deleted:
            replicas.drop(topic, topic_id)
            # Also if there was none: whoever deleted the topic waits for all that were to hold it.
            if not self._has_undeleted(topic_id):
                self._spawn(self._broker.member.administration.forget_deleted_topic(topic_id))
        if delta.deleted:
            self._broker.groups.topics_deleted({topic_id for _, topic_id in delta.deleted})
            self._broker.groups.follow_all()
        topics: Collection[str] = {
            name for kind, _, name in (entity.partition("/") for entity in delta.configs) if kind == "topics"
        }
        if any(entity.startswith("brokers/") for entity in delta.configs):
            self.take_broker_config()
            topics = self._broker.view.topics
        if any(entity.startswith(("users/", "clients/")) for entity in delta.configs):
            self.take_quotas()
        replicas.update_configs(topics, self.topic_config)
        for name, index in sorted(delta.partitions):
            if self._may_open_later(name, index):
                self._to_open[name, index] = None
            else:
                self._update_replica(name, index)
            if name == OFFSETS_TOPIC:
                self._broker.groups.follow(index)
        if self._to_open and not self._opening:
            self._spawn(self._open_followers())
        replicas.follow_leaders()
        self._hand_over(delta)
        if delta.brokers:
            end_sessions_of_the_gone(self._broker)
            replicas.consider_all_isrs()
        if delta.partitions or delta.brokers:
            self._claim()

    def _hand_over(self, delta: Delta) -> None:
        """Pass on what is led here and should be led elsewhere: by request, moved away, or at the end."""
        view, replicas = self._broker.view, self._broker.replicas
        for topic_id, index in sorted(delta.elections):
            name = view.topic_names.get(topic_id, "")
            partition = replicas.find(name, index)
            if partition is not None and partition.is_leader:
                replicas.hand_over(partition, view.topics[name].assignment.replicas[index][0])
        for name, index in [
            (topic.name, index)
            for topic in view.topics.values()
            for index in moving_partitions(topic.assignment)
        ]:
            partition, topic = replicas.find(name, index), view.topics[name]
            if partition is None or not partition.is_leader or partition.state is None:
                continue
            brokers = view.brokers_for(topic.topic_id, index)
            leader = successor(partition.state, move_of(topic.assignment, index), brokers)
            if leader is not None:
                replicas.hand_over(partition, leader)
        me = view.brokers.get(self._broker.broker_id)
        if me is not None and me.leaving:
            self._hand_over_all()

    def _hand_over_all(self) -> None:
        """This broker is about to stop."""
        for partition in self._broker.replicas:
            if partition.is_leader and partition.state is not None:
                brokers = self._broker.view.brokers_for(partition.topic_id, partition.index)
                heir = heir_of(partition.state, partition.replicas, brokers)
                if heir is not None:
                    self._broker.replicas.hand_over(partition, heir)

    def _may_open_later(self, name: str, index: int) -> bool:
        """Whether a log has to be opened for which nobody waits: a follower's."""
        topic = self._broker.view.topics.get(name)
        state = None if topic is None else topic.states.get(index)
        is_led_here = state is not None and state.leader == self._broker.broker_id
        return not is_led_here and self._broker.replicas.find(name, index) is None

    async def _open_followers(self) -> None:
        """Open new logs one by one, letting requests through in between: each costs an fsync or two.

        A move can bring hundreds at once.
        """
        self._opening = True
        try:
            while self._to_open:
                for key in list(self._to_open)[:OPENED_TOGETHER]:
                    del self._to_open[key]
                    self._update_replica(*key)
                    await asyncio.sleep(0)
                self._broker.replicas.follow_leaders()
            self._claim()
        finally:
            self._opening = False

    def try_again(self) -> None:
        """What failed for a reason that passes, as a full disk or a lost answer; called at times."""
        self._delete_again()  # first: a log of an earlier topic of that name is in the way of a new one
        unopened = sorted(self._broker.replicas.unopened)
        for name, index in unopened:
            self._update_replica(name, index)
        if unopened:
            self._broker.replicas.follow_leaders()
        self._claim()

    def _delete_again(self) -> None:
        replicas = self._broker.replicas
        topic_ids = set(replicas.undeleted.values()).difference(self._broker.view.topic_names)
        replicas.delete_again()
        for topic_id in topic_ids:
            if not self._has_undeleted(topic_id):
                self._spawn(self._broker.member.administration.forget_deleted_topic(topic_id))

    def _has_undeleted(self, topic_id: UUID) -> bool:
        return topic_id in self._broker.replicas.undeleted.values()

    def disk_failed(self, directory: Path) -> None:
        """A data directory is lost, while this broker runs: others lead what was there."""
        self._broker.replicas.fail(directory)
        self._broker.groups.follow_all()
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
        replicas = topic.assignment.replicas[index]
        if self._broker.broker_id not in replicas:
            self._broker.replicas.drop_replica(name, index, topic.topic_id)
            return
        self._broker.replicas.update(
            name, index, topic.topic_id, topic.states[index], replicas, self.topic_config(name)
        )

    async def _remove_deleted(self) -> None:
        """Drop logs of topics that were deleted, or replicas moved away, while this broker was down.

        A log whose topic nobody knows of, and nobody noted as deleted, is set aside and kept: it may be
        all that is left of something that was lost elsewhere.
        """
        administration = self._broker.member.administration
        deleted = await administration.deleted_topics()
        for topic, partition in list(self._logs.logs):
            topic_id = self._logs.topic_id(topic, partition)
            known = self._broker.view.topics.get(topic)
            if topic_id is None:
                continue
            if known is not None and known.topic_id == topic_id:
                holders = known.assignment.replicas.get(partition)
                if holders is not None and self._broker.broker_id not in holders:
                    self._broker.replicas.delete_log(topic, partition, topic_id)
                continue
            if topic_id in deleted:
                self._broker.replicas.delete_log(topic, partition, topic_id)
            else:
                self._logs.set_aside(topic, partition)
        for topic_id in deleted:
            if not self._has_undeleted(topic_id):
                await administration.forget_deleted_topic(topic_id)

    # --- Settings ---

    def topic_config(self, name: str) -> TopicConfig:
        """A topic's settings: its own over the broker's."""
        topic = self._broker.view.topics.get(name)
        overrides = {} if topic is None else topic.config
        try:
            return self._broker.config.topic(overrides)
        except InvalidSetting as error:
            # Written to ZooKeeper by hand; the topic must stay usable, so the wrong settings do not count.
            logger.error("topic settings ignored", topic=name, reason=str(error))
            return self._broker.config.topic({})

    def election_policy(self, topic: Topic) -> ElectionPolicy:
        config = self.topic_config(topic.name)
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

    # --- Claims ---

    def _claim(self) -> None:
        """Say how far logs here reach of which nobody can be trusted to lead (see `controller.py`)."""
        view = self._broker.view
        broker_id = self._broker.broker_id
        me = view.brokers.get(broker_id)
        if me is None:
            return
        for partition in self._broker.replicas:
            topic = view.topics.get(partition.topic)
            state = None if topic is None else topic.states.get(partition.index)
            if topic is None or state is None or broker_id not in state.isr + state.elr:
                continue
            known = topic.claims.get(partition.index, {}).get(broker_id)
            brokers = view.brokers_for(partition.topic_id, partition.index)
            if must_claim(state, brokers) and (known is None or known.incarnation != me.incarnation):
                offset, epoch = partition.fetch_position()
                claim = Claim(broker_id, me.incarnation, epoch, offset)
                self._spawn(self._broker.member.states.claim(partition.topic, partition.index, claim))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed", reason=str(error))
