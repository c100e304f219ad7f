"""First batches of unknown producers that were refused, so that later batches do not overtake them. Pure.

Clients assume that everything they sent before an acknowledged batch is stored. So two things differ from
Apache Kafka while nothing is known of a producer and its first batch may still come:

- A batch may be refused for a temporary reason, such as too few in-sync replicas or a leader that is not
  elected yet, while others are on their way behind it. The refusal is remembered for a while (`note`), and
  later batches are refused until the first comes again.
- A producer's first batch that does not begin with sequence number 0 has to come twice (`may_be_overtaking`).
  When the leader changes, librdkafka's thread for the new leader may find nothing in flight a moment before
  the thread for the old one puts back what was refused there, and begins with later batches. When it sends
  again, all batches are in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mainstem_broker.config.setting import INT32_MAX
from mainstem_broker.errors import OutOfOrderSequenceNumber
from mainstem_broker.protocol.batches import BatchHeader

REFUSALS_MAX: Final = 1_000
REFUSAL_MS_MAX: Final = 120_000
"""Clients give a record up after this time by default (`delivery.timeout.ms`)."""


class _Refusal(NamedTuple):
    """The earliest batch of a producer that was refused and may be sent again."""

    epoch: int
    sequence: int
    refused_ms: int

    def comes_after(self, header: BatchHeader) -> bool:
        """Whether the batch of `header` takes its place: this one is of a former epoch, or was sent later."""
        if self.epoch != header.producer_epoch:
            return self.epoch < header.producer_epoch
        return 0 < (self.sequence - header.base_sequence) & INT32_MAX <= INT32_MAX // 2


class ProducerRefusals:
    """The refusals of one log, by producer id, oldest first. Its owner knows which producers are known."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[int, _Refusal] = {}

    def check(self, header: BatchHeader) -> None:
        """Check the batch of an unknown producer.

        Raises:
            OutOfOrderSequenceNumber: an earlier batch was refused and has not come again.
        """
        refusal = self._refusals.get(header.producer_id)
        if refusal is None or refusal.epoch != header.producer_epoch:
            return
        distance = (header.base_sequence - refusal.sequence) & INT32_MAX
        if 0 < distance <= INT32_MAX // 2:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} begins with sequence number {header.base_sequence}, but"
                f" {refusal.sequence} was refused before and has to come again first."
            )

    def may_be_overtaking(self, header: BatchHeader) -> bool:
        """Whether a batch of an unknown producer arrives first, but is not the first that was sent.

        The caller then refuses it and notes that. It is accepted when it comes again, unless an earlier one
        has come meanwhile.
        """
        refusal = self._refusals.get(header.producer_id)
        return refusal is None or refusal.epoch < header.producer_epoch

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Remember that a batch of an unknown producer was refused for a temporary reason."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is not None and not refusal.comes_after(header):
            return
        if len(self._refusals) >= REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[header.producer_id] = _Refusal(header.producer_epoch, header.base_sequence, now_ms)

    def forget(self, producer_id: int) -> None:
        """The producer has written here: it is known from now on."""
        self._refusals.pop(producer_id, None)

    def forget_all(self) -> None:
        """The refused batches may have been written elsewhere, and be lost."""
        self._refusals.clear()

    def expire(self, now_ms: int) -> None:
        """Drop refusals that no client can still be waiting for."""
        self._refusals = {
            producer_id: refusal
            for producer_id, refusal in self._refusals.items()
            if now_ms - refusal.refused_ms < REFUSAL_MS_MAX
        }
