"""What a transactional id goes through, as pure decisions (KIP-98, KIP-360, KIP-890).

Each function takes the transaction as it is recorded and a request, and returns the transaction that has to
be recorded next; nothing has happened before that record is replicated. Errors are those of the protocol.

Two protocols are served side by side. In the first one (clients before Kafka 4.0) the epoch belongs to an
instance of the producer: a delayed EndTxn can end the *next* transaction of the same instance. In the second
one (`CLIENT_VERSION_2`) each transaction has an epoch of its own: EndTxn bumps it, markers carry the new one,
and whatever comes late with the former one is refused or, if it is the same request again, answered as
before.

Epochs end at `EPOCH_MAX`. A producer is never given more than `CLIENT_EPOCH_MAX`; what is left is for markers
that fence it. After that it gets another producer id.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mainstem_broker.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.txn.states import State

NO_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1
"""Kafka's limit: the epoch above it is only for fencing."""

FENCING_STEPS: Final = 2
"""What an abort by the coordinator adds to the epoch. With one step, an EndTxn of the fenced producer could
not be distinguished from the repetition of one that succeeded (`_repeats`)."""

CLIENT_VERSION_1: Final = 0
CLIENT_VERSION_2: Final = 2
"""The protocol of a client, by the numbers of the feature `transaction.version`. 1 only concerns records."""


class Producer(NamedTuple):
    """A producer id and its epoch, as a client gets them and names them in requests."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as it is recorded.

    - `producer_id`, `epoch`: of its present producer. In a Prepare state they are those of the markers: in
      the second protocol the epoch is already that of the next transaction.
    - `previous_producer_id`: the one before, if its epochs were used up; -1 otherwise.
    - `next_producer_id`: in a Prepare state, the one that follows, if the epochs are used up; -1 otherwise.
    - `last_epoch`: what the producer had before its last bump, by which a repeated InitProducerId is
      recognized; not recorded, as in Apache Kafka: after a failover the repetition is fenced. -1: none.
    - `timeout_ms`: how long a transaction may stay open.
    - `partitions`: those of the open transaction, or those whose markers are being written.
    - `started_ms`, `updated_ms`: when the transaction began and when the record was written; -1 if never.
    - `client_version`: of the client that last added partitions or ended a transaction.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    started_ms: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = CLIENT_VERSION_1
    last_epoch: int = field(default=NO_EPOCH, compare=False)

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)

    @property
    def next_producer(self) -> Producer:
        """What the producer goes on with after the transaction has ended."""
        if self.next_producer_id != NO_ID:
            return Producer(self.next_producer_id, 0)
        return self.producer

    @property
    def is_committed(self) -> bool:
        """Whether the outcome is a commit; only meaningful in a Prepare or Complete state."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def epochs_are_used_up(self) -> bool:
        return self.epoch >= CLIENT_EPOCH_MAX

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is State.ONGOING and self.started_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has not been used for so long that it is deleted."""
        return self.state.is_idle and self.updated_ms + expiration_ms <= now_ms


# --- InitProducerId ---


def created(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id that is used for the first time, or again after it had expired."""
    return Transaction(producer_id, 0, timeout_ms, State.EMPTY, updated_ms=now_ms)


def needs_producer_id(current: Transaction, expected: Producer | None) -> bool:
    """Whether `initialized` needs another producer id, because the epochs of the present one are used up."""
    if not (current.state.is_idle and current.epochs_are_used_up):
        return False
    return expected is None or expected == current.producer or current.epoch == EPOCH_MAX


