"""kcat, the Debian package, lists, produces and consumes; its librdkafka is years older than ours (R36)."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import read_headers
from tests.support.stock_clients import CLIENTS, CODECS
from tests.support.topics import TopicFactory
from tests.support.wire import Connection, fetch

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed; `apt-get install kcat` brings it"
)


def _kcat(cluster: ReachableCluster, *arguments: str, given: bytes = b"") -> bytes:
    answer = subprocess.run(
        ["kcat", "-b", cluster.bootstrap_servers, *arguments],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    return answer.stdout


def test_it_lists_brokers_and_topics(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic(partitions=3)

    listed = json.loads(_kcat(local_stack, "-L", "-J", "-t", topic))

    assert {broker["id"]: broker["name"] for broker in listed["brokers"]} == local_stack.brokers
    assert listed["controllerid"] in local_stack.brokers
    assert [partition["partition"] for partition in listed["topics"][0]["partitions"]] == [0, 1, 2]


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_produces_it_and_others_consume(
    local_stack: SharedCluster, new_topic: TopicFactory, codec: str
) -> None:
    """Trap T1: this librdkafka compresses only when ApiVersions says that Produce begins at version 0."""
    topic = new_topic()
    lines = [f"key-{number}:value {number} {'compressible ' * 20}" for number in range(500)]

    _kcat(
        local_stack, "-P", "-t", topic, "-p", "0", "-K", ":", "-H", "origin=kcat", "-z", codec,
        given="\n".join(lines).encode(),
    )  # fmt: skip

    read = _kcat(local_stack, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K", ":")
    assert read.decode().splitlines() == lines
    for client in CLIENTS:
        messages = client.consume(local_stack.bootstrap_servers, topic, len(lines))
        assert [
            f"{(message.key or b'').decode()}:{(message.value or b'').decode()}" for message in messages
        ] == lines
        assert {message.headers for message in messages} == {(("origin", b"kcat"),)}
    with Connection(new_topic.leader_address(topic)) as leader:
        headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert {CODECS[header.attributes & 0b111] for header in headers} == {codec}


def test_it_finds_offsets_by_time(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic()
    times = [1_700_000_000_000 + number for number in range(10)]
    CLIENTS[0].produce(
        local_stack.bootstrap_servers, topic, [Message(b"x", timestamp_ms=time) for time in times]
    )

    assert _kcat(local_stack, "-Q", "-t", f"{topic}:0:{times[4]}").decode().strip() == f"{topic} [0] offset 4"
    read = _kcat(local_stack, "-C", "-t", topic, "-p", "0", "-o", f"s@{times[6]}", "-e", "-q", "-f", "%T\n")
    assert [int(time) for time in read.split()] == times[6:]
