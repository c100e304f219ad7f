"""Which part of a log is compacted, by tables (R5)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.unit.broker.log.compaction.compacted_logs import compacted_settings

from mainstem_broker.config.setting import INT32_MAX
from mainstem_broker.log.compaction.facts import SegmentFacts
from mainstem_broker.log.compaction.plan import group_segments, plan_compaction

NOW_MS = 1_000_000
DAY = [
    SegmentFacts(base, base + 10, 100, NOW_MS - age, NOW_MS - age)
    for base, age in ((0, 900), (10, 600), (20, 300), (30, 0))
]


@pytest.mark.parametrize(
    ("first_dirty", "high_watermark", "changes", "expected"),
    [
        pytest.param(0, 40, {}, (0, 30, 1.0), id="all but the newest segment"),
        pytest.param(10, 40, {}, (10, 30, 2 / 3), id="the clean part counts in the ratio"),
        pytest.param(0, 25, {}, (0, 20, 1.0), id="nothing at or above the high watermark"),
        pytest.param(0, 40, {"min_compaction_lag_ms": 500}, (0, 20, 1.0), id="nothing too young"),
        pytest.param(30, 40, {}, None, id="nothing is dirty"),
        pytest.param(999, 40, {}, (0, 30, 1.0), id="a checkpoint past the end counts for nothing"),
        pytest.param(0, 40, {"cleanup_policy": "delete"}, None, id="a topic that is not compacted"),
    ],
)
def test_a_pass_takes(
    first_dirty: int, high_watermark: int, changes: dict[str, object], expected: tuple[int, int, float] | None
) -> None:
    plan = plan_compaction(
        DAY,
        compacted_settings(**changes),
        first_dirty_offset=first_dirty,
        high_watermark=high_watermark,
        now_ms=NOW_MS,
    )
    assert (plan is None) == (expected is None)
    if plan is not None and expected is not None:
        assert (plan.first_dirty_offset, plan.end_offset) == expected[:2]
        assert plan.dirty_ratio == pytest.approx(expected[2])


@pytest.mark.parametrize(
    ("changes", "is_due"),
    [
        ({"min_cleanable_dirty_ratio": 0.3}, True),
        ({"min_cleanable_dirty_ratio": 0.4}, False),
        ({"min_cleanable_dirty_ratio": 0.9, "max_compaction_lag_ms": 200}, True),
        ({"min_cleanable_dirty_ratio": 0.9, "max_compaction_lag_ms": 400}, False),
    ],
)
def test_a_log_is_due_by_its_dirty_share_or_by_age(changes: dict[str, object], is_due: bool) -> None:
    plan = plan_compaction(
        DAY, compacted_settings(**changes), first_dirty_offset=20, high_watermark=40, now_ms=NOW_MS
    )
    assert plan is not None
    assert plan.is_due is is_due


def test_groups_fit_into_a_segment_by_bytes_and_by_offsets() -> None:
    far = [
        SegmentFacts(base, base + 10, 100, 0, 0)
        for base in (0, 10, INT32_MAX - 5, INT32_MAX + 9, INT32_MAX + 99)
    ]
    config = compacted_settings(segment_bytes=1000)
    assert [
        [it.base_offset for it in group] for group in group_segments(far, config, far[-1].base_offset)
    ] == [[0, 10], [INT32_MAX - 5, INT32_MAX + 9]]
    small = compacted_settings(segment_bytes=250)
    assert [len(group) for group in group_segments(DAY, small, 30)] == [2, 1]
    assert [len(group) for group in group_segments(DAY, config, 15)] == [2], (
        "a segment that is mapped in part"
    )


@pytest.mark.processes
def test_a_broker_starts_without_the_libraries_of_its_compacting_process() -> None:
    """numpy costs a tenth of a second and 20 MB, in every broker."""
    code = "import sys, mainstem_broker.server.broker; print('numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
