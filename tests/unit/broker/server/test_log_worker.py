from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.api.brokers import BROKER_ID, LocalBroker
from tests.unit.broker.replica.replicas import state_of

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import StorageError
from mainstem_broker.log.log_manager import LogManager, NewLog
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.server.log_worker import LogWorker


class Working(LocalBroker):
    """A broker whose logs are created and deleted by `worker`, and who notes what that says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.logs: LogManager = self.replicas.logs
        self.created: list[TopicPartition] = []
        self.deleted: list[UUID] = []
        self.worker = LogWorker(
            self.context,
            self.logs,
            lambda _: self.context.config.topic({}),
            self._note_created,
            self.deleted.extend,
        )

    def _note_created(self, partitions: Collection[TopicPartition]) -> None:
        self.created += partitions

    def has_topic(self, name: str, partitions: int = 1, leader: int = BROKER_ID) -> UUID:
        """Put a topic into the view, and nowhere else."""
        replicas = dict.fromkeys(range(partitions), (leader, BROKER_ID))
        assignment = TopicAssignment(name, uuid4(), replicas)
        self.view.set_topic(assignment, {})
        for index in replicas:
            self.view.set_state(name, index, state_of(leader, 0, (leader,)))
        return assignment.topic_id

    def forget_topic(self, name: str) -> None:
        self.view.remove_topic(name, self.view.topics[name].topic_id)


class Gate:
    """Keeps the threads that create or delete logs until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
        self.arrived = asyncio.Event()
        self.threads: set[int] = set()
        self._opened = threading.Event()
        loop, original = asyncio.get_running_loop(), getattr(kind, method)

        def wait(*arguments: Any) -> Any:
            self.threads.add(threading.get_ident())
            loop.call_soon_threadsafe(self.arrived.set)
            assert self._opened.wait(60)
            return original(*arguments)

        monkeypatch.setattr(kind, method, wait)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Working]:
    broker = Working(tmp_path)
    yield broker
    await broker.worker.stop()


async def test_logs_are_created_in_threads_and_those_that_are_led_here_first(broker: Working) -> None:
    broker.has_topic("followed", 30, leader=2)
    broker.has_topic("led", 30)
    for index in range(30):
        broker.worker.create(("followed", index), is_led=False)
        broker.worker.create(("led", index), is_led=True)
    await broker.worker.idle()
    assert len(broker.logs.logs) == 60
    assert [topic for topic, _ in broker.created] == ["led"] * 30 + ["followed"] * 30
    assert not broker.context.opening


async def test_who_waits_for_a_log_goes_on_when_it_is_created(
    broker: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.has_topic("t", 2)
    gate = Gate(monkeypatch, NewLog, "create")
    broker.worker.create(("t", 0), is_led=True)
    waiting = asyncio.ensure_future(broker.context.opening.wait([("t", 0), ("other", 1)], 10))
    await gate.arrived.wait()
    assert broker.worker.is_busy(("t", 0))
    assert threading.get_ident() not in gate.threads
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open()
    await waiting
    assert broker.created == [("t", 0)]


async def test_who_waits_for_a_log_gives_up_in_time(broker: Working) -> None:
    broker.context.opening.add(("t", 0))
    await broker.context.opening.wait([("t", 0)], 0.01)
    await broker.context.opening.wait([("u", 0)], 10)


async def test_a_log_whose_topic_is_deleted_while_it_is_created_is_deleted(
    broker: Working, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = broker.has_topic("t")
    gate = Gate(monkeypatch, NewLog, "create")
    broker.worker.create(("t", 0), is_led=True)
    await gate.arrived.wait()
    broker.forget_topic("t")
    assert topic_id in broker.worker.undeleted_topics()
    gate.open()
    await broker.worker.idle()
    assert not broker.logs.logs
    assert topic_id not in broker.worker.undeleted_topics()
    assert broker.created == []
    assert broker.deleted == [topic_id]
    await broker.worker.stop()
    assert not list(tmp_path.glob("t-0"))


async def test_a_topic_that_is_created_anew_while_its_log_is_created_gets_a_log_of_its_own(
    broker: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.has_topic("t")
    gate = Gate(monkeypatch, NewLog, "create")
    broker.worker.create(("t", 0), is_led=True)
    await gate.arrived.wait()
    broker.forget_topic("t")
    later_id = broker.has_topic("t")
    broker.worker.create(("t", 0), is_led=True)
    gate.open()
    await broker.worker.idle()
    assert broker.logs.topic_id("t", 0) == later_id
    assert broker.created == [("t", 0)]


async def test_a_log_is_created_after_that_of_an_earlier_topic_of_its_name_is_deleted(
    broker: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_id = broker.has_topic("t")
    broker.worker.create(("t", 0), is_led=True)
    await broker.worker.idle()
    gate = Gate(monkeypatch, PartitionLog, "delete")
    broker.forget_topic("t")
    broker.replicas.undeleted["t", 0] = first_id
    later_id = broker.has_topic("t")
    broker.worker.create(("t", 0), is_led=True)
    await gate.arrived.wait()
    assert broker.logs.get("t", 0) is None
    gate.open()
    await broker.worker.idle()
    assert broker.logs.topic_id("t", 0) == later_id
    assert broker.deleted == [first_id]


async def test_a_log_that_the_disk_keeps_is_deleted_later_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as lines:
        broker = Working(tmp_path)
        topic_id = broker.has_topic("t")
        broker.worker.create(("t", 0), is_led=True)
        await broker.worker.idle()

        def refuse(_: PartitionLog) -> None:
            raise StorageError("The disk is full.")

        with monkeypatch.context() as full:
            full.setattr(PartitionLog, "delete", refuse)
            broker.replicas.undeleted["t", 0] = topic_id
            for _ in range(3):
                broker.worker.delete(again=True)
                await broker.worker.idle()
            assert list(broker.logs.logs) == [("t", 0)]
        broker.worker.delete()
        await broker.worker.idle()
        assert list(broker.logs.logs) == [("t", 0)], "only the periodic try comes back to it"
        broker.worker.delete(again=True)
        await broker.worker.idle()
        assert not broker.logs.logs
        assert broker.deleted == [topic_id]
        await broker.worker.stop()
    assert [line["event"] for line in lines] == ["replica not deleted"]


async def test_a_stop_waits_for_what_threads_are_at_and_begins_nothing_more(
    broker: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.has_topic("t", 50)
    gate = Gate(monkeypatch, NewLog, "create")
    for index in range(50):
        broker.worker.create(("t", index), is_led=True)
    await gate.arrived.wait()
    stopping = asyncio.ensure_future(broker.worker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    gate.open()
    await stopping
    assert 0 < len(broker.logs.logs) < 50
