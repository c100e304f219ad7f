"""Logins by tokens (OAUTHBEARER) on one listener, with the issuer's keys (JWKS) from a file or a server."""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException
from pathlib import Path
from time import monotonic, time
from typing import Final
from urllib.parse import urlsplit

import structlog
from joserfc.jwk import KeySet

from mainstem_broker.config.listener_config import ListenerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.oauth import OAuthServer, TokenRules, is_signed, parse_keys

logger = structlog.get_logger(__name__)

ANSWER_S_MAX: Final = 10.0
KEYS_BYTES_MAX: Final = 1024 * 1024
REFRESH_S_MIN: Final = 10.0
"""Between two looks because of a token that no known key has signed: anyone may send one."""
_SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"


class Tokens:
    """`sasl.oauthbearer.jwks.endpoint.url`: https, or file for keys that are brought here by other means."""

    def __init__(self, config: ListenerConfig) -> None:
        """Nothing is read yet.

        Raises:
            StartupError: the setting is missing or cannot be used.
        """
        self._url = config.optional_string(_SETTING) or ""
        if urlsplit(self._url).scheme not in ("https", "http", "file"):
            raise StartupError(
                f"The listener {config.listener} has OAUTHBEARER among sasl.enabled.mechanisms: set"
                f" {_SETTING} to the address of the issuer's keys, as https://... or file:///..."
            )
        self._rules = TokenRules(
            tuple(config.items("sasl.oauthbearer.expected.audience")),
            config.optional_string("sasl.oauthbearer.expected.issuer"),
            config.string("sasl.oauthbearer.scope.claim.name"),
            tuple(config.items("sasl.oauthbearer.required.scopes")),
            config.string("sasl.oauthbearer.sub.claim.name"),
            config.integer("sasl.oauthbearer.clock.skew.seconds"),
        )
        self._refresh_s = config.integer("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000
        self._keys: KeySet | None = None
        self._text = ""
        self._read_s = -self._refresh_s
        self._is_wanted = False

    def begin(self) -> OAuthServer:
        return OAuthServer(self.keys_for, self._rules, time)

    def keys_for(self, token: str) -> KeySet:
        """The present keys. If none of them has signed the token, they are read again soon, for the next try.

        Raises:
            LoginFailed: there are none yet.
        """
        if self._keys is None:
            self._is_wanted = True
            raise LoginFailed("The issuer's keys have not been read yet.")
        if not is_signed(token, self._keys):
            self._is_wanted = True
        return self._keys

    async def refresh_if_due(self) -> None:
        """To be called periodically."""
        age_s = monotonic() - self._read_s
        is_file = self._url.startswith("file:")
        if not (is_file or age_s >= self._refresh_s or (self._is_wanted and age_s >= REFRESH_S_MIN)):
            return
        self._read_s, self._is_wanted = monotonic(), False
        try:
            text = await asyncio.to_thread(_read, self._url)
            if text == self._text:
                return
            self._text = text
            keys = parse_keys(text)
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            self._is_wanted = self._is_wanted or self._keys is None
            logger.warning(
                "keys of tokens not read; the previous ones are kept", url=self._url, reason=str(error)
            )
            return
        self._keys = keys
        logger.info("keys of tokens read", url=self._url, count=len(keys.keys))


def _read(url: str) -> str:
    if url.startswith("file:"):
        with Path(urlsplit(url).path).open("rb") as file:
            return file.read(KEYS_BYTES_MAX).decode()
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:  # of the settings' scheme
        body: bytes = answer.read(KEYS_BYTES_MAX)
        return body.decode()
