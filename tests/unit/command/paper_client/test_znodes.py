"""Paths and texts in the registries, as Apache Kafka 0.8 has them (R16, R18)."""

from __future__ import annotations

import json

import pytest

from mainstem.paper_client.znodes import (
    GroupPaths,
    address_in,
    encode_registration,
    partitions_in,
    streams_in,
)

NONSENSE = [b"", b"[]", b"7", b"null", b"\xff", b"{}", b'{"subscription":[],"partitions":[]}']


def test_registries_lie_where_kafka_0_8_has_them() -> None:
    paths = GroupPaths("counters", "topic1")
    assert paths.consumer("c") == "/consumers/counters/ids/c"
    assert paths.owner(3) == "/consumers/counters/owners/topic1/3"
    assert paths.offset(3) == "/consumers/counters/offsets/topic1/3"


def test_a_registration_says_how_many_streams_of_which_topic() -> None:
    text = encode_registration("topic1", 2, 1_700_000_000_000)
    assert json.loads(text) == {
        "version": 1,
        "subscription": {"topic1": 2},
        "pattern": "static",
        "timestamp": "1700000000000",
    }
    assert (streams_in(text, "topic1"), streams_in(text, "topic2")) == (2, 0)


@pytest.mark.parametrize("text", NONSENSE)
def test_nodes_that_others_wrote_are_no_consumers_partitions_or_brokers(text: bytes) -> None:
    assert streams_in(text, "topic1") == 0
    assert partitions_in(text) == frozenset()
    assert address_in(text) is None


def test_partitions_are_the_keys_of_a_topics_assignment() -> None:
    assert partitions_in(b'{"partitions":{"0":[1],"10":[2]},"version":3}') == {0, 10}


@pytest.mark.parametrize(
    ("broker", "address"),
    [
        ({"endpoints": ["SSL://a:1", "PLAINTEXT://b:2"], "host": None, "port": -1}, "b:2"),
        ({"host": "c", "port": 3}, "c:3"),
        ({"endpoints": ["SSL://a:1"], "host": None, "port": -1}, None),
    ],
    ids=["endpoints", "before there were endpoints", "encrypted only"],
)
def test_a_brokers_address_is_that_of_its_plain_listener(broker: object, address: str | None) -> None:
    assert address_in(json.dumps(broker).encode()) == address
