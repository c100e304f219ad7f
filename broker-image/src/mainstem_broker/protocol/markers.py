"""Transaction markers: the control batches that end a transaction in a partition (KIP-98).

Belongs here: the bytes of a marker, both ways. Does not: who may write one (`replica.transaction_markers`),
and what it does to a producer (`log.producers`).

A marker is a batch of one record, transactional and control, with the producer's id and epoch and the base
sequence -1. The record, big endian:

    key    version int16 0, type int16: 0 abort, 1 commit
    value  version int16 0, coordinator epoch int32

Later versions may append fields, so readers ignore bytes that follow.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.batches import MAGIC, BatchHeader, read_records, rewrite
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.protocol.records import Record, encode_records

MARKER_BYTES_MAX: Final = 4096
"""A marker takes 78 bytes. A larger control batch is something else, and is not read."""

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1
_TRANSACTIONAL_AND_CONTROL: Final = 0x30


class Marker(NamedTuple):
    """The end of a transaction. `coordinator_epoch`: the leader epoch of the coordinator that decided it."""

    is_commit: bool
    coordinator_epoch: int


def make_marker(
    producer_id: int, producer_epoch: int, marker: Marker, now_ms: int
) -> tuple[BatchHeader, bytes]:
    """The batch of a marker; the log gives it its offset and leader epoch."""
    key = _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
    record = Record(0, now_ms, key, _VALUE.pack(0, marker.coordinator_epoch))
    header = BatchHeader(
        base_offset=0,
        size_bytes=0,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=_TRANSACTIONAL_AND_CONTROL,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    return rewrite(header, encode_records([record], 0, now_ms))


def read_marker(header: BatchHeader, batch: Buffer) -> Marker | None:
    """The marker in a control batch; None if it holds none.

    That is so for a batch that compaction has emptied, and for control records of other kinds.
    """
    if not header.is_control or header.record_count != 1 or header.size_bytes > MARKER_BYTES_MAX:
        return None
    try:
        record = next(read_records(header, batch))
    except (ProtocolError, StopIteration):
        return None
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    _, kind = _KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        return None
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(kind == _COMMIT, coordinator_epoch)