def initialized(
    current: Transaction, expected: Producer | None, timeout_ms: int, new_producer_id: int, now_ms: int
) -> Transaction:
    """The transaction after an InitProducerId.

    It may be in the state PrepareAbort: a transaction that was open is aborted first, and the client asks
    again.

    Args:
        expected: the producer that asks for its own next epoch (KIP-360); None: a new instance, which fences
            all others.
        new_producer_id: used if `needs_producer_id`.

    Raises:
        ProducerFenced: another instance has been initialized since.
        ConcurrentTransactions: the last transaction is still being ended.
    """
    if expected is not None and not _may_continue(current, expected):
        raise ProducerFenced(
            f"Producer {expected.producer_id} with epoch {expected.epoch} was replaced by producer"
            f" {current.producer_id} with epoch {current.epoch}."
        )
    if current.state.is_prepared:
        raise ConcurrentTransactions("The last transaction is still being ended: retry.")
    if current.state is State.ONGOING:
        # The producer itself may go on with the epoch that its own abort leads to.
        last_epoch = NO_EPOCH if expected is None else current.epoch
        return fenced(current, now_ms, last_epoch)
    begun = replace(
        current,
        state=State.EMPTY,
        partitions=frozenset(),
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        started_ms=-1,
        next_producer_id=NO_ID,
    )
    if needs_producer_id(current, expected):
        return replace(
            begun,
            producer_id=new_producer_id,
            epoch=0,
            previous_producer_id=current.producer_id,
            last_epoch=NO_EPOCH if expected is None else expected.epoch,
        )
    if expected is not None and expected != current.producer:
        return begun  # a repetition: the answer was lost
    last_epoch = NO_EPOCH if expected is None else current.epoch
    return replace(begun, epoch=current.epoch + 1, last_epoch=last_epoch)


def _may_continue(current: Transaction, expected: Producer) -> bool:
    """Whether a producer is the present one, or was until its own InitProducerId whose answer it did not
    get."""
    if expected.producer_id == current.producer_id:
        return expected.epoch in (current.epoch, current.last_epoch) and expected.epoch >= 0
    return (
        expected.producer_id == current.previous_producer_id
        and expected.epoch >= CLIENT_EPOCH_MAX
        and current.last_epoch == expected.epoch
    )


def fenced(current: Transaction, now_ms: int, last_epoch: int = NO_EPOCH) -> Transaction:
    """The abort of an open transaction whose producer is fenced: by a new instance, or because of the
    timeout."""
    return replace(
        current,
        state=State.PREPARE_ABORT,
        epoch=min(current.epoch + FENCING_STEPS, EPOCH_MAX),
        last_epoch=last_epoch,
        updated_ms=now_ms,
    )


# --- Partitions ---


