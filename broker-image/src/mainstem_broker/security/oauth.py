"""SASL OAUTHBEARER (RFC 7628, KIP-255, KIP-768): a signed token (JWT) of an issuer whose keys are known."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from mainstem_broker.security.exchanges import Exchange, LoginFailed

ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Those with public keys. With HS256 everyone who knows the issuer's public keys could sign."""
_MESSAGE: Final = re.compile(
    rb"n,(?:a=(?P<identity>[^,]*))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?"
    rb"auth=[Bb]earer +(?P<token>[-A-Za-z0-9._~+/=]+)\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)
_INVALID: Final = b'{"status":"invalid_token"}'


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say: `sasl.oauthbearer.*`. Without audiences or an issuer any will do."""

    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    scope_claim: str = "scope"
    required_scopes: tuple[str, ...] = ()
    subject_claim: str = "sub"
    clock_skew_s: int = 30


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who a token is for, and until when, in seconds since 1970."""

    user: str
    expires_s: float


def verified(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> Bearer:
    """The bearer of a token.

    Raises:
        LoginFailed: it is not signed by one of the keys, or does not say what it has to. The message says
            what is wrong, and contains nothing of the token.
    """
    claims = _claims(token, keys)
    expires_s = _time(claims, "exp")
    if expires_s is None or expires_s + rules.clock_skew_s <= now_s:
        raise LoginFailed("The token has expired, or has no expiry.")
    for name in ("nbf", "iat"):
        time_s = _time(claims, name)
        if time_s is not None and time_s - rules.clock_skew_s > now_s:
            raise LoginFailed(f"The token is not valid yet ({name}).")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise LoginFailed("The token is of another issuer than sasl.oauthbearer.expected.issuer.")
    if rules.audiences and not set(rules.audiences) & set(_texts(claims.get("aud"))):
        raise LoginFailed("The token is for none of sasl.oauthbearer.expected.audience.")
    if not set(rules.required_scopes) <= set(_texts(claims.get(rules.scope_claim), split=True)):
        raise LoginFailed("The token does not have the scopes that are required.")
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user.strip():
        raise LoginFailed(f"The token names no subject ({rules.subject_claim}).")
    return Bearer(user, expires_s)


class OAuthServer(Exchange):
    """One login. `keys` are the issuer's present ones, and `now_s` is the time of the day since 1970."""

    def __init__(self, keys: Callable[[str], KeySet], rules: TokenRules, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._keys = keys
        self._rules = rules
        self._now_s = now_s

    def respond(self, message: bytes) -> bytes:
        if self.refusal is not None:  # the client has read the status, and says so (RFC 7628, section 3.2.3)
            raise LoginFailed(self.refusal)
        parts = _MESSAGE.fullmatch(message)
        if parts is None:
            raise LoginFailed("The message is not of the form of OAUTHBEARER.")
        token = parts["token"].decode()
        now_s = self._now_s()
        try:
            bearer = verified(token, self._keys(token), self._rules, now_s)
            if parts["identity"] and parts["identity"].decode(errors="replace") != bearer.user:
                raise LoginFailed("The client requests to act for another user.")
        except LoginFailed as error:
            self.refusal = str(error)
            return _INVALID
        self.session_ms = max(int(1000 * (bearer.expires_s - now_s)), 0)
        self.user = self.claimed_user = bearer.user
        return b""


def is_signed(token: str, keys: KeySet) -> bool:
    """Whether one of the keys has signed the token."""
    try:
        _claims(token, keys)
    except LoginFailed:
        return False
    return True


def parse_keys(text: str) -> KeySet:
    """The keys of a JWK set (RFC 7517); those of kinds that are not known are left out.

    Raises:
        ValueError: it is none, or has no key that can be used.
    """
    body = json.loads(text)
    keys = body.get("keys") if isinstance(body, dict) else None
    usable = []
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP"):
            try:
                KeySet.import_key_set({"keys": [key]})
            except (JoseError, ValueError, TypeError, KeyError):
                continue
            usable.append(key)
    if not usable:
        raise ValueError("there is no key that can be used")
    return KeySet.import_key_set({"keys": usable})


def _claims(token: str, keys: KeySet) -> dict[str, Any]:
    """What a token says that one of the keys has signed. It need not name the key (RFC 7515, section 4.1.4).

    Raises:
        LoginFailed: none of them has.
    """
    header = _header(token)
    if "kid" in header:
        candidates = [keys]
    else:
        candidates = [KeySet([key]) for key in keys if key.get("alg") in (None, header.get("alg"))]
    reason = "no key for its algorithm"
    for candidate in candidates:
        try:
            return jwt.decode(token, candidate, algorithms=ALGORITHMS).claims
        except (JoseError, ValueError, TypeError, KeyError) as error:
            reason = type(error).__name__
    raise LoginFailed(f"The token is not signed by a known key ({reason}).")


def _header(token: str) -> dict[str, Any]:
    """Empty for one that cannot be read."""
    head = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LoginFailed(f"The token has no time in {name}.")
    return float(value)


def _texts(value: object, *, split: bool = False) -> list[str]:
    """The texts of a claim that is one or a list of them; `split` at white space."""
    if isinstance(value, str):
        return value.split() if split else [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
