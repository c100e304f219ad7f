"""A full disk is a protocol error to producers and nothing else: reads go on, writes come back (R6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, StartCluster
from tests.support.load import read_all
from tests.support.log_checks import problems_in
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch
from tests.support.small_disk import can_mount, small_disk
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch, list_offset, produce

DISK_BYTES: Final = 48 << 20
BALLAST_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 300_000

pytestmark = pytest.mark.skipif(
    not can_mount(), reason="only root can mount the small disk that this test fills"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as mount_point:
        yield mount_point


@pytest.fixture
def cluster(disk: Path, own_stack: StartCluster, reference: bool) -> Cluster:
    if reference:
        pytest.skip("Apache Kafka shuts down when its only disk is full")
    return own_stack(settings={"log.dirs": str(disk / "log")})


def _value(number: int) -> bytes:
    return b"%06d" % number * (BATCH_BYTES // 6)


def _fill(leader: Connection, topic: str) -> int:
    """Write until the broker refuses; how many batches it took."""
    for number in range(2 * DISK_BYTES // BATCH_BYTES):
        answer = produce(leader, topic, 0, encode_batch([Message(_value(number))]))
        if answer.error_code != ErrorCode.none:
            assert answer.error_code == ErrorCode.kafka_storage_error
            return number
    raise AssertionError("the disk never got full")


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(cluster: Cluster, disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    pid = cluster.broker_pid(1)
    new_topic = TopicFactory(cluster)
    topic, other = new_topic(), new_topic()
    with Connection(cluster.brokers[1]) as leader:
        stored = _fill(leader, topic)
        assert stored > 50

        # Refused again and again, for the other topic as well, without any harm to what is there.
        for _ in range(5):
            assert produce(leader, topic, 0, encode_batch([Message(_value(0))])).error_code != ErrorCode.none
        assert list_offset(leader, topic, 0, -1).offset == stored
        for number in range(stored):
            records = fetch(leader, topic, 0, number, partition_max_bytes=1).records
            assert _value(number) in records[HEADER.size :]
        metadata = new_topic.admin.list_topics(timeout=60)
        assert {topic, other} <= set(metadata.topics)
        assert cluster.broker_pid(1) == pid

        ballast.unlink()
        answer = produce(leader, topic, 0, encode_batch([Message(_value(stored))]))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, stored)
        assert produce(leader, other, 0, encode_batch([Message(b"x")])).error_code == ErrorCode.none

    cluster.kill_broker(1)
    cluster.start_broker(1)
    records = read_all(cluster.bootstrap_servers, topic, 0)
    assert records == {number: _value(number) for number in range(stored + 1)}
    assert problems_in(disk / "log" / f"{topic}-0") == []
