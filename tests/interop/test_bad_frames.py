"""Frames of any length, halves of them, unknown requests, noise: an answer or the end, and it goes on."""

from __future__ import annotations

import random
import struct
import threading
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.wire import (
    Connection,
    encode_request,
    fetch_fields,
    list_offset,
    produce,
    produce_fields,
    request,
)

pytestmark = pytest.mark.usefixtures("unharmed")

GOOD: Final = encode_batch([Message(b"good", b"key"), Message(b"better", b"key")])
fuzz = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("part", [1, 3, 4, 5, 10, 40, -1])
def test_half_a_frame_and_an_end_does_no_harm(leader_address: str, topic: str, part: int) -> None:
    payload = encode_request(request("produce", 9, **produce_fields(topic, 0, GOOD)), 1)
    frame = struct.pack(">i", len(payload)) + payload
    for _ in range(5):
        with Connection(leader_address) as connection:
            connection.send_bytes(frame[:part])
    with Connection(leader_address) as connection:
        assert list_offset(connection, topic, 0, -1).offset == 0


@pytest.mark.parametrize("length", [-2, -100, -(1 << 31)])
def test_an_array_of_negative_length_is_none_or_the_end(leader_address: str, length: int) -> None:
    """Apache Kafka reads every negative length as "no array", which for Metadata means all topics."""
    with Connection(leader_address) as connection:
        connection.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, length))
        assert connection.has_answer_within(5)


# Noise


@fuzz
@given(noise=st.binary(max_size=600))
def test_random_bytes(leader_address: str, noise: bytes) -> None:
    with Connection(leader_address) as connection:
        connection.send_bytes(noise)


def _requests(topic: str) -> list[Any]:
    return [
        request("produce", 9, **produce_fields(topic, 0, GOOD)),
        request("produce", 3, **produce_fields(topic, 0, GOOD)),
        request("fetch", 4, **fetch_fields([(topic, 0, 0)], version=4, max_wait_ms=0)),
        request("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=0)),
        request(
            "list_offsets",
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        ),
        request("describe_configs", 4, resources=[{"resource_type": 2, "resource_name": topic}],
                include_synonyms=True, include_documentation=True),
    ]  # fmt: skip


@fuzz
@given(data=st.data())
def test_requests_with_some_bytes_changed(leader_address: str, topic: str, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(_requests(topic)))
    payload = bytearray(encode_request(message, 1))
    # Keep key and version: the body is what is spoilt here.
    for position in data.draw(st.lists(st.integers(8, len(payload) - 1), min_size=1, max_size=4)):
        payload[position] = data.draw(st.integers(0, 255))
    with Connection(leader_address) as connection:
        connection.send_frame(bytes(payload))
        if payload[:2] != b"\x00\x00":  # a Produce may now say acks=0, which has no answer
            _expect_an_answer_or_the_end(connection)


def _expect_an_answer_or_the_end(connection: Connection) -> None:
    # A spoilt Fetch may say that it waits for long: it only must not hang then.
    connection.has_answer_within(0.5)


def test_hundreds_of_connections_come_and_go(leader_address: str) -> None:
    connections = [Connection(leader_address) for _ in range(300)]
    try:
        assert all(
            connection.ask("api_versions", 0).error_code == ErrorCode.none for connection in connections
        )
    finally:
        for connection in connections:
            connection.close()


def test_noise_beside_a_good_client_does_not_disturb_it(leader_address: str, topic: str) -> None:
    stop = threading.Event()

    def disturb() -> None:
        randomness = random.Random(3)
        while not stop.is_set():
            try:
                with Connection(leader_address) as connection:
                    connection.send_bytes(randomness.randbytes(randomness.randrange(200)))
            except OSError:
                continue

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with Connection(leader_address) as connection:
            offsets = [produce(connection, topic, 0, GOOD).base_offset for _ in range(300)]
    finally:
        stop.set()
        disturber.join()
    assert offsets == list(range(0, 600, 2))
