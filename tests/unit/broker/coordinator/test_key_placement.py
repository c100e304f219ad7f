"""Keys to partitions of coordinators' topics, as every Kafka client and tool reckons."""

from __future__ import annotations

import pytest

from mainstem_broker.coordinator.key_placement import partition_of_key


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("test-group", 12),
        ("my-group", 12),
        ("console-consumer-1", 24),
        ("txn-1", 10),
        ("grüppe-𝄞", 19),
        ("polygenelubricants", 0),
        ("", 0),
    ],
)
def test_a_key_has_the_partition_that_apache_kafka_gives_it(key: str, partition: int) -> None:
    assert partition_of_key(key, 50) == partition
