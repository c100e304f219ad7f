from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings

from mainstem_broker.log.dump import dump_segment
from mainstem_broker.log.files import FileSlice, TruncatedSlice
from mainstem_broker.log.segment import Segment
from mainstem_broker.protocol.batches import parse_batch_header

CONFIG = settings(index_interval_bytes=150)


def segment_of(directory: Path, counts: list[int], base_offset: int = 100) -> Segment:
    """Batches of so many records, the first ones 10 s apart, later ones earlier in time."""
    segment = Segment.create(directory, base_offset, CONFIG, NOW_MS)
    for number, count in enumerate(counts):
        add(segment, count, NOW_MS + min(number, 5) * 10_000 - max(number - 5, 0))
    return segment


def add(segment: Segment, count: int, timestamp_ms: int, gap: int = 0) -> None:
    base_offset = segment.next_offset + gap
    batch = encode_batch(messages([b"x"] * count, timestamp_ms), base_offset=base_offset)
    segment.write((batch[:16], batch[16:]), len(batch))
    header = parse_batch_header(batch)
    segment.added(
        base_offset, len(batch), header.last_offset, header.max_timestamp, CONFIG.index_interval_bytes
    )


def positions(segment: Segment) -> dict[int, int]:
    """Base offset to position of every batch."""
    return {batch.base_offset: batch.position for batch in dump_segment(segment.path(".log"))}


def test_files_are_named_after_the_first_offset_in_twenty_digits(tmp_path: Path) -> None:
    """R2."""
    Segment.create(tmp_path, 42, CONFIG, NOW_MS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"00000000000000000042.{suffix}" for suffix in ("index", "log", "timeindex")
    ]


def test_an_index_entry_is_the_last_offset_of_the_batch_at_its_position(tmp_path: Path) -> None:
    """R9: Apache Kafka's dump tool holds indexes to this."""
    segment = segment_of(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8])
    segment.seal()
    dump = dump_segment(segment.path(".log"), verify=True)
    batches = {batch.position: batch.last_offset for batch in dump}
    assert dump.problems == []
    entries = dump.offset_entries()
    assert len(entries) >= 3
    assert all(batches[entry.position] == entry.offset for entry in entries)
    times = dump.time_entries()
    assert times[-1] == (segment.max_timestamp, segment.max_timestamp_offset)


def test_an_offset_that_compaction_took_leads_to_the_next_batch(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, [2, 2])
    add(segment, 2, NOW_MS, gap=10)
    assert segment.find(106) == segment.find(114) == (positions(segment)[114], 114)
    segment.measure()
    assert segment.find(106) == (positions(segment)[114], 114)


def test_a_loaded_segment_is_as_it_was(tmp_path: Path) -> None:
    before = segment_of(tmp_path, [3, 1, 4, 1, 5, 9, 2, 6])
    before.seal()
    after = Segment(tmp_path, 100, CONFIG, NOW_MS)
    after.size_bytes = before.size_bytes
    assert after.measure() == before.size_bytes
    for field in ("next_offset", "max_timestamp", "max_timestamp_offset", "first_timestamp"):
        assert getattr(after, field) == getattr(before, field), field
    sealed = Segment(tmp_path, 100, CONFIG, NOW_MS)
    sealed.load_sealed(before.next_offset)
    assert (sealed.size_bytes, sealed.max_timestamp) == (before.size_bytes, before.max_timestamp)


@pytest.mark.parametrize("kept", range(8))
def test_cutting_takes_indexes_and_timestamps_back(tmp_path: Path, kept: int) -> None:
    """The segment then goes on as if the batches had never been there."""
    counts = [3, 1, 4, 1, 5, 9, 2, 6]
    (tmp_path / "cut").mkdir()
    (tmp_path / "never").mkdir()
    segment = segment_of(tmp_path / "cut", counts)
    reference = segment_of(tmp_path / "never", counts[:kept])
    base = 100 + sum(counts[:kept])
    segment.cut(positions(segment)[base], base)
    for one in (segment, reference):
        add(one, 2, NOW_MS + 90_000)
        add(one, 2, NOW_MS + 90_000)
        one.seal()
    for field in ("next_offset", "max_timestamp", "max_timestamp_offset", "first_timestamp"):
        assert getattr(segment, field) == getattr(reference, field), field
    for suffix in (".log", ".index"):
        assert segment.path(suffix).read_bytes() == reference.path(suffix).read_bytes(), suffix
    dump = dump_segment(segment.path(".log"), verify=True)
    assert [batch.last_offset for batch in dump][kept:] == [base + 1, base + 3]
    assert dump.problems == []


