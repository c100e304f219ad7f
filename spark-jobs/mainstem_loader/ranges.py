"""What one run of the loader reads: a pure plan, made before anything is read.

A run is bounded and repeatable: its end offsets are fixed when it is planned, so records that arrive later
wait for the next run. Everything here is arithmetic on offsets; there is no IO, no clock and no chance.

Offsets are not counts: control batches and compaction leave holes, so a range of n offsets holds at most n
records. Caps are therefore upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from mainstem_loader.errors import OffsetsLostError, TopicRecreatedError

Part = TypeVar("Part", int, tuple[str, int])


class GapPolicy(StrEnum):
    """What to do when retention has deleted records that were never loaded."""

    FAIL = "fail"
    SKIP = "skip"


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
    """The offsets `start` to `end`, exclusive, of one partition.

    In a plan it is empty where there is nothing to read, but an offset to commit: the far side of a gap, or
    the start of a partition that is seen for the first time.
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
    """The reads of one run.

    Attributes:
        ranges: one for each partition whose committed offset this run sets, in order of partition.
        tasks: the same offsets, divided among tasks.
        gaps: offsets that were deleted before they were loaded; `ranges` begin behind them.
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

    Every partition that has no committed offset gets one from this run, even if it is empty or if the cap
    leaves it no share. Without it, records that arrive and expire before the next run would leave no trace.

    Args:
        topic: for the messages of errors only.
        partitions: all partitions of the topic, in any order.
        limits: see there.
        on_gap: what to do where the partition begins behind its committed offset or, before its first load,
            behind offset 0.
        bytes_per_offset: an estimate of the size of a record in the topic; 0 when unknown, and then byte
            limits do not bind.

    Raises:
        OffsetsLostError: a gap, and `on_gap` is `FAIL`.
        TopicRecreatedError: a partition ends before what is already loaded.
    """
    backlog: list[OffsetRange] = []
    gaps: list[OffsetRange] = []
    new_partitions: set[int] = set()
    for offsets in sorted(partitions, key=lambda offsets: offsets.partition):
        start, gap = _first_offset(topic, offsets, on_gap)
        if gap is not None:
            gaps.append(gap)
        if offsets.committed is None:
            new_partitions.add(offsets.partition)
        if start < offsets.latest or gap is not None or offsets.committed is None:
            backlog.append(OffsetRange(offsets.partition, start, max(start, offsets.latest)))
    ranges = _cap(backlog, _offsets_allowed(limits, bytes_per_offset), new_partitions)
    moved = {part.partition for part in ranges}
    return LoadPlan(
        ranges=tuple(ranges),
        tasks=tuple(_deal_out(ranges, limits, bytes_per_offset)),
        gaps=tuple(gap for gap in gaps if gap.partition in moved),
    )


def deletable_ends(
    bounds: Mapping[int, tuple[int, int]], young: Mapping[int, int | None], kept_from: Mapping[int, int]
) -> dict[int, int]:
    """Up to where the records of a topic are loaded and old enough to be deleted.

    Args:
        bounds: for each partition the log start offset and the end of what may be read.
        young: for each partition the first offset whose record has to stay; None if all are old.
        kept_from: for each partition the first offset that is not loaded, or that a rewind is about to take
            out of the table.

    Returns:
        The new start offsets of the partitions whose start moves.
    """
    ends: dict[int, int] = {}
    for partition, (earliest, latest) in bounds.items():
        loaded_end = min(kept_from.get(partition, 0), latest)
        first_young = young.get(partition)
        end = loaded_end if first_young is None else min(loaded_end, first_young)
        if end > earliest:
            ends[partition] = end
    return ends


