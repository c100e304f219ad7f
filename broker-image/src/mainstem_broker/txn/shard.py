"""The transactional ids of one partition of `__transaction_state`, for as long as this broker leads it.

Belongs here: writing what `transaction.py` decides, having the markers of ended transactions written, and
what time brings: timeouts and expiry. Loading and appending belong to `coordinator/shard.py`.

A change counts once all in-sync replicas have its record. Until then the id has a `pending` change, and
other changes of it are refused with a retriable error. If the append fails after it was written, for want of
replicas or by a failed flush, the change stays pending until it is replicated or the leadership ends: the
next leader's log decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from mainstem_broker.coordinator.failures import as_coordinator_error
from mainstem_broker.coordinator.journal import Journal
from mainstem_broker.coordinator.shard import Shard
from mainstem_broker.errors import ConcurrentTransactions, NewerFormat, ProtocolError
from mainstem_broker.protocol.records import Record
from mainstem_broker.txn.markers import Markers, MarkerWriter
from mainstem_broker.txn.records import decode_key, decode_value, encode_key, encode_value
from mainstem_broker.txn.states import PREDECESSORS
from mainstem_broker.txn.transaction import Transaction, completed, fenced

logger = structlog.get_logger(__name__)

COMPLETION_PAUSE_S: Final = 0.1
"""Pause before the end of a transaction is recorded again, after that has failed."""
DELETED_AT_ONCE_MAX: Final = 1_000
"""Expired ids that one upkeep deletes; the next one goes on."""


@dataclass(slots=True, eq=False)
class CoordinatedTransaction:
    """One transactional id.

    - `current`: as the in-sync replicas have it; None while its first record is being written.
    - `pending`: what is being written; None for nothing. `is_deleting`: a tombstone is.
    - `stop_markers`: ends the attempts to write the markers, while there are any.
    """

    transactional_id: str
    current: Transaction | None = None
    pending: Transaction | None = None
    is_deleting: bool = False
    stop_markers: Callable[[], None] | None = None

    def require_settled(self) -> Transaction | None:
        """The present transaction; raises ConcurrentTransactions if it is being changed."""
        if self.pending is not None or self.is_deleting:
            raise ConcurrentTransactions("The transactional id is being changed by another request: retry.")
        return self.current


class TransactionShard(Shard):
    """Transactions by transactional id."""

    def __init__(
        self,
        journal: Journal,
        markers: MarkerWriter,
        wall_ms: Callable[[], int],
        expiration_ms: int,
        expiry_interval_ms: int,
    ) -> None:
        super().__init__(journal, wall_ms)
        self.transactions: dict[str, CoordinatedTransaction] = {}
        self._markers = markers
        self._expiration_ms = expiration_ms
        self._expiry_interval_ms = expiry_interval_ms
        self._expired_ms = wall_ms()
        # Markers carry the epoch in which this leadership began: it stays the same while the leader does.
        self._coordinator_epoch = journal.partition.leader_epoch

    # --- Loading ---

    async def restore(self) -> None:
        loaded = LoadedTransactions()
        await self.journal.replay(loaded.take)
        transactions = await asyncio.to_thread(loaded.decode)
        if loaded.unreadable:
            logger.warning(
                "records ignored", partition=repr(self.journal.partition), offsets=loaded.unreadable[:10]
            )
        for transactional_id, transaction in transactions.items():
            coordinated = CoordinatedTransaction(transactional_id, transaction)
            self.transactions[transactional_id] = coordinated
        if transactions:
            logger.info(
                "transactions loaded", partition=repr(self.journal.partition), count=len(transactions)
            )
        for coordinated in tuple(self.transactions.values()):
            # The former coordinator has decided, and perhaps not written all markers.
            if coordinated.current is not None and coordinated.current.state.is_prepared:
                self._write_markers(coordinated)

    def discard(self, error_code: int) -> None:  # noqa: ARG002  # the journal answers those that wait
        for coordinated in self.transactions.values():
            if coordinated.stop_markers is not None:
                coordinated.stop_markers()
        self.transactions.clear()

    # --- Writing ---

    def write(self, coordinated: CoordinatedTransaction, changed: Transaction) -> asyncio.Future[None]:
        """Record a change; done when it counts. An ended transaction gets its markers after that.

        The future fails with an error for clients: nothing was written, or it is not known whether the change
        will count.
        """
        current = coordinated.current
        assert coordinated.pending is None
        assert current is None or current.state in PREDECESSORS[changed.state]
        written: asyncio.Future[None] = self._loop.create_future()
        coordinated.pending = changed

        def apply() -> None:
            coordinated.pending = None
            if self.transactions.get(coordinated.transactional_id) is not coordinated:
                return  # the leadership has ended
            coordinated.current = changed
            if changed.state.is_prepared:
                self._write_markers(coordinated)

        def settle(error: ProtocolError | None) -> None:
            if written.done():
                return  # the request was cancelled
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(as_coordinator_error(error))
                written.exception()  # retrieved: nothing waits for the coordinator's own changes

        entry = (encode_key(coordinated.transactional_id), encode_value(changed), ())
        try:
            self.journal.append([entry], self._wall_ms(), settle, apply)
        except ProtocolError as error:
            coordinated.pending = None
            if current is None:
                self.transactions.pop(coordinated.transactional_id, None)
            settle(error)
        return written

    # --- Ending ---

    def _write_markers(self, coordinated: CoordinatedTransaction) -> None:
        transaction = coordinated.current
        assert transaction is not None
        markers = Markers(
            transaction.producer_id,
            transaction.epoch,
            self._coordinator_epoch,
            transaction.is_committed,
            transaction.client_version,
            transaction.partitions,
        )
        is_done = False

        def done() -> None:
            nonlocal is_done
            is_done = True
            coordinated.stop_markers = None
            self._complete(coordinated, transaction)

        stop = self._markers.write(markers, done)
        if not is_done:
            coordinated.stop_markers = stop

    def _complete(self, coordinated: CoordinatedTransaction, prepared: Transaction) -> None:
        """Record the end of a transaction whose markers are written, trying again until that succeeds."""
        if (
            self.transactions.get(coordinated.transactional_id) is not coordinated
            or coordinated.current is not prepared
            or coordinated.pending is not None
        ):
            return
        written = self.write(coordinated, completed(prepared, self._wall_ms()))

        def look(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                logger.warning(
                    "end of transaction not stored",
                    transactional_id=coordinated.transactional_id,
                    reason=str(error),
                )
                self._loop.call_later(COMPLETION_PAUSE_S, self._complete, coordinated, prepared)

        written.add_done_callback(look)

    # --- Time ---

    async def upkeep(self) -> None:
        """Abort transactions that have been open for too long, and delete ids that are not used any more."""
        now_ms = self._wall_ms()
        self._abort_timed_out(now_ms)
        if now_ms - self._expired_ms >= self._expiry_interval_ms:
            self._expired_ms = now_ms
            self.expire(now_ms)

    def _abort_timed_out(self, now_ms: int) -> None:
        for coordinated in tuple(self.transactions.values()):
            transaction = coordinated.current
            if transaction is None or coordinated.pending is not None or coordinated.is_deleting:
                continue
            if transaction.has_timed_out(now_ms):
                logger.info(
                    "transaction timed out",
                    transactional_id=coordinated.transactional_id,
                    producer_id=transaction.producer_id,
                    epoch=transaction.epoch,
                )
                self.write(coordinated, fenced(transaction, now_ms))

    def expire(self, now_ms: int) -> None:
        """Delete the ids that were not used for `transactional.id.expiration.ms`."""
        expired = [
            coordinated
            for coordinated in self.transactions.values()
            if coordinated.current is not None
            and coordinated.pending is None
            and not coordinated.is_deleting
            and coordinated.current.has_expired(now_ms, self._expiration_ms)
        ][:DELETED_AT_ONCE_MAX]
        for coordinated in expired:
            self._delete(coordinated)

    def _delete(self, coordinated: CoordinatedTransaction) -> None:
        coordinated.is_deleting = True

        def apply() -> None:
            if self.transactions.get(coordinated.transactional_id) is coordinated:
                logger.info("transactional id expired", transactional_id=coordinated.transactional_id)
                del self.transactions[coordinated.transactional_id]

        entry = (encode_key(coordinated.transactional_id), None, ())
        try:
            self.journal.append([entry], self._wall_ms(), lambda _: None, apply)
        except ProtocolError as error:
            coordinated.is_deleting = False  # the next upkeep tries again
            logger.warning(
                "transactional id not deleted",
                transactional_id=coordinated.transactional_id,
                reason=str(error),
            )


class LoadedTransactions:
    """Takes records in the order of the log; `decode` returns the transactions at its end, by id. Pure.

    Only the last record of each key is decoded: a log that waits for compaction has many of each.
    """

    def __init__(self) -> None:
        self.unreadable: list[int] = []
        """Offsets of records in another format: the admin client can write anything to this topic."""
        self._last: dict[bytes, Record] = {}

    def take(self, record: Record) -> None:
        key = record.key or b""
        if record.value is None:
            self._last.pop(key, None)
        else:
            self._last[key] = record

    def decode(self) -> dict[str, Transaction]:
        transactions: dict[str, Transaction] = {}
        for key, record in self._last.items():
            try:
                transactional_id = decode_key(key)
                if transactional_id is None:
                    continue
                transaction = decode_value(record.value or b"")
            except NewerFormat:
                raise  # a transaction that is forgotten would never end
            except ValueError:
                self.unreadable.append(record.offset)
                continue
            if transaction.state in PREDECESSORS:
                transactions[transactional_id] = transaction
        return transactions
