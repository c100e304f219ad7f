"""Batches whose records are not what they say do not cost the broker its life (R6).

What batches may cost other clients: `tests/faults/test_attacks.py`.
"""

from __future__ import annotations

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.wire import Connection, produce

pytestmark = pytest.mark.usefixtures("unharmed")


def test_records_that_are_not_what_their_codec_says_get_an_answer(leader_address: str, topic: str) -> None:
    """Stored unopened or refused: both are sound, since every reader finds out."""
    with Connection(leader_address) as connection:
        produce(connection, topic, 0, encode_batch([Message(b"x")], attributes=1, records=b"not gzip"))
