"""Producers that share a transactional id, in random interleavings with failovers and repeated requests (R9,
R11).

The coordinator is the real one over a real log; partitions are played, with the rules by which logs take
batches and markers. What must hold, whatever happens:

- a transaction whose commit was confirmed is committed in all its partitions, and one whose abort was
  confirmed in none; every transaction has one outcome;
- what a producer sends after another instance was initialized is refused;
- no transaction is open past its timeout.

Each seed is one history; a failure prints it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.txn.local_transactions import ID, LocalTransactions, WaitingMarkers

from mainstem_broker.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    ProtocolError,
)
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.txn.markers import Markers
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import CLIENT_VERSION_1, CLIENT_VERSION_2, Producer

SEEDS = range(150)
STEPS = 250
TIMEOUT_MS = 5_000
PARTITIONS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1), ("u", 0))
RETRIABLE = (ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)


@dataclass(eq=False)
class Attempt:
    """A transaction as its client sees it: `confirmed` is the outcome that it was answered."""

    name: int
    written: set[TopicPartition] = field(default_factory=set)
    confirmed: bool | None = None


@dataclass
class PlayedLog:
    """One partition: epochs by producer id, open transactions, and the outcome of each one's records."""

    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Attempt]] = field(default_factory=dict)
    outcomes: dict[int, list[bool]] = field(default_factory=dict)

    def append(self, producer: Producer, attempt: Attempt) -> bool:
        """Take a batch, unless the producer has a later epoch here."""
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return False
        self.epochs[producer.producer_id] = producer.epoch
        self.open.setdefault(producer.producer_id, []).append(attempt)
        return True

    def mark(self, markers: Markers) -> bool:
        """Take a marker; False if a later coordinator or producer has been here."""
        producer_id = markers.producer_id
        if markers.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return False
        if markers.epoch < self.epochs.get(producer_id, -1):
            return False
        is_next = markers.epoch == self.epochs.get(producer_id, -1) and markers.client_version >= 2
        if is_next and self.open.get(producer_id):
            return False
        self.epochs[producer_id] = markers.epoch
        self.coordinator_epochs[producer_id] = markers.coordinator_epoch
        for attempt in self.open.pop(producer_id, []):
            self.outcomes.setdefault(attempt.name, []).append(markers.is_commit)
        return True


