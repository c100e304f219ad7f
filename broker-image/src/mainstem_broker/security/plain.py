"""SASL PLAIN (RFC 4616): the password itself, to be used over TLS only. Users are those of the settings."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from mainstem_broker.security.exchanges import Exchange, LoginFailed

_USER_PREFIX: Final = "user_"


def users_of(jaas: Mapping[str, str]) -> dict[str, bytes]:
    """Digests of the passwords of `user_NAME="PASSWORD"`, by name."""
    return {
        name.removeprefix(_USER_PREFIX): _digest(password)
        for name, password in jaas.items()
        if name.startswith(_USER_PREFIX)
    }


class PlainServer(Exchange):
    """One login; `users` are those of `users_of`."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        super().__init__()
        self._users = users

    def respond(self, message: bytes) -> bytes:
        try:
            identity, name, password = message.decode().split("\0")
        except ValueError:
            raise LoginFailed("The message is not of the form of PLAIN.") from None
        self.claimed_user = name
        # An unknown user takes the same steps. A password is never as long as this digest of nothing.
        expected = self._users.get(name, b"")
        is_right = hmac.compare_digest(_digest(password), expected.ljust(32, b"\0"))
        if not is_right or not name or not password:
            raise LoginFailed("The user is unknown or the password is wrong.")
        if identity not in ("", name):
            raise LoginFailed("The client requests to act for another user.")
        self.user = name
        return b""


def client_message(user: str, password: str) -> bytes:
    """What a client sends."""
    return f"\0{user}\0{password}".encode()


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()
