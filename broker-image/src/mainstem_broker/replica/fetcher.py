"""Copies partitions from one leader to this broker: a loop of fetches, one for all of them together.

`partition.py` decides about the answers; this file only sends fetches, one after another, and
waits after failures. It knows the leader through `Leader`, an interface without a network.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from mainstem_broker.errors import OffsetOutOfRange, PeerUnavailable, ProtocolError, StorageError
from mainstem_broker.log.leader_epochs import UNDEFINED_EPOCH
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition

logger = structlog.get_logger(__name__)

_MILLISECOND_S: Final = 0.001
BACKOFF_S: Final = 0.1
"""After a failure: long enough not to spin, short beside any failover."""
POSITIONS_AT_ONCE: Final = 1_000
"""Positions that are determined before others get their turn: some milliseconds' worth."""


class FetchedFrom(NamedTuple):
    """The position of a partition's fetch: what the follower has, and the epoch that it follows."""

    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """The leader's answer for one partition. Offsets that it leaves out are -1."""

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
        self,
        positions: Mapping[TopicIdPartition, FetchedFrom],
        changed: Collection[TopicIdPartition],
        wait_s_max: float,
    ) -> Iterable[Fetched]:
        """One fetch from `positions`; waits at the leader until there is news.

        `changed` are those that were added, removed or moved since the previous fetch. The leader waits no
        longer than `wait_s_max` seconds or `replica.fetch.wait.max.ms`.

        Raises:
            PeerUnavailable: no connection, or it broke.
        """
        ...

    def close(self) -> None:
        """Cancel the fetch in progress, if there is one; the next fetch connects again."""
        ...


