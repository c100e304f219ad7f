"""What becomes of the cluster's news on this broker; the cluster is played, replicas and logs are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.at_end import at_end
from tests.unit.broker.log.logs import DEFAULTS, append
from tests.unit.broker.replica.replicas import LIFE, state_of
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.restores import doubted
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.znodes import (
    NO_LOG,
    BrokerRegistration,
    Claim,
    Endpoint,
    Restores,
    TopicAssignment,
)
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.setting import Setting, SettingType
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS, TopicConfig
from mainstem_broker.errors import NotLeaderOrFollower, StorageError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.quota.client_quotas import QuotaKind
from mainstem_broker.runtime.turns import ITEMS_PER_TURN
from mainstem_broker.server.cluster_changes import ClusterChanges


class PlayedAdministration:
    """Notes of deleted topics, and which were forgotten."""

    def __init__(self, deleted: Mapping[UUID, str]) -> None:
        self.deleted = deleted
        self.forgotten: list[UUID] = []

    async def deleted_topics(self) -> Mapping[UUID, str]:
        return self.deleted

    async def forget_deleted_topic(self, topic_id: UUID) -> None:
        self.forgotten.append(topic_id)


class PlayedStates:
    """Notes claims, and writes them unless `is_away`."""

    def __init__(self) -> None:
        self.claims: list[tuple[str, int, Claim]] = []
        self.is_away = False

    async def claim(self, claims: Mapping[TopicPartition, Claim]) -> Collection[TopicPartition]:
        await asyncio.sleep(0)
        self.claims += [(*key, claim) for key, claim in claims.items()]
        return () if self.is_away else claims.keys()


class Listening(LocalBroker):
    """A broker whose news come through `news`."""

    def __init__(self, directory: Path, deleted: Mapping[UUID, str] | None = None) -> None:
        super().__init__(directory)
        self.administration = PlayedAdministration(deleted or {})
        self.states = PlayedStates()
        member = cast(Any, self.context.member)
        member.administration, member.states = self.administration, self.states
        member.report_offline = list
        self.logs: LogManager = self.replicas.logs
        self.news = ClusterChanges(self.context, self.logs)
        at_end(self.news._worker._threads.shutdown)

    async def take(self, delta: Delta) -> None:
        """Take a change, and wait for the threads that create and delete logs."""
        await self.news.take(delta)
        await self.settle()

    async def try_again(self) -> None:
        await self.news.try_again()
        await self.settle()

    async def settle(self) -> None:
        await self.news._worker.idle()

    def hear_of(self, topic: str, replicas: tuple[int, ...], leader: int, config: Mapping[str, str]) -> UUID:
        """Put a topic with one partition into the view, and nowhere else."""
        assignment = TopicAssignment(topic, uuid4(), {0: replicas})
        self.view.set_topic(assignment, config)
        self.view.set_state(topic, 0, state_of(leader, 0, replicas))
        return assignment.topic_id

    async def stop(self) -> None:
        await self.news.stop()
        await self.replicas.stop()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Listening]:
    broker = Listening(tmp_path)
    yield broker
    await broker.stop()


async def test_at_the_start_all_that_the_view_gives_to_this_broker_is_opened(broker: Listening) -> None:
    broker.hear_of("ours", (1, 2), 1, {"retention.ms": "5"})
    broker.hear_of("theirs", (2, 3), 2, {})
    await broker.news.open()
    assert [repr(partition) for partition in broker.replicas] == ["ours-0"]
    assert broker.partition("ours").log.config.retention_ms == 5


async def test_at_the_start_logs_of_deleted_topics_go_and_those_that_nobody_knows_are_set_aside(
    tmp_path: Path,
) -> None:
    deleted, unknown = uuid4(), uuid4()
    broker = Listening(tmp_path, {deleted: "deleted"})
    current = broker.hear_of("kept", (1,), 1, {})
    for topic, topic_id in (("deleted", deleted), ("unknown", unknown), ("kept", current)):
        broker.logs.get_or_create(topic, 0, topic_id, DEFAULTS, 0)
    await broker.news.open()
    assert list(broker.logs.logs) == [("kept", 0)]
    assert broker.administration.forgotten == [deleted]
    await broker.stop()

    kept, aside = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == "kept-0"
    assert aside.startswith("unknown-0")
    assert aside.endswith("-stray")


async def test_a_deletion_is_not_completed_while_a_failed_disk_has_files_of_the_topic(
    broker: Listening, tmp_path: Path
) -> None:
    """R8: the start with the repaired disk must learn that the topic was deleted."""
    lost = broker.hear_of("lost", (1,), 1, {})
    await broker.news.open()
    broker.news.disk_failed(tmp_path)
    later = broker.hear_of("later", (1,), 1, {})
    for name, topic_id in (("lost", lost), ("later", later)):
        broker.view.remove_topic(name, topic_id)
        await broker.take(Delta(deleted=[(name, topic_id)]))
    await broker.stop()
    assert broker.administration.forgotten == [later]


async def test_no_deletion_is_completed_at_a_start_without_one_of_the_disks(tmp_path: Path) -> None:
    """R8: what the disk holds is not known."""
    broker = Listening(tmp_path, {uuid4(): "deleted"})
    broker.logs.failed.add(tmp_path / "failed")
    await broker.news.open()
    await broker.stop()
    assert broker.administration.forgotten == []


async def test_logs_of_topics_that_are_not_there_are_outdated(broker: Listening) -> None:
    topic_id = broker.hear_of("t", (1,), 1, {})
    assert not broker.news.is_of_no_topic("t", topic_id)
    assert broker.news.is_of_no_topic("t", uuid4())
    assert broker.news.is_of_no_topic("gone", topic_id)
    broker.view.stopped_topics["t"] = {"/path": "version 9"}
    assert not broker.news.is_of_no_topic("t", uuid4())


@pytest.mark.parametrize(
    ("state_epoch", "may_be_restored", "is_kept"),
    [
        (3, False, False),  # the end of a move has raised the epoch
        (3, True, True),
        (2, False, True),  # the log has records of the state's own leader, or of a later one
        (None, False, True),
    ],
)
async def test_r43_a_log_is_deleted_only_if_its_replica_was_moved_away_and_not_if_zookeeper_is_older(
    tmp_path: Path, state_epoch: int | None, may_be_restored: bool, is_kept: bool
) -> None:
    """KAFKA-16234: a tree from before a move here gives the replica to brokers that have no log any more."""
    broker = Listening(tmp_path)
    topic_id = broker.hear_of("t", (2, 3), 2, {})
    topic = broker.view.topics["t"]
    topic.states = {} if state_epoch is None else {0: state_of(2, state_epoch, (2, 3))}
    log = broker.logs.get_or_create("t", 0, topic_id, DEFAULTS, 0)
    append(log, [b"a"], leader_epoch=2)
    await broker.news.open(may_be_restored=may_be_restored)
    assert not broker.logs.logs
    await broker.stop()
    assert any(path.name.endswith("-stray") for path in tmp_path.iterdir()) is is_kept


async def test_partitions_topics_and_settings_follow_the_news(broker: Listening) -> None:
    topic_id = broker.hear_of("t", (1,), 1, {})
    await broker.news.open()
    await broker.take(Delta(partitions={("t", 0), ("gone", 3)}))
    assert broker.partition("t").is_leader
    broker.view.topics["t"].config = {"retention.ms": "7"}
    await broker.news.take(Delta(configs={"topics/t"}))
    assert broker.partition("t").log.config.retention_ms == 7
    broker.view.topics["t"].config = {}
    broker.view.broker_configs["1"] = {"log.retention.ms": "8"}
    await broker.news.take(Delta(configs={"brokers/1"}))
    assert broker.partition("t").log.config.retention_ms == 8
    broker.view.remove_topic("t", topic_id)
    await broker.take(Delta(deleted=[("t", topic_id)]))
    assert broker.replicas.find("t", 0) is None
    assert not broker.logs.logs
    await broker.stop()
    assert broker.administration.forgotten == [topic_id]


LIVE: Final = {
    setting.fallbacks[0][0]: setting
    for setting in TOPIC_SETTINGS.values()
    if setting.fallbacks and BROKER_SETTINGS[setting.fallbacks[0][0]].dynamic == "cluster-wide"
}
"""Topic settings by the broker settings that they fall back to, which may change while brokers run."""


def another_value(setting: Setting) -> str:
    """One that is not the default."""
    match setting.type:
        case SettingType.BOOLEAN:
            return str(not setting.default).lower()
        case SettingType.DOUBLE:
            return "0.25"
        case _ if setting.choices:
            return next(choice for choice in setting.choices if choice != str(setting.default))
        case _:
            return str(1000 if setting.maximum is None else min(1000, int(setting.maximum)))


@pytest.mark.parametrize("name", LIVE)
async def test_a_running_log_follows_what_is_set_for_all_brokers(tmp_path: Path, name: str) -> None:
    """KIP-226: without a restart, and back when it is taken back."""
    setting, text = LIVE[name], another_value(LIVE[name])

    broker = Listening(tmp_path)
    broker.hear_of("t", (1,), 1, {})
    await broker.take(Delta(partitions={("t", 0)}))
    log = broker.partition("t").log
    field = setting.name.replace(".", "_")
    before = getattr(log.config, field)
    for config, value in (({name: text}, setting.parse(text)), ({}, before)):
        broker.view.set_config("brokers/<default>", config)
        await broker.news.take(Delta(configs={"brokers/<default>"}))
        assert getattr(log.config, field) == value
    assert before != setting.parse(text)
    await broker.stop()


async def test_of_what_is_set_for_all_brokers_only_what_makes_no_sense_is_left_out(broker: Listening) -> None:
    """The rest may keep records from being deleted; a broker that starts would have nothing in its place."""

    for_all = {"log.retention.ms": "soon", "log.segment.bytes": "1048576", "broker.id": "none"}
    broker.view.set_config("brokers/<default>", for_all)
    with capture_logs() as logged:
        broker.news.take_broker_config()
    assert broker.context.config.integer("log.segment.bytes") == 1_048_576
    assert broker.context.config.topic({}).retention_ms == -1
    (line,) = [item["reason"] for item in logged if item["log_level"] == "error"]
    assert "log.retention.ms" in line


async def test_throttles_follow_what_is_set_for_all_brokers(broker: Listening) -> None:
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "2000"}
    throttles = broker.replicas.leader_throttle, broker.replicas.follower_throttle
    for config in (rates, {}):
        broker.view.set_config("brokers/<default>", config)
        await broker.news.take(Delta(configs={"brokers/<default>"}))
        assert [throttle.is_limited for throttle in throttles] == [bool(config)] * 2


class FullDisk:
    """Keeps logs from being deleted until there is room."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = list(logs.logs.values())
        for log in self._logs:
            log.delete = self._refuse  # type: ignore[method-assign]  # fails

    def _refuse(self) -> None:
        raise StorageError("The disk is full.")

    def make_room(self) -> None:
        for log in self._logs:
            del log.delete  # works again


