"""Batches that lie about what they hold cost the broker neither its life nor its memory (R6)."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
import zstandard
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    produce,
)

pytestmark = pytest.mark.usefixtures("unharmed")


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
