"""After the same calls the simulated log holds what the real one holds, also in the next life."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.memory_log import MemoryLog
from tests.cluster.memory_segments import Disk, read_slice
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header

SEEDS: Final = 20
CALLS: Final = 80
RECORDS_MAX: Final = 6
NOW_MS: Final = 1_700_000_000_000
CONFIG: Final = BrokerConfig({"broker.id": "1", "zookeeper.connect": "nowhere"}).topic(
    {
        "segment.bytes": "500",
        "index.interval.bytes": "100",
        "retention.bytes": "1500",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
    }
)


class Pair:
    """A log on the disk and one in memory, which are treated alike."""

    def __init__(self, directory: Path, source: random.Random) -> None:
        self._random = source
        self._epoch = self._sequence = 0
        self._directory = directory / "t-0"
        self._memory = MemoryLog.create("t", 0, CONFIG, Disk(Path("/disk-1")))
        self._real = self._open(clean=True)

    def _open(self, *, clean: bool) -> PartitionLog:
        """What the disk has of the log, with the checkpoints that the simulated log remembers."""
        return PartitionLog.open(
            self._directory,
            CONFIG,
            clean_shutdown=clean,
            recovery_point=self._memory.recovery_point,
            log_start_offset=self._memory.written_start_offset,
            now_ms=NOW_MS,
        )

    def do_anything(self) -> str:
        """Do one thing to both, and return what."""
        start, end = self._memory.log_start_offset, self._memory.log_end_offset
        inside = self._random.randint(start, end)
        calls: list[tuple[str, Callable[[], None]]] = [
            *[("append", self._append)] * 8,
            ("begin an epoch", self._begin_epoch),
            (f"delete before {inside}", lambda: self._both(lambda log: log.delete_records_before(inside))),
            (f"truncate to {inside}", lambda: self._both(lambda log: log.truncate_to(inside))),
            (f"apply retention to {inside}", lambda: self._apply_retention(inside)),
            (f"copy from {inside}", lambda: self._copy_from(inside)),
            ("flush", lambda: self._both(lambda log: log.mark_flushed(log.flush()))),
            ("write the start down", self._memory.write_down_start),
            ("crash", lambda: self._begin_life(clean=False)),
            ("restart", lambda: self._begin_life(clean=True)),
        ]
        name, call = self._random.choice(calls)
        call()
        return name

    def _both(self, call: Callable[[PartitionLog], object]) -> None:
        assert call(self._real) == call(self._memory)

    def _batch(self, base_offset: int) -> bytes:
        count = self._random.randint(1, RECORDS_MAX)
        self._sequence += count
        return encode_batch(
            [Message(b"%d" % self._sequence, timestamp_ms=NOW_MS)] * count,
            base_offset=base_offset,
            leader_epoch=self._epoch,
            producer_id=self._random.randint(-1, 1),
            producer_epoch=0,
            base_sequence=self._sequence,
        )

    def _append(self) -> None:
        batch = self._batch(self._memory.log_end_offset)
        header = parse_batch_header(batch)
        if self._random.random() < 0.5:
            self._both(lambda log: log.append_as_follower(batch, NOW_MS))
        else:
            self._both(lambda log: log.append_as_leader(batch, header, self._epoch, NOW_MS))

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._both(lambda log: log.begin_epoch(self._epoch))

    def _apply_retention(self, high_watermark: int) -> None:
        self._both(lambda log: log.delete_old_segments(NOW_MS, high_watermark))

    def _copy_from(self, start: int) -> None:
        """As a follower that begins anew where the leader's log starts, which may be inside a batch."""
        self._both(lambda log: log.truncate_fully_and_start_at(start))
        batch = self._batch(max(0, start - self._random.randint(0, RECORDS_MAX)))
        if parse_batch_header(batch).next_offset > start:
            self._both(lambda log: log.append_as_follower(batch, NOW_MS))

    def _begin_life(self, *, clean: bool) -> None:
        if clean:
            self._real.close()
            self._memory.mark_flushed(self._memory.flush())
            self._memory.write_down_start()
            self._memory.is_closed = True
        self._real = self._open(clean=clean)
        self._memory = MemoryLog.recovered_from(self._memory)

    def compare(self) -> None:
        self._both(
            lambda log: (
                log.log_start_offset,
                log.log_end_offset,
                log.recovery_point,
                log.epochs.entries,
                log.producers.last_offsets(),
                [(segment.base_offset, segment.next_offset, segment.size_bytes) for segment in log.segments],
            )
        )
        start, end = self._memory.log_start_offset, self._memory.log_end_offset
        offset, bound = self._random.randint(start, end), self._random.randint(start, end)
        bytes_max = self._random.randint(1, 600)
        self._both(lambda log: _read(log, offset, bytes_max, bound))


def _read(log: PartitionLog, offset: int, bytes_max: int, bound: int) -> tuple[bytes, int]:
    found = log.read(offset, bytes_max, bound, True)
    if found.slice is None:
        return b"", found.end_offset
    content = read_slice(found.slice) if isinstance(log, MemoryLog) else bytes(found.slice.read())
    return content, found.end_offset


@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_holds_what_the_real_log_holds_after_the_same_calls(seed: int, tmp_path: Path) -> None:
    """R19: what simulations conclude is true of the real log."""
    pair = Pair(tmp_path, random.Random(seed))
    done = []
    for _ in range(CALLS):
        done.append(pair.do_anything())
        try:
            pair.compare()
        except AssertionError as error:
            raise AssertionError(f"after {done}: {error}") from error
