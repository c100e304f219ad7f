"""Producers and consumers of a simulated cluster. They trust the answers, and report them to the ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.invariants import Ledger
from tests.cluster.network import CLIENT, Network
from tests.cluster.simulated_broker import SimulatedBroker, fetch_request, rack_of
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.errors import OffsetOutOfRange, PeerUnavailable, ProtocolError
from mainstem_broker.protocol.batches import split_batches
from mainstem_broker.protocol.fetch_codec import FetchPartition
from mainstem_broker.protocol.wire import Body

PAUSE_S_MAX = 0.2
RETRY_S_MAX = 0.1
MORE = Message(b"more")
"""The records of a batch after the first."""


def leaders(network: Network, topic: str, index: int) -> list[int]:
    """Who thinks that it leads."""
    return [
        broker_id
        for broker_id, broker in network.brokers.items()
        if (partition := broker.replicas.find(topic, index)) is not None and partition.is_leader
    ]


@dataclass(eq=False)
class PartitionClient:
    """What a client of a partition works with."""

    topic: str
    index: int
    network: Network
    random: random.Random
    ledger: Ledger


@dataclass(eq=False)
class Producer(PartitionClient):
    """Sends batches of unique content, one after another, most of them with acks=all."""

    name: int
    records_max: int
    """Of a batch."""
    sent: int = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.random() * PAUSE_S_MAX)
            acks = 1 if self.random.random() < 0.15 else -1
            self.sent += 1
            await self._send(self._encode(), acks)

    def _encode(self) -> bytes:
        first = Message(b"%d-%d" % (self.name, self.sent))
        return encode_batch([first, *[MORE] * (self.random.randint(1, self.records_max) - 1)])

    async def _send(self, batch: bytes, acks: int) -> None:
        leader_ids = leaders(self.network, self.topic, self.index)
        if not leader_ids:
            await asyncio.sleep(self.random.random() * RETRY_S_MAX)
            return
        timeout_s = 0.05 + self.random.random()

        async def produce(broker: SimulatedBroker) -> Body:
            return await broker.produce(self.topic, self.index, batch, acks, timeout_s)

        try:
            async with asyncio.timeout(timeout_s + 0.5):
                answer = await self.network.call(CLIENT, self.random.choice(leader_ids), produce)
        except (PeerUnavailable, TimeoutError):
            return
        if answer["error_code"] == 0 and acks == -1:
            self.ledger.acknowledge(self.index, answer["base_offset"], batch)
        elif answer["error_code"] != 0:
            await asyncio.sleep(self.random.random() * RETRY_S_MAX)


@dataclass(eq=False)
class RackConsumer(PartitionClient):
    """Reads a partition again and again from where leaders send it: the follower in its rack (KIP-392)."""

    offset: int = 0
    rack: str = rack_of(1)
    preferred: int | None = None

    async def run(self) -> None:
        while True:
            broker_id = self.preferred
            if broker_id is None:
                leader_ids = leaders(self.network, self.topic, self.index)
                broker_id = self.random.choice(leader_ids) if leader_ids else None
            if broker_id is None or not await self._read(broker_id):
                self.preferred = None
                await asyncio.sleep(self.random.random() * RETRY_S_MAX)
            if self.random.random() < 0.05:
                # In another rack now, from the beginning.
                self.offset, self.preferred = 0, None
                self.rack = rack_of(self.random.randint(1, 4))

    async def _read(self, broker_id: int) -> bool:
        async def fetch(broker: SimulatedBroker) -> Any:
            topic = broker.member.view.topics[self.topic]
            position = FetchPartition(self.index, -1, self.offset, -1, -1, 10_000)
            positions = [(topic.topic_id, position)]
            answer = await broker.fetch(fetch_request(positions, 0.2, max_bytes=10_000, rack=self.rack))
            if answer["responses"][0]["partitions"][0]["error_code"] == OffsetOutOfRange.code:
                partition = broker.context.find_replica(self.topic, self.index)
                if partition.is_leader:
                    answer["start_offset"] = partition.log.log_start_offset
            return answer

        try:
            async with asyncio.timeout(2):
                answer = await self.network.call(CLIENT, broker_id, fetch)
        except (PeerUnavailable, ProtocolError, TimeoutError, KeyError):
            return False
        (topic,) = answer["responses"]
        (partition,) = topic["partitions"]
        self.offset = max(self.offset, answer.get("start_offset", 0))
        if partition["error_code"] != 0:
            return False
        replica = partition.get("preferred_read_replica", -1)
        if replica >= 0:
            self.preferred = replica
        for header, batch in split_batches(partition["records"] or b""):
            self.ledger.consumed_from_follower(self.index, header.base_offset, bytes(batch))
            self.offset = header.next_offset
        return True


@dataclass(eq=False)
class Consumer(PartitionClient):
    """Reads a partition from its beginning, wherever its leader is, and asks where it ends.

    Where records were deleted before it has read them, it goes on with the first one that is left.
    """

    offset: int = 0

    async def run(self) -> None:
        while True:
            leader_ids = leaders(self.network, self.topic, self.index)
            if not leader_ids or not await self._read(self.random.choice(leader_ids)):
                await asyncio.sleep(self.random.random() * RETRY_S_MAX)

    async def _read(self, leader: int) -> bool:
        async def fetch(broker: SimulatedBroker) -> Any:
            topic = broker.member.view.topics[self.topic]
            position = FetchPartition(
                partition=self.index,
                current_leader_epoch=-1,
                fetch_offset=self.offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=10_000,
            )
            answer = await broker.fetch(fetch_request([(topic.topic_id, position)], 0.2, max_bytes=10_000))
            if answer["responses"][0]["partitions"][0]["error_code"] == OffsetOutOfRange.code:
                partition = broker.context.find_replica(self.topic, self.index)
                self.ledger.out_of_range(self.index, self.offset, partition)
                answer["start_offset"] = partition.log.log_start_offset
            return answer

        async def latest(broker: SimulatedBroker) -> None:
            partition = broker.context.find_replica(self.topic, self.index)
            partition.require_leader()
            self.ledger.latest(self.index, partition.latest_offset(committed=False), partition.leader_epoch)

        try:
            async with asyncio.timeout(2):
                if self.random.random() < 0.2:
                    await self.network.call(CLIENT, leader, latest)
                    return True
                answer = await self.network.call(CLIENT, leader, fetch)
        except (PeerUnavailable, ProtocolError, TimeoutError):
            return False
        self.offset = max(self.offset, answer.get("start_offset", 0))
        (topic,) = answer["responses"]
        (partition,) = topic["partitions"]
        for header, batch in split_batches(partition["records"] or b""):
            self.ledger.consumed(self.index, self.offset, header, bytes(batch))
            self.offset = header.next_offset
        return bool(partition["error_code"] == 0)


@dataclass(eq=False)
class Trimmer(PartitionClient):
    """Deletes the beginning of a partition again and again, up to offsets inside batches and at their ends.

    Not when all is to be well again: the next deletion could help a replica that cannot go on.
    """

    pause_s_max: float
    limit: Callable[[], float]
    """Nothing is deleted at `limit()`, an offset, or beyond."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.random() * self.pause_s_max)
            leader_ids = leaders(self.network, self.topic, self.index)
            if leader_ids and not self.network.calm:
                await self._delete(self.random.choice(leader_ids))

    async def _delete(self, leader: int) -> None:
        async def delete(broker: SimulatedBroker) -> None:
            partition = broker.context.find_replica(self.topic, self.index)
            start = partition.log.log_start_offset
            end = min(partition.high_watermark, self.limit())
            if start < end:
                offset = self.random.choice((self.random.randint(start, int(end)), int(end)))
                self.ledger.deleted(self.index, offset)
                await broker.delete_records(self.topic, self.index, offset, 0.3)

        try:
            async with asyncio.timeout(1):
                await self.network.call(CLIENT, leader, delete)
        except (PeerUnavailable, ProtocolError, TimeoutError):
            pass
