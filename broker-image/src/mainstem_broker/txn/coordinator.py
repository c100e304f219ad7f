"""The coordinator of the transactional ids whose partition of `__transaction_state` this broker leads.

Belongs here: what may be requested for which id, and by whom. The rules of a transaction belong to
`transaction.py`, carrying them out to `shard.py`, requests and their versions to the package `api`.

To be called on the event loop only. Every method that names a transactional id raises InvalidRequest,
NotCoordinator or CoordinatorLoadInProgress if it cannot be served here now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from mainstem_broker.coordinator.journal import Journal
from mainstem_broker.coordinator.key_placement import partition_of_key
from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    NotCoordinator,
    ProtocolError,
    TransactionalIdNotFound,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.partition import Partition
from mainstem_broker.txn.markers import MarkerWriter
from mainstem_broker.txn.shard import CoordinatedTransaction, TransactionShard
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import (
    NO_ID,
    Producer,
    Transaction,
    created,
    ended,
    initialized,
    missing_partitions,
    must_rotate_at_end,
    needs_producer_id,
    with_partitions,
)

TRANSACTIONS_TOPIC: Final = "__transaction_state"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a broker that transactions depend on; units are named."""

    timeout_ms_max: int
    id_expiration_ms: int
    abort_interval_ms: int
    expiry_interval_ms: int


