"""Copies partitions from one leader to this broker: a loop of fetches, one for all of them together.

What a fetch brings is given to `partition.py`, which decides; this file only asks, again and again, and
waits after failures. It knows the leader through `Leader`, an interface without a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from mainstem_broker.errors import OffsetOutOfRange, PeerUnavailable, ProtocolError
from mainstem_broker.replica.partition import Divergence, Partition

logger = structlog.get_logger(__name__)

BACKOFF_S: Final = 0.1
"""After a failure: long enough not to spin, short beside any failover."""


class FetchedFrom(NamedTuple):
    """Where a partition's fetch begins: what the follower has, and whom it follows."""

    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """What the leader answered for one partition. Offsets are -1 where it did not say."""

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: Divergence | None
    records: bytes


class Leader(Protocol):
    """A broker that this one follows."""

    async def fetch(self, wanted: Sequence[FetchedFrom]) -> Iterable[Fetched]:
        """One fetch; waits at the leader until there is something.

        Raises:
            PeerUnavailable: no connection, or it broke.
        """
        ...

    def close(self) -> None:
        """Break off the fetch under way, if there is one; the next fetch connects anew."""
        ...


class Fetcher:
    """Follows one leader. `partitions` is looked at before each fetch, so it may change at any time."""

    def __init__(
        self,
        broker_id: int,
        leader: Leader,
        partitions: Callable[[], list[Partition]],
        now_ms: Callable[[], int],
        on_records: Callable[[Partition, int], None] = lambda _partition, _size_bytes: None,
    ) -> None:
        """`on_records` is told how many bytes came for a partition."""
        self._broker_id = broker_id
        self._leader = leader
        self._partitions = partitions
        self._now_ms = now_ms
        self._on_records = on_records
        self._resting: dict[Partition, float] = {}
        self._asked: dict[Partition, FetchedFrom] = {}
        """The fetch under way; empty while there is none."""
        self._served_last: Partition | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"fetcher of broker {broker_id}")

    def wake(self) -> None:
        """The partitions have changed.

        A fetch that others wait in, quietly, for up to `replica.fetch.wait.max.ms` must not keep one waiting
        that has come to this leader by a failover: its producers wait for this broker. So it is broken off.
        """
        self._changed.set()
        if self._asked and any(self._is_left_out(partition) for partition in self._partitions()):
            self._leader.close()
        self._resting.clear()

    def _is_left_out(self, partition: Partition) -> bool:
        asked = self._asked.get(partition)
        if asked is None:
            return partition not in self._resting
        return asked.leader_epoch != partition.leader_epoch

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._leader.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                if not await self._fetch():
                    await self._pause()
            except PeerUnavailable as error:
                if self._changed.is_set():
                    continue  # broken off, or worth a try with what has changed
                logger.info("leader not reached", broker_id=self._broker_id, reason=str(error))
                await self._pause()
            except Exception:
                # Without this loop the replicas would stay behind for ever, and nobody would know.
                logger.exception("fetch failed", broker_id=self._broker_id)
                await self._pause()

    async def _fetch(self) -> bool:
        """One fetch for all that is to be followed now; whether there was anything."""
        wanted = self._wanted()
        if not wanted:
            return False
        self._asked = wanted
        try:
            answers = await self._leader.fetch(list(wanted.values()))
        finally:
            self._asked = {}
        by_id = {(partition.topic_id, partition.index): partition for partition in wanted}
        for answer in answers:
            partition = by_id.get((answer.topic_id, answer.partition))
            if partition is not None:
                self._take(partition, wanted[partition], answer)
                if answer.records:
                    self._served_last = partition
        return True

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(BACKOFF_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _wanted(self) -> dict[Partition, FetchedFrom]:
        now_s = asyncio.get_running_loop().time()
        wanted = {}
        for partition in self._in_turn(self._partitions()):
            if self._resting.get(partition, 0) > now_s:
                continue
            self._resting.pop(partition, None)
            offset, last_epoch = partition.fetch_position()
            wanted[partition] = FetchedFrom(
                partition.topic,
                partition.topic_id,
                partition.index,
                partition.leader_epoch,
                offset,
                last_epoch,
                partition.log.log_start_offset,
            )
        return wanted

    def _in_turn(self, partitions: list[Partition]) -> list[Partition]:
        """Beginning after the one that got data last: an answer is full after some, the next are others'."""
        if self._served_last not in partitions:
            return partitions
        first = partitions.index(self._served_last) + 1
        return partitions[first:] + partitions[:first]

    def _take(self, partition: Partition, asked: FetchedFrom, answer: Fetched) -> None:
        end_before, mark_before = partition.log.log_end_offset, partition.high_watermark
        try:
            if answer.error_code == OffsetOutOfRange.code and answer.log_start_offset > asked.offset:
                partition.start_over(answer.log_start_offset, leader_epoch=asked.leader_epoch)
            elif answer.error_code != 0:
                self._rest(partition)
            elif answer.diverging is not None:
                partition.truncate_to_divergence(answer.diverging, leader_epoch=asked.leader_epoch)
            else:
                if answer.records:
                    self._on_records(partition, len(answer.records))
                partition.append_from_leader(
                    answer.records,
                    leader_epoch=asked.leader_epoch,
                    high_watermark=answer.high_watermark,
                    log_start_offset=answer.log_start_offset,
                    now_ms=self._now_ms(),
                )
        except ProtocolError as error:
            logger.error("replica not extended", partition=repr(partition), reason=str(error))
            self._rest(partition)
        end = partition.log.log_end_offset
        if end < end_before:
            self._tell_of_truncation(partition, end, end_before, mark_before)

    def _tell_of_truncation(self, partition: Partition, end: int, end_before: int, mark_before: int) -> None:
        """Say what was cut off: what a clean leader never had was never acknowledged, else it is a loss."""
        facts = {"partition": repr(partition), "leader": self._broker_id, "count": end_before - end}
        facts |= {"from_offset": end, "to_offset": end_before - 1}
        # The mark may be an old one (it is written down every few seconds), so that it proves a loss only.
        if end < mark_before or (partition.state is not None and partition.state.recovering):
            logger.warning("records lost to an unclean election", **facts)
        else:
            logger.info("replica truncated to its leader's log", **facts)

    def _rest(self, partition: Partition) -> None:
        """Leave the partition out for a moment: its leader has changed, or something is wrong with it."""
        self._resting[partition] = asyncio.get_running_loop().time() + BACKOFF_S
