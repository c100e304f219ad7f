"""SASL SCRAM (RFC 5802, RFC 7677), both sides: each proves to the other that it knows the password.

The broker knows salt, iterations and two keys of each user (`scram_credentials.py`). A user that does not
exist takes the same steps with a decoy (`scram_decoys.py`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from mainstem_broker.security.exchanges import Exchange, LoginFailed
from mainstem_broker.security.scram_credentials import ITERATIONS_MIN, ScramCredential, ScramMechanism

NONCE_BYTES: Final = 24
MESSAGE_BYTES_MAX: Final = 8 * 1024
ITERATIONS_ACCEPTED_MAX: Final = 1_000_000
"""What a broker may ask another one for: each iteration costs the client a hash."""

CredentialOf = Callable[[str], ScramCredential]
"""Of a user's name; a decoy if there is no such user."""

_NONCE: Final = r"r=(?P<nonce>[!-+\--~]+)"  # printable, without the comma
_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<identity>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),{_NONCE}(?:,.*)?)", re.DOTALL
)
_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>[^,]+),{_NONCE}(?:,.*)?),p=(?P<proof>[^,]+)", re.DOTALL
)
_CHALLENGE: Final = re.compile(
    rf"{_NONCE},s=(?P<salt>[^,]+),i=(?P<iterations>[0-9]{{1,9}})(?:,.*)?", re.DOTALL
)


class ScramServer(Exchange):
    """One login."""

    def __init__(
        self, mechanism: ScramMechanism, credential_of: CredentialOf, nonce: str | None = None
    ) -> None:
        super().__init__()
        self._hash = mechanism.hash_name
        self._key_bytes = mechanism.key_bytes
        self._credential_of = credential_of
        self._nonce = nonce or _new_nonce()
        self._credential: ScramCredential | None = None
        self._binding = b""
        self._so_far = ""

    def respond(self, message: bytes) -> bytes:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise LoginFailed("The message is not UTF-8.") from None
        if len(message) > MESSAGE_BYTES_MAX or self.user is not None:
            raise LoginFailed("The message is too long, or one too many.")
        return (self._begin(text) if self._credential is None else self._end(text)).encode()

    def _begin(self, text: str) -> str:
        first = _FIRST.fullmatch(text)
        if first is None:
            raise LoginFailed("The first message is not of the form of SCRAM, or asks for channel binding.")
        name = _unescaped(first["name"])
        self.claimed_user = name
        if first["identity"] and _unescaped(first["identity"]) != name:
            raise LoginFailed("The client requests to act for another user.")
        self._credential = self._credential_of(name)
        self._binding = first["header"].encode()
        self._nonce = first["nonce"] + self._nonce
        salt = base64.b64encode(self._credential.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._so_far = f"{first['bare']},{challenge}"
        return challenge

    def _end(self, text: str) -> str:
        credential = self._credential
        assert credential is not None
        final = _FINAL.fullmatch(text)
        # librdkafka before 2.2 repeats its own nonce in front of both, which Kafka accepts, too.
        if (
            final is None
            or not final["nonce"].endswith(self._nonce)
            or _decoded(final["binding"]) != self._binding
        ):
            raise LoginFailed("The last message does not continue the login.")
        signed = f"{self._so_far},{final['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = _decoded(final["proof"])
        if len(proof) != self._key_bytes:
            raise LoginFailed("The proof does not have the length of its hash.")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key):
            raise LoginFailed("The user is unknown or the password is wrong.")
        self.user = self.claimed_user
        return f"v={base64.b64encode(hmac.digest(credential.server_key, signed, self._hash)).decode()}"


class ScramClient:
    """The other side: how this broker logs in to another one."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str | None = None) -> None:
        self._hash = mechanism.hash_name
        self._password = password.encode()
        self._nonce = nonce or _new_nonce()
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._expected = ""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof.

        Raises:
            LoginFailed: the broker's challenge is not one.
        """
        text = challenge.decode(errors="replace")
        parts = _CHALLENGE.fullmatch(text)
        if parts is None or not parts["nonce"].startswith(self._nonce):
            raise LoginFailed("The broker's challenge is not of the form of SCRAM.")
        iterations = int(parts["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_ACCEPTED_MAX:
            raise LoginFailed(f"The broker asks for {iterations} iterations.")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decoded(parts["salt"]), iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        unproved = f"c=biws,r={parts['nonce']}"
        signed = f"{self._bare},{text},{unproved}".encode()
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._expected = f"v={base64.b64encode(hmac.digest(server_key, signed, self._hash)).decode()}"
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Raise LoginFailed unless the broker has proved that it knows the user."""
        if not self._expected or not hmac.compare_digest(answer, self._expected.encode()):
            raise LoginFailed("The broker does not know the password either.")


def _new_nonce() -> str:
    return secrets.token_urlsafe(NONCE_BYTES)


def _unescaped(name: str) -> str:
    """RFC 5802, section 5.1: a comma is =2C, and an equals sign =3D."""
    if re.search("=(?!2C|3D)", name):
        raise LoginFailed("The user's name has an equals sign that is not escaped.")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginFailed("The message has something that is not base64.") from None
