"""How the loader logs in, against a broker that is played (R38)."""

from __future__ import annotations

import ssl

import pytest

from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.client_security import _context, check_client_properties, log_in

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


@pytest.mark.parametrize(
    ("algorithm", "compares_names"),
    [(None, True), ("https", True), ("HTTPS", True), ("none", False), ("", False)],
)
def test_a_brokers_certificate_is_verified_and_so_is_its_name_unless_that_is_switched_off(
    algorithm: str | None, compares_names: bool
) -> None:
    name = "ssl.endpoint.identification.algorithm"
    context = _context({} if algorithm is None else {name: algorithm})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, compares_names)


def test_a_file_that_cannot_be_used_is_reported_before_anything_connects() -> None:
    with pytest.raises(SettingsError, match=r"begins with ssl\. cannot be used"):
        check_client_properties({"security.protocol": "SSL", "ssl.ca.location": "/none"})
    check_client_properties({"security.protocol": "PLAINTEXT", "ssl.ca.location": "/none"})
