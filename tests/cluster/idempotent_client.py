"""A producer of a simulated cluster that numbers its records and sends each until the answer (R11)."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final, NamedTuple

from tests.cluster.clients import MORE, leaders
from tests.cluster.invariants import Ledger, Violation
from tests.cluster.memory_log import MemoryLog
from tests.cluster.network import CLIENT, Network
from tests.cluster.simulated_broker import SimulatedBroker
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.errors import OutOfOrderSequenceNumber, PeerUnavailable
from mainstem_broker.log.producer_state import BATCHES_REMEMBERED

IN_FLIGHT_MAX: Final = 5
FIRST_SEQUENCE: Final = 2**31 - 10
"""So that the numbers go round on the way."""
PAUSE_S_MAX: Final = 0.1


class _Batch(NamedTuple):
    """Records with these numbers, counted from 0, up to before `end`."""

    first: int
    end: int


class IdempotentProducer:
    """Up to five batches are on their way at once, with acks=all, in order as on a connection.

    What is not acknowledged is sent again, to the leader of that time, while its first copy may still be
    on its way to another broker or the same.
    """

    def __init__(
        self,
        producer_id: int,
        topic: str,
        index: int,
        network: Network,
        source: random.Random,
        ledger: Ledger,
        records_max: int,
    ) -> None:
        self.producer_id = producer_id
        self.index = index
        self._topic = topic
        self._network = network
        self._random = source
        self._ledger = ledger
        self._records_max = records_max
        self._offsets: dict[_Batch, int] = {}
        """Where batches were acknowledged."""
        self._sent: list[_Batch] = []
        self._waiting: list[_Batch] = []
        self._next = 0

    def deletable_offset(self) -> float:
        """What lies before it can be deleted, and every replica still knows the producer.

        It does as long as the last batches are there, as many as it remembers: one that is sent again, or
        that comes late, would else be taken for a new one (KIP-360).
        """
        waiting = len(self._sent) if not self._waiting else self._sent.index(self._waiting[0])
        kept = waiting - BATCHES_REMEMBERED
        return self._offsets[self._sent[kept]] if kept >= 0 else 0

    async def run(self) -> None:
        while True:
            for _ in range(self._random.randint(len(self._waiting), IN_FLIGHT_MAX) - len(self._waiting)):
                end = self._next + self._random.randint(1, self._records_max)
                batch = _Batch(self._next, end)
                self._sent.append(batch)
                self._waiting.append(batch)
                self._next = end
            leader_ids = leaders(self._network, self._topic, self.index)
            if leader_ids and self._waiting:
                await self._send_waiting(self._random.choice(leader_ids))
            await asyncio.sleep(self._random.random() * PAUSE_S_MAX)

    async def _send_waiting(self, leader: int) -> None:
        sent = [(numbers, self._encode(numbers)) for numbers in self._waiting]
        timeout_s = 0.05 + self._random.random()

        async def produce(broker: SimulatedBroker) -> Any:
            # Tasks begin in the order they were made, and a handler appends before it first waits.
            return await asyncio.gather(
                *(broker.produce(self._topic, self.index, batch, -1, timeout_s) for _, batch in sent)
            )

        try:
            async with asyncio.timeout(timeout_s + 0.5):
                answers = await self._network.call(CLIENT, leader, produce)
        except (PeerUnavailable, TimeoutError):
            return
        for (numbers, batch), answer in zip(sent, answers, strict=True):
            if answer["error_code"] == 0:
                self._told(numbers, answer["base_offset"], batch)
            elif answer["error_code"] == OutOfOrderSequenceNumber.code and numbers == sent[0][0]:
                # All before it were acknowledged before it was sent.
                raise Violation(
                    f"{self.index}: producer {self.producer_id} cannot go on with record {numbers.first}"
                )

    def _encode(self, numbers: _Batch) -> bytes:
        first = Message(b"%d" % numbers.first)
        return encode_batch(
            [first, *[MORE] * (numbers.end - numbers.first - 1)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=(FIRST_SEQUENCE + numbers.first) % 2**31,
        )

    def _told(self, numbers: _Batch, offset: int, batch: bytes) -> None:
        self._offsets[numbers] = offset
        self._ledger.acknowledge(self.index, offset, batch)
        self._waiting.remove(numbers)

    def check(self, log: MemoryLog) -> None:
        """Each of its records that is not deleted is in the log once, in order, at the offset it was
        acknowledged at."""
        offset_of: dict[_Batch, int] = {}
        next_number = 0 if log.log_start_offset == 0 else None
        for header in log.batches():
            if header.producer_id == self.producer_id:
                first = (header.base_sequence - FIRST_SEQUENCE) % 2**31
                if next_number is not None and first != next_number:
                    raise Violation(
                        f"{self.index}: of producer {self.producer_id} {first} follows {next_number - 1}"
                    )
                next_number = first + header.record_count
                offset_of[_Batch(first, next_number)] = header.base_offset
        for numbers, offset in self._offsets.items():
            is_deleted = offset + numbers.end - numbers.first <= log.log_start_offset
            if offset_of.get(numbers) != offset and not is_deleted:
                raise Violation(f"{self.index}: producer {self.producer_id} got other offsets")
