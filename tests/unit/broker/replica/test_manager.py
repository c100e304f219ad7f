from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.log.logs import DEFAULTS, append, settings
from tests.unit.broker.replica.replicas import (
    LIFE,
    PlayedCoordination,
    UnreachableLeader,
    delete_logs,
    fetch,
    replica_manager,
    state_of,
)
from tests.unit.broker.server.peers import until

from mainstem_broker.errors import StorageError
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica import manager
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState

T = UUID(int=1)


@pytest.fixture
def logs(tmp_path: Path) -> LogManager:
    return LogManager(
        [tmp_path],
        broker_id=1,
        recovery_threads_per_directory=lambda: 1,
        schedule_unlink=lambda paths, _delay_ms: unlink_all(paths),
        on_failure=lambda directory: None,
    )


@pytest.fixture
def replicas(logs: LogManager) -> ReplicaManager:
    return replica_manager(logs)


def update(
    replicas: ReplicaManager, topic: str = "t", index: int = 0, topic_id: UUID = T, epoch: int = 0
) -> None:
    replicas.update(topic, index, topic_id, state_of(1, epoch, (1,), epoch), (1,), DEFAULTS)


def test_a_log_that_cannot_be_opened_harms_no_other(replicas: ReplicaManager, tmp_path: Path) -> None:
    (tmp_path / "t-0").write_text("a file where a directory should be")
    with capture_logs() as lines:
        update(replicas, index=0)
        update(replicas, index=1)
    assert replicas.find("t", 0) is None
    assert replicas.find("t", 1) is not None
    assert [line["event"] for line in lines] == ["replica not opened"]


def test_the_log_of_an_earlier_topic_of_that_name_is_not_taken(replicas: ReplicaManager) -> None:
    update(replicas)
    later = replica_manager(replicas.logs)
    with capture_logs() as lines:
        update(later, topic_id=uuid4())
    assert later.find("t", 0) is None
    assert "belongs to the topic with id" in lines[0]["reason"]


async def test_r43_a_leader_whose_log_has_a_later_epoch_raises_its_own(logs: LogManager) -> None:
    coordination = PlayedCoordination()
    replicas = replica_manager(logs, coordination)
    append(logs.get_or_create("t", 0, T, DEFAULTS, 0), [b"a"], leader_epoch=7)
    with capture_logs() as lines:
        update(replicas, epoch=2)
        partition = replicas.find("t", 0)
        assert partition is not None
        assert not partition.is_leader
        await until(lambda: partition.is_leader)
    assert [state.leader_epoch for _, _, state, _ in coordination.written] == [8]
    assert lines[0]["event"] == "leader epoch raised above those of the log"


async def test_new_settings_go_to_the_replicas_of_their_topics(replicas: ReplicaManager) -> None:
    topic_ids = {topic: uuid4() for topic in ("t", "u", "v", "gone")}
    for topic in ("t", "u", "v"):
        for index in (0, 1):
            update(replicas, topic, index, topic_ids[topic])
    changed = settings(retention_ms=5)

    await replicas.update_configs([topic_ids[topic] for topic in ("t", "v", "gone")], lambda _: changed)
    assert {repr(p): p.log.config is changed for p in replicas} == {
        "t-0": True,
        "t-1": True,
        "u-0": False,
        "u-1": False,
        "v-0": True,
        "v-1": True,
    }


def test_a_deleted_topic_goes_with_all_its_replicas_and_tells_who_waits(
    replicas: ReplicaManager, logs: LogManager, tmp_path: Path
) -> None:
    other = uuid4()
    update(replicas, "t", 0)
    update(replicas, "t", 1)
    update(replicas, "u", 0, other)
    heard: list[str] = []
    first = replicas.find("t", 0)
    assert first is not None
    first.add_listener(lambda: heard.append("gone"))
    replicas.drop("t", T)
    assert [repr(p) for p in replicas] == ["u-0"]
    assert heard == ["gone"]
    assert replicas.undeleted == {("t", 0): T, ("t", 1): T}
    delete_logs(replicas)
    assert list(logs.logs) == [("u", 0)]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["u-0"]


def test_the_later_topic_of_a_name_survives_news_of_the_earlier_ones_end(replicas: ReplicaManager) -> None:
    update(replicas)
    replicas.drop("t", uuid4())
    assert replicas.find("t", 0) is not None


