from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, append, compressed_batch, messages, open_log, settings
from tests.unit.broker.log.transactional import abort, end, write

from mainstem_broker.log.dump import NotALog, Problem, dump_log, dump_segment, dump_transaction_index
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.transaction_index import TransactionIndex
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.compression import Codec
from mainstem_broker.protocol.markers import Marker

SIZE_BYTES = len(encode_batch(messages([b"x"])))


def filled(directory: Path) -> PartitionLog:
    """Twelve batches of one record in several segments, closed."""
    log = open_log(directory, settings(segment_bytes=5 * SIZE_BYTES, index_interval_bytes=SIZE_BYTES))
    for number in range(12):
        append(log, [b"x"], timestamp_ms=NOW_MS + number, leader_epoch=number // 5)
    log.close()
    return log


def damage(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def sentences(problems: list[Problem]) -> str:
    return "\n".join(str(problem) for problem in problems)


def segment_path(log: PartitionLog, suffix: str = ".log") -> Path:
    return log.directory / f"{0:020d}{suffix}"


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return filled(tmp_path)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_shown_with_everything_its_header_says(tmp_path: Path, codec: Codec) -> None:
    """R9."""
    log = open_log(tmp_path)
    append(log, [b"before"])
    batch = compressed_batch([Message(b"v", b"k", (("h", b"x"),), NOW_MS), Message(None, None)], codec)
    log.append_as_leader(batch, parse_batch_header(batch), 3, NOW_MS)
    log.close()
    segment = dump_segment(segment_path(log), records=True, verify=True)
    shown = list(segment)[1]
    assert (shown.position, shown.size_bytes) == (segment.size_bytes - len(batch), len(batch))
    assert (shown.base_offset, shown.last_offset, shown.record_count) == (1, 2, 2)
    assert (shown.codec, shown.crc_valid, shown.partition_leader_epoch) == (codec.name.lower(), True, 3)
    assert (shown.base_timestamp, shown.max_timestamp, shown.timestamp_type) == (NOW_MS, NOW_MS, "CreateTime")
    assert (shown.producer_id, shown.producer_epoch, shown.base_sequence) == (-1, -1, -1)
    assert not (shown.is_transactional or shown.is_control or shown.has_delete_horizon)
    assert shown.records is not None
    first, second = shown.records
    assert (first.offset, first.key, first.value, list(first.headers)) == (1, b"k", b"v", [("h", b"x")])
    assert (second.offset, second.key, second.value) == (2, None, None)
    assert segment.problems == []


def test_records_are_opened_only_when_asked_for(log: PartitionLog) -> None:
    assert all(batch.records is None for segment in dump_log(log.directory) for batch in segment)


def test_a_directory_is_dumped_segment_by_segment_in_order(log: PartitionLog) -> None:
    segments = dump_log(log.directory)
    assert [segment.base_offset for segment in segments] == [0, 5, 10]
    assert [batch.base_offset for segment in segments for batch in segment] == list(range(12))
    assert verify_log(log.directory).problems == []


def test_any_file_of_a_segment_names_it(log: PartitionLog) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        (segment,) = dump_log(segment_path(log, suffix))
        assert segment.path == segment_path(log)


def test_index_entries_are_shown_with_absolute_offsets(log: PartitionLog) -> None:
    second = dump_log(log.directory)[1]
    assert second.offset_entries() == [(7, 2 * SIZE_BYTES), (9, 4 * SIZE_BYTES)]
    assert second.time_entries() == [(NOW_MS + 7, 7), (NOW_MS + 9, 9)]


def test_what_is_no_log_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    for name in ("empty", "notes.txt", "missing", f"{3:020d}.log"):
        with pytest.raises(NotALog, match="name "):
            dump_log(tmp_path / name)


def test_a_flipped_byte_in_the_middle_is_found_and_the_rest_is_shown(log: PartitionLog) -> None:
    """R6, R9."""
    damage(segment_path(log), 2 * SIZE_BYTES + 66, b"\xff")
    segment = dump_segment(segment_path(log), verify=True)
    assert [batch.crc_valid for batch in segment] == [True, True, False, True, True]
    (problem,) = segment.problems
    assert problem.position == 2 * SIZE_BYTES
    assert "offset 2 does not match its checksum" in problem.sentence
    assert str(problem).startswith(f"{segment_path(log)} at byte {2 * SIZE_BYTES}: ")
    assert len(verify_log(log.directory).problems) >= 1


def test_a_flipped_byte_anywhere_in_a_batch_is_found(log: PartitionLog) -> None:
    """R6, also where the checksum does not reach, as far as the neighbours tell."""
    content = segment_path(log).read_bytes()
    for at in range(SIZE_BYTES, 2 * SIZE_BYTES):
        flipped = bytearray(content)
        flipped[at] ^= 0x80
        segment_path(log).write_bytes(flipped)
        assert verify_log(log.directory).problems != [], at - SIZE_BYTES
    segment_path(log).write_bytes(content)
    assert verify_log(log.directory).problems == []


def test_a_torn_end_is_found(log: PartitionLog) -> None:
    os.truncate(segment_path(log), 5 * SIZE_BYTES - 1)
    segment = dump_segment(segment_path(log))
    assert len(list(segment)) == 4
    assert "incomplete" in sentences(segment.problems)


def test_bytes_that_are_no_batch_end_the_dump(log: PartitionLog) -> None:
    damage(segment_path(log), SIZE_BYTES + 16, b"\x09")
    segment = dump_segment(segment_path(log))
    assert len(list(segment)) == 1
    assert f"at byte {SIZE_BYTES}: there is no batch here" in sentences(segment.problems)


def test_iterating_again_tells_each_problem_once(log: PartitionLog) -> None:
    damage(segment_path(log), 66, b"\xff")
    segment = dump_segment(segment_path(log))
    for _ in range(2):
        list(segment)
        assert len(segment.problems) == 1


@pytest.mark.parametrize(
    ("position", "content", "sentence"),
    [
        pytest.param(0, struct.pack(">q", 1), "offset 1 follows 1", id="offset twice"),
        pytest.param(12, struct.pack(">i", 9), "leader epoch 0 follows 9", id="epoch goes back"),
    ],
)
def test_offsets_and_epochs_that_go_back_are_found(
    log: PartitionLog, position: int, content: bytes, sentence: str
) -> None:
    damage(segment_path(log), 2 * SIZE_BYTES + position, content)
    assert sentence in sentences(verify_log(log.directory).problems)


def test_records_that_contradict_their_header_are_found(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    wrong_latest = encode_batch(messages([b"a"]), max_timestamp=NOW_MS + 5)
    too_many = encode_batch(messages([b"a", b"b"]), base_offset=1, last_offset_delta=0)
    too_few = encode_batch(messages([b"a"]), base_offset=2, record_count=2, last_offset_delta=1)
    garbled = encode_batch(messages([b"a"]), base_offset=4, attributes=int(Codec.GZIP))
    no_codec = encode_batch(messages([b"a"]), base_offset=5, attributes=7)
    path.write_bytes(wrong_latest + too_many + too_few + garbled + no_codec)
    segment = dump_segment(path, records=True)
    assert [batch.codec for batch in segment] == ["none", "none", "none", "gzip", "unknown (7)"]
    result = sentences(segment.problems)
    for sentence in (
        f"its latest record is of {NOW_MS + 5}, not {NOW_MS}",
        "records of offset 1 have wrong offsets",
        "offset 2 cannot be read: A record at byte",
        "offset 4 cannot be read: The batch's gzip data",
        "offset 5 cannot be read: The batch names compression codec 7",
    ):
        assert sentence in result
    assert len(segment.problems) == 5


@pytest.mark.parametrize(
    ("suffix", "content", "sentence"),
    [
        (".index", struct.pack(">ii", 2, 2 * SIZE_BYTES + 1), "names position 139, where no batch begins"),
        (
            ".index",
            struct.pack(">ii", 3, 2 * SIZE_BYTES),
            "says 3 for position 138, but that batch ends with 2",
        ),
        (".index", struct.pack(">ii", 9, 9000), "names position 9000, where no batch begins"),
        (".index", struct.pack(">iiii", 2, 138, 2, 138), "entry 1 does not rise"),
        (".index", b"123", "not a multiple of 8"),
        (".index", None, "missing"),
        (".timeindex", struct.pack(">qi", NOW_MS + 3, 2), "that batch has 1750000000002"),
        (".timeindex", struct.pack(">qi", NOW_MS + 9, 9), "names offset 9, with which no batch ends"),
        (".timeindex", struct.pack(">qiqi", NOW_MS + 1, 1, NOW_MS, 0), "entry 1 does not rise"),
        (".timeindex", b"123", "not a multiple of 12"),
        (".timeindex", None, "missing"),
    ],
)
def test_every_lie_of_an_index_is_found(
    log: PartitionLog, suffix: str, content: bytes | None, sentence: str
) -> None:
    """R9."""
    path = segment_path(log, suffix)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    problems = verify_log(log.directory).problems
    assert sentence in sentences(problems)
    assert all(problem.path == path for problem in problems)


def test_a_batch_that_is_in_no_index_is_no_problem(log: PartitionLog) -> None:
    """Indexes are sparse, and a killed broker's lack their ends."""
    for suffix in (".index", ".timeindex"):
        segment_path(log, suffix).write_bytes(b"")
    assert verify_log(log.directory).problems == []


def test_the_time_an_entry_names_must_be_the_largest_so_far(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(
        encode_batch(messages([b"a"], NOW_MS + 5)) + encode_batch(messages([b"b"], NOW_MS), base_offset=1)
    )
    path.with_suffix(".index").touch()
    path.with_suffix(".timeindex").write_bytes(struct.pack(">qi", NOW_MS, 1))
    assert "the largest so far is 1750000000005" in sentences(verify_log(tmp_path).problems)


def test_preallocated_index_space_is_not_shown(log: PartitionLog) -> None:
    path = segment_path(log, ".index")
    path.write_bytes(path.read_bytes() + bytes(80))
    assert len(dump_segment(path).offset_entries()) == 2
    assert verify_log(log.directory).problems == []


def test_a_segment_that_begins_below_the_end_of_the_one_before_is_found(log: PartitionLog) -> None:
    path = log.directory / f"{3:020d}.log"
    path.write_bytes(encode_batch(messages([b"a"]), base_offset=3))
    assert "begins below 5" in sentences(verify_log(log.directory).problems)


# --- Transactions ---


def test_markers_are_shown_with_their_outcome_and_coordinator(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 1)
    abort(log, 1)
    write(log, 1)
    end(log, 1, Marker(is_commit=True, coordinator_epoch=5))
    batches = list(dump_segment(log.segments[0].path(".log")))
    assert [batch.marker for batch in batches] == [None, "abort", None, "commit"]
    assert [batch.coordinator_epoch for batch in batches] == [-1, 0, -1, 5]


def test_the_index_of_aborted_transactions_is_shown_and_verified(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in (1, 2):
        write(log, producer_id)
    for producer_id in (2, 1):
        abort(log, producer_id)
    log.close()
    path = log.segments[0].aborted.path
    assert [tuple(entry) for entry in dump_transaction_index(path).aborted] == [(2, 1, 2, 0), (1, 0, 3, 4)]
    assert verify_log(log.directory).problems == []


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([(1, 0, 1, 2), (1, 2, 3, 4)], "entry 1 names offset 3, where no abort marker of its producer is"),
        ([(2, 0, 1, 2)], "entry 0 names offset 1"),
        ([(1, 0, 9, 10)], "entry 0 names offset 9"),
        ([(1, 5, 1, 2)], "the index is broken"),
    ],
    ids=["a commit", "another producer", "past the end", "ends before it begins"],
)
def test_an_index_of_aborted_transactions_that_does_not_match_is_found(
    tmp_path: Path, entries: Sequence[tuple[int, int, int, int]], sentence: str
) -> None:
    log = open_log(tmp_path)
    write(log, 1)
    abort(log, 1)
    write(log, 1)
    end(log, 1, Marker(is_commit=True, coordinator_epoch=0))
    log.close()
    log.segments[0].aborted.path.write_bytes(
        b"".join(TransactionIndex.ENTRY.pack(0, *entry) for entry in entries)
    )
    problems = verify_log(log.directory).problems
    assert [problem for problem in problems if sentence in problem.sentence]


def test_what_is_no_index_of_aborted_transactions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match=r"name a \.txnindex file"):
        dump_transaction_index(tmp_path / "notes.txt")