def unloaded_positions(
    committed: Mapping[int, int], ends: Mapping[int, int], high_watermarks: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Where the records begin that a load has left in the topic.

    A last stable offset below the high watermark means that a transaction is open: the records from there on
    exist, but may not be read yet. If both are the same, all that remains of ended transactions (markers,
    aborted records) is below them, so it counts as loaded.

    Args:
        committed: for each partition the next offset to load; 0 for those that are left out.
        ends: for each partition the end of what could be read when the load began.
        high_watermarks: for each partition the high watermark, read before `ends`. Otherwise records that
            arrived in between would look like those of an open transaction.

    Returns:
        The next offsets to load of partitions with records that could be read, and of those whose records
        all wait for an open transaction.
    """
    readable: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for partition, end in ends.items():
        position = committed.get(partition, 0)
        if position < end:
            readable[partition] = position
        elif position < high_watermarks.get(partition, end):
            waiting[partition] = position
    return readable, waiting


def _first_offset(topic: str, offsets: PartitionOffsets, on_gap: GapPolicy) -> tuple[int, OffsetRange | None]:
    # Offsets begin at 0, so a partition that begins later has lost records, also before its first load.
    committed = offsets.committed or 0
    if committed > offsets.latest:
        raise TopicRecreatedError(
            f"Partition {offsets.partition} of topic {topic} ends at offset {offsets.latest}, but the table"
            f" has loaded it up to {committed}: the topic was truncated or re-created. Load it into another"
            " table, or find out which data is right."
        )
    if committed >= offsets.earliest:
        return committed, None
    if on_gap is GapPolicy.FAIL:
        when = "the first load" if offsets.committed is None else "they were loaded"
        raise OffsetsLostError(
            f"Offsets {committed} to {offsets.earliest - 1} of partition {offsets.partition} of topic"
            f" {topic} were deleted before {when}. To continue behind the gap, load once with the gap policy"
            f" {GapPolicy.SKIP.value!r}; to avoid gaps, load more often or keep the topic longer."
        )
    return offsets.earliest, OffsetRange(offsets.partition, committed, offsets.earliest)


def _offsets_allowed(limits: ReadLimits, bytes_per_offset: float) -> int | None:
    allowed = limits.run_records
    if limits.run_bytes is not None and bytes_per_offset > 0:
        by_bytes = int(limits.run_bytes / bytes_per_offset)
        allowed = by_bytes if allowed is None else min(allowed, by_bytes)
    # A run always moves, or a cap below one record would stop the load for ever.
    return None if allowed is None else max(allowed, 1)


def _cap(
    backlog: Sequence[OffsetRange], allowed: int | None, new_partitions: AbstractSet[int]
) -> list[OffsetRange]:
    """Shorten ranges at their ends to `allowed` offsets in total, by `equal_shares`. Ranges that were empty
    before stay, and so do those of new partitions: their offset is committed though nothing is read.
    """
    if allowed is None or sum(part.offset_count for part in backlog) <= allowed:
        return list(backlog)
    share_of = equal_shares({part.partition: part.offset_count for part in backlog}, allowed)
    return [
        OffsetRange(part.partition, part.start, part.start + share_of[part.partition])
        for part in backlog
        if share_of[part.partition] or not part.offset_count or part.partition in new_partitions
    ]


def equal_shares(size_of: Mapping[Part, int], allowed: int) -> dict[Part, int]:
    """Divide `allowed` among parts. All get the same share, and what a small part does not need goes to the
    others, so that no part starves.

    Args:
        size_of: how much each part could take.
        allowed: how much there is; where it does not divide evenly, smaller parts get one more.

    Returns:
        The share of each part, at most its size; together `allowed`, or the total size where that is less.
    """
    share_of: dict[Part, int] = {}
    left = allowed
    by_size = sorted(size_of, key=lambda part: (size_of[part], part))
    for position, part in enumerate(by_size):
        share_of[part] = min(size_of[part], -(-left // (len(by_size) - position)))
        left -= share_of[part]
    return share_of


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
    task_count = min(limits.parallelism, -(-total // max(limits.task_records_min, 1)))
    count = min(total, max(task_count, -(-total // max(largest, 1))))
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
