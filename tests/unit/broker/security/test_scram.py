"""SCRAM on both sides: the vectors of RFC 7677, each side against the other, and hostile messages."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.scram import ScramClient, ScramServer
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism
from mainstem_broker.security.scram_decoys import ScramDecoys

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), SALT, iterations)
    return ScramCredential.of_salted_password(mechanism, salted, SALT, iterations)


def server(mechanism: ScramMechanism = SHA_256, user: str = "user", password: str = "pencil") -> ScramServer:
    expected = {user: credential(mechanism, password)}
    decoys = ScramDecoys()
    return ScramServer(
        mechanism, lambda name: expected.get(name) or decoys.credential(mechanism, name), SERVER_NONCE
    )


def test_the_example_of_rfc_7677() -> None:
    client, broker = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE), server()
    challenge = broker.respond(client.first())
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert broker.user is None
    answer = broker.respond(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(answer)
    assert broker.user == "user"


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@settings(max_examples=25)  # each hashes 8,192 times
@given(user=st.text(min_size=1, max_size=20), password=st.text(max_size=20))
def test_both_sides_agree_whatever_the_names_are(mechanism: ScramMechanism, user: str, password: str) -> None:
    client, broker = ScramClient(mechanism, user, password), server(mechanism, user, password)
    client.check(broker.respond(client.final(broker.respond(client.first()))))
    assert broker.user == user


@pytest.mark.parametrize(("user", "password"), [("user", "pen"), ("nobody", "pencil"), ("User", "pencil")])
def test_unknown_users_and_wrong_passwords_fail_at_the_same_step_with_the_same_reason(
    user: str, password: str
) -> None:
    client, broker = ScramClient(SHA_256, user, password), server()
    proof = client.final(broker.respond(client.first()))
    with pytest.raises(LoginFailed, match="The user is unknown or the password is wrong"):
        broker.respond(proof)
    assert broker.user is None
    assert broker.claimed_user == user


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=a b",
        b"\xff\xfe",
        b"n,,n=user,r=" + b"x" * 10_000,
    ],
)
def test_first_messages_of_another_form_fail(first: bytes) -> None:
    with pytest.raises(LoginFailed):
        server().respond(first)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=!"),
        (b"%hvY", b"%hvZ"),
        (b"p=dHzb", b"p=dHzc"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p="),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=AAAA"),
    ],
)
def test_last_messages_that_are_changed_fail(before: bytes, after: bytes) -> None:
    client, broker = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE), server()
    final = client.final(broker.respond(client.first()))
    assert before in final
    with pytest.raises(LoginFailed):
        broker.respond(final.replace(before, after))
    assert broker.user is None


def test_the_repeated_nonce_of_older_clients_is_accepted() -> None:
    """librdkafka 2.0 puts its nonce in front of both nonces, and signs what it sends."""
    broker = server()
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    challenge = broker.respond(client.first()).decode()
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    unproved = f"c=biws,r={CLIENT_NONCE}{CLIENT_NONCE}{SERVER_NONCE}"
    signed = f"n=user,r={CLIENT_NONCE},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()

    broker.respond(f"{unproved},p={proof}".encode())
    assert broker.user == "user"


def test_a_message_after_the_last_fails() -> None:
    client, broker = ScramClient(SHA_256, "user", "pencil"), server()
    broker.respond(client.final(broker.respond(client.first())))
    with pytest.raises(LoginFailed):
        broker.respond(client.first())


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_arbitrary_messages_log_nobody_in(messages: list[bytes]) -> None:
    broker = server()
    for message in messages:
        try:
            broker.respond(message)
        except LoginFailed:
            break
    assert broker.user is None


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        b"r={nonce}x,s=AAAA,i=1",
        b"r={nonce}x,s=AAAA,i=999999999",
        b"r={nonce}x,s=!,i=4096",
    ],
)
def test_the_client_refuses_challenges_that_are_none_or_too_easy_or_too_hard(challenge: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    with pytest.raises(LoginFailed):
        client.final(challenge.replace(b"{nonce}", CLIENT_NONCE.encode()))


def test_the_client_refuses_a_broker_that_does_not_know_the_user() -> None:
    client, broker = ScramClient(SHA_512, "user", "pencil"), server(SHA_512)
    client.final(broker.respond(client.first()))
    with pytest.raises(LoginFailed, match="does not know the password"):
        client.check(b"v=AAAA")
    with pytest.raises(LoginFailed):
        ScramClient(SHA_512, "user", "pencil").check(b"")
