"""A producer of a simulated cluster that numbers its records and sends each until the answer (R11)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.cluster.clients import MORE, PartitionClient, leaders
from tests.cluster.invariants import Violation
from tests.cluster.memory_log import MemoryLog
from tests.cluster.network import CLIENT
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


@dataclass(eq=False)
class IdempotentProducer(PartitionClient):
    """Up to five batches are on their way at once, with acks=all, in order as on a connection.

    What is not acknowledged is sent again, to the leader of that time, while its first copy may still be
    on its way to another broker or the same.
    """

    producer_id: int
    records_max: int
    """Of a batch."""
    offsets: dict[_Batch, int] = field(default_factory=dict)
    """Where batches were acknowledged."""
    sent: list[_Batch] = field(default_factory=list)
    waiting: list[_Batch] = field(default_factory=list)
    next: int = 0

    def deletable_offset(self) -> float:
        """What lies before it can be deleted, and every replica still knows the producer.

        It does as long as the last batches are there, as many as it remembers: one that is sent again, or
        that comes late, would else be taken for a new one (KIP-360).
        """
        waiting = len(self.sent) if not self.waiting else self.sent.index(self.waiting[0])
        kept = waiting - BATCHES_REMEMBERED
        return self.offsets[self.sent[kept]] if kept >= 0 else 0

    async def run(self) -> None:
        while True:
            for _ in range(self.random.randint(len(self.waiting), IN_FLIGHT_MAX) - len(self.waiting)):
                end = self.next + self.random.randint(1, self.records_max)
                batch = _Batch(self.next, end)
                self.sent.append(batch)
                self.waiting.append(batch)
                self.next = end
            leader_ids = leaders(self.network, self.topic, self.index)
            if leader_ids and self.waiting:
                await self._send_waiting(self.random.choice(leader_ids))
            await asyncio.sleep(self.random.random() * PAUSE_S_MAX)

    async def _send_waiting(self, leader: int) -> None:
        sent = [(numbers, self._encode(numbers)) for numbers in self.waiting]
        timeout_s = 0.05 + self.random.random()

        async def produce(broker: SimulatedBroker) -> Any:
            # Tasks begin in the order they were made, and a handler appends before it first waits.
            return await asyncio.gather(
                *(broker.produce(self.topic, self.index, batch, -1, timeout_s) for _, batch in sent)
            )

        try:
            async with asyncio.timeout(timeout_s + 0.5):
                answers = await self.network.call(CLIENT, leader, produce)
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
        self.offsets[numbers] = offset
        self.ledger.acknowledge(self.index, offset, batch)
        self.waiting.remove(numbers)

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
        for numbers, offset in self.offsets.items():
            is_deleted = offset + numbers.end - numbers.first <= log.log_start_offset
            if offset_of.get(numbers) != offset and not is_deleted:
                raise Violation(f"{self.index}: producer {self.producer_id} got other offsets")
