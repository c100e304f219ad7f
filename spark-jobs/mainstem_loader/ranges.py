"""What one run of the loader reads: a pure plan, made before anything is read.

A run is bounded and repeatable: its end offsets are fixed when it is planned, so records that arrive later
wait for the next run. Everything here is arithmetic on offsets; there is no IO, no clock and no chance.

Offsets are not counts: control batches and compaction leave holes, so a range of n offsets holds at most n
records. Caps are therefore upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mainstem_loader.errors import OffsetsLostError, TopicRecreatedError


class GapPolicy(StrEnum):
    """What to do when retention has deleted records that were never loaded."""

    FAIL = "fail"
    SKIP_AND_RECORD = "skip-and-record"


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition as the table and the broker see it.

    `committed` is the next offset to load; only a commit of the table moves it; None before the first.
    `earliest` is the broker's log start offset, moved by retention. `latest` is the end of what may be read,
    exclusive: the high watermark or, when reading committed data only, the last stable offset.
    """

    partition: int
    committed: int | None
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `start` to `end`, exclusive, of one partition. In a plan it is empty only where all that
    was not loaded is gone: the offset moves over the gap, and there is nothing to read.
    """

    partition: int
    start: int
    end: int

    @property
    def offset_count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much a run and each of its tasks read.

    `run_records` and `run_bytes` cap a run, None for no cap. A task gets at most `task_records` offsets and
    about `task_bytes`, and a run is spread over `parallelism` tasks as soon as each gets `task_records_min`.
    """

    run_records: int | None = None
    run_bytes: int | None = None
    task_records: int = 5_000_000
    task_bytes: int = 1024 * 1024 * 1024
    task_records_min: int = 100_000
    parallelism: int = 1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`ranges`: one for each partition that moves, in order. `tasks`: the same offsets, cut and dealt out.
    `gaps`: what retention took away before it was loaded, which `ranges` therefore leaves out.
    """

    ranges: tuple[OffsetRange, ...]
    tasks: tuple[tuple[OffsetRange, ...], ...]
    gaps: tuple[OffsetRange, ...] = ()

    @property
    def offset_count(self) -> int:
        return sum(part.offset_count for part in self.ranges)


def offset_key(topic_id: str, partition: int) -> str:
    """The name under which a table remembers how far a partition is loaded. It holds the topic's id, not its
    name, so that a topic made anew under an old name starts at its own beginning.
    """
    return f"{topic_id}/{partition}"


def plan_load(
    topic: str,
    partitions: Sequence[PartitionOffsets],
    limits: ReadLimits,
    on_gap: GapPolicy = GapPolicy.FAIL,
    bytes_per_offset: float = 0.0,
) -> LoadPlan:
    """Decide what a run reads.

    Args:
        topic: for the messages of errors only.
        partitions: all partitions of the topic, in any order.
        limits: see there.
        on_gap: what to do where `committed` < `earliest`.
        bytes_per_offset: an estimate of the size of a record in the topic; 0 when unknown, and then byte
            limits do not bind.

    Raises:
        OffsetsLostError: a gap, and `on_gap` is `FAIL`.
        TopicRecreatedError: a partition ends before what is already loaded.
    """
    backlog: list[OffsetRange] = []
    gaps: list[OffsetRange] = []
    for offsets in sorted(partitions, key=lambda offsets: offsets.partition):
        start, gap = _first_offset(topic, offsets, on_gap)
        if gap is not None:
            gaps.append(gap)
        if start < offsets.latest or gap is not None:
            backlog.append(OffsetRange(offsets.partition, start, max(start, offsets.latest)))
    ranges = _cap(backlog, _offsets_allowed(limits, bytes_per_offset))
    moved = {part.partition for part in ranges}
    return LoadPlan(
        ranges=tuple(ranges),
        tasks=tuple(_deal_out(ranges, limits, bytes_per_offset)),
        gaps=tuple(gap for gap in gaps if gap.partition in moved),
    )


def _first_offset(topic: str, offsets: PartitionOffsets, on_gap: GapPolicy) -> tuple[int, OffsetRange | None]:
    committed = offsets.committed
    if committed is None:
        return offsets.earliest, None
    if committed > offsets.latest:
        raise TopicRecreatedError(
            f"Partition {offsets.partition} of topic {topic} ends at offset {offsets.latest}, but the table"
            f" has loaded it up to {committed}: the topic was cut short or made anew; load it into another"
            " table, or find out which data is right."
        )
    if committed >= offsets.earliest:
        return committed, None
    if on_gap is GapPolicy.FAIL:
        raise OffsetsLostError(
            f"Offsets {committed} to {offsets.earliest - 1} of partition {offsets.partition} of topic"
            f" {topic} were deleted before they were loaded; load more often or keep the topic longer, and"
            f" go on after the gap with the gap policy {GapPolicy.SKIP_AND_RECORD.value!r}."
        )
    return offsets.earliest, OffsetRange(offsets.partition, committed, offsets.earliest)


def _offsets_allowed(limits: ReadLimits, bytes_per_offset: float) -> int | None:
    allowed = limits.run_records
    if limits.run_bytes is not None and bytes_per_offset > 0:
        by_bytes = int(limits.run_bytes / bytes_per_offset)
        allowed = by_bytes if allowed is None else min(allowed, by_bytes)
    # A run always moves, or a cap below one record would stop the load for ever.
    return None if allowed is None else max(allowed, 1)


def _cap(backlog: Sequence[OffsetRange], allowed: int | None) -> list[OffsetRange]:
    """Shorten ranges at their ends to `allowed` offsets in all: all partitions get the same share, and what a
    short one leaves over goes to the others, so that none starves.

    A range that is empty stays: it is the far side of a gap, which is recorded by moving the offset.
    """
    if allowed is None or sum(part.offset_count for part in backlog) <= allowed:
        return list(backlog)
    share_of: dict[int, int] = {}
    left = allowed
    by_length = sorted(backlog, key=lambda part: (part.offset_count, part.partition))
    for position, part in enumerate(by_length):
        share_of[part.partition] = min(part.offset_count, -(-left // (len(by_length) - position)))
        left -= share_of[part.partition]
    return [
        OffsetRange(part.partition, part.start, part.start + share_of[part.partition])
        for part in backlog
        if share_of[part.partition] or not part.offset_count
    ]


def _deal_out(
    ranges: Sequence[OffsetRange], limits: ReadLimits, bytes_per_offset: float
) -> Iterable[tuple[OffsetRange, ...]]:
    """Lay all ranges in one line and cut it into tasks of equal length, through partitions where need be.

    Few partitions then keep all cores busy, many small ones do not make many small files, and no task waits
    for a much longer one.
    """
    total = sum(part.offset_count for part in ranges)
    if not total:
        return
    largest = limits.task_records
    if bytes_per_offset > 0:
        largest = min(largest, int(limits.task_bytes / bytes_per_offset))
    wanted = min(limits.parallelism, -(-total // max(limits.task_records_min, 1)))
    count = min(total, max(wanted, -(-total // max(largest, 1))))
    position = 0
    parts = iter([part for part in ranges if part.offset_count])
    part = next(parts)
    for number in range(1, count + 1):
        stop = total * number // count
        task: list[OffsetRange] = []
        while position < stop:
            end = min(part.end, part.start + stop - position)
            task.append(OffsetRange(part.partition, part.start, end))
            position += end - part.start
            part = OffsetRange(part.partition, end, part.end) if end < part.end else next(parts, part)
        yield tuple(task)
