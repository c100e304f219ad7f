from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log import segment_list
from mainstem_broker.log.segment import Segment
from mainstem_broker.log.segment_list import SegmentList
from mainstem_broker.protocol.batches import parse_batch_header

SIZE_BYTES = len(encode_batch(messages([b"x"])))
CONFIG = settings(index_interval_bytes=0)


class Unlinked:
    """Remembers what was scheduled to be unlinked."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, paths: Sequence[Path], delay_ms: int) -> None:
        self.names += [path.name for path in paths]


def new_list(directory: Path, unlinked: Unlinked | None = None) -> SegmentList:
    segment = Segment.create(directory, 0, CONFIG, NOW_MS)
    return SegmentList(directory, [segment], unlinked or Unlinked())


def add(
    segments: SegmentList, config: TopicConfig, *, offset: int | None = None, timestamp_ms: int = NOW_MS
) -> None:
    base_offset = segments.newest.next_offset if offset is None else offset
    batch = encode_batch(messages([b"x"], timestamp_ms), base_offset=base_offset)
    header = parse_batch_header(batch)
    segment = segments.for_append(
        base_offset, base_offset, header.max_timestamp, len(batch), config, now_ms=NOW_MS
    )
    segment.write((batch,), len(batch))
    segment.added(base_offset, len(batch), base_offset, header.max_timestamp, config.index_interval_bytes)


def bases(segments: SegmentList) -> list[int]:
    return [segment.base_offset for segment in segments.all]


@pytest.fixture
def segments(tmp_path: Path) -> SegmentList:
    return new_list(tmp_path)


def test_a_segment_ends_before_it_would_outgrow_segment_bytes(segments: SegmentList) -> None:
    """R2."""
    config = settings(segment_bytes=3 * SIZE_BYTES)
    for _ in range(7):
        add(segments, config)
    assert bases(segments) == [0, 3, 6]


def test_a_segments_age_is_reported_by_its_records(segments: SegmentList) -> None:
    """R2: from the first batch's timestamp to the one that comes."""
    config = settings(segment_ms=1000)
    for after_ms in (0, 1000, 1001, 500, 2002):
        add(segments, config, timestamp_ms=NOW_MS + after_ms)
    assert bases(segments) == [0, 2, 4]


def test_without_timestamps_the_clock_tells_the_age(segments: SegmentList) -> None:
    segments.newest.created_ms = NOW_MS - 1001
    add(segments, settings(segment_ms=1000), timestamp_ms=-1)
    assert bases(segments) == [0], "an empty segment is not replaced"
    add(segments, settings(segment_ms=1000), timestamp_ms=-1)
    assert bases(segments) == [0, 1]


def test_jitter_makes_partitions_roll_at_different_ages(tmp_path: Path) -> None:
    config = settings(segment_ms=10_000, segment_jitter_ms=5_000)
    ages: set[int] = set()
    for number in range(8):
        directory = tmp_path / f"t-{number}"
        directory.mkdir()
        segments = new_list(directory)
        add(segments, config)
        age_ms = 0
        while len(segments.all) == 1:
            age_ms += 250
            add(segments, config, timestamp_ms=NOW_MS + age_ms)
        assert 5_000 <= age_ms <= 10_250
        ages.add(age_ms)
    assert len(ages) > 1


def test_a_full_index_ends_a_segment(segments: SegmentList) -> None:
    segments.newest.offset_index.count_max = 3
    for _ in range(6):
        add(segments, CONFIG)
    assert bases(segments) == [0, 4]


def test_an_offset_too_far_from_the_base_begins_a_segment(tmp_path: Path) -> None:
    unlinked = Unlinked()
    segments = new_list(tmp_path, unlinked)
    add(segments, CONFIG, offset=2**31)
    assert bases(segments) == [2**31], "the empty segment that it did not fit is gone"
    assert "00000000000000000000.log.deleted" in unlinked.names
    add(segments, CONFIG, offset=2**32)
    assert bases(segments) == [2**31, 2**32]


def test_a_roll_that_fails_changes_nothing(
    segments: SegmentList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(segments, CONFIG)

    def fail(_: Segment) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(path.name for path in tmp_path.iterdir())
    with monkeypatch.context() as full:
        full.setattr(Segment, "seal", fail)
        with pytest.raises(OSError, match="No space left"):
            segments.roll(1, CONFIG, NOW_MS)
    assert bases(segments) == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    segments.roll(1, CONFIG, NOW_MS)
    assert bases(segments) == [0, 1]


def test_a_hole_between_segments_leads_to_the_next_batch(segments: SegmentList) -> None:
    add(segments, CONFIG)
    segments.roll(10, CONFIG, NOW_MS)
    add(segments, CONFIG, offset=12)
    position = segments.find(5)
    assert position is not None
    assert (position[0].base_offset, position[2]) == (10, 12)


def test_only_a_few_sealed_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_list, "_SEALED_FILES_OPEN_MAX", 2)
    segments = new_list(tmp_path)
    config = settings(segment_bytes=SIZE_BYTES)
    for _ in range(6):
        add(segments, config)
    for offset in (0, 1, 2, 0, 3):
        position = segments.find(offset)
        assert position is not None
        assert position[0].file
    opened = [segment.base_offset for segment in segments.all if segment._file is not None]
    assert opened == [0, 3, 5]


def test_dropped_segments_are_renamed_and_scheduled(tmp_path: Path) -> None:
    unlinked = Unlinked()
    segments = new_list(tmp_path, unlinked)
    config = settings(segment_bytes=SIZE_BYTES)
    for _ in range(4):
        add(segments, config)
    segments.drop(list(segments.all[:2]), 60_000)
    assert bases(segments) == [2, 3]
    assert sorted(unlinked.names) == sorted(path.name for path in tmp_path.glob("*.deleted"))
    assert len(unlinked.names) == 6