class TransactionCoordinator:
    """All transactional ids that this broker coordinates.

    `shards.follow` has to be called when leadership changes. `partition_count` gives the number of partitions
    of `__transaction_state`, 0 while there is no such topic; `find_partition` returns the local replica of
    one; `take_producer_id` returns a producer id that was never used before; `wall_ms` is the time of day.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        partition_count: Callable[[], int],
        find_partition: Callable[[int], Partition | None],
        take_producer_id: Callable[[], Awaitable[int]],
        markers: MarkerWriter,
        wall_ms: Callable[[], int],
    ) -> None:
        self.shards = Shards(TRANSACTIONS_TOPIC, find_partition, self._make_shard, settings.abort_interval_ms)
        self._settings = settings
        self._partition_count = partition_count
        self._take_producer_id = take_producer_id
        self._markers = markers
        self._wall_ms = wall_ms

    def _make_shard(self, journal: Journal) -> TransactionShard:
        settings = self._settings
        return TransactionShard(
            journal, self._markers, self._wall_ms, settings.id_expiration_ms, settings.expiry_interval_ms
        )

    # --- Finding transactional ids ---

    def partition_of(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that holds an id; 0 while there is no such topic."""
        return partition_of_key(transactional_id, self._partition_count() or 1)

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        shard = self.shards.find(self.partition_of(transactional_id))
        if shard is None:
            raise NotCoordinator(f"This broker does not coordinate transactional id '{transactional_id}'.")
        shard.require_loaded()
        if not shard.journal.partition.is_served:
            # What is answered without a record, such as a verification or an error, would be out of date if
            # another broker has been elected: a batch could begin a transaction that has ended there.
            raise NotCoordinator(
                f"Another broker may coordinate transactional id '{transactional_id}' by now:"
                " ZooKeeper has not answered this one for too long."
            )
        return shard

    def _require(self, transactional_id: str) -> tuple[TransactionShard, CoordinatedTransaction, Transaction]:
        """The transaction of a request by a producer; an id that has expired needs InitProducerId first."""
        shard = self._shard(transactional_id)
        coordinated = shard.transactions.get(transactional_id)
        if coordinated is None:
            raise InvalidProducerIdMapping(f"There is no transactional id '{transactional_id}'.")
        if coordinated.current is None:
            raise ConcurrentTransactions("The transactional id is being created: retry.")
        return shard, coordinated, coordinated.current

    def _settled(self, transactional_id: str) -> Transaction | None:
        """The transaction, or None for a new id; raises ConcurrentTransactions while it is being changed."""
        coordinated = self._shard(transactional_id).transactions.get(transactional_id)
        return None if coordinated is None else coordinated.require_settled()

    # --- Producers ---

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        """The producer that may use the transactional id from now on; all earlier ones are fenced.

        A transaction that is open is aborted; the client has to ask again until that is done.

        Args:
            expected: the producer that asks for its own next epoch (KIP-360); None: a new instance.

        Raises:
            InvalidTransactionTimeout: it is not between 1 and transaction.max.timeout.ms.
            ProducerFenced: `expected` is not the present producer.
            ConcurrentTransactions: the last transaction is being ended.
            ProtocolError: as `ProducerIds.take`, or the record could not be written.
        """
        current = self._settled(transactional_id)
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"A transaction timeout of {timeout_ms} ms is not between 1 and transaction.max.timeout.ms ="
                f" {self._settings.timeout_ms_max}."
            )
        new_producer_id = NO_ID
        if current is None or needs_producer_id(current, expected):
            new_producer_id = await self._take_producer_id()
            current = self._settled(transactional_id)  # others may have been faster
        now_ms = self._wall_ms()
        if current is None:
            changed = created(new_producer_id, timeout_ms, now_ms)
        else:
            changed = initialized(current, expected, timeout_ms, new_producer_id, now_ms)
        shard = self._shard(transactional_id)
        coordinated = shard.transactions.setdefault(
            transactional_id, CoordinatedTransaction(transactional_id)
        )
        await shard.write(coordinated, changed)
        if changed.state is not State.EMPTY:
            raise ConcurrentTransactions("The transaction that was open is being aborted: retry.")
        return changed.producer

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: AbstractSet[TopicPartition],
        client_version: int,
    ) -> None:
        """Make partitions part of the producer's transaction, which begins with the first ones.

        Raises:
            ProtocolError: as `with_partitions`, or the record could not be written.
        """
        shard, coordinated, current = self._require(transactional_id)
        # An id whose record is being written may have another producer in a moment.
        changed = with_partitions(current, producer, partitions, client_version, self._wall_ms())
        coordinated.require_settled()
        if changed is not None:
            await shard.write(coordinated, changed)

    def missing_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ProtocolError]:
        """The partitions that are not part of the producer's open transaction, each with its error (KIP-890).

        Raises:
            ProtocolError: as `transaction.missing_partitions`.
        """
        _, _, current = self._require(transactional_id)
        return {**missing_partitions(current, producer, partitions)}

    async def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, client_version: int
    ) -> Producer:
        """Commit or abort. Done when the outcome is certain; markers are written after that.

        Returns the producer that the client goes on with: in the second protocol it has another epoch.

        Raises:
            ProtocolError: as `transaction.ended` and `ProducerIds.take`, or the record could not be written.
        """
        shard, coordinated, current = self._require(transactional_id)
        new_producer_id = NO_ID
        if must_rotate_at_end(current, client_version):
            new_producer_id = await self._take_producer_id()
            shard, coordinated, current = self._require(transactional_id)
        changed = ended(
            current,
            producer,
            committed=committed,
            client_version=client_version,
            new_producer_id=new_producer_id,
            now_ms=self._wall_ms(),
        )
        coordinated.require_settled()
        if changed is None:
            return current.producer
        await shard.write(coordinated, changed)
        return changed.next_producer

    # --- Looking at transactions ---

    def transaction(self, transactional_id: str) -> Transaction:
        """A transactional id as it is recorded.

        Raises:
            TransactionalIdNotFound: there is none.
        """
        shard = self._shard(transactional_id)
        coordinated = shard.transactions.get(transactional_id)
        if coordinated is None or coordinated.current is None:
            raise TransactionalIdNotFound(f"There is no transactional id '{transactional_id}'.")
        return coordinated.current

    def transactions(self) -> Iterator[tuple[str, Transaction]]:
        """All transactional ids of this coordinator.

        Raises:
            CoordinatorLoadInProgress: some are not loaded yet.
        """
        for shard in self.shards:
            shard.require_loaded()
            for coordinated in tuple(shard.transactions.values()):
                if coordinated.current is not None:
                    yield coordinated.transactional_id, coordinated.current
