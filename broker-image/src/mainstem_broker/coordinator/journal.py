"""A partition of an internal topic as a journal: written with acks=all, replayed from its start.

Belongs here: batches into the partition that this broker leads, and records out of it; also batches inside
producers' transactions, and the markers that end those. What the records mean belongs to the packages above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from mainstem_broker.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    MessageTooLarge,
    NotLeaderOrFollower,
    ProtocolError,
)
from mainstem_broker.log.producers import Verification
from mainstem_broker.protocol.batches import (
    make_batch,
    make_transactional_batch,
    read_records,
    split_batches,
)
from mainstem_broker.protocol.markers import read_marker
from mainstem_broker.protocol.records import Header, Record
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.disk_reads import look_up

READ_BYTES: Final = 1_048_576
"""Size of the portions that a thread decodes: small enough that requests hardly notice."""

_PRODUCE_VERSION: Final = 11  # for `append_batch`: the version that may hold every kind of batch

Entry = tuple[bytes, bytes | None, Sequence[Header]]
"""Key, value (None: a tombstone) and headers of a record."""


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """The producer of a batch inside a transaction.

    `verification`: the partition's, from before the request to the coordinator of transactions.
    """

    producer_id: int
    epoch: int
    verification: Verification | None


class TransactionalReplay(Protocol):
    """Takes what was written inside transactions, in the order of the log."""

    def take_transactional(self, producer_id: int, record: Record) -> None: ...

    def end_transaction(self, producer_id: int, is_commit: bool) -> None: ...


class Journal:
    """One partition, for as long as this broker leads it without a break.

    After that nothing can be appended any more: the next leader replays the journal.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._since = partition.led_since

    @property
    def is_current(self) -> bool:
        """Whether this broker has led the partition without a break since the journal was opened."""
        return self.partition.is_leader and self.partition.led_since == self._since

    def append(
        self,
        entries: Sequence[Entry],
        now_ms: int,
        settle: Callable[[ProtocolError | None], None],
        apply: Callable[[], None],
    ) -> None:
        """Append one batch. Both callbacks may be called before this returns.

        Args:
            settle: called once, with the outcome for the request: None when every in-sync replica has the
                records, or an error, after which they may be kept or lost.
            apply: called once, before `settle(None)`, when the records are below the high watermark; for
                all batches in the order of the log. After an error, such as too few replicas or a failed
                flush, the records are still in the log, so it is called when they are replicated after
                all. It is never called if the leadership ends first: the next leader's replay decides then.

        Raises:
            ProtocolError: nothing was appended; neither callback is called.
        """
        self._require_current()
        batch = make_batch(entries, now_ms)
        info = append_batch(self.partition, batch, acks=-1, produce_version=_PRODUCE_VERSION, now_ms=now_ms)
        self._await_replicas(info.last_offset + 1, settle, apply)

    def append_in_transaction(
        self,
        entries: Sequence[Entry],
        producer: TransactionalProducer,
        now_ms: int,
        settle: Callable[[ProtocolError | None], None],
    ) -> None:
        """Append one batch as part of a producer's transaction; `settle` as in `append`.

        The records count when the transaction's marker says so; `replay` reads both.

        Raises:
            InvalidProducerEpoch: the producer has another epoch by now.
            InvalidTxnState: the transaction has ended since it was verified.
            ProtocolError: as `append`.
        """
        self._require_current()
        header, batch = make_transactional_batch(entries, producer.producer_id, producer.epoch, now_ms)
        partition = self.partition
        partition.require_leader()
        partition.require_in_sync()
        config = partition.log.config
        if header.size_bytes > min(config.max_message_bytes, config.segment_bytes):
            raise MessageTooLarge(f"The record batch takes {header.size_bytes} bytes.")
        producers = partition.log.producers
        state = producers.states.get(producer.producer_id)
        if state is not None and producer.epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"Producer {producer.producer_id} is at epoch {state.epoch}, not {producer.epoch} any more."
            )
        is_open = self._is_in_transaction(producer.producer_id, producer.epoch)
        if not is_open and not producers.is_verified(producer.producer_id, producer.verification):
            raise InvalidTxnState(f"{partition!r} is not part of the transaction of its producer any more.")
        info = partition.write(header, batch, now_ms)
        self._await_replicas(info.last_offset + 1, settle, lambda: None)

    def begin_verification(self, producer_id: int, epoch: int, now_ms: int) -> Verification | None:
        """What `append_in_transaction` needs to begin a transaction here; None if it is open already."""
        if self._is_in_transaction(producer_id, epoch):
            return None
        return self.partition.log.producers.begin_verification(producer_id, now_ms)

    def _is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        state = self.partition.log.producers.states.get(producer_id)
        return state is not None and state.epoch == epoch and state.transaction_first_offset >= 0

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.partition.log.log_end_offset

    def when_replicated(self, apply: Callable[[], None]) -> None:
        """Call `apply` once all that is in the log now is replicated, in the order of the log, as `append`
        does."""
        self._await_replicas(self.end_offset, lambda _: None, apply)

    def _await_replicas(
        self,
        end_offset: int,
        settle: Callable[[ProtocolError | None], None],
        apply: Callable[[], None],
    ) -> None:
        def on_settled(_: Acknowledgement, error: ProtocolError | None) -> None:
            if error is None:
                apply()
            elif self.is_current:
                # The request fails now; the records wait on. The partition settles in the order of offsets
                # and does not append meanwhile, so this keeps the order of the log.
                self._await_replicas(end_offset, lambda _: None, apply)
            settle(error)

        if self.partition.acknowledge(Acknowledgement(end_offset, on_settled)):
            apply()
            settle(None)

    async def replay(
        self, take: Callable[[Record], None], transactions: TransactionalReplay | None = None
    ) -> None:
        """Give all records to `take`, oldest first, up to the log's end; return when all are replicated.

        What was written inside transactions, and their ends, is given to `transactions`; without it, it is
        left out: only brokers write here, and they do so outside transactions.

        Records above the high watermark at the start of the leadership are not certain yet: a state built
        on them would have to be taken back if the next leader is missing them. `take` is called in threads,
        one call at a time.

        Raises:
            NotLeaderOrFollower: the leadership has ended.
            NotEnoughReplicasAfterAppend: too few replicas are in sync.
            CorruptMessage, StorageError: the log cannot be read.
        """
        log = self.partition.log
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            self._require_current()
            offset = max(offset, log.log_start_offset)
            portion = await look_up(
                partial(log.read, offset, READ_BYTES, end_offset, True),
                lambda missing: asyncio.to_thread(missing.load),
            )
            if portion.slice is None:
                break
            await asyncio.to_thread(_decode, portion.slice.read, offset, take, transactions)
            offset = portion.end_offset
        await self._replicated(end_offset)

    async def _replicated(self, end_offset: int) -> None:
        self._require_current()
        replicated = asyncio.get_running_loop().create_future()

        def settle(_: Acknowledgement, error: ProtocolError | None) -> None:
            if not replicated.done():
                replicated.set_result(error)

        acknowledgement = Acknowledgement(end_offset, settle)
        error = None
        if not self.partition.acknowledge(acknowledgement):
            try:
                error = await replicated
            finally:
                self.partition.acknowledgements.remove(acknowledgement)
        self._require_current()
        if error is not None:
            raise error

    def _require_current(self) -> None:
        if not self.is_current:
            raise NotLeaderOrFollower(f"This broker no longer leads {self.partition!r}.")


def _decode(
    read: Callable[[], bytes],
    from_offset: int,
    take: Callable[[Record], None],
    transactions: TransactionalReplay | None,
) -> None:
    """Give the records from an offset on to whom they belong."""
    for header, batch in split_batches(read(), partial_tail=True):
        if header.is_control:
            marker = read_marker(header, batch)
            if transactions is not None and marker is not None and header.base_offset >= from_offset:
                transactions.end_transaction(header.producer_id, marker.is_commit)
            continue
        if header.is_transactional and transactions is None:
            continue
        for record in read_records(header, batch):
            if record.offset < from_offset:
                continue
            if header.is_transactional and transactions is not None:
                transactions.take_transactional(header.producer_id, record)
            else:
                take(record)
