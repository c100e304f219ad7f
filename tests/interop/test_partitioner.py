"""Keyed messages go to `murmur2(key) mod n`, whichever client sends them (R10)."""

from __future__ import annotations

import random
from typing import Final

import pytest
from tests.support.clusters import SharedCluster
from tests.support.stock_clients import CLIENTS, StockClient
from tests.support.topics import TopicFactory

# Apache Kafka's own test vectors (org.apache.kafka.common.utils.UtilsTest, testMurmur2).
MURMUR2: Final = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
PARTITIONS: Final = 7


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_key_goes_to_its_murmur2_partition(
    local_stack: SharedCluster, new_topic: TopicFactory, client: StockClient
) -> None:
    topic = new_topic(PARTITIONS)

    chosen = client.choose_partitions(local_stack.bootstrap_servers, topic, list(MURMUR2))

    assert chosen == [(number & 0x7FFF_FFFF) % PARTITIONS for number in MURMUR2.values()]


def test_all_clients_choose_the_same_partition_for_a_key(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic(PARTITIONS)
    randomness = random.Random(2011)
    keys = list({randomness.randbytes(randomness.randrange(1, 40)) for _ in range(200)})

    chosen = [client.choose_partitions(local_stack.bootstrap_servers, topic, keys) for client in CLIENTS]

    assert chosen[0] == chosen[1] == chosen[2]
    assert set(chosen[0]) == set(range(PARTITIONS))
