"""Readers are independent of each other and of writers: each at its own pace and place (R13, R14)."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support.clusters import SharedCluster, partition_directory
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch, fetch_fields, produce

MEGABYTE: Final = 1 << 20


def _fill(new_topic: TopicFactory, batches: int) -> str:
    """A topic of `batches` batches of 500 KB, a record each."""
    topic = new_topic()
    with Connection(new_topic.leader_address(topic)) as leader:
        for number in range(batches):
            produce(leader, topic, 0, encode_batch([Message(bytes([number % 256]) * 500_000)]))
    return topic


def test_readers_that_ask_and_never_read_slow_nobody(new_topic: TopicFactory) -> None:
    """A reader whose socket is full must cost the broker no time, nor the answers' memory."""
    topic = _fill(new_topic, 40)
    address = new_topic.leader_address(topic)
    stuck = [Connection(address) for _ in range(30)]
    try:
        with Connection(address) as leader:
            undisturbed = _read_all(leader, topic, 40)
            writing_undisturbed = _write(leader, topic)
            for connection in stuck:
                for _ in range(3):
                    connection.send(
                        "fetch", 12, **fetch_fields([(topic, 0, 0)], max_bytes=20 * MEGABYTE,
                                                    partition_max_bytes=20 * MEGABYTE)
                    )  # fmt: skip
            disturbed = _read_all(leader, topic, 40)
            writing_disturbed = _write(leader, topic)
    finally:
        for connection in stuck:
            connection.close()

    assert disturbed < undisturbed * 10 + 1
    assert writing_disturbed < writing_undisturbed * 10 + 1


def _write(leader: Connection, topic: str) -> float:
    started = time.monotonic()
    for _ in range(50):
        produce(leader, topic, 0, encode_batch([Message(b"x")]))
    return time.monotonic() - started


def _read_all(leader: Connection, topic: str, count: int) -> float:
    started = time.monotonic()
    for offset in range(count):
        assert len(fetch(leader, topic, 0, offset).records) >= 500_000
    return time.monotonic() - started


def test_a_reader_from_the_beginning_does_not_hold_up_one_at_the_end(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """R13: while some read all of the past again and again, a new message still arrives promptly."""
    topic = _fill(new_topic, 60)
    address = new_topic.leader_address(topic)
    stop = threading.Event()

    def reread() -> int:
        reads = 0
        with Connection(address) as connection:
            while not stop.is_set():
                _read_all(connection, topic, 60)
                reads += 1
        return reads

    delays = []
    with ThreadPoolExecutor(2) as pool:
        past = [pool.submit(reread) for _ in range(2)]
        try:
            with Connection(address) as tail, Connection(address) as writer:
                for offset in range(60, 90):
                    tail.send("fetch", 12, **fetch_fields([(topic, 0, offset)], max_wait_ms=20_000))
                    started = time.monotonic()
                    produce(writer, topic, 0, encode_batch([Message(b"now")]))
                    assert tail.receive().responses[0].partitions[0].records
                    delays.append(time.monotonic() - started)
        finally:
            stop.set()
        assert all(reader.result() > 0 for reader in past)

    assert sorted(delays)[len(delays) // 2] < 0.5


def test_what_is_only_on_the_disk_is_read_whole_while_the_tail_is_served(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """R42."""
    topic, tail_topic = _fill(new_topic, 60), new_topic()
    directory = partition_directory(local_stack, topic)
    stop = threading.Event()

    def reread() -> int:
        reads = 0
        with Connection(new_topic.leader_address(topic)) as connection:
            while not stop.is_set():
                _evict(directory)
                for offset in range(60):
                    assert bytes([offset]) * 500_000 in fetch(connection, topic, 0, offset).records
                reads += 1
        return reads

    delays = []
    address = new_topic.leader_address(tail_topic)
    with ThreadPoolExecutor(1) as pool:
        past = pool.submit(reread)
        try:
            with Connection(address) as tail, Connection(address) as writer:
                for offset in range(60):
                    tail.send("fetch", 12, **fetch_fields([(tail_topic, 0, offset)], max_wait_ms=20_000))
                    started = time.monotonic()
                    produce(writer, tail_topic, 0, encode_batch([Message(b"now")]))
                    assert tail.receive().responses[0].partitions[0].records
                    delays.append(time.monotonic() - started)
        finally:
            stop.set()
        assert past.result() > 0

    assert sorted(delays)[len(delays) // 2] < 0.5


def _evict(directory: Path) -> None:
    """Take a log's files out of the page cache, where the file system has one."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
