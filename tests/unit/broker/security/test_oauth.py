"""OAUTHBEARER: tokens that are accepted, and all the ways in which one is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.login import Login
from mainstem_broker.security.oauth import OAuthServer, TokenRules, is_signed, parse_keys, verified

NOW_S = 1_800_000_000.0
KEY = ECKey.generate_key("P-256", {"kid": "one"}, auto_kid=False)
OTHER = ECKey.generate_key("P-256", {"kid": "one"}, auto_kid=False)
KEYS_TEXT = json.dumps({"keys": [KEY.as_dict(private=False)]})
KEYS = parse_keys(KEYS_TEXT)
RULES = TokenRules(("kafka", "other"), "https://issuer", required_scopes=("produce",))
CLAIMS = {
    "sub": "alice",
    "iss": "https://issuer",
    "aud": ["kafka"],
    "scope": "consume produce",
    "exp": NOW_S + 60,
    "iat": NOW_S - 60,
}


def token(changes: dict[str, Any] | None = None, key: Any = KEY, algorithm: str = "ES256") -> str:
    """A token of CLAIMS with changes; None takes a claim out."""
    claims = {name: value for name, value in {**CLAIMS, **(changes or {})}.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": "one"}, claims, key, algorithms=[algorithm])


def server(rules: TokenRules = RULES) -> OAuthServer:
    return OAuthServer(lambda _: KEYS, rules, lambda: NOW_S)


def message(text: str, identity: str = "") -> bytes:
    return f"n,{identity},\x01auth=Bearer {text}\x01\x01".encode()


def test_a_token_that_says_what_it_must_logs_its_subject_in() -> None:
    exchange = server()
    assert exchange.respond(message(token())) == b""
    assert exchange.user == "alice"
    assert exchange.session_ms == 60_000


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "other"},
        {"aud": ["x", "kafka"]},
        {"scope": ["produce"]},
        {"exp": NOW_S - 29},
        {"nbf": NOW_S + 29},
        {"iat": None},
    ],
)
def test_lists_texts_and_clocks_that_differ_a_little_are_accepted(changes: dict[str, Any]) -> None:
    assert verified(token(changes), KEYS, RULES, NOW_S).user == "alice"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": None}, "has expired, or has no expiry"),
        ({"exp": "soon"}, "no time in exp"),
        ({"exp": True}, "no time in exp"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "nobody"}, "for none of"),
        ({"aud": None}, "for none of"),
        ({"aud": 7}, "for none of"),
        ({"scope": "consume"}, "scopes"),
        ({"scope": None}, "scopes"),
        ({"sub": None}, "no subject"),
        ({"sub": " "}, "no subject"),
        ({"sub": 7}, "no subject"),
    ],
)
def test_a_claim_that_does_not_fit_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(LoginFailed, match=reason):
        verified(token(changes), KEYS, RULES, NOW_S)


@pytest.mark.parametrize("kind", ["other key", "no signature", "secret", "cut", "changed", "nothing"])
def test_a_token_that_is_not_signed_by_the_issuer_is_refused(kind: str) -> None:
    head, body, signature = token().split(".")
    forged = {
        "other key": token(key=OTHER),
        "no signature": "eyJhbGciOiJub25lIn0." + body + ".",
        # The public key as the secret of an HMAC: what everybody has would be enough to sign.
        "secret": token(key=OctKey.import_key(KEYS_TEXT), algorithm="HS256"),
        "cut": f"{head}.{body}",
        "changed": f"{head}.{token({'sub': 'bob'}).split('.')[1]}.{signature}",
        "nothing": "x",
    }[kind]
    with pytest.raises(LoginFailed, match="not signed by a known key"):
        verified(forged, KEYS, RULES, NOW_S)


def test_a_refusal_is_a_status_first_and_the_end_after_the_clients_word() -> None:
    exchange = server()
    assert exchange.respond(message(token({"aud": "nobody"}))) == b'{"status":"invalid_token"}'
    assert exchange.user is None
    with pytest.raises(LoginFailed, match="for none of"):
        exchange.respond(b"\x01")
    with pytest.raises(LoginFailed):
        exchange.respond(message(token()))
    assert exchange.user is None


def test_a_client_acts_for_no_other_user() -> None:
    exchange = server()
    assert exchange.respond(message(token(), identity="a=bob")) != b""
    assert exchange.user is None
    same = server()
    assert same.respond(message(token(), identity="a=alice")) == b""


@given(st.binary(max_size=100))
def test_arbitrary_messages_log_nobody_in(data: bytes) -> None:
    exchange = server()
    try:
        exchange.respond(data)
    except LoginFailed:
        pass
    assert exchange.user is None


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=60))
def test_arbitrary_tokens_are_refused(text: str) -> None:
    assert not is_signed(text, KEYS)
    with pytest.raises(LoginFailed):
        verified(text, KEYS, RULES, NOW_S)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"keys": []}', '{"keys": [7]}', '{"keys": [{"kty": "oct", "k": "AA"}]}']
)
def test_a_set_without_a_usable_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no key that can be used" if text else "Expecting value"):
        parse_keys(text)


def test_keys_of_unknown_kinds_are_left_out() -> None:
    rsa = RSAKey.generate_key(2048, {"kid": "two"}, auto_kid=False)
    keys = [{"kty": "new"}, rsa.as_dict(private=False), KEY.as_dict(private=False)]
    parsed = parse_keys(json.dumps({"keys": keys}))
    assert isinstance(parsed, KeySet)
    assert {key.kid for key in parsed.keys} == {"one", "two"}
    assert is_signed(token(), parsed)


RSA = RSAKey.generate_key(2048, {"kid": "rsa"}, auto_kid=False)


def key_set(*keys: tuple[Any, dict[str, str]]) -> KeySet:
    """Keys with further members of theirs."""
    return parse_keys(json.dumps({"keys": [key.as_dict(private=False) | more for key, more in keys]}))


@pytest.mark.parametrize(
    ("keys", "is_accepted"),
    [
        (key_set((KEY, {"use": "sig"})), True),
        (key_set((OTHER, {"kid": "old"}), (KEY, {"kid": "new"})), True),
        (key_set((RSA, {"use": "enc"}), (KEY, {"use": "sig"})), True),
        (key_set((RSA, {}), (KEY, {"alg": "ES256"})), True),
        (key_set((KEY, {"use": "enc"}), (RSA, {})), False),
        (key_set((KEY, {"alg": "ES384"}), (RSA, {})), False),
        (key_set((OTHER, {}), (RSA, {})), False),
    ],
    ids=["alone", "rotated", "beside-enc", "by-alg", "enc", "another-alg", "others"],
)
def test_a_token_need_not_name_its_key(keys: KeySet, is_accepted: bool) -> None:
    """RFC 7515, section 4.1.4: kid is optional. Issuers have several keys while they change them."""
    nameless = jwt.encode({"alg": "ES256"}, CLAIMS, KEY, algorithms=["ES256"])
    assert is_signed(nameless, keys) == is_accepted
    if is_accepted:
        assert verified(nameless, keys, RULES, NOW_S).user == "alice"
    else:
        with pytest.raises(LoginFailed, match="not signed by a known key"):
            verified(nameless, keys, RULES, NOW_S)


def test_a_token_that_names_a_key_is_of_that_one() -> None:
    assert not is_signed(token(), key_set((OTHER, {}), (KEY, {"kid": "two"})))


def test_a_token_that_is_accepted_though_it_has_expired_begins_no_session_without_end() -> None:
    """KAFKA-13848: a lifetime of zero means none."""
    failures: list[str] = []
    login = Login({"OAUTHBEARER": server}, 3_600_000, lambda *_: None, failures.append)
    assert login.choose("OAUTHBEARER", 1, 0.0)
    with pytest.raises(LoginFailed):
        login.respond(message(token({"exp": NOW_S - 10})))
    assert failures == ["What the client proved has expired."]
