"""What the tests of the log layer share: settings, batches, logs, and their content read back.

Batches come from `tests.support.record_batches`, which knows nothing of the code under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import cramjam
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.log.time_lookup import (
    Stretch,
    TimestampOffset,
    first_record,
    largest_in_batch,
    largest_in_stretch,
    walk,
)
from mainstem_broker.protocol.batches import parse_batch_header, read_records, split_batches
from mainstem_broker.protocol.compression import Codec

NOW_MS: Final = 1_750_000_000_000

DEFAULTS: Final = BrokerConfig({"broker.id": "1", "zookeeper.connect": "127.0.0.1:2181"}).topic({})


class Stored(NamedTuple):
    """A record as a log holds it."""

    offset: int
    value: bytes | None


WALKED_BYTES = 300
"""Of a few batches: so lookups by time have to walk on."""


def settings(**changes: object) -> TopicConfig:
    """The default topic settings with these changed; files are unlinked at once."""
    return replace(DEFAULTS, **{"file_delete_delay_ms": 0, **changes})  # type: ignore[arg-type]  # names are fields


def messages(
    values: Sequence[bytes | None], timestamp_ms: int = NOW_MS, key: bytes | None = None
) -> list[Message]:
    """One message per value, a millisecond apart."""
    return [Message(value, key, (), timestamp_ms + number) for number, value in enumerate(values)]


def compressed_batch(content: Sequence[Message], codec: Codec) -> bytes:
    """A batch as a client with that codec sends it."""
    plain = encode_batch(content)[HEADER.size :]
    lz4 = cramjam.lz4.Compressor(block_linked=False)
    lz4.compress(plain)
    payload = {
        Codec.NONE: plain,
        Codec.GZIP: bytes(cramjam.gzip.compress(plain)),
        Codec.SNAPPY: bytes(cramjam.snappy.compress_raw(plain)),
        Codec.LZ4: bytes(lz4.finish()),
        Codec.ZSTD: bytes(cramjam.zstd.compress(plain)),
    }[codec]
    return encode_batch(content, attributes=int(codec), records=payload)


def open_log(
    directory: Path,
    config: TopicConfig = DEFAULTS,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> PartitionLog:
    """The log `t-0` in `directory`."""
    return PartitionLog.open(
        directory / "t-0",
        config,
        clean_shutdown=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=NOW_MS,
    )


def append(
    log: PartitionLog, values: Sequence[bytes | None], *, timestamp_ms: int = NOW_MS, leader_epoch: int = 0
) -> AppendInfo:
    """Append one batch of these values as the leader."""
    batch = encode_batch(messages(values, timestamp_ms))
    return log.append_as_leader(batch, parse_batch_header(batch), leader_epoch, NOW_MS)


def read_batches(log: PartitionLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch from `offset` (the log's start) to the end, read as a consumer does."""
    batches: list[bytes] = []
    position = log.log_start_offset if offset is None else offset
    while True:
        fetched = log.read(position, max_bytes, log.log_end_offset, True)
        if fetched.slice is None:
            return batches
        batches += [bytes(batch) for _, batch in split_batches(fetched.slice.read())]
        assert fetched.end_offset > position
        position = fetched.end_offset


def read_all(log: PartitionLog, max_bytes: int = 1 << 20) -> list[Stored]:
    """Every record that may be read."""
    return [
        Stored(record.offset, record.value)
        for batch in read_batches(log, max_bytes=max_bytes)
        for record in read_records(parse_batch_header(batch), batch)
        if record.offset >= log.log_start_offset
    ]


def find_by_time(log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """The first record at or after `timestamp_ms`, as ListOffsets looks it up, but in one thread."""
    from_offset = log.log_start_offset
    while (stored := log.first_batch_for_timestamp(timestamp_ms, from_offset)) is not None:
        end_offset = from_offset
        while isinstance(stored, Stretch):
            end_offset = stored.end_offset
            stored = walk(stored, timestamp_ms, WALKED_BYTES)
        if stored is None:
            from_offset = end_offset
            continue
        record = first_record(stored, timestamp_ms, from_offset)
        if record is not None:
            return record
        from_offset = stored.header.next_offset
    return None


def find_latest(log: PartitionLog) -> TimestampOffset | None:
    """The record with the largest timestamp, the first of several."""
    timestamp_ms, cut_batch, rest = log.largest_timestamp()
    while rest is not None:
        in_stretch, rest = largest_in_stretch(rest, WALKED_BYTES)
        timestamp_ms = max(timestamp_ms, in_stretch)
    if cut_batch is not None:
        timestamp_ms = max(timestamp_ms, largest_in_batch(cut_batch, log.log_start_offset))
    return find_by_time(log, timestamp_ms) if timestamp_ms >= 0 else None