def test_a_replica_whose_files_cannot_be_deleted_does_not_keep_the_others(
    replicas: ReplicaManager, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        update(replicas, index=index)
    delete = logs.delete

    def failing(topic: str, partition: int) -> None:
        if partition == 1:
            raise StorageError("The disk is gone.")
        delete(topic, partition)

    monkeypatch.setattr(logs, "delete", failing)
    replicas.drop("t", T)
    delete_logs(replicas)
    assert list(replicas) == []
    assert list(logs.logs) == [("t", 1)]


@pytest.fixture
def refuse_deletions(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that is full; `monkeypatch.undo` makes room."""

    def refuse(topic: str, partition: int) -> None:
        raise StorageError("The disk is full.")

    monkeypatch.setattr(logs, "delete", refuse)


@pytest.mark.usefixtures("refuse_deletions")
def test_a_replica_that_is_moved_back_before_its_log_could_be_deleted_keeps_it(
    replicas: ReplicaManager, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(replicas)
    replicas.drop_replica("t", 0, T)
    update(replicas, epoch=1)
    monkeypatch.undo()
    delete_logs(replicas)
    held = replicas.find("t", 0)
    assert held is not None
    assert held.log is logs.get("t", 0)
    assert held.log.directory.is_dir()


@pytest.mark.usefixtures("refuse_deletions")
def test_what_could_not_be_deleted_from_a_disk_that_then_fails_is_left_to_the_next_start(
    replicas: ReplicaManager, logs: LogManager
) -> None:
    update(replicas)
    replicas.drop_replica("t", 0, T)
    replicas.fail(logs.directories[0])
    assert not replicas.undeleted


def test_a_replica_that_could_not_be_opened_is_not_tried_again_when_it_is_moved_away(
    replicas: ReplicaManager, tmp_path: Path
) -> None:
    (tmp_path / "t-0").write_text("a file where a directory should be")
    update(replicas)
    assert replicas.unopened == {("t", 0)}
    replicas.drop_replica("t", 0, T)
    assert not replicas.unopened


def test_high_watermarks_are_reported_by_topic_and_partition(replicas: ReplicaManager) -> None:
    update(replicas)
    assert replicas.high_watermarks() == {("t", 0): 0}


def test_replicas_may_come_and_go_while_they_are_walked(replicas: ReplicaManager) -> None:
    for index in range(3):
        update(replicas, index=index)
    for _ in replicas:
        update(replicas, "u", 0, UUID(int=2))
        replicas.drop("t", T)


# --- Whom to follow ---


class Connections:
    """Leaders that cannot be reached, by broker, in the order they were asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[int, UnreachableLeader]] = []

    def __call__(self, broker_id: int) -> UnreachableLeader:
        self.made.append((broker_id, UnreachableLeader()))
        return self.made[-1][1]

    def open_to(self) -> list[int]:
        return [broker_id for broker_id, leader in self.made if not leader.closed]


def follow(
    replicas: ReplicaManager, leaders: Mapping[str, int], epoch: int, isr: tuple[int, ...] = (1, 2, 3)
) -> None:
    """Give the topics these leaders, under that leader and partition epoch."""
    for number, (topic, leader) in enumerate(leaders.items()):
        state = state_of(leader, epoch, isr, epoch)
        replicas.update(topic, 0, UUID(int=number + 1), state, (1, 2, 3), DEFAULTS)
    replicas.follow_leaders()


async def test_there_is_one_fetcher_for_each_broker_that_leads_what_is_held_here(logs: LogManager) -> None:
    connections = Connections()
    replicas = replica_manager(logs, connect=connections)
    follow(replicas, {"a": 2, "b": 2, "c": 3, "d": 1, "e": -1}, 0)
    assert sorted(connections.open_to()) == [2, 3]
    follow(replicas, {"a": 2, "b": 1, "c": -1, "d": 1, "e": -1}, 1)
    await until(lambda: connections.open_to() == [2])
    follow(replicas, {"c": 3}, 2)
    assert sorted(connections.open_to()) == [2, 3]
    replicas.drop("c", UUID(int=3))
    replicas.follow_leaders()
    await until(lambda: connections.open_to() == [2])
    replicas.fail(logs.directories[0])
    replicas.follow_leaders()
    await until(lambda: connections.open_to() == [])
    await replicas.stop()
    assert connections.open_to() == []


# --- In-sync sets ---


def led_with_a_follower_that_came(logs: LogManager, coordination: PlayedCoordination) -> ReplicaManager:
    """t-0 is led here with only us in sync; broker 2 has fetched all there is."""
    replicas = replica_manager(logs, coordination)
    follow(replicas, {"t": 1}, 0, (1,))
    partition = replicas.find("t", 0)
    assert partition is not None
    fetch(partition, 2, 0, now_ms=0)
    return replicas


async def test_a_follower_that_has_caught_up_is_written_into_the_set_with_its_life(logs: LogManager) -> None:
    coordination = PlayedCoordination()
    replicas = led_with_a_follower_that_came(logs, coordination)
    partition = replicas.find("t", 0)
    assert partition is not None
    await replicas.consider_all_isrs()
    await until(lambda: partition.state is not None and partition.state.isr == (1, 2))
    ((topic, index, state, joined),) = coordination.written
    assert (topic, index, state.partition_epoch, joined) == ("t", 0, 1, {2: LIFE})
    await replicas.stop()


@pytest.mark.parametrize("event", ["a newer state", "a failed disk"])
async def test_a_proposal_that_something_came_before_is_not_written(
    logs: LogManager, tmp_path: Path, event: str
) -> None:
    coordination = PlayedCoordination()
    replicas = led_with_a_follower_that_came(logs, coordination)
    await replicas.consider_all_isrs()
    proposals = tuple(replicas._tasks)
    assert proposals
    if event == "a failed disk":
        replicas.fail(tmp_path)
    else:
        follow(replicas, {"t": 1}, 1, (1,))
    await asyncio.gather(*proposals)
    assert coordination.written == []
    await replicas.stop()


class Forgetful(PlayedCoordination):
    """Gives no answer to a proposal, nor to the first question what became of it; then it tells `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: PartitionState | None = None
        self.questions = 0

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        self.written.append((topic, partition, state, joined))
        return None

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        self.questions += 1
        return self.held if self.questions > 1 else None


async def proposed_to_nobody(logs: LogManager) -> tuple[Forgetful, ReplicaManager, Partition, PartitionState]:
    """t-0, led here, has proposed to take a follower into the set; also its state from before that."""
    coordination = Forgetful()
    replicas = led_with_a_follower_that_came(logs, coordination)
    partition = replicas.find("t", 0)
    assert partition is not None
    before = partition.state
    assert before is not None
    await replicas.consider_all_isrs()
    return coordination, replicas, partition, before


@pytest.mark.parametrize("was_written", [True, False])
async def test_a_proposal_whose_answer_was_lost_counts_by_what_is_read_then(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch, was_written: bool
) -> None:
    monkeypatch.setattr(manager, "RETRY_DELAY_S", 0.001)

    coordination, replicas, partition, before = await proposed_to_nobody(logs)
    await until(lambda: coordination.written)
    coordination.held = coordination.written[0][2] if was_written else before
    await until(lambda: coordination.questions > 1)
    if was_written:
        await until(lambda: partition.state is coordination.held)
    else:
        await until(lambda: partition._pending is None)
        assert partition.state is before
        await replicas.consider_all_isrs()
        await until(lambda: len(coordination.written) == 2)
    await replicas.stop()


@pytest.mark.parametrize("is_heard", [True, False])
async def test_an_election_that_is_found_in_place_of_a_proposal_is_left_to_the_feed(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    """It may have ended a move that lets this replica go, which must not follow with a log that is to go.

    If the feed says nothing, as of a state that was written by hand, it is made to tell.
    """
    monkeypatch.setattr(manager, "RETRY_DELAY_S", 0.001)
    monkeypatch.setattr(manager, "FEED_PATIENCE_S", 0.001)

    coordination, replicas, partition, before = await proposed_to_nobody(logs)
    (proposal,) = replicas._tasks
    await until(lambda: coordination.written)
    coordination.held = replace(
        before, leader=2, leader_epoch=before.leader_epoch + 2, partition_epoch=before.partition_epoch + 2
    )
    await proposal
    assert partition.state is before
    assert partition._pending is not None, "the stricter of both sets counts until the feed tells"
    if is_heard:
        partition.update_state(coordination.held, (1, 2), 0)
    await until(lambda: not replicas._tasks)
    assert coordination.announced == ([] if is_heard else [("t", 0, coordination.held)])
    await replicas.stop()


async def test_a_proposal_of_unknown_fate_is_settled_by_the_feed(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "RETRY_DELAY_S", 0.001)

    coordination = Forgetful()
    replicas = led_with_a_follower_that_came(logs, coordination)
    await replicas.consider_all_isrs()
    await until(lambda: coordination.questions > 1)
    follow(replicas, {"t": 2}, 1)
    await until(lambda: not replicas._tasks)
    partition = replicas.find("t", 0)
    assert partition is not None
    assert partition.leader_epoch == 1
    await replicas.stop()
