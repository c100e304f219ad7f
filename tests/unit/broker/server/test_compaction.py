"""Which log the compactor turns to, and when a pass counts for nothing (R5, R6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker

from mainstem_broker.log.compaction.messages import LENGTH, CompactionEnd
from mainstem_broker.log.compaction.messages import Message as Answer
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.server import compaction as module
from mainstem_broker.server.compaction import Compactor

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "200", "min.cleanable.dirty.ratio": "0"}


class PlayedWorker:
    """Takes orders for the process and counts them."""

    def __init__(self) -> None:
        self.stdin = self
        self.returncode: int | None = None
        self.orders = 0

    def write(self, content: bytes) -> None:
        assert len(content) > LENGTH.size
        self.orders += 1

    async def drain(self) -> None:
        pass

    def kill(self) -> None:
        self.returncode = -9

    async def wait(self) -> None:
        pass


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path)


def fill(broker: LocalBroker, topic: str, batch_count: int) -> None:
    """A segment for each batch, each with the same key."""
    for number in range(batch_count):
        batch = encode_batch([Message(b"%0100d" % number, b"key", (), NOW_MS)])
        append_batch(broker.partition(topic), batch, acks=1, produce_version=9, now_ms=NOW_MS)


def played(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Answer]
) -> tuple[Compactor, PlayedWorker]:
    """A compactor whose process answers every order with `answer`, once."""
    worker = PlayedWorker()

    async def running_worker(_: Compactor) -> PlayedWorker:
        return worker

    async def receive(_: PlayedWorker) -> Answer:
        return answer()

    monkeypatch.setattr(Compactor, "_running_worker", running_worker)
    monkeypatch.setattr(module, "_receive", receive)
    return Compactor(broker.context, broker.replicas.logs), worker


async def test_r5_a_log_on_which_the_process_dies_rests_and_the_others_have_their_turn(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("deadly", config=COMPACTED)
    fill(broker, "deadly", 4)
    unfinished = broker.partition("deadly").log.directory / "00000000000000000000.log.cleaned"

    def die() -> Answer:
        unfinished.write_bytes(b"as far as it came")
        raise EOFError("the compacting process has ended")

    compactor, worker = played(broker, monkeypatch, die)
    with pytest.raises(EOFError):
        await compactor.compact_one()
    assert not unfinished.exists(), "it would take space until the next pass"
    fill(broker, "deadly", 2)
    assert not await compactor.compact_one(), "more records make it no better"
    broker.create("other", config=COMPACTED)
    fill(broker, "other", 3)
    monkeypatch.setattr(module, "_receive", lambda _: _answered(CompactionEnd(2, 1, 2)))
    assert await compactor.compact_one()
    assert worker.orders == 2
    assert broker.partition("other").log.first_dirty_offset == 2


async def test_r6_a_pass_during_which_the_log_was_truncated_counts_for_nothing(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean leader's log may be filled again to the same size, with records that no pass has seen."""
    broker.create("t", config=COMPACTED)
    fill(broker, "t", 4)
    log = broker.partition("t").log

    def truncated() -> Answer:
        log.truncate_to(1)
        fill(broker, "t", 3)
        return CompactionEnd(3, 1, 3)

    compactor, _ = played(broker, monkeypatch, truncated)
    assert await compactor.compact_one()
    assert log.first_dirty_offset == 0
    assert log.log_end_offset == 4


async def _answered(answer: Answer) -> Answer:
    return answer
