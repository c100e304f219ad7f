"""Bytes that are no requests, and records that are not what they say, harm nobody (R6, R40).

What batches may cost other clients: `tests/faults/test_attacks.py`.
"""

from __future__ import annotations

import random
import threading
from typing import Final

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.wire import Connection, produce

pytestmark = pytest.mark.usefixtures("unharmed")

GOOD: Final = encode_batch([Message(b"good", b"key"), Message(b"better", b"key")])


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


def test_records_that_are_not_what_their_codec_says_get_an_answer(leader_address: str, topic: str) -> None:
    """Stored unopened or refused: both are sound, since every reader finds out."""
    with Connection(leader_address) as connection:
        produce(connection, topic, 0, encode_batch([Message(b"x")], attributes=1, records=b"not gzip"))