def with_partitions(
    current: Transaction,
    producer: Producer,
    partitions: AbstractSet[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with these partitions; None if it has them already. The first ones begin it.

    Raises:
        InvalidProducerIdMapping, ProducerFenced: it is not the present producer.
        ConcurrentTransactions: the last transaction is still being ended.
    """
    _require_producer(current, producer)
    if current.state.is_prepared:
        raise ConcurrentTransactions("The last transaction is still being ended: retry.")
    is_open = current.state is State.ONGOING
    if is_open and partitions <= current.partitions:
        return None
    return replace(
        current,
        state=State.ONGOING,
        partitions=(current.partitions if is_open else frozenset()) | partitions,
        started_ms=current.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def missing_partitions(
    current: Transaction, producer: Producer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, TransactionAbortable]:
    """The partitions that are not part of the producer's open transaction (KIP-890), each with its error.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as `with_partitions`.
    """
    _require_producer(current, producer)
    if current.state.is_prepared:
        raise ConcurrentTransactions("The last transaction is still being ended: retry.")
    included = current.partitions if current.state is State.ONGOING else frozenset()
    return {
        (topic, index): TransactionAbortable(
            f"{topic}-{index} is not part of the open transaction of producer {producer.producer_id}."
        )
        for topic, index in partitions
        if (topic, index) not in included
    }


def _require_producer(current: Transaction, producer: Producer) -> None:
    if producer.producer_id != current.producer_id:
        raise InvalidProducerIdMapping(
            f"The transactional id belongs to producer {current.producer_id}, not {producer.producer_id}."
        )
    if producer.epoch != current.epoch:
        raise ProducerFenced(
            f"Producer {producer.producer_id} is at epoch {current.epoch}, not {producer.epoch}."
        )


# --- EndTxn ---


def ended(
    current: Transaction,
    producer: Producer,
    *,
    committed: bool,
    client_version: int,
    new_producer_id: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction in its Prepare state; None if it has ended in this way already: the answer was lost.

    Args:
        new_producer_id: used if `must_rotate_at_end`.

    Raises:
        InvalidProducerIdMapping, ProducerFenced: it is not the present producer.
        ConcurrentTransactions: the transaction is being ended in this way, and has not ended yet.
        InvalidTxnState: it was ended the other way, or in the first protocol no transaction is open.
    """
    is_repeated = _repeats(current, producer)
    if not is_repeated:
        _require_producer(current, producer)
    state = current.state
    if state.is_prepared and (is_repeated or current.client_version < CLIENT_VERSION_2):
        if committed is not current.is_committed:
            raise InvalidTxnState(_other_outcome(current))
        raise ConcurrentTransactions("The transaction is being ended: retry.")
    if state.is_prepared:
        # The epoch of a prepared transaction of the second protocol is not the producer's before it has
        # ended.
        raise ConcurrentTransactions("The last transaction is still being ended: retry.")
    has_ended = state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    if has_ended and (is_repeated or client_version < CLIENT_VERSION_2):
        if committed is not current.is_committed:
            raise InvalidTxnState(_other_outcome(current))
        return None
    if state is State.EMPTY and client_version < CLIENT_VERSION_2:
        raise InvalidTxnState("No transaction is open: it has no partitions yet.")
    is_empty = state is not State.ONGOING  # only the second protocol ends what has no partitions
    begun = replace(
        current,
        state=State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
        partitions=frozenset() if is_empty else current.partitions,
        started_ms=now_ms if is_empty else current.started_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )
    if client_version < CLIENT_VERSION_2:
        return begun
    return replace(
        begun,
        epoch=current.epoch + 1,
        last_epoch=current.epoch,
        next_producer_id=new_producer_id if must_rotate_at_end(current, client_version) else NO_ID,
    )


def must_rotate_at_end(current: Transaction, client_version: int) -> bool:
    """Whether `ended` needs another producer id: the epoch of the next transaction would be too high."""
    return client_version >= CLIENT_VERSION_2 and current.epochs_are_used_up and not current.state.is_prepared


def _repeats(current: Transaction, producer: Producer) -> bool:
    """Whether an EndTxn of the second protocol repeats one that succeeded: the epoch is the next one already.

    This has to follow from the records, because the repetition may come to another coordinator.
    """
    if current.client_version < CLIENT_VERSION_2 or current.state in (State.EMPTY, State.ONGOING):
        return False
    if producer.producer_id == current.producer_id:
        return producer.epoch + 1 == current.epoch and (
            current.epoch < EPOCH_MAX or current.next_producer_id != NO_ID  # else it was fenced
        )
    return (
        producer.producer_id == current.previous_producer_id
        and producer.epoch == CLIENT_EPOCH_MAX
        and current.epoch == 0
    )


def _other_outcome(current: Transaction) -> str:
    return f"The transaction has been {'committed' if current.is_committed else 'aborted'} already."


# --- Markers ---


def completed(current: Transaction, now_ms: int) -> Transaction:
    """The transaction after all its markers are written."""
    has_next_id = current.next_producer_id != NO_ID
    return replace(
        current,
        state=State.COMPLETE_COMMIT if current.is_committed else State.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
        producer_id=current.next_producer.producer_id,
        epoch=current.next_producer.epoch,
        previous_producer_id=current.producer_id if has_next_id else current.previous_producer_id,
        next_producer_id=NO_ID,
    )
