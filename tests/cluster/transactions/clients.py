"""Producers with transactions, readers of both isolation levels, and what they note.

A producer retries as clients do; it may also vanish in the middle, and another instance takes its id over.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.cluster.invariants import Violation
from tests.cluster.transactions.broker import (
    COMPACTED,
    DELAY_S_MAX,
    INPUT,
    OFFSETS,
    PLAIN,
    READ_BYTES,
    TOPIC_IDS,
    TRANSACTIONS,
    Broker,
    now_ms,
)
from tests.cluster.transactions.elections import Cluster
from tests.support.anomalies.history import End, EndRequest, Isolation, Operation, Poll, Record, Send
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.coordinator.journal import TransactionalProducer
from mainstem_broker.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    ProtocolError,
)
from mainstem_broker.group.messages import Commit
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.protocol.batches import parse_batch_header, read_records, split_batches
from mainstem_broker.protocol.markers import read_marker
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.partition import Partition
from mainstem_broker.txn.transaction import CLIENT_VERSION_1, CLIENT_VERSION_2, Producer

DATA: Final = (*PLAIN, COMPACTED)
KEYS: Final = (b"a", b"b", b"c", b"d")
PLAIN_KEYS: Final = (b"x", b"y")
PLAIN_PRODUCER_ID: Final = 9_000_000
PLAIN_PAUSE_S_MAX: Final = 0.3
GROUP: Final = "group"
TRANSACTIONAL: Final = 0x10
TIMEOUT_MS: Final = 1_500
REQUEST_TIMEOUT_S: Final = 1.0
RETRY_S_MAX: Final = 0.05
PAUSE_S_MAX: Final = 0.05
ABANDONED_SHARE: Final = 0.02
SLOW_SHARE: Final = 0.25
SLOW_S_MAX: Final = 0.2
"""Some answers of the coordinator to leaders are slow: an abort may overtake them."""
RETRIABLE: Final = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
)
Answer = TypeVar("Answer")


class Lost(Exception):
    """No answer: what was requested may have happened."""


class Abandoned(Exception):
    """The client does not wait for an answer any more; its request is still on the way."""


@dataclass(frozen=True, slots=True, order=True)
class Written:
    """A record of the compacted topic that was acknowledged; `value` None: a tombstone."""

    offset: int
    key: bytes
    value: str | None
    transaction: str


@dataclass(slots=True)
class OffsetCommit:
    """An offset in a transaction. Times are seconds; `stored_s` None: not acknowledged."""

    transaction: str
    offset: int
    sent_s: float
    stored_s: float | None = None


@dataclass(slots=True)
class Notes:
    """What all clients saw; `operations` are judged as a history."""

    operations: list[Operation] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    offsets: dict[int, OffsetCommit] = field(default_factory=dict)
    began: int = 0
    instances: dict[str, int] = field(default_factory=dict)
    """How often each transactional id was initialized."""
    plain: dict[bytes, list[str]] = field(default_factory=dict)
    """By key: the values that may be the newest of the producer without transactions."""


class Client:
    """Sends requests to leaders, as clients do: again after errors that pass."""

    def __init__(self, cluster: Cluster, notes: Notes) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._notes = notes
        self._arriving: set[asyncio.Task[None]] = set()

    async def _retry(
        self,
        place: TopicPartition,
        request: Callable[[Broker], Awaitable[Answer]],
        *,
        gives_up: float = 0.0,
        abandons: float = 0.0,
    ) -> Answer:
        """The answer of a partition's leader; sent again after an error that passes or a lost answer.

        `gives_up` is the probability that the client vanishes instead of sending again; `abandons`, that it
        waits for no answer, though the request arrives.
        """
        while True:
            if self._random.random() < abandons:
                self._abandon(place, request)
                raise Abandoned
            try:
                return await self._ask(place, request)
            except (Lost, *RETRIABLE) as error:
                if isinstance(error, Lost) and self._random.random() < gives_up:
                    raise Lost from None
                await asyncio.sleep(self._random.random() * RETRY_S_MAX)

    def _abandon(self, place: TopicPartition, request: Callable[[Broker], Awaitable[Answer]]) -> None:
        claimants = self._cluster.claimants(place)
        if claimants:
            broker = self._random.choice(claimants)
            delay_s = self._random.random() * DELAY_S_MAX
            arrival = asyncio.get_running_loop().create_task(
                _arrive(broker, request, delay_s), context=contextvars.Context()
            )
            self._arriving.add(arrival)
            arrival.add_done_callback(self._arriving.discard)

    async def _ask(self, place: TopicPartition, request: Callable[[Broker], Awaitable[Answer]]) -> Answer:
        claimants = self._cluster.claimants(place)
        if not claimants:
            raise Lost
        broker = self._random.choice(claimants)
        await asyncio.sleep(self._random.random() * DELAY_S_MAX)
        if not broker.is_alive:
            raise Lost
        life = broker.life
        task = broker.spawn(_answer(request(broker)))
        task.add_done_callback(_retrieve)
        done, _ = await asyncio.wait([task], timeout=REQUEST_TIMEOUT_S)
        await asyncio.sleep(self._random.random() * DELAY_S_MAX)
        if (
            not done
            or task.cancelled()
            or not broker.is_alive
            or broker.life != life
            or self._random.random() < 0.02
        ):
            task.cancel()
            raise Lost
        return task.result()


class TransactionalClient(Client):
    """One instance of a producer; `run` ends when it is fenced or vanishes."""

    def __init__(self, name: str, version: int, cluster: Cluster, notes: Notes) -> None:
        super().__init__(cluster, notes)
        self._name = name
        self._version = version
        self._producer = Producer(-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._instance = 0

    async def run(self) -> None:
        try:
            initialized = await self._retry(
                TRANSACTIONS, lambda broker: broker.transactions.init_producer(self._name, TIMEOUT_MS, None)
            )
            self._producer = initialized
            self._instance = self._notes.instances[self._name] = self._notes.instances.get(self._name, 0) + 1
            while self._random.random() > 0.05:
                await self._transaction()
                await asyncio.sleep(self._random.random() * PAUSE_S_MAX)
        except ProtocolError:
            return  # fenced, or its transaction has timed out
        except Lost:
            return  # vanished

    async def _transaction(self) -> None:
        notes = self._notes
        notes.began += 1
        transaction = f"{self._name}-{notes.began}"
        places = self._random.sample(DATA, self._random.randint(1, len(DATA)))
        is_abandoned = False
        try:
            for number, place in enumerate(places):
                if self._random.random() < 0.02:
                    raise Lost
                await self._write(transaction, place, number)
            if self._random.random() < 0.4:
                await self._commit_offset(transaction)
        except Abandoned:
            is_abandoned = True
        is_commit = not is_abandoned and self._random.random() < 0.65
        notes.operations.append(EndRequest(self._name, transaction, is_commit))
        is_replaced = self._instance < notes.instances[self._name]
        producer = self._producer
        next_producer = await self._retry(
            TRANSACTIONS,
            lambda broker: broker.transactions.end(
                self._name, producer, committed=is_commit, client_version=self._version
            ),
            gives_up=0.3,
        )
        if is_replaced:
            raise Violation(f"{self._name}: a producer that was replaced has ended {transaction}")
        notes.operations.append(End(self._name, transaction, is_commit))
        if is_abandoned:
            raise Lost  # the client does not know its next sequence number: it begins anew
        if next_producer != self._producer:
            self._producer = next_producer
            self._sequences.clear()

    # --- Records ---

    async def _write(self, transaction: str, place: TopicPartition, number: int) -> None:
        if self._version == CLIENT_VERSION_1:
            await self._add(place)
        key = self._random.choice(KEYS)
        is_tombstone = place == COMPACTED and self._random.random() < 0.3
        value = f"{transaction}/{number}"
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            [Message(None if is_tombstone else value.encode(), key, (), now_ms())],
            attributes=TRANSACTIONAL,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            base_sequence=sequence,
        )
        operations = self._notes.operations
        at = len(operations)
        send = Send(f"{self._name}.{self._instance}", transaction, DATA.index(place), value)
        if (
            not is_tombstone
        ):  # which has no value to be recognized by: it is judged by what is left in the end
            operations.append(send)
        offset = await self._retry(
            place, lambda broker: self._produce(broker, place, batch), abandons=ABANDONED_SHARE
        )
        self._sequences[place] = sequence + 1
        if not is_tombstone:
            operations[at] = send._replace(offset=offset)
        if place == COMPACTED:
            self._notes.written.append(Written(offset, key, None if is_tombstone else value, transaction))

    async def _produce(self, broker: Broker, place: TopicPartition, batch: bytes) -> int:
        """What the handler of Produce does with a transactional batch (`api/transaction_verification.py`)."""
        partition = broker.partitions[place]
        partition.require_leader()
        producers = partition.log.producers
        verification = None
        if producers.must_verify(parse_batch_header(batch)):
            verification = producers.begin_verification(self._producer.producer_id, now_ms())
            await self._verify(place)
        info = append_batch(
            partition, batch, acks=-1, produce_version=11, now_ms=now_ms(), verification=verification
        )
        await replicated(partition, info.last_offset + 1)
        return info.first_offset

    async def _add(self, place: TopicPartition) -> None:
        producer, version = self._producer, self._version
        await self._retry(
            TRANSACTIONS,
            lambda broker: broker.transactions.add_partitions(
                self._name, producer, frozenset((place,)), version
            ),
        )

    async def _verify(self, place: TopicPartition) -> None:
        """The leader of a partition asks the coordinator."""
        await asyncio.sleep(self._random.random() * DELAY_S_MAX)
        broker = self._cluster.leader(TRANSACTIONS)
        if broker is None:
            raise NotEnoughReplicas("There is no coordinator.")
        if self._version == CLIENT_VERSION_2:
            await broker.transactions.add_partitions(
                self._name, self._producer, frozenset((place,)), CLIENT_VERSION_2
            )
        else:
            for error in broker.transactions.missing_partitions(self._name, self._producer, [place]).values():
                raise error
        is_slow = self._random.random() < SLOW_SHARE
        await asyncio.sleep(self._random.random() * (SLOW_S_MAX if is_slow else DELAY_S_MAX))

    # --- Offsets ---

    async def _commit_offset(self, transaction: str) -> None:
        if self._version == CLIENT_VERSION_1:
            await self._add(OFFSETS)
        number = len(self._notes.offsets)
        commit = OffsetCommit(transaction, number, asyncio.get_running_loop().time())
        self._notes.offsets[number] = commit
        await self._retry(
            OFFSETS, lambda broker: self._store_offset(broker, number), abandons=ABANDONED_SHARE
        )
        commit.stored_s = asyncio.get_running_loop().time()

    async def _store_offset(self, broker: Broker, number: int) -> None:
        """What the handler of TxnOffsetCommit does (`api/transactional_offsets.py`)."""
        groups = broker.groups
        request = Commit("", None, -1, 3, is_transactional=True)
        groups.check_commit(GROUP, request)
        producer_id, epoch = self._producer
        verification = groups.begin_verification(GROUP, producer_id, epoch)
        if verification is not None:
            await self._verify(OFFSETS)
        producer = TransactionalProducer(producer_id, epoch, verification)
        offset = CommittedOffset(number, -1, "", now_ms(), topic_id=TOPIC_IDS[INPUT[0]])
        await groups.commit_in_transaction(GROUP, request, producer, {INPUT: offset})


class IdempotentProducer(Client):
    """A producer without transactions among those that have some: it never gives up, so that each of its
    records is in the log once, in the order of sending."""

    def __init__(self, cluster: Cluster, notes: Notes) -> None:
        super().__init__(cluster, notes)
        self._leader_epoch = -1

    async def run(self) -> None:
        sequence = 0
        while True:
            await self._write(sequence)
            sequence += 1
            await asyncio.sleep(self._random.random() * PLAIN_PAUSE_S_MAX)

    async def _write(self, sequence: int) -> None:
        key = self._random.choice(PLAIN_KEYS)
        value = f"plain/{sequence}"
        batch = encode_batch(
            [Message(value.encode(), key, (), now_ms())],
            producer_id=PLAIN_PRODUCER_ID,
            producer_epoch=0,
            base_sequence=sequence,
        )
        operations = self._notes.operations
        at = len(operations)
        send = Send("plain", None, DATA.index(COMPACTED), value, is_acknowledged=False)
        operations.append(send)
        self._notes.plain.setdefault(key, []).append(value)
        offset = await self._retry(COMPACTED, lambda broker: self._produce(broker, batch))
        operations[at] = send._replace(offset=offset, is_acknowledged=True)
        self._notes.plain[key] = [value]

    async def _produce(self, broker: Broker, batch: bytes) -> int:
        partition = broker.partitions[COMPACTED]
        if partition.leader_epoch < self._leader_epoch:
            # Clients never go back to a leader that was replaced (KIP-320). It may not have the last batch,
            # and would answer that the next one is out of order.
            raise NotLeaderOrFollower("The leader was replaced.")
        self._leader_epoch = partition.leader_epoch
        info = append_batch(partition, batch, acks=-1, produce_version=11, now_ms=now_ms())
        await replicated(partition, info.last_offset + 1)
        return info.first_offset


async def _arrive(broker: Broker, request: Callable[[Broker], Awaitable[Answer]], delay_s: float) -> None:
    """A request without its client: it is on the wire, and nobody hears its answer."""
    await asyncio.sleep(delay_s)
    if broker.is_alive:
        broker.spawn(_answer(request(broker))).add_done_callback(_retrieve)


async def _answer(request: Awaitable[Answer]) -> Answer:
    return await request


def _retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def replicated(partition: Partition, end_offset: int) -> None:
    """Wait until the high watermark is at an offset, as Produce with acks=all does."""
    settled: asyncio.Future[ProtocolError | None] = asyncio.get_running_loop().create_future()

    def settle(_: Acknowledgement, error: ProtocolError | None) -> None:
        if not settled.done():
            settled.set_result(error)

    waiting = Acknowledgement(end_offset, settle)
    if not partition.acknowledge(waiting):
        try:
            error = await settled
        finally:
            partition.acknowledgements.remove(waiting)
        if error is not None:
            raise error


class Reader:
    """Reads one partition from its start, and then what comes."""

    def __init__(self, place: TopicPartition, isolation: Isolation, cluster: Cluster, notes: Notes) -> None:
        self._place = place
        self._isolation = isolation
        self._cluster = cluster
        self._notes = notes
        self.position = 0
        self.visible: dict[bytes, str | None] = {}
        """The newest value of each key that was read."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._cluster.random.random() * PAUSE_S_MAX)
            self.poll()

    def poll(self) -> bool:
        """Whether there was something to read."""
        broker = self._cluster.leader(self._place)
        if broker is None:
            return False
        partition = broker.partitions[self._place]
        is_committed = self._isolation is Isolation.READ_COMMITTED
        if self.position > partition.log.log_end_offset:
            return False
        try:
            fetched = partition.read(
                self.position, READ_BYTES, client_epoch=-1, min_one_batch=True, committed=is_committed
            )
        except ProtocolError:
            return False
        if fetched.slice is None:
            return False
        waiting = (
            partition.log.aborted_transactions(self.position, fetched.end_offset) if is_committed else []
        )
        self._take(bytes(fetched.slice.read()), list(waiting))
        self.position = fetched.end_offset
        return True

    def read_replica(self, partition: Partition) -> None:
        """Read all that a replica has, as if it led."""
        log = partition.log
        while self.position < partition.last_stable_offset:
            fetched = log.read(self.position, READ_BYTES, partition.last_stable_offset, True)
            if fetched.slice is None:
                return
            aborted = log.aborted_transactions(self.position, fetched.end_offset)
            self._take(bytes(fetched.slice.read()), list(aborted))
            self.position = fetched.end_offset

    def _take(self, content: bytes, waiting: list[Any]) -> None:
        """What Apache Kafka's consumer does with a fetch and its list of aborted transactions."""
        records: list[Record] = []
        aborting: set[int] = set()
        for header, batch in split_batches(content, partial_tail=True):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(header, batch)
                if marker is not None and not marker.is_commit:
                    aborting.discard(header.producer_id)
                continue
            if header.producer_id in aborting:
                continue
            for record in read_records(header, batch):
                if record.offset < self.position:
                    continue
                value = None if record.value is None else record.value.decode()
                self.visible[record.key or b""] = value
                if value is not None:
                    records.append(Record(DATA.index(self._place), record.offset, value))
        if records:
            name = f"{self._isolation.value} of {self._place}"
            self._notes.operations.append(Poll(name, self._isolation, tuple(records)))