async def test_r20_a_log_that_was_moved_away_from_a_full_disk_is_deleted_when_there_is_room(
    broker: Listening,
) -> None:
    topic_id = broker.hear_of("t", (1, 2), 2, {})
    await broker.news.open()
    disk = FullDisk(broker.logs)
    broker.view.set_topic(TopicAssignment("t", topic_id, {0: (2, 3)}, version=1), {})
    await broker.take(Delta(partitions={("t", 0)}))
    await broker.try_again()
    assert list(broker.logs.logs) == [("t", 0)]
    disk.make_room()
    await broker.try_again()
    assert not broker.logs.logs
    await broker.stop()
    assert not broker.administration.forgotten  # of topics that live there is no note


async def test_a_replica_whose_log_is_opened_late_follows_its_leader_at_once(tmp_path: Path) -> None:
    with capture_logs() as lines:
        broker = Listening(tmp_path)
        broker.hear_of("t", (2, 1), 2, {})
        (tmp_path / "t-0").write_text("a file where a directory should be")
        await broker.news.open()
        assert broker.replicas.unopened == {("t", 0)}
        (tmp_path / "t-0").unlink()
        await broker.news.try_again()
        await until(lambda: any(line["event"] == "leader not reached" for line in lines))
        await broker.stop()


async def test_whoever_deletes_a_topic_waits_for_a_broker_whose_disk_is_full_and_then_the_name_is_free(
    broker: Listening,
) -> None:
    old = broker.hear_of("t", (1,), 1, {})
    await broker.news.open()
    disk = FullDisk(broker.logs)
    broker.view.remove_topic("t", old)
    await broker.take(Delta(deleted=[("t", old)]))
    broker.hear_of("t", (1,), 1, {})
    await broker.take(Delta(partitions={("t", 0)}))
    await broker.try_again()
    assert not broker.administration.forgotten
    assert broker.replicas.find("t", 0) is None
    disk.make_room()
    await broker.try_again()
    assert broker.partition("t").is_leader
    await broker.stop()
    assert broker.administration.forgotten == [old]


