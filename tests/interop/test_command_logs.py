"""`mainstem log` on the files of a real broker (R6, R9)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.clusters import SharedCluster, StartCluster
from tests.support.command_line import mainstem
from tests.support.topics import TopicFactory


@pytest.fixture
def partition_directory(local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path) -> Path:
    """A copy of a partition's files with 1,000 records in four batches or more."""
    topic = new_topic()
    for start in range(0, 1000, 250):
        lines = b"".join(b"k%d:%0100d\n" % (number % 7, number) for number in range(start, start + 250))
        mainstem("produce", topic, "--key-separator", ":", cluster=local_stack, stdin=lines)
    (result,) = local_stack.data_directory.glob(f"broker-*/data/{topic}-0")
    return Path(shutil.copytree(result, tmp_path / "copy-0"))


def test_batches_and_records_are_shown(partition_directory: Path) -> None:
    batches = [
        json.loads(line)
        for line in mainstem(
            "log", "dump", partition_directory, "--records", "-o", "json"
        ).stdout.splitlines()
    ]
    assert sum(batch["record_count"] for batch in batches) == 1000
    assert all(batch["crc_valid"] for batch in batches)
    records = [record for batch in batches for record in batch["records"]]
    assert [record["offset"] for record in records] == list(range(1000))
    assert records[10]["value"] == f"{10:0100}"
    shown = mainstem("log", "dump", partition_directory).stdout.decode().splitlines()
    assert shown[0].startswith(str(partition_directory / "00000000000000000000.log"))
    assert shown[1].split()[:3] == ["First", "offset", "Last"]
    assert shown[2].split()[0] == "0"


def test_a_flipped_byte_is_found_and_ends_with_an_error(partition_directory: Path) -> None:
    segment = partition_directory / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[content.index(b"0" * 50, len(content) // 2)] ^= 1  # in a record; the checksum covers no offset
    segment.write_bytes(content)
    for command in ("verify", "dump"):
        ended = mainstem("log", command, partition_directory, exit_code=1)
        first, *_, error = ended.stderr.decode().splitlines()
        assert first.startswith(f"✗ {segment} at byte ")
        assert "does not match its checksum" in first
        assert error.startswith("Error: ")
        assert error.endswith(" found.")


def test_the_directory_of_a_running_broker_verifies(own_stack: StartCluster) -> None:
    """R6: files may be checked while their broker writes them."""
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(3)
        mainstem("produce", topic, cluster=cluster, stdin=b"value\n" * 500)
        shown = mainstem("log", "verify", cluster.data_directory, "-o", "json").stdout
        verified = [json.loads(line) for line in shown.splitlines()]
        assert {Path(row["log"]).name for row in verified} == {f"{topic}-{number}" for number in range(3)}
        assert [problem for row in verified for problem in row["problems"]] == []
