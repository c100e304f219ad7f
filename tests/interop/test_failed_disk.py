"""A disk that fails takes only its own replicas offline; the last one to fail stops the broker (R8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from tests.support.failing_disk import FailingDisk, can_make_disks
from tests.support.waiting import wait_until

from mainstem.local.stack import Stack

PARTITIONS = 8
DISK_BYTES = 64 << 20

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not can_make_disks(), reason="only root can mount the disks that this test breaks"),
]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[FailingDisk]]:
    with ExitStack() as mounted:
        yield [mounted.enter_context(FailingDisk(tmp_path / name, DISK_BYTES)) for name in ("one", "two")]


@pytest.fixture
def stack(tmp_path: Path, disks: list[FailingDisk]) -> Iterator[Stack]:
    """Broker 1 has its logs on both disks."""
    directories = ",".join(str(disk.mount_point / "logs") for disk in disks)
    with Stack(tmp_path / "stack", 2, port=0, own_settings={1: {"log.dirs": directories}}) as started:
        yield started


def _partitions(admin: AdminClient) -> dict[int, PartitionMetadata]:
    results: dict[int, PartitionMetadata] = admin.list_topics("t", timeout=60).topics["t"].partitions
    return results


def _on(disk: FailingDisk) -> set[int]:
    logs = disk.mount_point / "logs"
    return {int(path.name.removeprefix("t-")) for path in logs.glob("t-*")}


def _send_to_all(stack: Stack, text: str) -> None:
    """One record to each partition, acknowledged by all in-sync replicas."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "acks": "all", "log_level": 0})

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for partition in range(PARTITIONS):
        producer.produce("t", text, partition=partition, on_delivery=delivered)
    assert producer.flush(30) == 0
    if failures:
        raise KafkaException(failures[0])


def test_a_failed_disk_takes_only_its_own_replicas_offline_and_the_last_one_stops_the_broker(
    stack: Stack, disks: list[FailingDisk]
) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS, 2)])["t"].result(30)
    _send_to_all(stack, "before")
    lost, kept = _on(disks[0]), _on(disks[1])
    assert lost and kept and lost | kept == set(range(PARTITIONS))

    disks[0].fail()
    _send_to_all(stack, "with one disk failed")

    wait_until(lambda: all(_partitions(admin)[index].leader == 2 for index in lost), "its leaders to move")
    for index, partition in _partitions(admin).items():
        assert sorted(partition.isrs) == ([2] if index in lost else [1, 2]), f"partition {index}"
    assert stack.unexpected_exits() == []
    assert {index for index in kept if _partitions(admin)[index].leader == 1}, "it still leads"

    # It is well again only after a restart, and then catches up.
    stack.stop_broker(1)
    disks[0].repair()
    _send_to_all(stack, "while it was away")
    stack.start_broker(1)
    wait_until(
        lambda: all(len(partition.isrs) == 2 for partition in _partitions(admin).values()), "all in sync"
    )

    for disk in disks:
        disk.fail()
    _send_to_all(stack, "with both disks failed")
    wait_until(lambda: bool(stack.unexpected_exits()), "the broker to stop")
    (process_exit,) = stack.unexpected_exits()
    assert "last data directory failed" in process_exit.cause


def test_a_broker_starts_without_a_disk_that_has_failed_and_makes_nothing_anew(
    stack: Stack, disks: list[FailingDisk]
) -> None:
    """An empty log in another directory would pass for the one that is not there."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS, 2)])["t"].result(30)
    _send_to_all(stack, "before")
    lost, kept = _on(disks[0]), _on(disks[1])

    stack.stop_broker(1)
    disks[0].fail()
    stack.start_broker(1)
    wait_until(
        lambda: all(sorted(_partitions(admin)[index].isrs) == [1, 2] for index in kept),
        "what is on the other disk to be in sync",
    )
    _send_to_all(stack, "after")
    assert _on(disks[1]) == kept
    assert all(_partitions(admin)[index].isrs == [2] for index in lost)
