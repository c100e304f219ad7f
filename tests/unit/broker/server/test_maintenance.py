from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker, run
from tests.unit.broker.at_end import at_end
from tests.unit.broker.server.peers import until

from mainstem_broker.errors import StorageError
from mainstem_broker.log import checkpoints
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.server import maintenance as module
from mainstem_broker.server.cluster_changes import ClusterChanges
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.listeners import Listener
from mainstem_broker.server.maintenance import Maintenance

OFTEN = {
    "log.retention.check.interval.ms": "10",
    "log.flush.offset.checkpoint.interval.ms": "10",
    "log.flush.start.offset.checkpoint.interval.ms": "10",
    "replica.high.watermark.checkpoint.interval.ms": "10",
    "connections.max.idle.ms": "60000",
}


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_CHECK_INTERVAL_MS", 10)
    monkeypatch.setattr(module, "IDLE_CHECK_INTERVAL_MS", 10)


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path, OFTEN)


class Idle(Listener):
    """Notes what it is told to close."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def close_idle(self, idle_s: float) -> None:
        self.told.append(idle_s)


def upkeep_of(broker: LocalBroker) -> tuple[Maintenance, Idle]:
    idle = Idle()
    news = ClusterChanges(broker.context, broker.replicas.logs)
    at_end(news._worker._threads.shutdown)
    return Maintenance(broker.context, broker.replicas.logs, [idle], news), idle


def old_segments(broker: LocalBroker, index: int) -> None:
    """Two segments past their retention, and an empty one."""
    for _ in range(2):
        broker.append("t", [b"x" * 100], index=index, timestamp_ms=NOW_MS)


EXPIRED = {"segment.bytes": "200", "retention.ms": "1000", "file.delete.delay.ms": "0"}


async def test_retention_flushes_and_checkpoints_happen_by_themselves(
    broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create("t", (1, 1), config=EXPIRED)
    broker.create("f", config={"flush.ms": "1"})
    old_segments(broker, 0)
    broker.append("f", [b"x"])

    upkeep, idle = upkeep_of(broker)
    upkeep.start()
    try:
        await until(lambda: broker.partition("t").log.log_start_offset == 2)
        await until(lambda: broker.partition("f").log.recovery_point == 1)
        files = (
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "replication-offset-checkpoint",
        )
        await until(lambda: all((tmp_path / name).exists() for name in files))
        await until(lambda: "f 0 1" in (tmp_path / files[0]).read_text())
        await until(lambda: "t 0 2" in (tmp_path / files[1]).read_text())
        await until(lambda: "f 0 1" in (tmp_path / files[2]).read_text())
        await until(lambda: idle.told)
        assert idle.told[0] == 60
    finally:
        await upkeep.stop()
    assert all(task.done() for task in upkeep._tasks)


async def test_a_partition_whose_disk_fails_does_not_keep_retention_from_the_others(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("t", (1, 1, 1), config=EXPIRED)
    for index in range(3):
        old_segments(broker, index)
    delete = PartitionLog.delete_old_segments

    def failing(self: PartitionLog, now_ms: int, high_watermark: int) -> object:
        if self.partition == 1:
            raise StorageError("The disk is gone.")
        return delete(self, now_ms, high_watermark)

    monkeypatch.setattr(PartitionLog, "delete_old_segments", failing)

    upkeep, _ = upkeep_of(broker)
    with capture_logs() as lines:
        await upkeep._apply_retention()
    assert [broker.partition("t", index).log.log_start_offset for index in range(3)] == [2, 0, 2]
    assert [line["partition"] for line in lines if line["log_level"] == "error"] == ["t-1"]


async def test_a_topic_deleted_while_retention_goes_round_is_passed_over(broker: LocalBroker) -> None:
    broker.create("t", (1, 1), config=EXPIRED)
    for index in range(2):
        old_segments(broker, index)

    upkeep, _ = upkeep_of(broker)
    with capture_logs() as lines:
        going_round = asyncio.create_task(upkeep._apply_retention())
        await asyncio.sleep(0)
        broker.delete("t")
        await going_round
    assert [line for line in lines if line["log_level"] == "error"] == []


async def test_a_log_that_cannot_be_flushed_does_not_keep_the_others_from_it(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("t", (1, 1, 1), config={"flush.ms": "0"})
    for index in range(3):
        broker.append("t", [b"x"], index=index)
    flush = PartitionLog.flush

    def failing(self: PartitionLog) -> int:
        if self.partition == 1:
            raise StorageError("The disk is gone.")
        return flush(self)

    monkeypatch.setattr(PartitionLog, "flush", failing)

    upkeep, _ = upkeep_of(broker)
    with capture_logs() as lines:
        await upkeep._flush_due()
    assert [broker.partition("t", index).log.recovery_point for index in range(3)] == [1, 0, 1]
    assert [line["event"] for line in lines] == ["flush failed"]


async def test_r43_a_full_disk_does_not_keep_the_position_of_zookeepers_tree_from_the_others(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StorageError("The disk is full.")

    logs = broker.replicas.logs
    monkeypatch.setattr(logs, "checkpoint_high_watermarks", fail)
    broker.cluster.tree_position = TreePosition(0, 3)
    upkeep, _ = upkeep_of(broker)
    upkeep.start()
    try:
        await until(lambda: list(logs.tree_positions) == [TreePosition(0, 3)])
    finally:
        await upkeep.stop()
    assert checkpoints.read_tree_position(tmp_path) == TreePosition(0, 3)


@pytest.mark.parametrize("failure", [StorageError("The disk is full."), RuntimeError("a mistake of ours")])
def test_work_that_fails_is_logged_and_tried_again_at_the_next_turn(failure: Exception) -> None:
    turns: list[int] = []

    async def work() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise failure

    async def test() -> None:
        with capture_logs() as lines:
            task = asyncio.create_task(module._repeat(work, 0.001))
            await until(lambda: len(turns) >= 4)
            task.cancel()
        assert [line["event"] for line in lines] == ["upkeep failed"] * 2

    run(test())


async def test_connections_are_never_idle_for_too_long_where_the_setting_says_so(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, {"connections.max.idle.ms": "-1"})

    upkeep, idle = upkeep_of(broker)
    await upkeep._close_idle()
    assert idle.told == []


async def test_hosts_of_limits_are_looked_up_until_they_are_found(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = broker.context.config.with_dynamic({}, {"max.connections.per.ip.overrides": "k.example:0"})
    connections = ConnectionLimits(lambda: named)
    news = ClusterChanges(broker.context, broker.replicas.logs)
    at_end(news._worker._threads.shutdown)
    upkeep = Maintenance(broker.context, broker.replicas.logs, [], news, limits=connections)

    def is_missing(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", is_missing)
    with capture_logs() as logs:
        await upkeep.look_up_hosts()
    assert [(entry["host"], entry["reason"]) for entry in logs] == [
        ("k.example", "[Errno -2] Name or service not known")
    ]
    assert connections.open("10.0.0.1") is None

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    await upkeep.look_up_hosts()
    assert connections.open("10.0.0.1") == "max.connections.per.ip"
