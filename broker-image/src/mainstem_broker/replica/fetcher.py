"""Copies partitions from one leader to this broker: a loop of fetches, one for all of them together.

What a fetch brings is given to `partition.py`, which decides; this file only asks, again and again, and
waits after failures. It knows the leader through `Leader`, an interface without a network.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from mainstem_broker.errors import OffsetOutOfRange, PeerUnavailable, ProtocolError
from mainstem_broker.protocol.compression import Buffer
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


Key = tuple[UUID, int]
"""A partition as the wire names it: its topic's id, and its number."""


class Fetched(NamedTuple):
    """What the leader answered for one partition. Offsets are -1 where it did not say."""

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: Divergence | None
    records: Buffer


class Leader(Protocol):
    """A broker that this one follows."""

    async def fetch(
        self, wanted: Mapping[Key, FetchedFrom], changed: Collection[Key], wait_s_max: float
    ) -> Iterable[Fetched]:
        """One fetch of all that is `wanted`; waits at the leader until there is something.

        `changed` are those that came, went or moved on since the fetch before. The leader is not to wait for
        longer than `wait_s_max` seconds, nor than `replica.fetch.wait.max.ms`.

        Raises:
            PeerUnavailable: no connection, or it broke.
        """
        ...

    def close(self) -> None:
        """Break off the fetch under way, if there is one; the next fetch connects anew."""
        ...


class Fetcher:
    """Follows one leader. After a change of `partitions` it is to be woken."""

    def __init__(
        self,
        broker_id: int,
        leader: Leader,
        partitions: Callable[[], list[Partition]],
        now_ms: Callable[[], int],
        on_records: Callable[[Partition, int], None] = lambda _partition, _size_bytes: None,
        is_throttled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_records` is told how many bytes came for a partition.

        While `is_throttled`, `partitions` may answer another thing each time, and is asked before each fetch.
        """
        self._broker_id = broker_id
        self._leader = leader
        self._partitions = partitions
        self._now_ms = now_ms
        self._on_records = on_records
        self._is_throttled = is_throttled
        self._resting: dict[Partition, tuple[float, int]] = {}
        """Until when, by the loop's clock, and the leader epoch that was refused."""
        # What each fetch asks for, kept from one to the next: a partition without news costs nothing.
        self._wanted: dict[Key, FetchedFrom] = {}
        self._followed: dict[Key, Partition] = {}
        self._moved: dict[Key, None] = {}
        """Those that the next fetch asks for otherwise than the one before."""
        self._is_stale = True
        """Whether what is wanted is to be found out anew."""
        self._is_asking = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"fetcher of broker {broker_id}")

    def wake(self) -> None:
        """The partitions have changed.

        A fetch that others wait in, quietly, for up to `replica.fetch.wait.max.ms` must not keep one waiting
        that has come to this leader by a failover: its producers wait for this broker. So it is broken off.
        """
        self._changed.set()
        self._is_stale = True
        if self._is_asking and any(self._is_left_out(partition) for partition in self._partitions()):
            self._leader.close()
        self._resting.clear()

    def _is_left_out(self, partition: Partition) -> bool:
        asked = self._wanted.get((partition.topic_id, partition.index))
        if asked is not None:
            return False  # a leader that begins another epoch answers by itself
        resting = self._resting.get(partition)
        return resting is None or resting[1] != partition.leader_epoch

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._leader.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not await self._has_fetched():
                await self._pause()

    async def _has_fetched(self) -> bool:
        """One fetch; whether to go on with the next at once."""
        try:
            return await self._fetch()
        except PeerUnavailable as error:
            if self._changed.is_set():
                return True  # broken off, or worth a try with what has changed
            logger.info("leader not reached", broker_id=self._broker_id, reason=str(error))
        except Exception:
            # Without this loop the replicas would stay behind for ever, and nobody would know.
            logger.exception("fetch failed", broker_id=self._broker_id)
        return False

    async def _fetch(self) -> bool:
        """One fetch for all that is to be followed now; whether there was anything."""
        if self._is_stale or self._resting or self._is_throttled():
            self._find_wanted()
        if not self._wanted:
            return False
        changed, self._moved = self._moved, {}
        # Those that rest are asked for again in time, though the others have nothing to tell: a leader that
        # refuses because it has not heard of its election has producers that wait for this broker.
        rested_s = min((until_s for until_s, _ in self._resting.values()), default=math.inf)
        self._is_asking = True
        try:
            answers = await self._leader.fetch(
                self._wanted, changed, max(0.0, rested_s - asyncio.get_running_loop().time())
            )
        finally:
            self._is_asking = False
        until_s = asyncio.get_running_loop().time() + BACKOFF_S  # one end for all that have to rest
        for answer in answers:
            key = answer.topic_id, answer.partition
            partition = self._followed.get(key)
            if partition is not None:
                if not self._take(partition, self._wanted[key], answer):
                    self._resting[partition] = until_s, partition.leader_epoch
                self._want(key, partition)
        return True

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(BACKOFF_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _find_wanted(self) -> None:
        self._is_stale = False
        now_s = asyncio.get_running_loop().time()
        self._resting = {partition: rest for partition, rest in self._resting.items() if rest[0] > now_s}
        gone = self._followed
        self._followed = {}
        for partition in self._partitions():
            if partition in self._resting:
                continue
            key = partition.topic_id, partition.index
            self._followed[key] = partition
            gone.pop(key, None)
            self._want(key, partition)
        for key in gone:
            del self._wanted[key]
            self._moved[key] = None

    def _want(self, key: Key, partition: Partition) -> None:
        """Note from where on the partition is to be fetched now."""
        offset, last_epoch = partition.fetch_position()
        wanted = FetchedFrom(
            partition.topic,
            partition.topic_id,
            partition.index,
            partition.leader_epoch,
            offset,
            last_epoch,
            partition.log.log_start_offset,
        )
        if wanted != self._wanted.get(key):
            self._wanted[key] = wanted
            self._moved[key] = None

    def _take(self, partition: Partition, asked: FetchedFrom, answer: Fetched) -> bool:
        """Take an answer; False if that cannot be, as of a leader that has changed: it is to rest."""
        if partition.leader_epoch != asked.leader_epoch:
            self._is_stale = True  # and the answer, to a question of the past, is left alone
            return True
        is_taken = True
        end_before, mark_before = partition.log.log_end_offset, partition.high_watermark
        try:
            if answer.error_code == OffsetOutOfRange.code and answer.log_start_offset > asked.offset:
                partition.start_over(answer.log_start_offset, leader_epoch=asked.leader_epoch)
            elif answer.error_code != 0:
                is_taken = False
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
            is_taken = False
        end = partition.log.log_end_offset
        if end < end_before:
            self._tell_of_truncation(partition, end, end_before, mark_before)
        return is_taken

    def _tell_of_truncation(self, partition: Partition, end: int, end_before: int, mark_before: int) -> None:
        """Say what was cut off: what a clean leader never had was never acknowledged, else it is a loss."""
        facts = {"partition": repr(partition), "leader": self._broker_id, "count": end_before - end}
        facts |= {"from_offset": end, "to_offset": end_before - 1}
        # The mark may be an old one (it is written down every few seconds), so that it proves a loss only.
        if end < mark_before or (partition.state is not None and partition.state.recovering):
            logger.warning("records lost to an unclean election", **facts)
        else:
            logger.info("replica truncated to its leader's log", **facts)
