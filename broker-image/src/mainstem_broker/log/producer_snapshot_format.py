"""The content of a `.snapshot` file: all producers of a log at one offset, in Apache Kafka's format.

In scope: bytes. Out of scope: files (`producer_snapshots`). Big endian:

    byte 0   version               int16   1
    byte 2   crc                   uint32  CRC-32C of the bytes from byte 6 on
    byte 6   count                 int32
    byte 10  entries, 46 bytes each:
             producer id           int64
             epoch                 int16
             last sequence         int32   -1 for none, as the next two
             last offset           int64   -1
             offset delta          int32   0
             last timestamp        int64   ms; in Kafka the record's, here that of the append
             coordinator epoch     int32   -1 for none
             transaction's first   int64   offset of the open transaction, -1 for none

Kafka writes one entry for a producer, its last batch. Here each remembered batch has an entry, oldest first:
Kafka's reader keeps the last one, and a restart while five batches are in flight forgets none of them.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from mainstem_broker.log.producer_state import NONE, ProducerState, RememberedBatch
from mainstem_broker.log.producers import Producers

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


def encode_snapshot(producers: Producers) -> bytes:
    entries = [
        _ENTRY.pack(
            producer_id,
            state.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp_ms if batch is not state.batches[-1] else state.last_timestamp_ms,
            state.coordinator_epoch,
            state.transaction_first_offset,
        )
        for producer_id, state in producers.states.items()
        for batch in state.batches
    ]
    entries += [
        _ENTRY.pack(
            producer_id,
            state.epoch,
            NONE,
            NONE,
            0,
            state.last_timestamp_ms,
            state.coordinator_epoch,
            state.transaction_first_offset,
        )
        for producer_id, state in producers.states.items()
        if not state.batches
    ]
    content = _COUNT.pack(len(entries)) + b"".join(entries)
    return _HEAD.pack(_VERSION, crc32c(content)) + content


def decode_snapshot(data: bytes) -> Producers:
    """The producers in a file's content, which `encode_snapshot` or Apache Kafka wrote.

    Raises:
        ValueError: it is not a snapshot; the message ends a sentence that begins with the file's name.
    """
    if len(data) < _HEAD.size + _COUNT.size:
        raise ValueError(f"it is only {len(data)} bytes long")
    version, crc = _HEAD.unpack_from(data)
    content = memoryview(data)[_HEAD.size :]
    if version != _VERSION:
        raise ValueError(f"its version is {version}, and only {_VERSION} is known")
    if crc32c(content) != crc:
        raise ValueError("it does not match its checksum")
    (count,) = _COUNT.unpack_from(content)
    entries = content[_COUNT.size :]
    if len(entries) != count * _ENTRY.size:
        raise ValueError(f"it promises {count} entries in {len(entries)} bytes")
    states: dict[int, ProducerState] = {}
    for (
        producer_id,
        epoch,
        sequence,
        offset,
        delta,
        timestamp_ms,
        coordinator_epoch,
        first_offset,
    ) in _ENTRY.iter_unpack(entries):
        state = states.get(producer_id)
        if state is None or state.epoch != epoch:
            state = states[producer_id] = ProducerState(epoch)
        state.last_timestamp_ms = timestamp_ms
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = first_offset
        state.forgot = True
        if offset >= 0:
            state.add(RememberedBatch(sequence, offset, delta, timestamp_ms))
    return Producers.restored(states)
