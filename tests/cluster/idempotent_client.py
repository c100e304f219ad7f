"""A producer of a simulated cluster that numbers its records and sends each until the answer (R11)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any, Final

from tests.cluster.clients import leaders
from tests.cluster.invariants import Ledger, Violation
from tests.cluster.memory_log import StoredBatch
from tests.cluster.network import CLIENT, Network
from tests.cluster.simulated_broker import SimulatedBroker
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.errors import OutOfOrderSequenceNumber, PeerUnavailable
from mainstem_broker.protocol.batches import parse_batch_header

IN_FLIGHT_MAX: Final = 5
FIRST_SEQUENCE: Final = 2**31 - 10
"""So that the numbers go round on the way."""
PAUSE_S_MAX: Final = 0.1


class IdempotentProducer:
    """Up to five batches of one record are on their way at once, with acks=all, in order as on a connection.

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
    ) -> None:
        self.producer_id = producer_id
        self.index = index
        self._topic = topic
        self._network = network
        self._random = source
        self._ledger = ledger
        self._offsets: dict[int, int] = {}
        """Where records were acknowledged, by their number, counted from 0."""
        self._waiting: list[int] = []
        self._next = 0

    async def run(self) -> None:
        while True:
            for _ in range(self._random.randint(len(self._waiting), IN_FLIGHT_MAX) - len(self._waiting)):
                self._waiting.append(self._next)
                self._next += 1
            leader_ids = leaders(self._network, self._topic, self.index)
            if leader_ids and self._waiting:
                await self._send_waiting(self._random.choice(leader_ids))
            await asyncio.sleep(self._random.random() * PAUSE_S_MAX)

    async def _send_waiting(self, leader: int) -> None:
        sent = [(number, self._encode(number)) for number in self._waiting]
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
        for (number, batch), answer in zip(sent, answers, strict=True):
            if answer["error_code"] == 0:
                self._told(number, answer["base_offset"], batch)
            elif answer["error_code"] == OutOfOrderSequenceNumber.code and number == sent[0][0]:
                # All before it were acknowledged before it was sent.
                raise Violation(
                    f"{self.index}: producer {self.producer_id} cannot go on with record {number}"
                )

    def _encode(self, number: int) -> bytes:
        return encode_batch(
            [Message(b"%d" % number)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=(FIRST_SEQUENCE + number) % 2**31,
        )

    def _told(self, number: int, offset: int, batch: bytes) -> None:
        self._offsets[number] = offset
        self._ledger.acknowledge(self.index, offset, batch)
        self._waiting.remove(number)

    def check(self, log: Iterable[StoredBatch]) -> None:
        """Each of its records is in the log once, in order, at the offset it was acknowledged at."""
        offset_of: dict[int, int] = {}
        for stored in log:
            header = parse_batch_header(stored.batch)
            if header.producer_id == self.producer_id:
                number = (header.base_sequence - FIRST_SEQUENCE) % 2**31
                if number != len(offset_of):
                    raise Violation(
                        f"{self.index}: of producer {self.producer_id} {number} follows {len(offset_of) - 1}"
                    )
                offset_of[number] = stored.offset
        if any(offset_of.get(number) != offset for number, offset in self._offsets.items()):
            raise Violation(f"{self.index}: producer {self.producer_id} got other offsets")
