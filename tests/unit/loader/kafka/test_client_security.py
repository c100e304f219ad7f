"""How the loader logs in, against a broker that is played (R38)."""

from __future__ import annotations

import pytest

from mainstem_loader.kafka.client_security import log_in

ALICE = {"sasl.username": "alice", "sasl.password": "a-secret"}


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
    sent: list[bytes] = []

    def authenticate(message: bytes) -> bytes:
        sent.append(message)
        nonce = message.rpartition(b"r=")[2].decode()
        return f"r={nonce}more,s=c2FsdA==,i={iterations}".encode()

    with pytest.raises(ConnectionRefusedError, match=error):
        log_in(ALICE, "SCRAM-SHA-256", authenticate)
    assert len(sent) == 1


@pytest.mark.parametrize("iterations", [4096, 8192])
def test_the_iterations_that_rfc_7677_allows_are_accepted(iterations: int) -> None:
    sent: list[bytes] = []

    def authenticate(message: bytes) -> bytes:
        sent.append(message)
        nonce = message.rpartition(b"r=")[2].decode()
        return f"r={nonce}more,s=c2FsdA==,i={iterations}".encode() if len(sent) == 1 else b"v=AAAA"

    with pytest.raises(ConnectionRefusedError, match="does not know the user's password"):
        log_in(ALICE, "SCRAM-SHA-512", authenticate)
    assert b",p=" in sent[1]
