"""Keys to partitions (R10)."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as reference_murmur2
from hypothesis import given
from hypothesis import strategies as st

from mainstem.records.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hash_value"),
    [  # the vectors of Apache Kafka's UtilsTest, testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, hash_value: int) -> None:
    assert murmur2(key) == hash_value % 2**32


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_another_client_for_any_key(key: bytes) -> None:
    assert murmur2(key) == reference_murmur2(key) % 2**32


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, partition_count: int) -> None:
    assert 0 <= partition_of(key, partition_count) < partition_count
