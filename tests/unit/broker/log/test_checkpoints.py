from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import InvalidSetting
from mainstem_broker.log import checkpoints
from mainstem_broker.log.leader_epochs import EpochEntry

TOPIC_ID = uuid.UUID("5f4c0a4e-8d0b-4a2e-9c3b-0a1b2c3d4e5f")


def test_offset_checkpoints_have_the_format_of_apache_kafka(tmp_path: Path) -> None:
    offsets = {("flights", 0): 12, ("a.b-c_d", 11): 0}
    checkpoints.write_offsets(tmp_path, checkpoints.RECOVERY_POINTS, offsets)
    path = tmp_path / "recovery-point-offset-checkpoint"
    assert path.read_text() == "0\n2\nflights 0 12\na.b-c_d 11 0\n"
    assert checkpoints.read_offsets(tmp_path, checkpoints.RECOVERY_POINTS) == offsets
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_leader_epochs_have_the_format_of_apache_kafka(tmp_path: Path) -> None:
    entries = (EpochEntry(0, 0), EpochEntry(3, 17))
    checkpoints.write_epochs(tmp_path, entries)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 17\n"
    assert checkpoints.read_epochs(tmp_path).entries == entries


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"0\n", id="no count"),
        pytest.param(b"1\n0\n", id="other version"),
        pytest.param(b"0\n2\nflights 0 12\n", id="entries missing"),
        pytest.param(b"0\n1\nflights 0 12\nflights 1 12\n", id="entries too many"),
        pytest.param(b"0\n1\nflights 0\n", id="field missing"),
        pytest.param(b"0\n1\nflights zero 12\n", id="no number"),
        pytest.param(b"0\nmany\n", id="count no number"),
        pytest.param(b"\xff\xfe\x00", id="not text"),
    ],
)
def test_a_broken_checkpoint_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    """R6: the cost is a full recovery, never a wrong one."""
    (tmp_path / checkpoints.RECOVERY_POINTS).write_bytes(content)
    (tmp_path / checkpoints.LEADER_EPOCHS).write_bytes(content)
    assert checkpoints.read_offsets(tmp_path, checkpoints.RECOVERY_POINTS) == {}
    assert checkpoints.read_epochs(tmp_path).entries == ()


@given(content=st.binary(max_size=60) | st.text(alphabet="0123 \nab", max_size=40).map(str.encode))
def test_no_content_of_a_checkpoint_stops_a_start(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    directory = tmp_path_factory.mktemp("checkpoint")
    for name in (checkpoints.LOG_START_OFFSETS, checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA):
        (directory / name).write_bytes(content)
    checkpoints.read_offsets(directory, checkpoints.LOG_START_OFFSETS)
    checkpoints.read_epochs(directory)
    checkpoints.read_topic_id(directory)


def test_a_failure_while_writing_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write_offsets(tmp_path, checkpoints.HIGH_WATERMARKS, {("t", 0): 1})

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write_offsets(tmp_path, checkpoints.HIGH_WATERMARKS, {("t", 0): 2})
    assert checkpoints.read_offsets(tmp_path, checkpoints.HIGH_WATERMARKS) == {("t", 0): 1}


def test_the_topic_id_has_the_format_of_apache_kafka(tmp_path: Path) -> None:
    checkpoints.write_topic_id(tmp_path, TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: X0wKTo0LSi6cOwobLD1OXw"
    assert checkpoints.read_topic_id(tmp_path) == TOPIC_ID


def test_meta_properties_say_whose_directory_it_is(tmp_path: Path) -> None:
    checkpoints.write_meta_properties(tmp_path, 3, "cluster")
    assert checkpoints.read_meta_properties(tmp_path) == {
        "version": "0",
        "broker.id": "3",
        "cluster.id": "cluster",
    }
    (tmp_path / checkpoints.META_PROPERTIES).write_bytes(b"\xff")
    with pytest.raises(InvalidSetting):
        checkpoints.read_meta_properties(tmp_path)