async def test_a_start_on_a_full_disk_leaves_what_it_could_not_delete_for_later(tmp_path: Path) -> None:
    deleted = uuid4()
    broker = Listening(tmp_path, {deleted: "deleted"})
    moved = broker.hear_of("moved", (2, 3), 2, {})
    for topic, topic_id in (("deleted", deleted), ("moved", moved)):
        broker.logs.get_or_create(topic, 0, topic_id, DEFAULTS, 0)
    disk = FullDisk(broker.logs)
    await broker.news.open()
    assert not broker.administration.forgotten
    disk.make_room()
    await broker.try_again()
    assert not broker.logs.logs
    await broker.stop()
    assert broker.administration.forgotten == [deleted]


def test_settings_that_are_wrong_do_not_count_and_are_reported(broker: Listening) -> None:
    broker.hear_of("t", (1,), 1, {"segment.ms": "soon"})
    broker.view.broker_configs["1"] = {"log.segment.bytes": "more"}
    with capture_logs() as lines:
        assert broker.news.topic_config("t") == broker.context.config.topic({})
        broker.news.take_broker_config()
    assert [line["event"] for line in lines] == ["topic setting ignored", "dynamic broker settings ignored"]


def test_elections_go_by_the_topics_settings(broker: Listening) -> None:
    strict = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    broker.hear_of("strict", (1,), 1, strict)
    broker.hear_of("plain", (1,), 1, {})
    policies = [broker.news.election_policy(broker.view.topics[name]) for name in ("strict", "plain")]
    assert policies == [ElectionPolicy(2, unclean=True), ElectionPolicy(1, unclean=False)]


