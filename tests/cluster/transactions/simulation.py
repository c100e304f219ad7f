"""One simulated history of transactions: trouble for some seconds, then calm, and checks (R9, R11, R12).

The logs, replicas, coordinators, marker senders and compaction passes are the broker's own; the network, the
clock and elections are simulated. `run(seed)` is the whole interface; equal seeds make equal histories.

- The history has no anomaly that Kafka's design does not allow (`tests/support/anomalies`).
- A producer that was replaced ends nothing; no transaction is open past its timeout, but for the time that
  the coordinator's interval and a failover take.
- The records of an idempotent producer without transactions are in the log once, and in order.
- An offset is visible only if the commit of its transaction was requested, and the last one committed stays.
- Compaction keeps the newest committed value of each key, on every replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.invariants import Violation
from tests.cluster.transactions.broker import COMPACTED, INPUT, OFFSETS, PARTITIONS, TRANSACTIONS, now_ms
from tests.cluster.transactions.clients import (
    DATA,
    GROUP,
    IdempotentProducer,
    Notes,
    Reader,
    TransactionalClient,
)
from tests.cluster.transactions.elections import Cluster
from tests.cluster.virtual_time import run_in_virtual_time
from tests.support.anomalies.anomalies import Anomaly, describe
from tests.support.anomalies.check import check, forbidden
from tests.support.anomalies.history import EndRequest, Isolation
from tests.support.anomalies.log_order import LogOrder, Outcome

from mainstem_broker.errors import ProtocolError
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.txn.transaction import CLIENT_VERSION_1, CLIENT_VERSION_2

IDS: Final = ("one", "two", "three")
TROUBLE_S: Final = 8.0
CALM_S_MAX: Final = 30.0
HISTORY_S_MAX: Final = 60.0
COMPACTION_PAUSE_S: Final = 1.0
WATCH_S: Final = 0.1
FAILOVER_MS: Final = 3_000
"""Within which a coordinator that was just elected has loaded its transactions and can record an abort: a
broker is away for 1.1 s at most, and its return to the in-sync set takes some fetches."""
MAP_BYTES: Final = (1, 200, 100_000)
"""Of a key map: one record at a time, some, and all."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a history came to; equal for equal seeds."""

    seed: int
    transactions: int
    committed: int
    aborted: int
    allowed: int
    virtual_s: float


class Failed(AssertionError):
    """A seed whose history breaks a rule."""

    def __init__(self, seed: int, error: BaseException) -> None:
        super().__init__(f"seed {seed}: {type(error).__name__}: {error}")
        self.seed = seed


def run(seed: int, directory: Path) -> Outcomes:
    """Live through the history of a seed, with the logs in `directory`.

    Raises:
        Failed: a rule does not hold.
    """
    try:
        return run_in_virtual_time(asyncio.wait_for(_History(seed, directory).live(), HISTORY_S_MAX))
    except Exception as error:
        raise Failed(seed, error) from error


