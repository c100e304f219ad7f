"""flush.messages: records are on the disk before they are acknowledged, and nobody else waits (R3, R40)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker, batch
from tests.unit.broker.api.test_produce import codes, replicated, request
from tests.unit.broker.server.peers import until

from mainstem_broker.errors import StorageError
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.replica.partition_state import PartitionState


class SlowDisk:
    """Flushes wait until `release`; those of a disk that is `failing` fail then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushes: list[str] = []
        self.failing = False
        self._may_flush = threading.Event()
        flush = PartitionLog.flush

        def slow(log: PartitionLog) -> int:
            self.flushes.append(f"{log.topic}-{log.partition}")
            assert threading.current_thread() is not threading.main_thread(), "the event loop waits"
            end_offset = log.log_end_offset
            assert self._may_flush.wait(10)
            if self.failing:
                raise StorageError("The disk is full.")
            return min(flush(log), end_offset)

        monkeypatch.setattr(PartitionLog, "flush", slow)

    def release(self) -> None:
        self._may_flush.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.release()


def produce(broker: LocalBroker, acks: int, topic: str = "t") -> asyncio.Task[dict[str, object]]:
    requested = request({0: batch([b"a"])}, acks, topic)
    return asyncio.ensure_future(broker.answer("Produce", 9, requested))


@pytest.mark.parametrize("acks", [1, -1])
async def test_the_answer_waits_until_the_records_are_on_the_disk(broker: LocalBroker, acks: int) -> None:
    broker.create("t", config={"flush.messages": "2"})
    assert codes(await produce(broker, acks)) == {0: "none"}
    assert broker.partition("t").log.recovery_point == 0
    assert codes(await produce(broker, acks)) == {0: "none"}
    assert broker.partition("t").log.recovery_point == 2
    assert broker.partition("t").high_watermark == 2


@pytest.mark.parametrize("acks", [1, -1])
async def test_other_requests_are_answered_while_a_topic_is_flushed(
    broker: LocalBroker, disk: SlowDisk, acks: int
) -> None:
    broker.create("t", config={"flush.messages": "1"})
    broker.create("other")
    flushing = produce(broker, acks)
    await until(lambda: disk.flushes)
    assert codes(await produce(broker, acks, "other")) == {0: "none"}
    assert not flushing.done()
    assert broker.partition("t").high_watermark == 0, "consumers do not read what may be lost"
    disk.release()
    assert codes(await flushing) == {0: "none"}
    assert broker.partition("t").high_watermark == 1


async def test_requests_that_come_during_a_flush_share_the_next_one(
    broker: LocalBroker, disk: SlowDisk
) -> None:
    broker.create("t", config={"flush.messages": "1"})
    first = produce(broker, 1)
    await until(lambda: disk.flushes)
    others = [produce(broker, acks) for acks in (1, -1) * 10]
    await until(lambda: broker.partition("t").log.log_end_offset == 21)
    disk.release()
    answers = await asyncio.gather(first, *others)
    assert {code for answer in answers for code in codes(answer).values()} == {"none"}
    assert disk.flushes == ["t-0", "t-0"]
    assert broker.partition("t").log.recovery_point == 21


async def test_a_flush_that_fails_refuses_the_requests_that_wait(broker: LocalBroker, disk: SlowDisk) -> None:
    broker.create("t", config={"flush.messages": "1"})
    waiting = [produce(broker, 1), produce(broker, -1)]
    await until(lambda: disk.flushes)
    disk.failing = True
    disk.release()
    assert [codes(await each) for each in waiting] == [{0: "kafka_storage_error"}] * 2
    assert broker.partition("t").high_watermark == 0
    disk.failing = False
    assert codes(await produce(broker, -1)) == {0: "none"}
    assert broker.partition("t").log.recovery_point == 3


async def test_a_request_that_waits_for_a_flush_is_refused_after_its_timeout(
    broker: LocalBroker, disk: SlowDisk
) -> None:
    broker.create("t", config={"flush.messages": "1"})
    body = await broker.answer("Produce", 9, {**request({0: batch([b"a"])}, 1), "timeout": 10})
    assert codes(body) == {0: "request_timed_out"}
    assert len(broker.partition("t").flush_acknowledgements) == 0


async def test_a_request_that_waits_for_a_flush_is_refused_when_another_leader_is_elected(
    broker: LocalBroker, disk: SlowDisk
) -> None:
    broker.create("t", config={"flush.messages": "1"})
    waiting = produce(broker, 1)
    await until(lambda: disk.flushes)
    broker.set_state("t", 0, PartitionState(2, 1, (2,), 1, 1))
    assert codes(await waiting) == {0: "not_leader_or_follower"}
    disk.release()
    await until(lambda: broker.partition("t").log.recovery_point == 1)
    assert broker.partition("t").high_watermark == 0


async def test_a_topic_deleted_during_its_flush_harms_nobody(broker: LocalBroker, disk: SlowDisk) -> None:
    broker.create("t", config={"flush.messages": "1"})
    waiting = produce(broker, 1)
    await until(lambda: disk.flushes)
    broker.delete("t")
    assert codes(await waiting) == {0: "not_leader_or_follower"}
    disk.release()
    await broker.replicas.flusher.stop()


async def test_replicas_and_disk_are_waited_for_together(broker: LocalBroker, disk: SlowDisk) -> None:
    replicated(broker, "t")
    partition = broker.partition("t")
    partition.log.update_config(broker.context.config.topic({"flush.messages": "1"}))
    waiting = produce(broker, -1)
    await until(lambda: disk.flushes)
    partition.read_as_follower(2, 0, 1, 0, 1000, leader_epoch=0, min_one_batch=True, now_ms=NOW_MS)
    await asyncio.sleep(0)
    assert not waiting.done()
    disk.release()
    assert codes(await waiting) == {0: "none"}


async def test_a_leader_flushes_what_it_has_when_flush_messages_is_lowered(broker: LocalBroker) -> None:
    topic_id = broker.create("t")
    broker.append("t", [b"a"] * 5)
    config = broker.context.config.topic({"flush.messages": "2"})
    await broker.replicas.update_configs([topic_id], lambda _: config)
    await until(lambda: broker.partition("t").log.recovery_point == 5)
    assert broker.partition("t").high_watermark == 5


async def test_no_request_waits_for_a_flush_after_the_stop(broker: LocalBroker) -> None:
    broker.create("t", config={"flush.messages": "1"})
    await broker.replicas.stop()
    waiting = produce(broker, 1)
    await until(lambda: broker.partition("t").log.log_end_offset == 1)
    waiting.cancel()


async def test_no_handler_of_records_calls_fsync_on_the_event_loop(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolled segments, deleted records and a lowered end included."""
    fsync = os.fsync

    def checked(descriptor: int) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the event loop waits"
        fsync(descriptor)

    config = {"flush.messages": "1", "segment.bytes": "200", "retention.bytes": "300"}
    broker.create("t", config=config)
    monkeypatch.setattr(os, "fsync", checked)
    for _ in range(10):
        assert codes(await produce(broker, 1)) == {0: "none"}
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    body = await broker.answer("DeleteRecords", 2, {"topics": topics, "timeout": 1000})
    assert body["topics"][0]["partitions"][0]["error_code"] == 0
    broker.partition("t").apply_retention(NOW_MS)
    broker.set_state("t", 0, PartitionState(1, 1, (1,), 1, 1))
    assert codes(await produce(broker, -1)) == {0: "none"}
