"""When the keys of tokens are read, and what happens if they cannot be."""

from __future__ import annotations

import json
from http.client import BadStatusLine, IncompleteRead

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from structlog.testing import capture_logs

from mainstem_broker.config.listener_config import ListenerConfig
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.server import tokens as module
from mainstem_broker.server.tokens import Tokens

KEY, NEW_KEY = (ECKey.generate_key("P-256", {"kid": kid}, auto_kid=False) for kid in ("1", "2"))


def keys_text(*keys: ECKey) -> str:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


class Issuer:
    """Answers what it is given, or raises it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: str | Exception = keys_text(KEY)
        self.reads = 0
        monkeypatch.setattr(module, "_read", self._read)
        monkeypatch.setattr(module, "REFRESH_S_MIN", 0.0)
        self.tokens = Tokens(
            ListenerConfig({"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys"}, "CLIENTS")
        )

    def _read(self, _: str) -> str:
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    return Issuer(monkeypatch)


@pytest.mark.parametrize(
    "answer",
    [
        OSError("connection refused"),
        BadStatusLine("\x15\x03\x01"),
        IncompleteRead(b"{"),
        "no JSON",
        '{"keys": []}',
        "[" * 100_000,
    ],
    ids=["no-server", "no-http", "cut-off", "no-json", "no-key", "nested"],
)
async def test_keys_that_cannot_be_read_are_reported_and_read_again(
    issuer: Issuer, answer: str | Exception
) -> None:
    issuer.answer = answer
    with capture_logs() as logs:
        await issuer.tokens.refresh_if_due()
    assert [entry["log_level"] for entry in logs] == ["warning"]
    with pytest.raises(LoginFailed, match="have not been read yet"):
        issuer.tokens.keys_for("")

    issuer.answer = keys_text(KEY)
    await issuer.tokens.refresh_if_due()
    assert [key.kid for key in issuer.tokens.keys_for("")] == ["1"]


@pytest.mark.parametrize("names_key", [True, False])
async def test_a_token_that_no_known_key_has_signed_has_them_read_again(
    issuer: Issuer, *, names_key: bool
) -> None:
    await issuer.tokens.refresh_if_due()
    for key, reads in ((KEY, 1), (NEW_KEY, 2)):
        header = {"alg": "ES256", **({"kid": key.kid} if names_key else {})}
        issuer.tokens.keys_for(jwt.encode(header, {}, key, algorithms=["ES256"]))
        await issuer.tokens.refresh_if_due()
        assert issuer.reads == reads
