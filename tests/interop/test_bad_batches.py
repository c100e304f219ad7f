"""Batches that are none, or not what they say, are refused and not stored; the broker serves on (R6)."""

from __future__ import annotations

import random
import re
import struct
import zlib
from pathlib import Path
from typing import Final

import pytest
import zstandard
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    fetch,
    list_offset,
    produce,
)

pytestmark = pytest.mark.usefixtures("unharmed")

GOOD: Final = encode_batch([Message(b"good", b"key"), Message(b"better", b"key")])


def _with_byte(batch: bytes, position: int, value: int) -> bytes:
    return batch[:position] + bytes([value]) + batch[position + 1 :]


BAD_BATCHES: Final[dict[str, bytes | None]] = {
    "null": None,
    "empty": b"",
    "a few bytes": b"abc",
    "half a header": GOOD[:30],
    "a header alone": GOOD[: HEADER.size],
    "the last byte missing": GOOD[:-1],
    "wrong crc": encode_batch([Message(b"x")], crc=0xDEADBEEF),
    "a flipped byte in the records": _with_byte(GOOD, len(GOOD) - 2, GOOD[-2] ^ 1),
    "a flipped byte in the header": _with_byte(GOOD, 30, GOOD[30] ^ 1),
    "magic 0": encode_batch([Message(b"x")], magic=0),
    "magic 1": encode_batch([Message(b"x")], magic=1),
    "magic 3": encode_batch([Message(b"x")], magic=3),
    "magic -1": encode_batch([Message(b"x")], magic=-1),
    "a negative length": GOOD[:8] + struct.pack(">i", -1) + GOOD[12:],
    "a length of 0": GOOD[:8] + struct.pack(">i", 0) + GOOD[12:],
    "a length beyond the request": GOOD[:8] + struct.pack(">i", 1 << 30) + GOOD[12:],
    "no records": encode_batch([]),
    "fewer records than offsets": encode_batch([Message(b"x")], last_offset_delta=9),
    "more records than offsets": encode_batch([Message(b"x"), Message(b"y")], last_offset_delta=0),
    "a negative record count": encode_batch([Message(b"x")], record_count=-1),
    "a codec that does not exist": encode_batch([Message(b"x")], attributes=7),
    "a control batch": encode_batch([Message(b"x")], attributes=1 << 5),
    "zeros": bytes(200),
    "noise": random.Random(1).randbytes(500),
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_bad_batch_is_refused_and_nothing_of_it_is_stored(
    reference: bool, leader_address: str, topic: str, batch: bytes | None, acks: int
) -> None:
    if reference and batch is None:
        pytest.skip("Apache Kafka never answers this one")
    with Connection(leader_address) as connection:
        try:
            answer = produce(connection, topic, 0, batch, acks=acks)
        except ConnectionError:
            pass
        else:
            if answer.error_code == ErrorCode.none:
                # "No batch" may be taken for nothing to store.
                assert not batch
    with Connection(leader_address) as connection:
        assert list_offset(connection, topic, 0, -1).offset == 0


@pytest.mark.parametrize("position", range(21))
def test_any_byte_of_the_batch_frame_may_be_wrong(leader_address: str, topic: str, position: int) -> None:
    """Offset, length, leader epoch, magic, CRC: not covered by the CRC, and still harmless."""
    with Connection(leader_address) as connection:
        try:
            answer = produce(connection, topic, 0, _with_byte(GOOD, position, GOOD[position] ^ 0x55))
        except ConnectionError:
            return
        if answer.error_code == ErrorCode.none:
            # The broker gives offset and leader epoch itself, whatever the producer wrote (trap T8).
            assert position < 8 or 12 <= position < 16
            assert fetch(connection, topic, 0, 0).records[HEADER.size :] == GOOD[HEADER.size :]
            assert answer.base_offset == 0


@pytest.mark.parametrize("rest", [b"\x00", GOOD[:40]], ids=["a byte", "half a batch"])
def test_what_follows_a_whole_batch_is_not_stored(leader_address: str, topic: str, rest: bytes) -> None:
    """Apache Kafka takes the whole batch and drops the rest; to refuse both is as good."""
    with Connection(leader_address) as connection:
        answer = produce(connection, topic, 0, GOOD + rest)
        stored = 2 if answer.error_code == ErrorCode.none else 0
        assert list_offset(connection, topic, 0, -1).offset == stored
        assert (fetch(connection, topic, 0, 0, max_wait_ms=0).records or b"")[HEADER.size :] == (
            GOOD[HEADER.size :] if stored else b""
        )


def test_records_that_are_not_what_their_codec_says_get_an_answer(leader_address: str, topic: str) -> None:
    """Stored unopened or refused: both are sound, since every reader finds out."""
    with Connection(leader_address) as connection:
        produce(connection, topic, 0, encode_batch([Message(b"x")], attributes=1, records=b"not gzip"))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_does_not_fill_the_brokers_memory(
    local_stack: Cluster, new_topic: TopicFactory, codec: str
) -> None:
    """With a codec of the topic's own the broker must open what it gets: 600 MB out of 600 KB, or less."""
    topic = new_topic(config={"compression.type": "lz4"})
    leader_address = new_topic.leader_address(topic)
    leader = next(broker_id for broker_id, own in local_stack.brokers.items() if own == leader_address)
    before = _peak_memory_mb(local_stack.broker_pid(leader))

    with Connection(leader_address) as connection:
        produce(
            connection, topic, 0,
            encode_batch([Message(b"x")], attributes={"gzip": 1, "zstd": 4}[codec], records=_bomb(codec)),
        )  # fmt: skip

    assert _peak_memory_mb(local_stack.broker_pid(leader)) < before + 400


def _bomb(codec: str) -> bytes:
    compressor = (
        zlib.compressobj(9, wbits=31) if codec == "gzip" else zstandard.ZstdCompressor().compressobj()
    )
    return b"".join(compressor.compress(bytes(10_000_000)) for _ in range(60)) + compressor.flush()


def _peak_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1000
