"""How the command logs in for requests of its own, against a broker that is played (R38)."""

from __future__ import annotations

import struct

import pytest

from mainstem.errors import ClusterRefused
from mainstem.kafka.client_security import log_in

ALICE = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "a-secret"}


class PlayedBroker:
    """Answers the handshake, then the messages of a mechanism by `challenges`, in which {nonce} is the
    client's; its `messages` are what the client sent."""

    def __init__(self, *challenges: str) -> None:
        self._challenges = list(challenges)
        self.messages: list[bytes] = []

    def exchange(self, request: bytes) -> bytes:
        if request[:2] == struct.pack(">h", 17):
            return struct.pack(">ihi", -1, 0, 0)
        message = request[14:]
        self.messages.append(message)
        nonce = message.rpartition(b"r=")[2].decode()
        answer = self._challenges.pop(0).replace("{nonce}", nonce).encode()
        return struct.pack(">ihhi", -1, 0, -1, len(answer)) + answer


@pytest.mark.parametrize(
    ("iterations", "error"),
    [
        ("1", "requests 1 iterations"),
        ("4095", "4096 to 1000000 are accepted"),
        ("1000001", "requests 1000001 iterations"),
        ("9999999", "requests 9999999 iterations"),
        ("9999999999", "is not SCRAM"),
        ("-4096", "is not SCRAM"),
    ],
)
def test_a_broker_that_requests_too_few_or_too_many_iterations_gets_no_proof(
    iterations: str, error: str
) -> None:
    """RFC 7677: a broker that is not what it seems could guess the password by the proof, or block us."""
    broker = PlayedBroker(f"r={{nonce}}more,s=c2FsdA==,i={iterations}")
    with pytest.raises(ClusterRefused, match=error):
        log_in(broker.exchange, ALICE | {"sasl.mechanism": "SCRAM-SHA-256"})
    assert len(broker.messages) == 1


@pytest.mark.parametrize("iterations", [4096, 8192])
def test_the_iterations_that_rfc_7677_allows_are_accepted(iterations: int) -> None:
    broker = PlayedBroker(f"r={{nonce}}more,s=c2FsdA==,i={iterations}", "v=AAAA")
    with pytest.raises(ClusterRefused, match="does not know the user's password"):
        log_in(broker.exchange, ALICE | {"sasl.mechanism": "SCRAM-SHA-512"})
    assert b",p=" in broker.messages[1]
