from __future__ import annotations

import bisect
import os
import struct
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_broker.log.index import OffsetIndex, TimeIndex

BYTES_MAX = 10 * 1024 * 1024


def offset_index(directory: Path) -> OffsetIndex:
    index = OffsetIndex(directory / "0.index", BYTES_MAX)
    index.create()
    return index


def filled(directory: Path, count: int) -> OffsetIndex:
    """Entries (10, 100), (20, 200), ..."""
    index = offset_index(directory)
    for number in range(1, count + 1):
        index.append_entry(number * 10, number * 100)
    return index


def test_the_offset_index_is_pairs_of_int32_in_the_order_of_appends(tmp_path: Path) -> None:
    """R2, R9: Apache Kafka's format."""
    index = filled(tmp_path, 2)
    index.write()
    assert index.path.read_bytes() == struct.pack(">iiii", 10, 100, 20, 200)


def test_the_time_index_is_int64_and_int32_with_rising_timestamps(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "0.timeindex", BYTES_MAX)
    index.create()
    for timestamp_ms, offset in ((1000, 4), (1000, 8), (999, 12), (1001, 16)):
        index.append(timestamp_ms, offset)
    index.write()
    assert index.path.read_bytes() == struct.pack(">qiqi", 1000, 4, 1001, 16)


def test_an_index_is_full_at_its_size(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "0.index", 17)
    times = TimeIndex(tmp_path / "0.timeindex", 36)
    for number in range(2):
        assert not index.is_full
        assert not times.is_full
        index.append_entry(number + 1, number + 1)
        times.append(number + 1, number + 1)
    assert index.is_full
    assert times.is_full, "the final entry needs a place"


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), min_size=1, max_size=40),
    actions=st.lists(
        st.tuples(st.sampled_from(["write", "reopen", "truncate", "look"]), st.integers(0, 2000))
    ),
    repeat=st.sampled_from([1, 40]),
)
def test_an_index_agrees_with_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    actions: list[tuple[str, int]],
    repeat: int,
) -> None:
    index = offset_index(tmp_path_factory.mktemp("index"))
    steps = steps * repeat
    offsets = list(accumulate(offset for offset, _ in steps))
    positions = list(accumulate(position for _, position in steps))
    half = len(steps) // 2
    for offset, position in zip(offsets[:half], positions[:half], strict=True):
        index.append_entry(offset, position)
    index.write()
    for offset, position in zip(offsets[half:], positions[half:], strict=True):
        index.append_entry(offset, position)
    for action, number in actions:
        if action == "write":
            index.write()
        elif action == "reopen":
            index.write()
            index = OffsetIndex(index.path, BYTES_MAX)
        elif action == "truncate":
            index.truncate_to_position(number)
            keep = bisect.bisect_left(positions, number)
            del offsets[keep:], positions[keep:]
        assert index.count == len(offsets)
        match = bisect.bisect_right(offsets, number) - 1
        assert index.position_before_offset(number) == (positions[match] if match >= 0 else 0)
        match = bisect.bisect_right(positions, number) - 1
        assert index.position_before_position(number) == (positions[match] if match >= 0 else 0)
        assert not offsets or index.last_entry() == (offsets[-1], positions[-1])
    assert [index.entry(number) for number in range(index.count)] == list(
        zip(offsets, positions, strict=True)
    )


def test_entries_wait_in_memory_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(tmp_path, 3)
    real_pwrite = os.pwrite
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:12], at))
        with pytest.raises(OSError, match="No space left"):
            index.write()
    assert [index.entry(number)[0] for number in range(3)] == [10, 20, 30]
    index.write()
    assert index.path.read_bytes() == struct.pack(">iiiiii", 10, 100, 20, 200, 30, 300)


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        pytest.param(None, False, id="missing"),
        pytest.param(b"", True, id="empty"),
        pytest.param(struct.pack(">ii", 1, 2), True, id="one entry"),
        pytest.param(struct.pack(">ii", 1, 2)[:-1], False, id="part of an entry"),
        pytest.param(struct.pack(">iiii", 1, 2, 0, 0), False, id="preallocated end"),
    ],
)
def test_a_file_that_is_no_whole_index_is_reported(
    tmp_path: Path, content: bytes | None, whole: bool
) -> None:
    path = tmp_path / "0.index"
    if content is not None:
        path.write_bytes(content)
    assert OffsetIndex(path, BYTES_MAX).is_whole() == whole
