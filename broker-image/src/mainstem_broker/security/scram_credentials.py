"""SCRAM credentials of users (RFC 5802, RFC 7677): values, and their text in a user's settings. Pure.

A credential is what a broker needs to check a proof of the password: it contains neither the password nor
anything that a client could log in with. Its text is Apache Kafka's, one setting per mechanism:

    SCRAM-SHA-256 = salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=8192

The settings are those of `/config/users/NAME`, where the user's quotas are too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Apache Kafka's bounds: RFC 7677 asks for at least 4096; each login costs the client that many hashes."""


class ScramMechanism(Enum):
    """The mechanisms, by the names that SASL and the settings give them."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """As `hashlib` names it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64

    @property
    def number(self) -> int:
        """In the protocol (KIP-554)."""
        return 1 if self is ScramMechanism.SHA_256 else 2


MECHANISM_OF_NUMBER: Final[Mapping[int, ScramMechanism]] = {
    mechanism.number: mechanism for mechanism in ScramMechanism
}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Keys are bytes as long as the mechanism's hash. They are left out of `repr`, and so of logs."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """The credential of a password that the client has salted and iterated (RFC 5802, section 3)."""
        name = mechanism.hash_name
        client_key = hmac.digest(salted_password, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        return cls(iterations, salt, stored_key, hmac.digest(salted_password, b"Server Key", name))

    def encode(self) -> str:
        return (
            f"salt={_text(self.salt)},stored_key={_text(self.stored_key)},"
            f"server_key={_text(self.server_key)},iterations={self.iterations}"
        )

    @classmethod
    def decode(cls, mechanism: ScramMechanism, text: str) -> ScramCredential:
        """The credential in a setting.

        Raises:
            ValueError: it is none of this mechanism. The message contains no part of it.
        """
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            if not re.fullmatch(r"[0-9]{1,9}", parts["iterations"]):
                raise ValueError
            credential = cls(
                int(parts["iterations"]),
                base64.b64decode(parts["salt"], validate=True),
                base64.b64decode(parts["stored_key"], validate=True),
                base64.b64decode(parts["server_key"], validate=True),
            )
        except (KeyError, ValueError):
            raise ValueError(f"The {mechanism.value} credential cannot be read.") from None
        keys = (credential.stored_key, credential.server_key)
        # Other tools may choose other numbers of iterations; fewer than one proves nothing.
        if any(len(key) != mechanism.key_bytes for key in keys) or credential.iterations < 1:
            raise ValueError(f"The {mechanism.value} credential cannot be read.")
        return credential


def credential_of(settings: Mapping[str, str], mechanism: ScramMechanism) -> ScramCredential | None:
    """A user's credential of this mechanism, among the user's settings.

    None if there is none, or if it cannot be read: then the user cannot log in by this mechanism.
    """
    text = settings.get(mechanism.value)
    if text is None:
        return None
    try:
        return ScramCredential.decode(mechanism, text)
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
