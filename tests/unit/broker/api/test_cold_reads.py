"""Requests that need what is not in the page cache: they wait for the disk, and nothing else does (R42)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from tests.support.record_batches import read_headers
from tests.support.waiting import let_pass_async
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker
from tests.unit.broker.api.test_fetch import request
from tests.unit.broker.cold_files import ColdFiles, cold_files
from tests.unit.broker.replica.replicas import LIFE, state_of

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.wire import Body

__all__ = ["cold_files"]

US, FOLLOWER = 1, 2
TOPIC_ID = UUID(int=7)
BATCHES = 200
VALUE = b"x" * 1000
"""With the record's frame 1,080 bytes for a batch: a fetch of 5,000 bytes gets four."""


@pytest.fixture
def filled(broker: LocalBroker, cold_files: ColdFiles) -> LocalBroker:
    """Two partitions of a topic with 200 batches of one record, a second apart; nothing is cached."""
    replicas = (US, FOLLOWER)
    broker.view.set_topic(
        TopicAssignment("t", TOPIC_ID, {0: replicas, 1: replicas}), {"segment.bytes": "60000"}
    )
    for index in (0, 1):
        broker.set_state("t", index, state_of(US, 0, (US,)))
        for number in range(BATCHES):
            broker.append("t", [VALUE], index, NOW_MS + number * 1000)
    cold_files.evict()
    forget_positions(broker)
    return broker


def forget_positions(broker: LocalBroker) -> None:
    """As after a restart: nothing is known of a segment but what its files contain."""
    for index in (0, 1):
        for segment in broker.partition("t", index).log.segments:
            segment._boundaries.clear()
            segment.offset_index._block = segment.time_index._block = b""
            if segment.size_bytes and segment.offset_index._tail:
                segment.offset_index.write()
                segment.time_index.write()


fetch = partial(request, partition_max_bytes=5_000)


def first_offsets(body: Body) -> dict[int, list[int]]:
    assert body["error_code"] == 0
    return {
        answer["partition_index"]: [
            header.base_offset
            for header in read_headers(
                answer["records"].read() if isinstance(answer["records"], FileSlice) else answer["records"]
            )
        ]
        for topic in body["responses"]
        for answer in topic["partitions"]
        if not answer["error_code"]
    }


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("offset", [0, 57, 150])
async def test_a_fetch_of_what_is_not_cached_waits_for_the_disk_alone(
    filled: LocalBroker, cold_files: ColdFiles, offset: int
) -> None:
    cold_files.disk.clear()
    history = asyncio.ensure_future(filled.answer("Fetch", 11, fetch({0: offset, 1: offset})))
    await turns()
    assert not history.done()
    assert first_offsets(await filled.answer("Fetch", 11, fetch({0: BATCHES}))) == {0: []}
    cold_files.disk.set()
    expected = list(range(offset, offset + 4))
    assert first_offsets(await history) == {0: expected, 1: expected}


async def test_a_whole_log_is_read_though_nothing_of_it_is_cached(
    filled: LocalBroker, cold_files: ColdFiles
) -> None:
    offset = 0
    while offset < BATCHES:
        (offsets,) = first_offsets(await filled.answer("Fetch", 11, fetch({0: offset}))).values()
        assert offsets == list(range(offset, offset + len(offsets)))
        assert offsets
        offset += len(offsets)
        cold_files.evict()


async def test_a_fetch_whose_time_is_over_while_the_disk_is_read_is_answered_with_the_records(
    filled: LocalBroker, cold_files: ColdFiles
) -> None:
    """An empty answer would say that there is nothing there."""
    cold_files.disk.clear()
    history = asyncio.ensure_future(filled.answer("Fetch", 11, fetch({0: 5}, max_wait=1)))
    await let_pass_async(0.02, "the time of the fetch is over")
    assert not history.done()
    cold_files.disk.set()
    assert first_offsets(await history) == {0: [5, 6, 7, 8]}


async def test_what_is_cached_is_answered_at_once_and_loads_nothing(
    filled: LocalBroker, cold_files: ColdFiles
) -> None:
    await filled.answer("Fetch", 11, fetch({0: 5}))
    loads = filled.context.disk.loads
    assert loads > 0
    await filled.answer("Fetch", 11, fetch({0: 5}))
    assert filled.context.disk.loads == loads


async def test_a_lookup_by_time_waits_for_the_disk_alone(filled: LocalBroker, cold_files: ColdFiles) -> None:
    def lookup(timestamp: int) -> dict[str, Any]:
        return {
            "replica_id": -1,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
        }

    # As replicated: the follower is not in the set, so the high watermark is the log's end.
    cold_files.disk.clear()
    history = asyncio.ensure_future(filled.answer("ListOffsets", 5, lookup(NOW_MS + 60_000)))
    await turns()
    assert not history.done()
    assert (await filled.answer("ListOffsets", 5, lookup(-1)))["topics"][0]["partitions"][0][
        "offset"
    ] == BATCHES
    cold_files.disk.set()
    assert (await history)["topics"][0]["partitions"][0]["offset"] == 60


@dataclass
class Follower:
    """Broker 2, which fetches in one session."""

    broker: LocalBroker
    session_id: int = 0

    async def fetch(self, epoch: int, offsets: Mapping[int, int], wait_ms: int = 0) -> dict[int, list[int]]:
        """The first offsets of the batches that it gets, by partition."""
        partitions = [
            {
                "partition": index,
                "current_leader_epoch": 0,
                "fetch_offset": offset,
                "last_fetched_epoch": 0,
                "partition_max_bytes": 5_000,
            }
            for index, offset in offsets.items()
        ]
        request = {
            "replica_state": {"replica_id": FOLLOWER, "replica_epoch": LIFE},
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_id": self.session_id,
            "session_epoch": epoch,
            "topics": [{"topic_id": TOPIC_ID, "partitions": partitions}],
        }
        body = await self.broker.answer("Fetch", 17, request)
        self.session_id = body["session_id"]
        return {index: offsets for index, offsets in first_offsets(body).items() if offsets}


async def test_a_follower_gets_what_is_cached_while_the_rest_is_loaded(
    filled: LocalBroker, cold_files: ColdFiles
) -> None:
    follower = Follower(filled)
    await filled.answer("Fetch", 11, fetch({1: 20}))  # which caches that
    cold_files.disk.clear()
    assert await follower.fetch(0, {0: 20, 1: 20}) == {1: [20, 21, 22, 23]}
    waiting = asyncio.ensure_future(follower.fetch(1, {1: BATCHES}, wait_ms=10_000))
    await turns()
    assert not waiting.done()
    cold_files.disk.set()
    assert await waiting == {0: [20, 21, 22, 23]}


async def test_a_follower_that_goes_away_leaves_nothing_behind(
    filled: LocalBroker, cold_files: ColdFiles
) -> None:
    cold_files.disk.clear()
    await Follower(filled).fetch(0, {0: 20})
    filled.context.follower_sessions.close(FOLLOWER)
    cold_files.disk.set()
    await let_pass_async(0.01, "the thread has ended")
    assert len(filled.context.follower_sessions) == 0