# --- Many partitions ---


class Turns:
    """Counts what is done in each turn of the loop."""

    def __init__(self) -> None:
        self.most = 0
        self._count = 0
        self._task = asyncio.create_task(self._run())

    def note(self) -> None:
        self._count += 1
        self.most = max(self.most, self._count)

    async def _run(self) -> None:
        while True:
            self._count = 0
            await asyncio.sleep(0)

    def stop(self) -> None:
        self._task.cancel()


async def test_changes_of_many_partitions_are_carried_out_in_turns(
    broker: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: a broker that dies changes all the partitions that it held, and clients of others do not wait."""
    count = 3 * ITEMS_PER_TURN
    broker.view.set_topic(TopicAssignment("t", UUID(int=1), dict.fromkeys(range(count), (2, 3))), {})
    for index in range(count):
        broker.view.set_state("t", index, state_of(2, 0, (2, 3)))
    await broker.news.open()
    turns = Turns()
    update = broker.news._update_replica

    def note(name: str, index: int) -> None:
        turns.note()
        update(name, index)

    monkeypatch.setattr(broker.news, "_update_replica", note)
    await broker.take(Delta(partitions={("t", index) for index in range(count)}))
    assert turns.most == ITEMS_PER_TURN
    turns.stop()


async def test_topic_settings_are_worked_out_once_for_all_partitions(
    broker: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40."""
    broker.view.set_topic(TopicAssignment("t", UUID(int=1), dict.fromkeys(range(20), (1,))), {})
    for index in range(20):
        broker.view.set_state("t", index, state_of(1, 0, (1,)))
    await broker.news.open()
    times = 0
    topic = BrokerConfig.topic

    def count(config: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        nonlocal times
        times += 1
        return topic(config, overrides)

    monkeypatch.setattr(BrokerConfig, "topic", count)
    await broker.take(Delta(partitions={("t", index) for index in range(20)}))
    assert times == 0
    broker.view.topics["t"].config = {"retention.ms": "7"}
    await broker.take(Delta(configs={"topics/t"}, partitions={("t", index) for index in range(20)}))
    assert times == 1
    assert {partition.log.config.retention_ms for partition in broker.replicas} == {7}


# --- Newer formats ---


async def test_replicas_of_a_stopped_topic_have_no_role_and_keep_their_logs(broker: Listening) -> None:
    """R44: until the topic can be read again."""
    broker.hear_of("t", (1, 2), 1, {})
    await broker.news.open()
    broker.append("t", [b"a"])
    broker.view.stopped_topics["t"] = {"/brokers/topics/t": "newer"}
    await broker.take(Delta(partitions={("t", 0)}))
    with pytest.raises(NotLeaderOrFollower):
        broker.partition("t").require_leader()
    assert broker.replicas.led_here() == []

    del broker.view.stopped_topics["t"]
    await broker.take(Delta(partitions={("t", 0)}))
    broker.partition("t").require_leader()
    assert broker.partition("t").log.log_end_offset == 1


async def test_at_the_start_logs_of_a_stopped_topic_are_left_where_they_are(broker: Listening) -> None:
    """R44: its assignment cannot be read, so the topic seems unknown."""
    broker.logs.get_or_create("t", 0, uuid4(), DEFAULTS, 0)
    broker.view.stopped_topics["t"] = {"/brokers/topics/t": "newer"}
    await broker.news.open()
    assert list(broker.logs.logs) == [("t", 0)]
    assert list(broker.replicas) == []


# --- A new registration ---


async def test_a_lease_begins_between_the_leaderships_that_end_and_those_that_begin(
    broker: Listening,
) -> None:
    """R19: in between, no replica leads by a state from before, and none misses the role that it is given."""
    for topic in ("lost", "won"):
        broker.hear_of(topic, (1, 2), 1, {})
    await broker.news.open()
    broker.view.set_state("lost", 0, state_of(2, 1, (1, 2), 1))
    broker.view.set_state("won", 0, state_of(1, 1, (1, 2), 1, incarnations={1: LIFE + 1, 2: LIFE}))
    seen: list[tuple[int, int]] = []

    def begin_lease() -> None:
        seen.append((broker.partition("lost").leader_epoch, broker.partition("won").leader_epoch))
        broker.replicas.lease.begin(LIFE + 1)

    await broker.news.take(Delta(partitions={("lost", 0), ("won", 0)}), begin_lease)
    assert seen == [(1, 0)]
    assert broker.partition("won").is_leader
    assert broker.partition("won").log.epochs.latest_epoch == 1, "it has begun the epoch"


@pytest.mark.parametrize(("epoch", "kept_epoch"), [(1, 0), (2, -1)])
async def test_r40_leaderships_begin_in_turns_after_the_lease_and_replaced_ones_end_before(
    broker: Listening, monkeypatch: pytest.MonkeyPatch, epoch: int, kept_epoch: int
) -> None:
    """R19: before a replica is told, the lease must not renew what it led before. In the very next epoch
    nobody else has led."""
    names = [f"t{number}" for number in range(ITEMS_PER_TURN + 1)]
    for name in names:
        broker.hear_of(name, (1, 2), 1, {})
    await broker.news.open()
    lives = {1: LIFE + 1, 2: LIFE}
    for name in names:
        broker.view.set_state(name, 0, state_of(1, epoch, (1, 2), 1, incarnations=lives))
    seen: list[list[int]] = []

    def look() -> None:
        seen.append([broker.partition(name).leader_epoch for name in sorted(names)])

    def begin_lease() -> None:
        look()
        broker.replicas.lease.begin(LIFE + 1, LIFE)
        asyncio.get_running_loop().call_soon(look)

    await broker.news.take(Delta(partitions={(name, 0) for name in names}), begin_lease)
    assert seen == [[kept_epoch] * len(names), [epoch] * ITEMS_PER_TURN + [kept_epoch]]
    assert all(broker.partition(name).is_leader for name in names)


async def test_a_lease_that_cannot_begin_leaves_its_leaderships_to_the_next_try(broker: Listening) -> None:
    """R19: the session has ended while its registration was published."""
    broker.hear_of("t", (1, 2), 1, {})
    await broker.news.open()
    broker.view.set_state("t", 0, state_of(1, 1, (1, 2), 1, incarnations={1: LIFE + 1, 2: LIFE}))

    def fail() -> None:
        raise ZooKeeperUnavailable("It is gone.")

    delta = Delta(partitions={("t", 0)})
    with pytest.raises(ZooKeeperUnavailable):
        await broker.news.take(delta, fail)
    assert broker.partition("t").leader_epoch == 0
    await broker.news.take(delta, lambda: broker.replicas.lease.begin(LIFE + 1))
    assert broker.partition("t").leader_epoch == 1
    assert broker.partition("t").is_leader


# --- In-sync sets ---


async def test_a_change_of_brokers_has_the_in_sync_sets_looked_at(broker: Listening) -> None:
    assignment = TopicAssignment("t", UUID(int=1), {0: (1, 2)})
    broker.view.set_topic(assignment, {})
    broker.set_state("t", 0, state_of(1, 0, (1,)))
    partition = broker.partition("t")
    partition.read_as_follower(2, 0, 0, -1, 10, leader_epoch=0, min_one_batch=True, now_ms=0)
    await broker.news.take(Delta(partitions={("t", 0)}))
    await asyncio.sleep(0)
    written = broker.coordination.written
    assert written == []
    await broker.news.take(Delta(brokers=True))
    await until(lambda: written)
    assert written[0][2].isr == (1, 2)


# --- Claims (see `controller.py`) ---


def return_uncleanly(broker: Listening, *ids: int, incarnation: int = 1) -> None:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)
    broker.view.set_brokers(
        BrokerRegistration(number, (endpoint,), None, incarnation=incarnation, last_unclean=incarnation)
        for number in ids
    )


async def test_when_the_whole_set_stopped_uncleanly_each_says_once_how_far_its_log_reaches(
    broker: Listening,
) -> None:
    broker.hear_of("t", (1, 2), 1, {})
    broker.hear_of("alone", (1,), 1, {})
    await broker.news.open()
    broker.append("t", [b"a", b"b"])
    return_uncleanly(broker, 1)
    await broker.news.take(Delta(brokers=True))
    await broker.news.stop()
    assert broker.states.claims == [], "broker 2 may still come back with all of it"
    return_uncleanly(broker, 1, 2)
    await broker.news.take(Delta(brokers=True))
    await broker.news.stop()
    claim = Claim(1, 1, 0, 2)
    assert broker.states.claims == [("t", 0, claim)]
    broker.view.topics["t"].claims[0] = {1: claim}
    await broker.news.take(Delta(partitions={("t", 0)}))
    await broker.news.stop()
    assert len(broker.states.claims) == 1


async def test_r43_a_claim_does_not_count_an_epoch_without_records(broker: Listening) -> None:
    """A broker that did not know of a restore has led with the older log, and those with more have not."""
    broker.hear_of("t", (1, 2), 1, {})
    await broker.news.open()
    broker.append("t", [b"a", b"b"])
    broker.set_state("t", 0, state_of(1, 4, (1, 2), 1))
    assert broker.partition("t").log.epochs.latest_epoch == 4
    return_uncleanly(broker, 1, 2)
    await broker.news.take(Delta(brokers=True))
    await broker.news.stop()
    assert broker.states.claims == [("t", 0, Claim(1, 1, 0, 2))]


async def test_a_claim_that_was_not_written_is_made_again_until_somebody_leads(broker: Listening) -> None:
    """R19, R40: the periodic look is at partitions without a leader only."""
    for topic in ("t", "led"):
        broker.hear_of(topic, (1, 2), 1, {})
    await broker.news.open()
    return_uncleanly(broker, 1, 2)
    broker.view.set_state("led", 0, state_of(1, 1, (1, 2), 1, incarnations={1: 1, 2: 1}))
    broker.states.is_away = True
    await broker.news.take(Delta(brokers=True))
    await until(lambda: broker.states.claims and not broker.news._background)
    await broker.try_again()
    await broker.news.stop()
    assert [topic for topic, _, _ in broker.states.claims] == ["t", "t"]

    broker.view.set_state("t", 0, state_of(1, 1, (1,), 1, incarnations={1: 1}))
    await broker.news.take(Delta(partitions={("t", 0)}))
    await broker.try_again()
    await broker.news.stop()
    assert len(broker.states.claims) == 2


async def test_r40_a_claim_is_written_once_though_the_view_takes_long_to_show_it(broker: Listening) -> None:
    """After a restore of ZooKeeper each replica has to claim, and there may be ten thousand."""
    names = [f"t{number}" for number in range(ITEMS_PER_TURN + 1)]
    for name in names:
        broker.hear_of(name, (1, 2), 1, {})
    await broker.news.open()
    return_uncleanly(broker, 1, 2)
    await broker.news.take(Delta(brokers=True))
    for _ in range(2):
        await broker.try_again()  # while they are being written, and then while they are not read yet
        await until(lambda: len(broker.states.claims) == len(names) and not broker.news._background)
    await broker.try_again()
    await broker.news.stop()
    assert sorted(topic for topic, _, _ in broker.states.claims) == sorted(names)

    return_uncleanly(broker, 1, 2, incarnation=2)
    await broker.news.take(Delta(brokers=True))
    await broker.news.stop()
    assert len(broker.states.claims) == 2 * len(names), "what an earlier incarnation claimed does not count"


async def test_r43_after_a_restore_a_replica_without_a_log_says_so_and_makes_none_until_somebody_leads(
    broker: Listening,
) -> None:
    """An empty log would say that there were no records."""
    broker.hear_of("t", (1, 2), 2, {})
    outdated = broker.view.topics["t"].states[0]
    broker.view.restores = Restores(1, outdated.controller_epoch)
    await broker.news.open(may_be_restored=True)
    return_uncleanly(broker, 1)
    broker.view.set_state("t", 0, doubted(outdated, (1, 2), 1))
    await broker.take(Delta(brokers=True, partitions={("t", 0)}))
    await broker.try_again()
    await until(lambda: broker.states.claims)
    assert broker.states.claims[0] == ("t", 0, Claim(1, 1, NO_LOG, NO_LOG))
    assert not broker.logs.logs

    return_uncleanly(broker, 1, 2)
    elected = state_of(2, 10**7, (2,), 2, incarnations={2: 1})
    broker.view.set_state("t", 0, replace(elected, controller_epoch=outdated.controller_epoch + 1))
    await broker.take(Delta(partitions={("t", 0)}))
    assert broker.partition("t").leader_epoch == 10**7


async def test_background_work_that_fails_is_reported(tmp_path: Path) -> None:
    with capture_logs() as lines:
        broker = Listening(tmp_path)

        async def fail(topic_id: UUID) -> None:
            raise OSError("ZooKeeper is gone.")

        broker.administration.forget_deleted_topic = fail  # type: ignore[method-assign]  # fails
        await broker.news.take(Delta(deleted=[("t", uuid4())]))
        await broker.stop()
    assert [line["event"] for line in lines] == ["background work failed"]


async def test_quotas_follow_the_news(broker: Listening) -> None:
    broker.view.set_config("users/alice", {"producer_byte_rate": "5"})
    broker.view.set_config("groups/g", {"consumer.session.timeout.ms": "50000"})
    assert not broker.context.quotas.are_set
    await broker.news.take(Delta(configs={"users/alice", "groups/g"}))
    assert broker.context.quotas.limit(QuotaKind.PRODUCER_BYTE_RATE, "alice", "any") == 5
    broker.view.set_config("users/alice", {})
    await broker.news.take(Delta(configs={"users/alice"}))
    assert not broker.context.quotas.are_set
