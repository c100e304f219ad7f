"""Transactional batches and markers for tests, appended to a log as its leader does."""

from __future__ import annotations

from typing import Final

from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages

from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.markers import Marker, make_marker

TRANSACTIONAL: Final = 0x10
COMMIT: Final = Marker(is_commit=True, coordinator_epoch=0)
ABORT: Final = Marker(is_commit=False, coordinator_epoch=0)


def transactional_batch(
    producer_id: int, sequence: int = 0, count: int = 1, *, epoch: int = 0, key: bytes | None = None
) -> bytes:
    values = [b"%d" % (sequence + number) for number in range(count)]
    return encode_batch(
        messages(values, key=key),
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def write(
    log: PartitionLog,
    producer_id: int,
    count: int = 1,
    *,
    epoch: int = 0,
    leader_epoch: int = 0,
    key: bytes | None = None,
) -> int:
    """Append the producer's next transactional batch; its first offset."""
    state = log.producers.states.get(producer_id)
    sequence = 0 if state is None or state.epoch != epoch else state.next_sequence
    batch = transactional_batch(producer_id, sequence, count, epoch=epoch, key=key)
    return log.append_as_leader(batch, parse_batch_header(batch), leader_epoch, NOW_MS).first_offset


def end(log: PartitionLog, producer_id: int, marker: Marker, *, epoch: int = 0, leader_epoch: int = 0) -> int:
    """Append a marker; its offset."""
    header, batch = make_marker(producer_id, epoch, marker, NOW_MS)
    return log.append_as_leader(batch, header, leader_epoch, NOW_MS).first_offset


def commit(log: PartitionLog, producer_id: int, *, epoch: int = 0) -> int:
    return end(log, producer_id, COMMIT, epoch=epoch)


def abort(log: PartitionLog, producer_id: int, *, epoch: int = 0) -> int:
    return end(log, producer_id, ABORT, epoch=epoch)


def first_unstable(log: PartitionLog) -> int:
    """The first offset whose transaction is open, the log's end if none is; all is replicated."""
    log.producers.transactions.replicated_to(log.log_end_offset)
    return min(log.log_end_offset, log.producers.transactions.first_unstable_offset)


def aborted(
    log: PartitionLog, from_offset: int = 0, to_offset: int | None = None
) -> list[tuple[int, int, int]]:
    """(producer id, first offset, marker's offset) of aborted transactions, as a fetch lists them."""
    end_offset = log.log_end_offset if to_offset is None else to_offset
    return [
        (result.producer_id, result.first_offset, result.last_offset)
        for result in log.aborted_transactions(from_offset, end_offset)
    ]
