"""A fetch that waits is broken off for a partition that it leaves out, and for no other reason."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast
from uuid import NAMESPACE_DNS, uuid5

import pytest
from tests.support.waiting import let_pass_async

from mainstem_broker.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    PeerUnavailable,
    ProtocolError,
    UnknownLeaderEpoch,
)
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.replica import fetcher as module
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom, Fetcher
from mainstem_broker.replica.partition import Partition

LEADER = 2


@pytest.fixture(autouse=True)
def partitions_rest_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a busy machine takes for what is to happen meanwhile."""
    monkeypatch.setattr(module, "BACKOFF_S", 2.0)


class QuietLeader:
    """Has nothing new: a fetch waits as long as it may, or until the connection is closed.

    What is `refused` is told at once.
    """

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[tuple[str, int]]] = asyncio.Queue()
        self.refused: set[tuple[str, int]] = set()
        self.code = FencedLeaderEpoch.code
        self._waiting: asyncio.Future[None] | None = None

    async def fetch(
        self,
        positions: Mapping[TopicIdPartition, FetchedFrom],
        changed: Collection[TopicIdPartition],
        wait_s_max: float,
    ) -> Iterable[Fetched]:
        self.asked.put_nowait([(item.topic, item.leader_epoch) for item in positions.values()])
        refused = [item for item in positions.values() if (item.topic, item.leader_epoch) in self.refused]
        if refused:
            return [Fetched(item.topic_id, item.partition, self.code, -1, -1, None, b"") for item in refused]
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._waiting, None if wait_s_max == math.inf else wait_s_max)
        except TimeoutError:
            return []
        raise PeerUnavailable("The connection was closed.")

    def close(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class EmptyReplica:
    """As much of a partition as a fetch needs."""

    index = 0
    log = SimpleNamespace(log_start_offset=0, log_end_offset=0)
    high_watermark = 0

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.topic_id = uuid5(NAMESPACE_DNS, topic)
        self.leader_epoch = 1

    def fetch_position(self) -> tuple[int, int]:
        return 0, -1


@asynccontextmanager
async def waiting_fetch(replicas: list[EmptyReplica]) -> AsyncIterator[tuple[QuietLeader, Fetcher]]:
    """A fetcher whose fetch waits for `replicas`, which may change."""
    leader = QuietLeader()
    fetcher = Fetcher(LEADER, leader, lambda: cast("list[Partition]", list(replicas)), lambda: 0)
    try:
        assert await leader.asked.get() == [(replica.topic, 1) for replica in replicas]
        yield leader, fetcher
    finally:
        await fetcher.stop()


async def refuse_in_the_next_epoch(
    replicas: list[EmptyReplica], leader: QuietLeader, fetcher: Fetcher
) -> None:
    """The second of two replicas is led in epoch 2, of which its leader has not heard."""
    quiet, late = replicas
    leader.refused.add((late.topic, 2))
    late.leader_epoch = 2
    leader.close()
    fetcher.wake()
    assert await leader.asked.get() == [(quiet.topic, 1), (late.topic, 2)]
    assert await leader.asked.get() == [(quiet.topic, 1)], "it rests"


async def test_a_partition_that_comes_to_a_leader_is_asked_for_at_once() -> None:
    replicas = [EmptyReplica("quiet")]
    async with waiting_fetch(replicas) as (leader, fetcher):
        replicas.append(EmptyReplica("busy"))
        fetcher.wake()
        assert await leader.asked.get() == [("quiet", 1), ("busy", 1)]


async def test_so_is_one_that_was_refused_before_the_news_of_the_election_came() -> None:
    replicas = [EmptyReplica("quiet"), EmptyReplica("busy")]
    async with waiting_fetch(replicas) as (leader, fetcher):
        leader.refused.add(("busy", 1))
        leader.close()
        fetcher.wake()
        assert await leader.asked.get() == [("quiet", 1), ("busy", 1)]
        assert await leader.asked.get() == [("quiet", 1)], "it rests"
        replicas[1].leader_epoch = 2
        fetcher.wake()
        assert await leader.asked.get() == [("quiet", 1), ("busy", 2)]


@pytest.mark.parametrize("error", [UnknownLeaderEpoch, NotLeaderOrFollower])
async def test_a_fetch_waits_no_longer_than_others_rest(error: type[ProtocolError]) -> None:
    """A leader that had not heard of its election will in a moment; its producers wait for this follower."""

    replicas = [EmptyReplica("quiet"), EmptyReplica("busy")]
    async with waiting_fetch(replicas) as (leader, fetcher):
        leader.code = error.code
        await refuse_in_the_next_epoch(replicas, leader, fetcher)
        leader.refused.clear()
        assert await leader.asked.get() == [("quiet", 1), ("busy", 2)]
        assert not fetcher._resting


async def test_a_partition_that_went_away_while_it_rested_hurries_nobody() -> None:
    replicas = [EmptyReplica("quiet"), EmptyReplica("gone")]
    async with waiting_fetch(replicas) as (leader, fetcher):
        await refuse_in_the_next_epoch(replicas, leader, fetcher)
        replicas.pop()  # as when moves are throttled: without a word
        assert await leader.asked.get() == [("quiet", 1)]
        await let_pass_async(module.BACKOFF_S + 0.2, "another fetch would have begun by then")
        assert leader.asked.empty()


async def test_other_changes_let_a_fetch_wait_on() -> None:
    """Also another epoch of a leader that is asked already: it answers when it hears of that itself."""

    replicas = [EmptyReplica("quiet"), EmptyReplica("moved"), EmptyReplica("gone")]
    async with waiting_fetch(replicas) as (leader, fetcher):
        replicas.pop()
        replicas[1].leader_epoch = 2
        fetcher.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert leader.asked.empty()
