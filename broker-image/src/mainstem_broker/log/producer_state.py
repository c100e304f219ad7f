"""What a log knows of one producer: its epoch, its last batches, its open transaction. Pure.

In scope: what a batch adds to it. Out of scope: all producers of a log, and whether a batch is new
(`producers`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mainstem_broker.config.setting import INT32_MAX

BATCHES_REMEMBERED: Final = 5
"""As many requests as an idempotent client has in flight (`max.in.flight.requests.per.connection`)."""

NONE: Final = -1


class RememberedBatch(NamedTuple):
    """A batch that was written. `offset_delta` is its last offset's distance from its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState:
    """One producer in one log.

    - `epoch`: rises when the producer begins anew; its sequence numbers then begin with 0. In the second
      version of transactions (KIP-890) each marker raises it.
    - `next_sequence`: the sequence number with which its next batch begins; 0 while the epoch has written
      nothing.
    - `batches`: the last ones of this epoch, oldest first.
    - `last_timestamp_ms`: the time of its last append, by which it expires.
    - `coordinator_epoch`: of the coordinator whose marker ended its last transaction, or -1.
    - `marker_offset`: of its last marker, or -1; not less than that if it comes from a snapshot.
    - `transaction_first_offset`: of its open transaction, or -1.
    - `forgot`: whether there were batches that are not in `batches`.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "forgot",
        "last_timestamp_ms",
        "marker_offset",
        "next_sequence",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[RememberedBatch] = []  # a deque would take 600 bytes for five
        self.last_timestamp_ms = NONE
        self.coordinator_epoch = NONE
        self.marker_offset = NONE
        self.transaction_first_offset = NONE
        self.forgot = False

    @property
    def last_sequence(self) -> int:
        """Of the last batch; -1 while the epoch has written none."""
        return self.batches[-1].last_sequence if self.batches else NONE

    def add(self, batch: RememberedBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > BATCHES_REMEMBERED:
            del self.batches[0]
            self.forgot = True
        self.next_sequence = (batch.last_sequence + 1) & INT32_MAX

    def begin_epoch(self, epoch: int) -> None:
        self.forgot = self.forgot or bool(self.batches)
        self.batches.clear()
        self.epoch = epoch
        self.next_sequence = 0