class _History:
    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.notes = Notes()
        self.directory = directory
        self._coordinator_state: PartitionState | None = None
        self._coordinator_since_ms = 0

    async def live(self) -> Outcomes:
        self.cluster = Cluster(self.random, self.directory)
        self.readers = [
            Reader(place, isolation, self.cluster, self.notes) for place in DATA for isolation in Isolation
        ]
        control = asyncio.create_task(self.cluster.control())
        clients = [asyncio.create_task(self._produce(name)) for name in IDS]
        others = [asyncio.create_task(reader.run()) for reader in self.readers]
        others += [
            asyncio.create_task(act())
            for act in (
                self._compact,
                self._fetch_offsets,
                self._watch,
                IdempotentProducer(self.cluster, self.notes).run,
            )
        ]
        trouble = asyncio.create_task(self.cluster.trouble(TROUBLE_S))
        done, _ = await asyncio.wait([trouble, *clients, *others, control], return_when="FIRST_COMPLETED")
        for task in done:
            task.result()  # clients end only by a violation
        for task in (*clients, *others):
            task.cancel()
        await asyncio.gather(*clients, *others, return_exceptions=True)
        await self._until(self._is_calm, "all transactions to end and all replicas to be level")
        control.cancel()
        return self._judge()

    # --- Who acts ---

    async def _produce(self, name: str) -> None:
        """One instance after another; sometimes two at once, of which the former has to be fenced."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                version = self.random.choice((CLIENT_VERSION_1, CLIENT_VERSION_2))
                client = TransactionalClient(name, version, self.cluster, self.notes)
                running.add(asyncio.create_task(client.run()))
                patience_s = 1.0 + 6.0 * self.random.random()
                done, running = await asyncio.wait(running, timeout=patience_s, return_when="FIRST_COMPLETED")
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()

    async def _compact(self) -> None:
        while True:
            await asyncio.sleep(self.random.random() * COMPACTION_PAUSE_S)
            broker = self.random.choice(list(self.cluster.brokers.values()))
            if broker.is_alive:
                for place in (COMPACTED, OFFSETS, TRANSACTIONS):
                    broker.compact(place, self.random.choice(MAP_BYTES))

    async def _fetch_offsets(self) -> None:
        while True:
            await asyncio.sleep(self.random.random() * 0.1)
            offset = self._committed_offset()
            if offset is not None:
                self._check_requested(offset)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._check_open()

    def _check_open(self) -> None:
        """No transaction is open that its coordinator should have aborted."""
        state = self.cluster.states[TRANSACTIONS]
        if state != self._coordinator_state:
            self._coordinator_state, self._coordinator_since_ms = state, now_ms()
        broker = self.cluster.leader(TRANSACTIONS)
        if broker is None:
            return
        interval_ms = broker.settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        latest_ms = now_ms() - interval_ms - FAILOVER_MS
        if self._coordinator_since_ms > latest_ms:
            return
        with contextlib.suppress(ProtocolError):
            for name, transaction in broker.transactions.transactions():
                if transaction.has_timed_out(latest_ms):
                    raise Violation(f"the transaction of {name} is open long after its timeout")

    def _committed_offset(self) -> int | None:
        broker = self.cluster.leader(OFFSETS)
        if broker is None:
            return None
        try:
            committed = broker.groups.committed(GROUP, [INPUT]).get(INPUT)
        except ProtocolError:
            return None
        return None if committed is None else committed.offset

    def _check_requested(self, offset: int) -> None:
        transaction = self.notes.offsets[offset].transaction
        if EndRequest(transaction.rpartition("-")[0], transaction, True) not in self.notes.operations:
            raise Violation(f"offset {offset} is visible before the commit of {transaction} is requested")

    # --- The end ---

    async def _until(self, reached: Callable[[], bool], what: str) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CALM_S_MAX
        while not reached():
            if loop.time() > end_s:
                raise Violation(f"waited {CALM_S_MAX:.0f} s for {what}")
            self._check_open()
            await asyncio.sleep(WATCH_S)

    def _is_calm(self) -> bool:
        broker = self.cluster.leader(TRANSACTIONS)
        if broker is None or not self.cluster.is_level():
            return False
        with contextlib.suppress(ProtocolError):
            return all(state.state.is_idle for _, state in broker.transactions.transactions()) and not any(
                leader is None
                or leader.partitions[place].last_stable_offset < leader.partitions[place].high_watermark
                for place in PARTITIONS
                for leader in [self.cluster.leader(place)]
            )
        return False

    def _judge(self) -> Outcomes:
        for reader in self.readers:
            while reader.poll():
                pass
        operations = self.notes.operations
        findings = check(operations, compacted={DATA.index(COMPACTED)})
        if bad := forbidden(findings):
            raise Violation("\n" + describe(bad))
        order = LogOrder.of(operations)
        self._check_offsets(order)
        self._check_newest(order)
        outcomes = [facts.outcome for facts in order.transactions.values()]
        return Outcomes(
            self.seed,
            self.notes.began,
            outcomes.count(Outcome.COMMITTED),
            outcomes.count(Outcome.ABORTED),
            sum(finding.anomaly is not Anomaly.INT_SEND_SKIP for finding in findings),
            asyncio.get_running_loop().time(),
        )

    def _check_offsets(self, order: LogOrder) -> None:
        committed = {
            number: commit
            for number, commit in self.notes.offsets.items()
            if order.transactions[commit.transaction].outcome is Outcome.COMMITTED
        }
        offset = self._committed_offset()
        if offset is None:
            if committed:
                raise Violation(f"{len(committed)} offsets were committed, and there is none")
            return
        self._check_requested(offset)
        last = self.notes.offsets[offset]
        if order.transactions[last.transaction].outcome is Outcome.ABORTED:
            raise Violation(f"offset {offset} of {last.transaction} is visible, which was aborted")
        for number, later in committed.items():
            if last.stored_s is not None and later.sent_s > last.stored_s:
                raise Violation(f"offset {number} was committed after {offset}, which is still there")

    def _check_newest(self, order: LogOrder) -> None:
        """A reader that begins now finds the newest committed value of each key, whichever replica leads."""
        for broker in self.cluster.brokers.values():
            reader = Reader(COMPACTED, Isolation.READ_COMMITTED, self.cluster, Notes())
            reader.read_replica(broker.partitions[COMPACTED])
            for key in {written.key for written in self.notes.written}:
                self._check_key(order, key, reader.visible.get(key), broker.broker_id)
            for key, possible in self.notes.plain.items():
                value = reader.visible.get(key)
                if value not in possible:
                    raise Violation(
                        f"the value of {key!r} on broker {broker.broker_id} is {value}, not one of {possible}"
                    )

    def _check_key(self, order: LogOrder, key: bytes, value: str | None, broker_id: int) -> None:
        possible: set[str | None] = set()
        for written in sorted((one for one in self.notes.written if one.key == key), reverse=True):
            outcome = order.transactions[written.transaction].outcome
            if outcome is not Outcome.ABORTED:
                possible.add(written.value)
            if outcome is Outcome.COMMITTED:
                break
        else:
            possible.add(None)
        if value not in possible:
            raise Violation(f"the value of {key!r} on broker {broker_id} is {value}, not one of {possible}")