class Client:
    """One instance of the producer: it retries as clients do, and gives up when it is fenced."""

    def __init__(self, world: World, version: int) -> None:
        self.world = world
        self.version = version
        self.producer: Producer | None = None
        self.is_dead = False
        self.is_replaced = False
        """Whether another instance has been initialized since."""

    async def run(self) -> None:
        try:
            self.producer = await self.retry(lambda: self.world.local.init(timeout_ms=TIMEOUT_MS))
            self.world.initialized(self)
            while True:
                await self.transaction()
        except ProtocolError:
            self.is_dead = True  # fenced, or its transaction has timed out

    async def transaction(self) -> None:
        world = self.world
        assert self.producer is not None
        attempt = world.begin()
        for partition in world.random.sample(PARTITIONS, world.random.randint(0, 3)):
            await self.write(attempt, partition)
        producer, committed = self.producer, world.random.random() < 0.6
        if self.version == CLIENT_VERSION_1 and not attempt.written:
            return  # clients of the first protocol do not end what has not begun

        def end() -> Awaitable[Producer]:
            return world.local.end(producer, committed=committed, version=self.version)

        if self.version == CLIENT_VERSION_2:  # in the first protocol it could end the next transaction
            world.repeatable.append((self, end))
        self.producer = await self.retry(end)
        attempt.confirmed = committed
        assert not self.is_replaced, "a producer that was replaced has ended a transaction"

    async def write(self, attempt: Attempt, partition: TopicPartition) -> None:
        producer = self.producer
        assert producer is not None

        def add() -> Awaitable[None]:
            return self.world.local.add(producer, partition, version=self.version)

        await self.retry(add)
        assert not self.is_replaced, "a producer that was replaced has added a partition"
        await self.world.pause()  # the batch is on its way
        if self.version == CLIENT_VERSION_1:
            # Logs verify what begins a transaction; nothing comes between the answer and the append.
            await self.retry(lambda: self.verify(producer, partition))
        if self.world.logs[partition].append(producer, attempt):
            attempt.written.add(partition)
        else:
            raise ProtocolError("The batch was refused.")

    async def verify(self, producer: Producer, partition: TopicPartition) -> None:
        missing = self.world.local.coordinator.missing_partitions(ID, producer, [partition])
        for error in missing.values():
            raise error

    async def retry(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a request, which is sent again after a lost answer or an error that passes."""
        while True:
            try:
                answer = await self.world.send(request)
            except RETRIABLE:
                await self.world.pause()
                continue
            except LostAnswer:
                continue
            return answer


class LostAnswer(Exception):
    """The coordinator may have done what was requested."""


class World:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.local = LocalTransactions(directory, followers=True)
        self.logs = {partition: PlayedLog() for partition in PARTITIONS}
        self.clients: list[Client] = []
        self.attempts: list[Attempt] = []
        self.repeatable: list[tuple[Client, Callable[[], Awaitable[Any]]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.written: dict[WaitingMarkers, set[TopicPartition]] = {}
        self.sent: list[tuple[Markers, TopicPartition]] = []
        self._paused: list[asyncio.Future[None]] = []
        self._crashing = asyncio.Event()

    # --- Clients ---

    def begin(self) -> Attempt:
        self.attempts.append(Attempt(len(self.attempts)))
        return self.attempts[-1]

    def initialized(self, client: Client) -> None:
        for other in self.clients:
            if other is not client and other.producer is not None and client.producer is not None:
                other.is_replaced |= other.producer < client.producer
        assert client.producer is not None

    async def pause(self) -> None:
        """Wait until the world goes on with this client."""
        paused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._paused.append(paused)
        await paused

    async def send(self, request: Callable[[], Awaitable[Any]]) -> Any:
        await self.pause()
        crashing = self._crashing
        task = asyncio.ensure_future(request())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved if it is lost
        crashed = asyncio.ensure_future(crashing.wait())
        await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()
        if not task.done():
            task.cancel()
            raise LostAnswer
        answer = task.result()
        if self.random.random() < 0.1:
            raise LostAnswer
        return answer

    def start(self) -> None:
        client = Client(self, self.random.choice((CLIENT_VERSION_2, CLIENT_VERSION_2, CLIENT_VERSION_1)))
        self.clients.append(client)
        self.spawn(client.run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    # --- What happens ---

    async def step(self) -> None:
        event = self.random.random()
        if event < 0.5:
            self.wake()
        elif event < 0.7:
            self.local.replicate()
        elif event < 0.88:
            self.write_marker()
        elif event < 0.91:
            self.repeat()
        elif event < 0.94:
            self.local.now_ms += self.random.randint(1, 1_500)
            await self.local.shard.upkeep()
        elif event < 0.96:
            await self.fail_over()
        elif sum(not client.is_dead for client in self.clients) < 2:
            self.start()
        await self.settle()

    def wake(self) -> None:
        if self._paused:
            paused = self._paused.pop(self.random.randrange(len(self._paused)))
            if not paused.done():
                paused.set_result(None)

    def repeat(self) -> None:
        """A request comes again, late: the network has kept a copy of it."""
        if self.repeatable:
            _, request = self.random.choice(self.repeatable[-4:])

            async def late() -> None:
                try:
                    await request()
                except ProtocolError:
                    pass

            self.spawn(late())

    def write_marker(self) -> None:
        """One partition takes the marker of one transaction; sometimes twice, and the answer may be lost."""
        waiting = self.local.markers.waiting
        if self.sent and self.random.random() < 0.1:
            markers, partition = self.random.choice(self.sent[-10:])
            self.logs[partition].mark(markers)  # the network has kept a copy
        if not waiting:
            return
        one = self.random.choice(waiting)
        written = self.written.setdefault(one, set())
        remaining = sorted(one.markers.partitions)
        if remaining:
            partition = self.random.choice(remaining)
            # In the first protocol a late copy of a marker ends what is open then.
            if one.markers.client_version == CLIENT_VERSION_2:
                self.sent.append((one.markers, partition))
            if self.logs[partition].mark(one.markers) and self.random.random() < 0.8:
                written.add(partition)
        if written == one.markers.partitions:
            waiting.remove(one)
            one.done()

    async def fail_over(self) -> None:
        """Another coordinator begins from the log, with or without what was not replicated."""
        self._crashing.set()
        self._crashing = asyncio.Event()
        await self.local.restart(loses_tail=self.random.random() < 0.5)

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def heal(self) -> None:
        """Stop the clients, and let the coordinator end what is open."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for _ in range(50):
            self.local.replicate()
            self.local.now_ms += TIMEOUT_MS
            await self.local.shard.upkeep()
            self.local.replicate()
            for _ in range(20):
                self.write_marker()
                self.local.replicate()
            await self.settle()
            entry = self.local.shard.transactions.get(ID)
            if entry is None:
                return
            if entry.pending is None and entry.current is not None and entry.current.state.is_idle:
                return
        pytest.fail("a transaction is open past its timeout")

    # --- What must hold ---

    def check(self) -> None:
        for log in self.logs.values():
            assert not any(log.open.values()), "a partition waits for a marker that never comes"
        for attempt in self.attempts:
            outcomes = [
                outcome for log in self.logs.values() for outcome in log.outcomes.get(attempt.name, ())
            ]
            assert len(set(outcomes)) <= 1, f"transaction {attempt.name} is torn: {outcomes}"
            if attempt.confirmed is not None:
                assert outcomes == [attempt.confirmed] * len(attempt.written), (
                    f"transaction {attempt.name} was answered {attempt.confirmed}, and is {outcomes}"
                )


async def history(seed: int, directory: Path) -> World:
    world = World(seed, directory)
    await world.local.load()
    try:
        world.start()
        for _ in range(STEPS):
            await world.step()
        await world.heal()
        world.check()
    finally:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)
        await world.local.coordinator.shards.stop()
    return world


@pytest.mark.parametrize("first", range(0, len(SEEDS), 10))
async def test_every_transaction_has_one_outcome_which_is_the_one_that_was_answered(
    first: int, tmp_path: Path
) -> None:
    confirmed = 0
    for seed in SEEDS[first : first + 10]:
        try:
            world = await history(seed, tmp_path / str(seed))
        except BaseException:
            print(f"seed {seed}")  # noqa: T201  # to repeat it: history(seed, ...)
            raise
        confirmed += sum(attempt.confirmed is True and bool(attempt.written) for attempt in world.attempts)
    assert confirmed > 0, "the histories are too short to show anything"


async def test_a_state_that_no_history_reaches_would_make_the_model_useless(tmp_path: Path) -> None:
    """Timeouts, fences, failovers and commits all occur."""
    states: set[State] = set()
    for seed in range(10):
        world = await history(seed, tmp_path / str(seed))
        states.update(
            State.COMPLETE_COMMIT if outcome else State.COMPLETE_ABORT
            for log in world.logs.values()
            for outcomes in log.outcomes.values()
            for outcome in outcomes
        )
    assert states == {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
