"""Producers of one log without its files, and headers of the batches that they send."""

from __future__ import annotations

from mainstem_broker.log.producers import Producers
from mainstem_broker.protocol.batches import BatchHeader
from mainstem_broker.protocol.markers import Marker

NOW_MS = 1_750_000_000_000
DAY_MS = 86_400_000

TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
COMMIT = Marker(is_commit=True, coordinator_epoch=0)


def header(
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    *,
    attributes: int = 0,
    timestamp_ms: int = NOW_MS,
) -> BatchHeader:
    return BatchHeader(
        0, 70, 0, 2, 0, attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, count
    )


class ProducerLog:
    """Producers, and the offsets that a log around them would give."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.end_offset = 0

    def send(self, batch: BatchHeader, now_ms: int = NOW_MS) -> int:
        """The first offset that the batch has; written only if it is no duplicate."""
        result = self.producers.check(batch)
        return self.copy(batch, now_ms) if result is None else result.first_offset

    def copy(self, batch: BatchHeader, now_ms: int = NOW_MS) -> int:
        """As a follower, which does not check. A control batch is a commit marker."""
        first_offset = self.end_offset
        self.producers.update(batch, first_offset, now_ms, COMMIT if batch.is_control else None)
        self.end_offset += batch.last_offset_delta + 1
        return first_offset

    def truncate_to(self, offset: int) -> bool:
        self.end_offset = offset
        return self.producers.truncate_to(offset)
