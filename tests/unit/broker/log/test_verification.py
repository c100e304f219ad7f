"""What `mainstem log verify` finds beyond a single segment and its indexes (R6, R9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, append, messages, open_log, settings
from tests.unit.broker.log.transactional import abort, write

from mainstem_broker.log.dump import Problem
from mainstem_broker.log.producer_snapshot_format import encode_snapshot
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.verification import DataDirectoryCheck, verify_log
from mainstem_broker.protocol.batches import parse_batch_header

SIZE_BYTES = len(encode_batch(messages([b"x"])))
EPOCHS = "leader-epoch-checkpoint"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of twelve records in three segments and three leader epochs."""
    log = open_log(tmp_path, settings(segment_bytes=5 * SIZE_BYTES))
    for number in range(12):
        append(log, [b"x"], timestamp_ms=NOW_MS + number, leader_epoch=number // 4)
    log.close()
    return log.directory


def sentences(problems: list[Problem]) -> list[str]:
    return [f"{problem.path.name}: {problem.sentence}" for problem in problems]


def test_a_log_without_faults_is_measured(directory: Path) -> None:
    verified = verify_log(directory)
    assert (verified.segments, verified.size_bytes, verified.end_offset) == (3, 12 * SIZE_BYTES, 12)
    assert verified.problems == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("0\n3\n0 0\n1 4\n2 9\n", "it has epoch 1 for offset 8, but the batch there has 2"),
        ("0\n2\n0 0\n2 4\n", "it has epoch 2 for offset 4, but the batch there has 1"),
        ("0\n2\n1 0\n0 4\n", "epoch 0 from 4 on follows epoch 1 from 0 on: both must rise"),
        ("0\n4\n0 0\n1 4\n2 8\n3 13\n", "epoch 3 begins at 13, but the log ends at 12"),
        ("0\n3\n0 0\n", "it promises 3 entries and holds 1; a restart does without it"),
        ("0\n1\nzero 0\n", "'zero 0' is not an epoch and an offset; a restart does without it"),
        ("1\n0\n", "it does not begin with a version and a count; a restart does without it"),
    ],
)
def test_leader_epochs_that_contradict_the_batches_are_found(
    directory: Path, content: str, sentence: str
) -> None:
    (directory / EPOCHS).write_text(content)
    assert f"{EPOCHS}: {sentence}" in sentences(verify_log(directory).problems)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("0\n2\n0 0\n1 4\n", id="the last epoch was not written before a kill"),
        pytest.param("0\n2\n1 6\n2 8\n", id="the log's start lies within its first segment"),
        pytest.param("0\n4\n0 0\n1 4\n2 8\n3 12\n", id="a leader has not written yet"),
    ],
)
def test_leader_epochs_that_a_broker_leaves_are_no_problem(directory: Path, content: str) -> None:
    (directory / EPOCHS).write_text(content)
    assert verify_log(directory).problems == []


def test_a_mismatch_of_many_batches_is_reported_once(directory: Path) -> None:
    (directory / EPOCHS).write_text("0\n2\n0 0\n2 1\n")
    result = sentences(verify_log(directory).problems)
    assert [sentence for sentence in result if "for offset" in sentence] == [
        f"{EPOCHS}: it has epoch 2 for offset 1, but the batch there has 0",
        f"{EPOCHS}: it has epoch 2 for offset 4, but the batch there has 1",
    ]


def test_checkpoints_that_are_not_text_are_one_sentence(directory: Path) -> None:
    for name in (EPOCHS, "partition.metadata"):
        (directory / name).write_bytes(b"\xff\xfe\x00" * 100)
    assert sentences(verify_log(directory).problems) == [
        "partition.metadata: it holds no topic id",
        f"{EPOCHS}: it is not text; a restart does without it",
    ]


def test_an_index_without_a_segment_is_found(directory: Path) -> None:
    (directory / f"{99:020d}.timeindex").write_bytes(b"")
    assert sentences(verify_log(directory).problems) == [
        f"{99:020d}.timeindex: the index has no segment; a restart removes it"
    ]


# --- Snapshots of producers ---


@pytest.fixture
def with_producers(tmp_path: Path) -> Path:
    """Two producers, one with an open transaction from offset 2 on, in a log that ends at 4."""
    log = open_log(tmp_path)
    write(log, 7)
    abort(log, 7)
    write(log, 8, 2)
    log.close()
    return log.directory


def test_snapshots_that_match_the_log_are_no_problem(with_producers: Path) -> None:
    assert [path.name for path in with_producers.glob("*.snapshot")] == [f"{4:020d}.snapshot"]
    assert verify_log(with_producers).problems == []


def test_a_snapshot_that_knows_what_came_after_it_is_found(with_producers: Path) -> None:
    (with_producers / f"{4:020d}.snapshot").rename(with_producers / f"{2:020d}.snapshot")
    assert sentences(verify_log(with_producers).problems) == [
        f"{2:020d}.snapshot: producer 8 has offset 3, not before 2"
    ]


def test_a_snapshot_of_a_longer_log_is_found(with_producers: Path) -> None:
    (with_producers / f"{4:020d}.snapshot").write_bytes(snapshot(8, last_offset=5))
    (with_producers / f"{4:020d}.snapshot").rename(with_producers / f"{9:020d}.snapshot")
    assert sentences(verify_log(with_producers).problems) == [
        f"{9:020d}.snapshot: producer 8 has offset 5, but the log ends at 4"
    ]


def test_a_snapshot_with_another_producer_is_found(with_producers: Path) -> None:
    (with_producers / f"{4:020d}.snapshot").write_bytes(snapshot(9, last_offset=3))
    assert sentences(verify_log(with_producers).problems) == [
        f"{4:020d}.snapshot: offset 3 is of producer 9, but the log has it of 8"
    ]


def snapshot(producer_id: int, last_offset: int) -> bytes:
    """A snapshot with one producer, who wrote one batch."""
    producers = Producers()
    batch = encode_batch(messages([b"x"]), producer_id=producer_id, producer_epoch=0, base_sequence=0)
    producers.update(parse_batch_header(batch), last_offset, NOW_MS)
    return encode_snapshot(producers)


# --- Data directories ---


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_past_the_end_of_its_log_is_found(directory: Path, name: str) -> None:
    """Offsets of logs that were deleted meanwhile are not."""
    (directory.parent / name).write_text("0\n2\nt 0 13\ngone 0 99\n")
    (problem,) = DataDirectoryCheck(directory.parent).finish({("t", 0): 12})
    assert problem.path == directory.parent / name
    assert problem.sentence.startswith("it has offset 13 for t-0, which ends at 12: records that ")


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize(
    "content", [b"", b"0\n1\n", b"0\n1\nt 0\n", b"0\n1\nt 0 x\n", b"\xff" * 50, b"0\nx\n"]
)
def test_a_broken_checkpoint_is_found(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (problem,) = DataDirectoryCheck(tmp_path).finish({})
    assert problem.path == tmp_path / name
    assert problem.sentence.endswith("; a restart does without it")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"version=0\nbroker.id=1\n", "it does not name a cluster"),
        (b"\xff\xfe", "it is not text; no broker starts with it"),
    ],
)
def test_a_directory_of_nobody_is_found(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    assert sentences(DataDirectoryCheck(tmp_path).finish({})) == [f"meta.properties: {sentence}"]


def test_a_folder_that_is_no_data_directory_has_no_problems(tmp_path: Path) -> None:
    assert DataDirectoryCheck(tmp_path).finish({("t", 0): 5}) == []
