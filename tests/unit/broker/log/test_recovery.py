from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import (
    NOW_MS,
    Stored,
    append,
    find_by_time,
    messages,
    open_log,
    read_all,
    settings,
)

from mainstem_broker.log import checkpoints, recovery
from mainstem_broker.log.leader_epochs import EpochEntry
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.verification import verify_log

CONFIG = settings(segment_bytes=400, index_interval_bytes=100)
SIZE_BYTES = len(encode_batch(messages([b"x"])))


def log_file(directory: Path, base_offset: int = 0) -> Path:
    return directory / "t-0" / f"{base_offset:020d}.log"


def filled(directory: Path, count: int = 20) -> PartitionLog:
    """One record per batch, values 0, 1, 2 ..., a new epoch every four."""
    log = open_log(directory, CONFIG)
    for number in range(count):
        append(log, [b"%d" % number], timestamp_ms=NOW_MS + number, leader_epoch=number // 4)
    return log


def values(count: int) -> list[Stored]:
    return [Stored(number, b"%d" % number) for number in range(count)]


def epochs(count: int) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(start // 4, start) for start in range(0, count, 4))


def check(log: PartitionLog, count: int) -> None:
    """The log holds the first `count` records, in good order, and goes on."""
    assert read_all(log) == values(count)
    assert log.epochs.entries == epochs(count)
    append(log, [b"%d" % count], timestamp_ms=NOW_MS + count, leader_epoch=count // 4)
    assert read_all(log) == values(count + 1)
    log.close()
    assert verify_log(log.directory).problems == []


@pytest.mark.parametrize("recovery_point", range(0, 21, 3))
def test_the_segments_before_the_recovery_point_are_not_read(tmp_path: Path, recovery_point: int) -> None:
    log = filled(tmp_path)
    log.flush()
    log = open_log(tmp_path, CONFIG, clean=False, recovery_point=recovery_point)
    assert log.recovery_point == recovery_point
    check(log, 20)


def test_a_batch_torn_at_any_byte_is_cut(tmp_path: Path) -> None:
    """R6."""
    filled(tmp_path / "whole", 6).flush()
    whole = tmp_path / "whole"
    newest = max(path for path in (whole / "t-0").glob("*.log"))
    size = newest.stat().st_size
    for missing in range(1, SIZE_BYTES + 1):
        torn = tmp_path / "torn"
        shutil.copytree(whole, torn)
        with (torn / "t-0" / newest.name).open("r+b") as file:
            file.truncate(size - missing)
        check(open_log(torn, CONFIG, clean=False, recovery_point=5), 5)
        shutil.rmtree(torn)


@example_settings(max_examples=100)
@given(data=st.data())
def test_a_bit_flipped_anywhere_in_the_unflushed_tail_cuts_the_log_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """R6. What the leader stamps lies outside the checksum, so the flip is made behind it."""
    directory = tmp_path_factory.mktemp("flipped")
    log = filled(directory, 20)
    log.flush()
    recovery_point = data.draw(st.integers(0, 19))
    victim = data.draw(st.integers(recovery_point, 19))
    segment = max(segment.base_offset for segment in log.segments if segment.base_offset <= victim)
    fetched = log.read(victim, 1, 20, True)
    assert fetched.slice is not None
    bit = data.draw(st.integers(16 * 8, fetched.slice.size_bytes * 8 - 1))
    with log_file(directory, segment).open("r+b") as file:
        file.seek(fetched.slice.position + bit // 8)
        byte = file.read(1)[0]
        file.seek(fetched.slice.position + bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
    check(open_log(directory, CONFIG, clean=False, recovery_point=recovery_point), victim)


def test_an_offset_that_goes_back_ends_the_log(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with log_file(tmp_path).open("r+b") as file:
        file.seek(2 * SIZE_BYTES)
        file.write((1).to_bytes(8, "big"))
    check(open_log(tmp_path, CONFIG, clean=False), 2)


def test_zeros_after_the_last_batch_are_cut(tmp_path: Path) -> None:
    """A crash of the machine may leave a file longer than what was written into it."""
    filled(tmp_path, 3)
    with log_file(tmp_path).open("r+b") as file:
        file.truncate(10_000)
    check(open_log(tmp_path, CONFIG, clean=False), 3)


def test_a_torn_end_is_cut_even_after_a_stop_that_called_itself_clean(tmp_path: Path) -> None:
    filled(tmp_path, 20).close()
    newest = max((tmp_path / "t-0").glob("*.log"))
    with newest.open("ab") as file:
        file.write(encode_batch(messages([b"torn"]), base_offset=20)[:-5])
    check(open_log(tmp_path, CONFIG), 20)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.unlink(), id="missing"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-3]), id="part of an entry"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + bytes(24)), id="preallocated end"),
    ],
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_or_broken_index_is_rebuilt(
    tmp_path: Path, suffix: str, damage: Callable[[Path], object], clean: bool
) -> None:
    """R9."""
    log = filled(tmp_path)
    log.close()
    expected = {path.name: path.read_bytes() for path in log.directory.glob("*" + suffix)}
    for path in log.directory.glob("*" + suffix):
        damage(path)
    log = open_log(tmp_path, CONFIG, clean=clean, recovery_point=20)
    log.close()
    assert {path.name: path.read_bytes() for path in log.directory.glob("*" + suffix)} == expected
    check(open_log(tmp_path, CONFIG), 20)


def test_an_index_that_points_past_its_segment_is_rebuilt(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = log_file(tmp_path).with_suffix(".index")
    path.write_bytes(b"\x00\x00\x00\x01\x00\x0f\x00\x00")
    check(open_log(tmp_path, CONFIG), 20)


def test_indexes_that_a_segment_got_after_its_last_flush_are_not_believed(tmp_path: Path) -> None:
    """A machine without power may keep the flushed segment and lose the indexes written later."""
    log = filled(tmp_path)
    log.mark_flushed(log.flush())
    log._segments.roll(20, CONFIG, NOW_MS)
    sealed = log.segments[-2]
    for suffix in (".index", ".timeindex"):
        sealed.path(suffix).write_bytes(b"")
    log = open_log(tmp_path, CONFIG, clean=False, recovery_point=20)
    match = find_by_time(log, NOW_MS + 19)
    assert match is not None
    assert match.offset == 19
    check(log, 20)


def test_a_full_disk_does_not_stop_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 4)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        log = open_log(tmp_path, CONFIG, clean=False)
        assert read_all(log) == values(4)
    check(log, 4)


def test_leftovers_of_deletion_and_of_interrupted_writes_go(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    names = {path.name for path in log.directory.iterdir()}
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.log.copy",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000099.index",
        "00000000000000000099.timeindex",
    ):
        (log.directory / name).write_bytes(b"leftover")
    log = open_log(tmp_path, CONFIG)
    assert {path.name for path in log.directory.iterdir()} == names
    check(log, 20)


def test_a_finished_compaction_is_completed(tmp_path: Path) -> None:
    """Apache Kafka's protocol: a `.swap` file replaces the segments whose offsets it covers."""
    log = filled(tmp_path)
    log.close()
    second, third = (segment.base_offset for segment in log.segments[1:3])
    compacted = encode_batch(messages([b"0"]), base_offset=0) + encode_batch(
        messages([b"%d" % (third - 1)]), base_offset=third - 1, leader_epoch=(third - 1) // 4
    )
    log_file(tmp_path).with_suffix(".log.swap").write_bytes(compacted)
    log_file(tmp_path).with_suffix(".index.swap").write_bytes(b"")
    log = open_log(tmp_path, CONFIG, clean=False)
    assert not log_file(tmp_path, second).exists()
    assert [stored.offset for stored in read_all(log)] == [0, *range(third - 1, 20)]
    log.close()
    assert verify_log(log.directory).problems == []


def test_a_compaction_that_was_not_finished_is_forgotten(tmp_path: Path) -> None:
    filled(tmp_path).close()
    log_file(tmp_path).with_suffix(".log.swap").write_bytes(b"one of its outputs")
    log_file(tmp_path).with_suffix(".log.cleaned").write_bytes(b"another")
    check(open_log(tmp_path, CONFIG, clean=False), 20)


def test_a_crash_between_the_steps_of_a_roll_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    """R6. The new segment's files are created first, then the old one's indexes are completed."""
    log = filled(tmp_path / "whole", 3)
    base = log.log_end_offset
    created = [f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    for steps in range(len(created) + 1):
        crashed = tmp_path / f"crashed-{steps}"
        shutil.copytree(tmp_path / "whole", crashed)
        for name in created[:steps]:
            (crashed / "t-0" / name).touch()
        check(open_log(crashed, CONFIG, clean=False), 3)


def test_an_empty_segment_among_the_others_is_removed(tmp_path: Path) -> None:
    """Left of a roll that failed, after which the old segment went on."""
    filled(tmp_path, 3)
    for suffix in (".log", ".index", ".timeindex"):
        log_file(tmp_path, 1).with_suffix(suffix).touch()
    log_file(tmp_path, 3).write_bytes(b"")
    log = open_log(tmp_path, CONFIG, clean=False)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    check(log, 3)


def test_epochs_are_taken_from_the_batches_when_their_file_is_lost(tmp_path: Path) -> None:
    filled(tmp_path, 20).close()
    (tmp_path / "t-0" / checkpoints.LEADER_EPOCHS).unlink()
    check(open_log(tmp_path, CONFIG, clean=False), 20)


def test_epochs_of_what_was_cut_are_forgotten(tmp_path: Path) -> None:
    filled(tmp_path, 20).close()
    checkpoints.write_epochs(tmp_path / "t-0", [*epochs(20), EpochEntry(9, 25)])
    check(open_log(tmp_path, CONFIG), 20)


def test_the_log_starts_with_its_first_segment_at_least(tmp_path: Path) -> None:
    log = filled(tmp_path, 20)
    second = log.segments[1].base_offset
    log.close()
    for path in log_file(tmp_path).parent.glob(f"{0:020d}.*"):
        path.unlink()
    assert open_log(tmp_path, CONFIG).log_start_offset == second


def test_a_new_log_is_what_recovery_makes_of_an_empty_directory(tmp_path: Path) -> None:
    recovered, begun = tmp_path / "recovered", tmp_path / "begun"
    for directory in (recovered, begun):
        directory.mkdir()
    of_nothing = recovery.recover(
        recovered, CONFIG, clean_shutdown=True, recovery_point=0, log_start_offset=0, now_ms=NOW_MS
    )
    new = recovery.begin(begun, CONFIG, NOW_MS)
    assert sorted(path.name for path in begun.iterdir()) == sorted(path.name for path in recovered.iterdir())
    for each in (of_nothing, new):
        (segment,) = each.segments
        assert (segment.base_offset, segment.next_offset, segment.size_bytes) == (0, 0, 0)
        assert (each.log_start_offset, each.recovery_point) == (0, 0)
        assert (list(each.epochs.entries), each.producers.states, each.snapshots.offsets) == ([], {}, [])


def test_a_log_that_ends_before_its_start_begins_afresh_there(tmp_path: Path) -> None:
    """Nothing that could still be read is lost by that: all of it lay before the start."""
    filled(tmp_path, 3)
    log = open_log(tmp_path, CONFIG, clean=False, log_start_offset=10)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert log.epochs.entries == (), "as a follower it would report the epoch of a record that it lost"
    append(log, [b"x"])
    assert read_all(log) == [Stored(10, b"x")]


def test_a_copy_that_has_just_begun_knows_no_epochs_after_a_crash(tmp_path: Path) -> None:
    """The checkpoint still holds those of the records that it has dropped."""
    log = filled(tmp_path, 3)
    log.mark_flushed(log.flush())
    log.truncate_fully_and_start_at(10)
    log = open_log(tmp_path, CONFIG, clean=False, recovery_point=3)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (10, 10, ())


def test_files_that_are_not_of_the_log_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    for name in ("notes.txt", "backup.log", "00000000000000000003.snapshot"):
        (tmp_path / "t-0" / name).write_bytes(b"mine")
    check(open_log(tmp_path, CONFIG, clean=False), 3)
    assert (tmp_path / "t-0" / "backup.log").read_bytes() == b"mine"
