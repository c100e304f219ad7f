"""Ids for producers, unique in the cluster: taken from ZooKeeper in blocks, handed out one by one.

`/latest_producer_id_block` holds the last block. A broker that needs one writes the next with the version
it read, so no two brokers get the same. A block whose writing was not answered is left unused, and so is
what a broker has left when it stops: there are 2^63 ids.

An id that was given twice would lose records: logs take the first batch of its second owner for a repetition
of the first one's. So a block leaves a wide gap to ids that may have been given without a trace in ZooKeeper:
after a restore from an older backup (`restores.py`), and where logs know ids that ZooKeeper has not given, as
those that Apache Kafka wrote.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.restores import IDS_PER_RESTORE, beyond
from mainstem_broker.cluster.zookeeper import (
    Conflict,
    Create,
    SetData,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NewerFormat,
    UnknownServerError,
)

logger = structlog.get_logger(__name__)

BLOCK_IDS: Final = 1_000
PREFETCH_IDS: Final = 100
"""The next block is taken when this many are left: at 90 % of a block, as Kafka does."""
INVENTED_IDS_MIN: Final = 2**62
"""A client may send any id. From here on they do not count, or one client could use all of them up."""
WAIT_S_MAX: Final = 2.0
"""How long a request waits for a block; clients ask again after that."""


def next_block(last: range, largest_used: int = -1) -> range:
    """The block after the `last` one in ZooKeeper; `largest_used` is the largest id that logs know."""
    start = last.stop
    if start <= largest_used < INVENTED_IDS_MIN:
        start = largest_used + IDS_PER_RESTORE
    return _block(start)


def block_after_restore(last: range, restores: int) -> range:
    """The block to write in place of the `last` one, which is from a backup; no id of it is given."""
    return _block(beyond(last.stop, restores, IDS_PER_RESTORE))


def _block(start: int) -> range:
    if start > INT64_MAX - BLOCK_IDS:
        raise UnknownServerError("The cluster has no producer ids left.")
    return range(start, start + BLOCK_IDS)


class ProducerIds:
    """The ids of one broker, through its session."""

    def __init__(self, zookeeper: ZooKeeperSession, broker_id: int) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._present = iter(range(0))
        self._left = 0
        self._next: range | None = None
        self._refill: asyncio.Task[None] | None = None
        self._restores = 0
        self.largest_used = -1
        """The largest id that the logs of this broker knew at its start, or -1."""

    async def take(self) -> int:
        """An id that was never used before.

        Raises:
            CoordinatorLoadInProgress: ZooKeeper gives no block at the moment; try again.
            CoordinatorNotAvailable: the newest block has a format that this broker does not read.
            UnknownServerError: all ids are used up.
        """
        while True:
            if self._left == 0 and self._next is not None:
                self._present, self._left, self._next = iter(self._next), len(self._next), None
            if self._left > 0:
                self._left -= 1
                if self._left < PREFETCH_IDS and self._next is None:
                    self._begin_refill()
                return next(self._present)
            try:
                async with asyncio.timeout(WAIT_S_MAX):
                    # Shielded: others wait for the same block.
                    await asyncio.shield(self._begin_refill())
            except NewerFormat as error:
                raise CoordinatorNotAvailable(
                    f"The node of producer ids has a newer format ({error}): upgrade this broker."
                ) from error
            except (TimeoutError, ZooKeeperUnavailable) as error:
                raise CoordinatorLoadInProgress(
                    "ZooKeeper gives this broker no ids for producers at the moment; try again."
                ) from error

    def follow_restores(self, count: int) -> None:
        """Give none of the ids that are left if ZooKeeper was restored since they were taken.

        They follow those that the backup knows of, and others may have been given the same before the
        restore. `count` is how many restores were noticed.
        """
        if count > self._restores:
            self._restores = count
            self._present, self._left, self._next = iter(range(0)), 0, None
            self.prefetch()

    def prefetch(self) -> None:
        """Take a block unless there is one, so that producers can start while ZooKeeper is away."""
        if self._left < PREFETCH_IDS and self._next is None:
            self._begin_refill()

    def _begin_refill(self) -> asyncio.Task[None]:
        if self._refill is None:
            self._refill = asyncio.create_task(self._fill())
            self._refill.add_done_callback(self._refilled)
        return self._refill

    def _refilled(self, task: asyncio.Task[None]) -> None:
        self._refill = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("no block of producer ids", reason=str(error))

    async def _fill(self) -> None:
        path = znodes.PRODUCER_ID_BLOCK
        while True:
            node = await self._zookeeper.get(path)
            if node is None:
                await self._zookeeper.ensure_paths([path])
                continue
            block = next_block(znodes.decode_producer_id_block(node.data), self.largest_used)
            data = znodes.encode_producer_id_block(self._broker_id, block)
            # By the end of the feed brokers notice a tree from before this (`restores.py`).
            entry = Create(znodes.CHANGE_PREFIX, znodes.Change().encode(), sequential=True)
            try:
                await self._zookeeper.multi([SetData(path, data, node.version), entry])
            except Conflict:
                continue  # another broker was faster
            self._next = block
            return