def test_a_slice_of_what_was_cut_is_never_sent_whatever_is_written_in_its_place(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, [2, 2, 2])
    content = segment.path(".log").read_bytes()
    at_102, at_104 = positions(segment)[102], positions(segment)[104]
    whole = FileSlice(segment.file, 0, len(content), 100)
    kept, later = FileSlice(segment.file, 0, at_102, 100), FileSlice(segment.file, 0, at_104, 100)
    segment.cut(at_104, 104)
    add(segment, 5, NOW_MS)
    with pytest.raises(TruncatedSlice):
        whole.require_whole()
    assert later.read() == content[:at_104]
    new = FileSlice(segment.file, 0, segment.size_bytes, 100)
    segment.cut(at_102, 102)
    add(segment, 5, NOW_MS)
    for part in (whole, later, new):
        with pytest.raises(TruncatedSlice):
            part.read()
    assert kept.read() == content[:at_102]
    assert [batch.base_offset for batch in dump_segment(segment.path(".log"))] == [100, 102]


def test_a_cut_while_a_thread_reads_a_slice_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19: what was written in place of the cut batches has another length, so the bytes are no batches."""
    segment = segment_of(tmp_path, [2, 2, 2])
    at_104 = positions(segment)[104]
    whole = FileSlice(segment.file, 0, segment.size_bytes, 100)
    pread = os.pread

    def read_after_a_cut(descriptor: int, size_bytes: int, position: int) -> bytes:
        monkeypatch.setattr(os, "pread", pread)
        segment.cut(at_104, 104)
        add(segment, 5, NOW_MS)
        return pread(descriptor, size_bytes, position)

    monkeypatch.setattr(os, "pread", read_after_a_cut)
    with pytest.raises(TruncatedSlice):
        whole.read()


def test_cuts_are_forgotten_when_no_slice_is_left(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, [2, 2, 2])
    part = FileSlice(segment.file, 0, segment.size_bytes, 100)
    segment.cut(positions(segment)[104], 104)
    assert len(segment.file.cuts) == 1
    del part
    segment.cut(0, 100)
    assert segment.file.cuts == []


@pytest.mark.parametrize("failure", ["short write", "error"])
def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    segment = segment_of(tmp_path, [2])
    content = segment.path(".log").read_bytes()
    real_pwritev = os.pwritev

    def fail(fd: int, buffers: tuple[bytes, ...], position: int) -> int:
        written = real_pwritev(fd, [bytes(buffers[0])], position)
        if failure == "error":
            raise OSError(28, "No space left on device")
        return written

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", fail)
        with pytest.raises(OSError, match="No space left"):
            add(segment, 3, NOW_MS)
    assert segment.path(".log").read_bytes() == content
    assert (segment.size_bytes, segment.next_offset) == (len(content), 102)
    add(segment, 3, NOW_MS)
    assert [batch.base_offset for batch in dump_segment(segment.path(".log"))] == [100, 102]


def test_a_segment_that_cannot_be_created_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OSError, match="No space left"):
        Segment.create(tmp_path, 0, CONFIG, NOW_MS)
    assert list(tmp_path.iterdir()) == []


def test_preallocated_space_is_given_back_when_the_segment_is_sealed(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 0, settings(preallocate=True, segment_bytes=8192), NOW_MS)
    assert segment.path(".log").stat().st_size == 8192
    add(segment, 1, NOW_MS)
    assert segment.path(".log").stat().st_size == 8192
    segment.seal()
    assert segment.path(".log").stat().st_size == segment.size_bytes < 8192


def test_a_segment_for_which_there_is_no_space_begins_without_preallocated_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: retention and compaction begin one to make room."""
    reserve = os.posix_fallocate

    def reserve_half(descriptor: int, offset: int, size_bytes: int) -> None:
        reserve(descriptor, offset, size_bytes // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve_half)
    segment = Segment.create(tmp_path, 0, settings(preallocate=True, segment_bytes=8192), NOW_MS)
    assert segment.path(".log").stat().st_size == 0


def test_offsets_beyond_31_bits_of_the_base_do_not_fit(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 100, CONFIG, NOW_MS)
    assert segment.fits_offset(100 + 2**31 - 1)
    assert not segment.fits_offset(100 + 2**31)
