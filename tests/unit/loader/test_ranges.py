"""The plan of a run covers what it must, once, within its bounds (R28, R29)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.errors import OffsetsLostError, TopicRecreatedError
from mainstem_loader.ranges import (
    GapPolicy,
    LoadPlan,
    OffsetRange,
    PartitionOffsets,
    ReadLimits,
    offset_key,
    plan_load,
    unloaded_positions,
)

lengths = st.integers(0, 5_000_000)


@st.composite
def partitions(draw: st.DrawFn) -> list[PartitionOffsets]:
    results: list[PartitionOffsets] = []
    for partition in range(draw(st.integers(0, 12))):
        earliest = draw(st.integers(0, 10**12))
        committed = draw(st.none() | st.integers(earliest, earliest + 10**6))
        if committed is None:
            earliest = 0
        results.append(
            PartitionOffsets(partition, committed, earliest, (committed or earliest) + draw(lengths))
        )
    return draw(st.permutations(results))


limits = st.builds(
    ReadLimits,
    run_records=st.none() | st.integers(1, 10**7),
    run_bytes=st.none() | st.integers(1, 10**10),
    task_records=st.integers(1, 10**7).filter(lambda count: count > 50_000),
    task_bytes=st.integers(10**7, 10**10),
    task_records_min=st.integers(1, 10**6),
    parallelism=st.integers(1, 32),
)


def offsets_in_order(plan: LoadPlan) -> list[OffsetRange]:
    return sorted(part for task in plan.tasks for part in task)


@given(partitions(), limits, st.just(0.0) | st.floats(1e-6, 1000))
def test_tasks_cover_the_ranges_exactly_and_never_overlap(
    offsets: list[PartitionOffsets], bounds: ReadLimits, bytes_per_offset: float
) -> None:
    plan = plan_load("t", offsets, bounds, bytes_per_offset=bytes_per_offset)
    for whole in plan.ranges:
        position = whole.start
        for part in (part for part in offsets_in_order(plan) if part.partition == whole.partition):
            assert part.start == position < part.end
            position = part.end
        assert position == whole.end
    assert {part.partition for part in offsets_in_order(plan)} <= {part.partition for part in plan.ranges}


@given(partitions(), limits)
def test_a_range_begins_where_the_last_commit_ended_and_stays_before_the_end(
    offsets: list[PartitionOffsets], bounds: ReadLimits
) -> None:
    by_partition = {part.partition: part for part in offsets}
    for part in plan_load("t", offsets, bounds).ranges:
        current = by_partition[part.partition]
        assert part.start == (current.earliest if current.committed is None else current.committed)
        assert part.start <= part.end <= current.latest
        assert part.start < part.end or current.committed is None


@given(partitions(), limits, st.floats(0.1, 1000))
def test_a_run_and_its_tasks_stay_within_their_limits(
    offsets: list[PartitionOffsets], bounds: ReadLimits, bytes_per_offset: float
) -> None:
    plan = plan_load("t", offsets, bounds, bytes_per_offset=bytes_per_offset)
    if bounds.run_records is not None:
        assert plan.offset_count <= bounds.run_records
    if bounds.run_bytes is not None:
        assert plan.offset_count <= max(1, bounds.run_bytes / bytes_per_offset)
    for task in plan.tasks:
        count = sum(part.offset_count for part in task)
        assert 0 < count <= bounds.task_records
        assert count <= max(1, bounds.task_bytes / bytes_per_offset)


@given(partitions(), limits)
def test_tasks_are_of_equal_length(offsets: list[PartitionOffsets], bounds: ReadLimits) -> None:
    counts = [sum(part.offset_count for part in task) for task in plan_load("t", offsets, bounds).tasks]
    assert not counts or max(counts) - min(counts) <= 1


@given(partitions(), limits)
def test_a_run_moves_unless_there_is_nothing_to_load(
    offsets: list[PartitionOffsets], bounds: ReadLimits
) -> None:
    plan = plan_load("t", offsets, bounds)
    behind = [part for part in offsets if (part.committed or part.earliest) < part.latest]
    assert bool(plan.tasks) == bool(behind)
    new = {part.partition for part in offsets if part.committed is None}
    assert new <= {part.partition for part in plan.ranges}


@given(partitions(), limits)
def test_the_same_offsets_make_the_same_plan(offsets: list[PartitionOffsets], bounds: ReadLimits) -> None:
    assert plan_load("t", offsets, bounds) == plan_load("t", list(reversed(offsets)), bounds)


def test_a_cap_gives_every_partition_its_share() -> None:
    offsets = [PartitionOffsets(partition, None, 0, 1000) for partition in range(4)]
    offsets.append(PartitionOffsets(4, None, 0, 10))
    plan = plan_load("t", offsets, ReadLimits(run_records=410))
    assert [part.offset_count for part in plan.ranges] == [100, 100, 100, 100, 10]


def test_a_large_partition_is_shared_by_all_cores_and_a_small_load_is_one_task() -> None:
    bounds = ReadLimits(parallelism=4)
    assert len(plan_load("t", [PartitionOffsets(0, None, 0, 4_000_000)], bounds).tasks) == 4
    assert len(plan_load("t", [PartitionOffsets(p, None, 0, 100) for p in range(9)], bounds).tasks) == 1


@pytest.mark.parametrize(
    ("offsets", "policy", "error", "words"),
    [
        (
            (3, 5, 20, 30),
            GapPolicy.FAIL,
            OffsetsLostError,
            r"Offsets 5 to 19 of partition 3 of topic t .*skip",
        ),
        ((3, None, 20, 20), GapPolicy.FAIL, OffsetsLostError, r"Offsets 0 to 19 .* before the first load"),
        ((0, 8, 0, 7), GapPolicy.SKIP, TopicRecreatedError, "ends at offset 7, but .* loaded it up to 8"),
    ],
)
def test_offsets_that_were_lost_fail_the_run(
    offsets: tuple[int, int | None, int, int], policy: GapPolicy, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        plan_load("t", [PartitionOffsets(*offsets)], ReadLimits(), policy)


@pytest.mark.parametrize(
    ("offsets", "gap", "left"),
    [
        ((3, 5, 20, 30), OffsetRange(3, 5, 20), OffsetRange(3, 20, 30)),
        ((3, 5, 20, 20), OffsetRange(3, 5, 20), OffsetRange(3, 20, 20)),
        ((3, None, 20, 20), OffsetRange(3, 0, 20), OffsetRange(3, 20, 20)),
    ],
    ids=["in the midst", "up to the end", "before the first load"],
)
def test_a_gap_is_recorded_and_skipped_when_asked(
    offsets: tuple[int, int | None, int, int], gap: OffsetRange, left: OffsetRange
) -> None:
    """The offset moves though there may be nothing to read."""
    plan = plan_load("t", [PartitionOffsets(*offsets)], ReadLimits(), GapPolicy.SKIP)
    assert (plan.gaps, plan.ranges, bool(plan.tasks)) == ((gap,), (left,), left.offset_count > 0)


def test_offsets_are_remembered_by_the_topics_id() -> None:
    assert offset_key("wq6hGbKHTIWkQ8poXwsdww", 7) == "wq6hGbKHTIWkQ8poXwsdww/7"


def test_a_partition_that_is_empty_at_its_first_load_gets_an_offset() -> None:
    """Otherwise records that arrive and expire before the next load would be missing without a trace."""
    plan = plan_load("t", [PartitionOffsets(0, None, 0, 0), PartitionOffsets(1, 4, 0, 4)], ReadLimits())
    assert plan.ranges == (OffsetRange(0, 0, 0),)
    assert plan.tasks == ()


def test_new_partitions_that_a_cap_leaves_no_share_get_an_offset() -> None:
    offsets = [PartitionOffsets(partition, None, 0, 1000) for partition in range(3)]
    plan = plan_load("t", offsets, ReadLimits(run_records=1))
    assert [part.partition for part in plan.ranges] == [0, 1, 2]
    assert plan.offset_count == 1


def test_what_a_load_left_is_readable_or_waits_for_a_transaction() -> None:
    """R12: partition 0 is loaded, 1 capped, 2 waits for a transaction, 3 is capped before one, 4 is new."""
    committed = {0: 9, 1: 4, 2: 5, 3: 2}
    ends = {0: 9, 1: 9, 2: 5, 3: 5, 4: 0}
    high_watermarks = {0: 9, 1: 9, 2: 8, 3: 8, 4: 3}
    assert unloaded_positions(committed, ends, high_watermarks) == ({1: 4, 3: 2}, {2: 5, 4: 0})


def test_records_that_came_after_the_high_watermark_was_read_wait_for_nothing() -> None:
    """R12."""
    assert unloaded_positions({0: 9}, {0: 9}, {0: 7}) == ({}, {})
