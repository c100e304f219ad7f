"""What a coordinator keeps in a partition of an internal topic: written with acks=all, read at its start.

Lives here: records into the partition that this broker leads, and out of it again. Must not: what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from mainstem_broker.errors import NotLeaderOrFollower, ProtocolError
from mainstem_broker.protocol.batches import make_batch, read_records, split_batches
from mainstem_broker.protocol.records import Header, Record
from mainstem_broker.replica.partition import Acknowledgement, Partition

READ_BYTES: Final = 1_048_576
"""Decoded at a time, in a thread: small enough that requests hardly notice."""

_PRODUCE_VERSION: Final = 11  # brokers know all that there is

Entry = tuple[bytes, bytes | None, Sequence[Header]]
"""Key, value (None: a tombstone) and headers of a record."""


class Journal:
    """One partition, for as long as this broker leads it without a break.

    After that nothing more can be written: whoever leads then reads the journal anew.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._since = partition.led_since

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition, without a break."""
        return self.partition.is_leader and self.partition.led_since == self._since

    def append(
        self, entries: Sequence[Entry], now_ms: int, settle: Callable[[ProtocolError | None], None]
    ) -> None:
        """Write one batch; `settle` is called once, when every in-sync replica has it or may never have.

        It may be called before this returns. An error then means that it is not known whether the records
        stay.

        Raises:
            ProtocolError: nothing was written.
        """
        if not self.is_current:
            raise NotLeaderOrFollower(f"This broker no longer leads {self.partition!r}.")
        batch = make_batch(entries, now_ms)
        info = self.partition.append(batch, acks=-1, produce_version=_PRODUCE_VERSION, now_ms=now_ms)
        waiting = Acknowledgement(info.last_offset + 1, lambda _, error: settle(error))
        if self.partition.acknowledge(waiting):
            settle(None)

    async def replay(self, take: Callable[[Record], None]) -> None:
        """Give all records to `take`, oldest first, up to the log's end; return when all are replicated.

        What is above the high watermark when this broker begins to lead is not certain yet: who acted on it
        could see it taken back when the next leader lacks it. `take` is called in threads, one at a time.

        Raises:
            NotLeaderOrFollower: this broker leads no longer.
            NotEnoughReplicasAfterAppend: too few replicas came to be in sync.
            CorruptMessage, StorageError: the log cannot be read.
        """
        log = self.partition.log
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            self._require_current()
            offset = max(offset, log.log_start_offset)
            found = log.read(offset, READ_BYTES, end_offset, True)
            if found.slice is None:
                break
            await asyncio.to_thread(_decode, found.slice.read, offset, take)
            offset = found.end_offset
        await self._replicated(end_offset)

    async def _replicated(self, end_offset: int) -> None:
        self._require_current()
        replicated = asyncio.get_running_loop().create_future()

        def settle(_: Acknowledgement, error: ProtocolError | None) -> None:
            if not replicated.done():
                replicated.set_result(error)

        waiting = Acknowledgement(end_offset, settle)
        error = None
        if not self.partition.acknowledge(waiting):
            try:
                error = await replicated
            finally:
                self.partition.stop_waiting(waiting)
        self._require_current()
        if error is not None:  # too few replicas are in sync for now: what there is may still be taken back
            raise error

    def _require_current(self) -> None:
        if not self.is_current:
            raise NotLeaderOrFollower(f"This broker no longer leads {self.partition!r}.")


def _decode(read: Callable[[], bytes], from_offset: int, take: Callable[[Record], None]) -> None:
    """Take the records from an offset on, but for those by which brokers mark transactions."""
    for header, batch in split_batches(read(), partial_tail=True):
        if header.is_control:
            continue
        for record in read_records(header, batch):
            if record.offset >= from_offset:
                take(record)
