"""Logs to be compacted, the pass over them, and what is left in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, open_log, settings
from tests.unit.broker.log.transactional import first_unstable

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.compaction.compaction_pass import run
from mainstem_broker.log.compaction.facts import CompactedGroup
from mainstem_broker.log.compaction.messages import CompactionEnd, CompactionJob
from mainstem_broker.log.compaction.plan import plan_compaction
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import BatchHeader, read_records, split_batches

Pairs = Sequence[tuple[bytes | None, bytes | None]]


class Crash(Exception):
    """The process ends here."""


@contextmanager
def failing_after(renames: int, error: Exception) -> Iterator[None]:
    """So many files are renamed, and no more."""
    rename, left = Path.rename, renames

    def counted(path: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise error
        left -= 1
        return rename(path, target)

    with patch.object(Path, "rename", counted):
        yield


def compacted_settings(**changes: object) -> TopicConfig:
    """Settings of a compacted topic with a segment for each batch, and these changes."""
    return settings(
        **{"cleanup_policy": "compact", "segment_bytes": 14, "min_cleanable_dirty_ratio": 0.0, **changes}
    )


def log_of(
    directory: Path, batches: Sequence[Pairs], config: TopicConfig, *, producer_id: int = -1
) -> PartitionLog:
    """A log with these batches of keys and values, all of one producer in its epoch 2."""
    log = open_log(directory, config)
    for pairs in batches:
        content = [Message(value, key, (), NOW_MS) for key, value in pairs]
        sequence = log.log_end_offset if producer_id >= 0 else -1
        batch = encode_batch(content, producer_id=producer_id, producer_epoch=2, base_sequence=sequence)
        ((header, _),) = split_batches(batch)
        log.append_as_leader(batch, header, 0, NOW_MS)
    return log


def job_of(
    log: PartitionLog,
    now_ms: int = NOW_MS,
    last_offsets: dict[int, int] | None = None,
    marker_epochs: dict[int, int] | None = None,
    segment_bytes: int | None = None,
) -> CompactionJob:
    """A pass over all of the log but its newest segment; with `segment_bytes` segments are merged up to
    there.
    """
    facts = log.segment_facts()
    plan = plan_compaction(
        facts,
        log.config,
        first_dirty_offset=log.first_dirty_offset,
        high_watermark=first_unstable(log),
        now_ms=now_ms,
    )
    assert plan is not None
    config = (
        log.config
        if segment_bytes is None
        else settings(segment_bytes=segment_bytes, cleanup_policy="compact")
    )
    return CompactionJob(
        log.directory,
        config,
        tuple(facts),
        plan.first_dirty_offset,
        plan.end_offset,
        now_ms,
        last_offsets or {},
        map_bytes=1,
        aborted=tuple(log.aborted_transactions(0, plan.end_offset)),
        marker_epochs=marker_epochs or {},
    )


def compact(log: PartitionLog, job: CompactionJob | None = None) -> CompactionEnd:
    """Run the pass and put every group in place."""
    for message in run(job or job_of(log), lambda _count: None):
        if isinstance(message, CompactedGroup):
            assert log.take_compacted(message, NOW_MS)
        else:
            log.first_dirty_offset = message.map_end_offset
            return message
    raise AssertionError("the pass has no end")


def batches_of(log: PartitionLog) -> list[tuple[BatchHeader, list[tuple[int, bytes | None, bytes | None]]]]:
    """Every batch that can be read, with offset, key and value of its records."""
    batches = []
    offset = log.log_start_offset
    while (result := log.read(offset, 1_000_000, log.log_end_offset, True)).slice is not None:
        for header, batch in split_batches(result.slice.read()):
            batches.append((header, [(it.offset, it.key, it.value) for it in read_records(header, batch)]))
            offset = header.next_offset
    return batches


def records_of(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [record for _, records in batches_of(log) for record in records]
