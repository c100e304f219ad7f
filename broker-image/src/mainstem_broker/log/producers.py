"""What a log knows of the producers that wrote to it with ids: idempotence, decided without files (KIP-98).

In scope: all producers of a log, the check of a client's batch against them, what truncation and the passing
of time do to them. Out of scope: one producer (`producer_state`), first batches that were refused
(`producer_refusals`), files (`producer_snapshots`) and their format (`producer_snapshot_format`), and when a
check is due (the leader's append, never replication).

A producer numbers its records per partition. For each producer id the log remembers its epoch and its last
five batches, as many as a client may have in flight. A client's batch is then

- a duplicate, if epoch and sequence numbers are those of a remembered batch: it is not written again;
- in order, if it continues the last batch (2^31-1 is followed by 0), or begins a higher epoch with 0;
- in order whatever its number is, if nothing is known of the producer: retention may have removed its records
  long ago, or its state may have expired (KIP-360);
- refused otherwise: INVALID_PRODUCER_EPOCH for a lower epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap and
  for duplicates too old to be remembered.

Time is the time of append on this broker's clock, never the producer's timestamp of its records: some
send -1 (redpanda#3824). Only a batch stamped by a leader (LogAppendTime) carries that leader's time.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem_broker.config.setting import INT32_MAX
from mainstem_broker.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from mainstem_broker.log.producer_refusals import REFUSAL_MS_MAX, ProducerRefusals
from mainstem_broker.log.producer_state import NONE, ProducerState, RememberedBatch
from mainstem_broker.log.transactions import CompletedTransaction, Transactions
from mainstem_broker.protocol.batches import BatchHeader
from mainstem_broker.protocol.markers import Marker


class Verification:
    """A question to the coordinator, whether a producer's transaction has this partition, under way.

    A batch may begin a transaction only if its verification is still the producer's: a marker that has come
    since has ended the transaction that the coordinator answered for (KIP-890).

    `is_outlived`: the leader has changed since, so nobody knows whether a marker has come.
    """

    __slots__ = ("began_ms", "is_outlived")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.is_outlived = False


class Producers:
    """All producers of a log, by id.

    - `unsaved_batches`: those taken in since the last snapshot; the log resets it.
    - `transactions`: those that are open or just completed, in order.
    """

    def __init__(self) -> None:
        self.unsaved_batches = 0
        self.transactions = Transactions()
        self._states: dict[int, ProducerState] = {}
        self._refusals = ProducerRefusals()
        self._verifications: dict[int, Verification] = {}
        self._last_marker_offset = NONE

    @property
    def states(self) -> Mapping[int, ProducerState]:
        return self._states

    def last_offsets(self) -> dict[int, int]:
        """By producer id: the last offset of the last batch in the producer's epoch, if there is any."""
        return {
            producer_id: state.batches[-1].last_offset
            for producer_id, state in self._states.items()
            if state.batches
        }

    def marker_epochs(self) -> dict[int, int]:
        """By producer id: the epochs of producers that have written no batch in them, but a marker."""
        return {producer_id: state.epoch for producer_id, state in self._states.items() if not state.batches}

    # Deciding

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that a client's batch repeats, or None if it is new and comes in order.

        Raises:
            InvalidProducerEpoch: a later instance of the producer has written already, or its transaction of
                this epoch has ended.
            OutOfOrderSequenceNumber: batches before this one are missing.
            InvalidTxnState: the producer has an open transaction, which the batch is not part of.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            self._refusals.check(header)
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if state.transaction_first_offset != NONE and not header.is_transactional and epoch >= state.epoch:
            raise InvalidTxnState(
                f"Producer {header.producer_id} has an open transaction, but sends a batch outside it."
            )
        if epoch == state.epoch:
            if sequence == state.next_sequence:
                return None
            last_sequence = (sequence + header.last_offset_delta) & INT32_MAX
            for batch in state.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return batch
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} continues with sequence number {sequence}, but"
                f" {state.next_sequence} is next at epoch {epoch}."
            )
        if epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"Producer {header.producer_id} is at epoch {state.epoch}, not {epoch} any more."
            )
        if sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} begins epoch {epoch} with sequence number {sequence}, not 0."
            )
        return None

    def check_marker(self, producer_id: int, epoch: int, marker: Marker, *, raises_epoch: bool) -> bool:
        """Whether a coordinator's marker is to be written; False if it is there already.

        A coordinator sends a marker again until it hears that it is written. One that comes again when its
        transaction has ended is not written again. (Apache Kafka writes it again; readers see no difference.)

        Args:
            raises_epoch: whether the marker has the epoch of the producer's next transaction, as in the
                second version of transactions. With the same epoch, an open transaction is the next one then.

        Raises:
            TransactionCoordinatorFenced: a later coordinator has written a marker already.
            InvalidProducerEpoch: a later instance of the producer has written already, or the transaction
                that the marker is about has ended.
        """
        state = self._states.get(producer_id)
        if state is None:
            return True
        if epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"A marker for producer {producer_id} has epoch {epoch}, but the producer is at epoch"
                f" {state.epoch}."
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"A marker for producer {producer_id} comes from coordinator epoch"
                f" {marker.coordinator_epoch}, but epoch {state.coordinator_epoch} has written already."
            )
        is_open = state.transaction_first_offset != NONE
        if raises_epoch and epoch == state.epoch and is_open:
            raise InvalidProducerEpoch(
                f"A marker for producer {producer_id} raises its epoch to {epoch}, at which it has begun its"
                " next transaction already."
            )
        has_marker = state.marker_offset != NONE
        return (
            is_open
            or not has_marker
            or (epoch, marker.coordinator_epoch) != (state.epoch, state.coordinator_epoch)
        )

    # Verifying transactions

    def must_verify(self, header: BatchHeader) -> bool:
        """Whether a client's batch would begin a transaction in this log, so that it needs a verification.

        A batch that the log has already needs none: it may come again after its transaction's end.
        """
        if not header.is_transactional or header.producer_id < 0:
            return False
        state = self._states.get(header.producer_id)
        if state is None:
            return True
        if state.epoch == header.producer_epoch:
            last_sequence = (header.base_sequence + header.last_offset_delta) & INT32_MAX
            return state.transaction_first_offset == NONE and not any(
                batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta
                for batch in state.batches
            )
        return True

    def begin_verification(self, producer_id: int, now_ms: int) -> Verification:
        """The verification of the producer's next transaction; several batches may share it."""
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = self._verifications[producer_id] = Verification(now_ms)
        return verification

    def is_verified(self, producer_id: int, verification: Verification | None) -> bool:
        """Whether no marker has come since the verification began."""
        return verification is not None and self._verifications.get(producer_id) is verification

    def void_verification(self, producer_id: int) -> None:
        """A marker has come that is not written: it may have ended the transaction that is being verified."""
        self._verifications.pop(producer_id, None)

    def void_verifications(self) -> None:
        """The leader has changed: another one may have had a marker that it did not write."""
        for verification in self._verifications.values():
            verification.is_outlived = True
        self._verifications.clear()

    # Refusals

    def may_be_overtaking(self, header: BatchHeader) -> bool:
        """Whether the batch is the first that arrives from a producer, but not the first that it sent."""
        return (
            header.base_sequence != 0
            and header.producer_id not in self._states
            and self._refusals.may_be_overtaking(header)
        )

    def note_refusal(self, header: BatchHeader, now_ms: int) -> None:
        """A client's batch was not written for a temporary reason: others must not overtake it."""
        if header.producer_id >= 0 and header.producer_id not in self._states:
            self._refusals.note(header, now_ms)

    def forget_refusals(self) -> None:
        """The refused batches may have been written elsewhere, and be lost."""
        self._refusals.forget_all()

    # Following the log

    def update(
        self, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None = None
    ) -> CompletedTransaction | None:
        """Take in a batch that was written at `base_offset`; its producer id is not -1.

        `now_ms` is the time of the append, as far as it is known; `marker` is that of a control batch, None
        if it holds none. Answers the transaction that the batch has ended, if it had records here.
        """
        self.unsaved_batches += 1
        producer_id = header.producer_id
        epoch = header.producer_epoch
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(epoch)
            self._refusals.forget(producer_id)
        elif epoch != state.epoch:
            state.begin_epoch(epoch)
        timestamp_ms = header.max_timestamp if header.log_append_time else now_ms
        state.last_timestamp_ms = timestamp_ms
        if header.is_control:
            return None if marker is None else self._end_transaction(header.producer_id, marker, base_offset)
        delta = header.last_offset_delta
        # A coordinator writes a producer's offsets without sequence numbers.
        last_sequence = NONE if header.base_sequence < 0 else (header.base_sequence + delta) & INT32_MAX
        state.add(RememberedBatch(last_sequence, base_offset + delta, delta, timestamp_ms))
        if header.is_transactional and state.transaction_first_offset == NONE:
            state.transaction_first_offset = base_offset
            self.transactions.begin(base_offset)
            self._verifications.pop(producer_id, None)
        return None

    def _end_transaction(self, producer_id: int, marker: Marker, offset: int) -> CompletedTransaction | None:
        state = self._states[producer_id]
        self._last_marker_offset = state.marker_offset = offset
        state.forgot = True  # a truncation that takes all its batches back leaves the marker's epochs
        self._verifications.pop(producer_id, None)
        # A replica takes what the leader has checked. So does a leader that reads on from a snapshot.
        state.coordinator_epoch = max(state.coordinator_epoch, marker.coordinator_epoch)
        first_offset, state.transaction_first_offset = state.transaction_first_offset, NONE
        if first_offset == NONE:
            return None
        self.transactions.complete(first_offset, offset)
        return CompletedTransaction(producer_id, first_offset, offset, is_aborted=not marker.is_commit)

    @classmethod
    def restored(cls, states: dict[int, ProducerState]) -> Producers:
        """Producers as a snapshot holds them, by id."""
        producers = cls()
        producers._states = states
        producers.transactions = Transactions(
            state.transaction_first_offset
            for state in states.values()
            if state.transaction_first_offset != NONE
        )
        return producers

    def restored_at(self, offset: int) -> None:
        """This is the state of a snapshot at `offset`, which does not say where the markers before it lie."""
        for state in self._states.values():
            if state.coordinator_epoch != NONE:
                self._last_marker_offset = state.marker_offset = offset - 1

    def truncate_to(self, end_offset: int) -> bool:
        """Take back every batch that reaches `end_offset` or beyond; False if that takes reading the log.

        Nothing has changed then. It takes reading when a producer's last batch before `end_offset` is not
        remembered, or a transaction's end is taken back. Otherwise fewer than five batches may be left of a
        producer, which is enough: what was taken back was sent after them, and no more than five are in
        flight.
        """
        if self._last_marker_offset >= end_offset:
            return False
        touched = {
            producer_id: state
            for producer_id, state in self._states.items()
            if state.batches and state.batches[-1].last_offset >= end_offset
        }
        if any(state.forgot and state.batches[0].last_offset >= end_offset for state in touched.values()):
            return False
        for producer_id, state in touched.items():
            while state.batches and state.batches[-1].last_offset >= end_offset:
                state.batches.pop()
            if not state.batches:
                del self._states[producer_id]
                continue
            state.next_sequence = (state.last_sequence + 1) & INT32_MAX
            if state.transaction_first_offset >= end_offset:
                state.transaction_first_offset = NONE
        self.transactions.truncate_to(end_offset)
        self._verifications.clear()
        return True

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have not written for `expiration_ms`; answers how many those were.

        One with an open transaction is kept. Refusals that no client can still be waiting for go too.
        """
        expired = [
            producer_id
            for producer_id, state in self._states.items()
            if state.transaction_first_offset == NONE and now_ms - state.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._states[producer_id]
        self._refusals.expire(now_ms)
        self._verifications = {
            producer_id: verification
            for producer_id, verification in self._verifications.items()
            if now_ms - verification.began_ms < REFUSAL_MS_MAX
        }
        return len(expired)
