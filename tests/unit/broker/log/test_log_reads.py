"""Reading slices of a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.broker.log.followed_logs import SIZE_BYTES
from tests.unit.broker.log.logs import NOW_MS, Stored, append, open_log, read_all, settings

from mainstem_broker.errors import CorruptMessage, OffsetOutOfRange
from mainstem_broker.log.files import TruncatedSlice
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import crc_matches, split_batches


def test_a_read_is_a_slice_of_the_file_that_holds_whole_batches(log: PartitionLog) -> None:
    """R3: what `sendfile` needs."""
    for count in (1, 2, 3):
        append(log, [b"x"] * count)
    fetched = log.read(1, 1 << 20, log.log_end_offset, True)
    assert fetched.slice is not None
    assert (fetched.slice.base_offset, fetched.end_offset) == (1, 6)
    assert fetched.slice.position == SIZE_BYTES
    content = (log.directory / f"{0:020d}.log").read_bytes()
    assert fetched.slice.read() == content[SIZE_BYTES:]
    assert fetched.slice.file.descriptor >= 0


def test_every_offset_from_start_to_end_is_valid_and_no_other(log: PartitionLog) -> None:
    """R13. Between the high watermark and the log's end the answer is empty, not an error."""
    append(log, [b"x"] * 5)
    append(log, [b"x"] * 5)
    log.delete_records_before(2)
    for offset in range(2, 11):
        fetched = log.read(offset, 1000, 5, True)
        assert (fetched.slice is None) == (offset >= 5)
        assert fetched.end_offset == (5 if offset < 5 else offset)
    for offset in (-1, 0, 1, 11):
        with pytest.raises(OffsetOutOfRange, match="between 2 and 10"):
            log.read(offset, 1000, 10, True)


def test_batches_that_begin_at_the_upper_bound_are_left_out(log: PartitionLog) -> None:
    for _ in range(10):
        append(log, [b"x"])
    for bound in range(11):
        fetched = log.read(0, 1 << 20, bound, True)
        assert fetched.end_offset == bound
        assert (fetched.slice.read().count(b"\x02x") if fetched.slice else 0) == bound
    assert log.read(0, 1 << 20, 99, True).end_offset == 10


@pytest.mark.parametrize("reopened", [False, True])
def test_max_bytes_gives_whole_batches_that_fit_and_the_first_whole_when_asked(
    tmp_path: Path, reopened: bool
) -> None:
    """R13, KIP-74."""
    config = settings(index_interval_bytes=200)
    log = open_log(tmp_path, config)
    for _ in range(20):
        append(log, [b"x"])
    if reopened:
        log.close()
        log = open_log(tmp_path, config)
    for offset in range(20):
        for max_bytes in range(0, 25 * SIZE_BYTES, 31):
            fitting = min(max_bytes // SIZE_BYTES, 20 - offset)
            exact = log.read(offset, max_bytes, 20, False)
            assert exact.size_bytes == fitting * SIZE_BYTES
            at_least_one = log.read(offset, max_bytes, 20, True)
            assert at_least_one.size_bytes == max(fitting, 1) * SIZE_BYTES
            assert at_least_one.end_offset == offset + max(fitting, 1)


def test_reading_in_sequence_looks_nothing_up(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a read at the log's end does not grow with what lies before it."""
    for _ in range(200):
        append(log, [b"x"])
    offset = log.read(0, 1 << 20, 200, True).end_offset

    def looked_up(*_: object) -> bytes:
        raise AssertionError("the file was read")

    monkeypatch.setattr(os, "pread", looked_up)
    for _ in range(50):
        assert log.read(offset, 1 << 20, log.log_end_offset, True).slice is None
        append(log, [b"y"])
        fetched = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert fetched.size_bytes == SIZE_BYTES
        offset = fetched.end_offset


def test_a_slice_survives_the_deletion_of_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=SIZE_BYTES, retention_ms=0))
    append(log, [b"a"], timestamp_ms=1)
    append(log, [b"b"])
    fetched = log.read(0, 1000, 2, True)
    assert log.delete_old_segments(NOW_MS, 2)
    assert not (log.directory / f"{0:020d}.log").exists()
    assert fetched.slice is not None
    ((header, batch),) = split_batches(fetched.slice.read())
    assert crc_matches(header, batch)


def test_of_slices_only_those_before_a_truncation_can_still_be_sent(
    log: PartitionLog, tmp_path: Path
) -> None:
    for value in (b"a", b"b", b"c"):
        append(log, [value])
    whole, first = log.read(0, 1 << 20, 3, True).slice, log.read(0, 1 << 20, 1, True).slice
    assert whole is not None
    assert first is not None
    before = first.read()
    log.truncate_to(1)
    append(log, [b"longer than what was there"])
    assert first.read() == before
    with pytest.raises(TruncatedSlice):
        whole.read()
    assert read_all(log) == [Stored(0, b"a"), Stored(1, b"longer than what was there")]
    log.flush()
    assert read_all(open_log(tmp_path, clean=False)) == read_all(log)


@pytest.mark.parametrize(
    ("position", "content"),
    [pytest.param(16, b"\x07", id="magic"), pytest.param(8, b"\x00\x00\x20\x00", id="length")],
)
@pytest.mark.parametrize("max_bytes", [1, SIZE_BYTES + 10])
def test_a_corrupt_stretch_is_reported_not_skipped(
    log: PartitionLog, position: int, content: bytes, max_bytes: int
) -> None:
    for _ in range(3):
        append(log, [b"x"])
    with (log.directory / f"{0:020d}.log").open("r+b") as file:
        file.seek(SIZE_BYTES + position)
        file.write(content)
    with pytest.raises(CorruptMessage):
        log.read(1, max_bytes, 3, True)
    assert log.read(0, SIZE_BYTES, 1, True).size_bytes == SIZE_BYTES