async def _nothing_to_do() -> None:
    pass


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
        after_truncation: Callable[[], Awaitable[None]] = _nothing_to_do,
    ) -> None:
        """`on_records` is called with the number of bytes that came for a partition.

        `after_truncation` is awaited before the next fetch when logs were truncated.

        While `is_throttled`, `partitions` may change at any time, and is called before each fetch.
        """
        self._broker_id = broker_id
        self._leader = leader
        self._partitions = partitions
        self._now_ms = now_ms
        self._on_records = on_records
        self._is_throttled = is_throttled
        self._after_truncation = after_truncation
        self._has_truncated = False
        self._resting: dict[Partition, tuple[float, int]] = {}
        """Until when, by the loop's clock, and the leader epoch that was refused."""
        # Positions are kept from one fetch to the next: a partition without news costs nothing.
        self._positions: dict[TopicIdPartition, FetchedFrom] = {}
        self._followed: dict[TopicIdPartition, Partition] = {}
        self._moved: dict[TopicIdPartition, None] = {}
        """Those that the next fetch asks for otherwise than the one before."""
        self._refusals: dict[Partition, int] = {}
        """Error codes with which the leader refuses partitions: each is logged once, not with each fetch."""
        self._is_stale = True
        """Whether the positions have to be determined again."""
        self._is_fetching = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"fetcher of broker {broker_id}")

    def wake(self) -> None:
        """The partitions have changed.

        A fetch that waits for news of other partitions, for up to `replica.fetch.wait.max.ms`, must not delay
        one that has come to this leader by a failover: its producers wait for this broker. So it is
        cancelled.
        """
        self._changed.set()
        self._is_stale = True
        if self._is_fetching and any(self._is_left_out(partition) for partition in self._partitions()):
            self._leader.close()
        self._resting.clear()

    def _is_left_out(self, partition: Partition) -> bool:
        position = self._positions.get((partition.topic_id, partition.index))
        if position is not None:
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
        """Send one fetch; whether to continue with the next at once."""
        try:
            return await self._fetch()
        except PeerUnavailable as error:
            if self._changed.is_set():
                return True  # cancelled, or worth another attempt after a change
            logger.info("leader not reached", broker_id=self._broker_id, reason=str(error))
        except StorageError as error:
            logger.error("truncation not written", reason=str(error))
        except Exception:
            # Without this loop the replicas would stay behind for ever, unnoticed.
            logger.exception("fetch failed", broker_id=self._broker_id)
        return False

    async def _fetch(self) -> bool:
        """Send one fetch for all that is followed now; whether it brought anything."""
        if self._is_stale or self._resting or self._is_throttled():
            await self._refresh_positions()
        if self._has_truncated:
            await self._after_truncation()
            self._has_truncated = False
        if not self._positions:
            return False
        changed, self._moved = self._moved, {}
        # Those that rest are asked for again in time, though the others have nothing to tell: a leader that
        # refuses because it has not heard of its election has producers that wait for this broker.
        rested_s = min((until_s for until_s, _ in self._resting.values()), default=math.inf)
        self._is_fetching = True
        try:
            answers = await self._leader.fetch(
                self._positions, changed, max(0.0, rested_s - asyncio.get_running_loop().time())
            )
        finally:
            self._is_fetching = False
        until_s = asyncio.get_running_loop().time() + BACKOFF_S  # one end for all that have to rest
        refused: dict[int, list[Partition]] = {}
        for answer in answers:
            key = answer.topic_id, answer.partition
            partition = self._followed.get(key)
            if partition is not None:
                if not self._take(partition, self._positions[key], answer):
                    self._resting[partition] = until_s, partition.leader_epoch
                    if answer.error_code not in (0, self._refusals.get(partition)):
                        self._refusals[partition] = answer.error_code
                        refused.setdefault(answer.error_code, []).append(partition)
                elif self._refusals:
                    self._refusals.pop(partition, None)
                self._set_position(key, partition)
        for error_code, partitions in refused.items():
            logger.info(
                "fetch refused by the leader",
                broker_id=self._broker_id,
                error_code=error_code,
                count=len(partitions),
                partition=repr(partitions[0]),
            )
        return True

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(BACKOFF_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _refresh_positions(self) -> None:
        self._is_stale = False  # a change from here on makes them stale again, for the fetch after this one
        now_s = asyncio.get_running_loop().time()
        # The wire and the loop count whole milliseconds: a shorter rest would be requested again and again.
        rests = self._resting.items()
        self._resting = {partition: rest for partition, rest in rests if rest[0] - now_s >= _MILLISECOND_S}
        gone = self._followed
        self._followed = {}
        partitions = self._partitions()
        if self._refusals:
            self._refusals = {
                partition: self._refusals[partition]
                for partition in partitions
                if partition in self._refusals
            }
        for count, partition in enumerate(partitions, start=1):
            if count % POSITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if partition in self._resting:
                continue
            key = partition.topic_id, partition.index
            self._followed[key] = partition
            gone.pop(key, None)
            self._set_position(key, partition)
        for key in gone:
            del self._positions[key]
            self._moved[key] = None

    def _set_position(self, key: TopicIdPartition, partition: Partition) -> None:
        """Set the position from which the partition is fetched next."""
        offset, last_epoch = partition.fetch_position()
        position = FetchedFrom(
            partition.topic,
            partition.topic_id,
            partition.index,
            partition.leader_epoch,
            offset,
            last_epoch,
            partition.log.log_start_offset,
        )
        if position != self._positions.get(key):
            self._positions[key] = position
            self._moved[key] = None

    def _take(self, partition: Partition, position: FetchedFrom, answer: Fetched) -> bool:
        """Apply an answer; False if it is an error, as after a change of the leader, or a divergence that
        leaves the log as it is: the partition then rests."""
        if partition.leader_epoch != position.leader_epoch:
            self._is_stale = True  # the answer belongs to the former role, and is ignored
            return True
        is_taken = True
        end_before, mark_before = partition.log.log_end_offset, partition.high_watermark
        try:
            if answer.error_code == OffsetOutOfRange.code and _must_start_over(position, answer):
                partition.start_over(answer.log_start_offset, leader_epoch=position.leader_epoch)
            elif answer.error_code != 0:
                is_taken = False
            elif answer.diverging is not None:
                before = partition.fetch_position()
                partition.truncate_to_divergence(answer.diverging, leader_epoch=position.leader_epoch)
                # The same fetch would get the same answer at once, again and again.
                is_taken = partition.fetch_position() != before
            else:
                if answer.records:
                    self._on_records(partition, len(answer.records))
                partition.append_from_leader(
                    answer.records,
                    leader_epoch=position.leader_epoch,
                    high_watermark=answer.high_watermark,
                    log_start_offset=answer.log_start_offset,
                    now_ms=self._now_ms(),
                )
        except ProtocolError as error:
            logger.error("replica not extended", partition=repr(partition), reason=str(error))
            is_taken = False
        end = partition.log.log_end_offset
        if end < end_before:
            self._has_truncated = True
            self._log_truncation(partition, end, end_before, mark_before)
        return is_taken

    def _log_truncation(self, partition: Partition, end: int, end_before: int, mark_before: int) -> None:
        """Log a truncation: records that a clean leader never had were never acknowledged, others are a
        loss."""
        facts = {"partition": repr(partition), "leader": self._broker_id, "count": end_before - end}
        facts |= {"from_offset": end, "to_offset": end_before - 1}
        # The mark may be an old one (it is written down every few seconds), so that it proves a loss only.
        if end < mark_before or (partition.state is not None and partition.state.recovering):
            logger.warning("records lost to an unclean election", **facts)
        else:
            logger.info("replica truncated to its leader's log", **facts)


def _must_start_over(position: FetchedFrom, answer: Fetched) -> bool:
    """Whether a log that the leader finds out of range has to begin empty at the leader's log start.

    It begins below the leader's log start; or it ends past the leader's end and knows no epoch by which the
    two could be compared. Such a log holds no batch: each batch has an epoch.
    """
    if answer.log_start_offset < 0:
        return False  # the leader does not say
    return answer.log_start_offset > position.offset or position.last_epoch == UNDEFINED_EPOCH
