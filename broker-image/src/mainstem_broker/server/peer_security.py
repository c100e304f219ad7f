"""How this broker connects to others: by the settings of the listener between brokers."""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import PeerUnavailable, StartupError
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security import plain
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.login import SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY
from mainstem_broker.security.scram import ScramClient
from mainstem_broker.security.scram_credentials import ScramMechanism
from mainstem_broker.server.listener_security import SASL_PROTOCOLS, TLS_PROTOCOLS, jaas_of
from mainstem_broker.server.tls_context import TlsContext

SESSION_SHARE_USED: Final = 0.85
"""Of a session with an end (KIP-368): then a new connection takes its place."""
_AUTHENTICATE_VERSION: Final = 2

Ask = Callable[[int, int, Body], Awaitable[Entity]]
"""Sends a request of this key and version, and returns the answer."""


class PeerSecurity:
    """`tls` and `login` are None where brokers do without."""

    def __init__(self, config: BrokerConfig, protocol: str) -> None:
        """Read settings and files.

        Raises:
            StartupError, InvalidSetting: one of them cannot be used.
        """
        settings = config.listener(config.inter_broker_listener)
        self.tls = TlsContext(settings) if protocol in TLS_PROTOCOLS else None
        self.login: PeerLogin | None = None
        if protocol in SASL_PROTOCOLS:
            mechanism = config.string("sasl.mechanism.inter.broker.protocol")
            if mechanism not in settings.items("sasl.enabled.mechanisms"):
                raise StartupError(
                    f"Brokers log in to each other by {mechanism} (sasl.mechanism.inter.broker.protocol),"
                    f" which is not among the sasl.enabled.mechanisms of the listener {settings.listener}."
                )
            jaas = jaas_of(settings, mechanism)
            if "username" not in jaas or "password" not in jaas:
                raise StartupError(
                    "Brokers have no login for each other: add username and password to"
                    f" listener.name.{settings.listener.lower()}.{mechanism.lower()}.sasl.jaas.config."
                )
            self.login = PeerLogin(mechanism, jaas["username"], jaas["password"])

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next connection."""
        return None if self.tls is None else self.tls.context


class PeerLogin:
    """This broker's login at others."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._mechanism = mechanism
        self._user = user
        self._password = password

    async def log_in(self, ask: Ask) -> float:
        """Log in on a new connection; how many seconds it may be used.

        Raises:
            PeerUnavailable: the other broker refuses.
        """
        answer = await ask(SASL_HANDSHAKE_KEY, 1, {"mechanism": self._mechanism})
        if answer.error_code != 0:
            raise PeerUnavailable(f"The broker does not take logins by {self._mechanism}.")
        try:
            if self._mechanism == "PLAIN":
                answer = await self._send(ask, plain.client_message(self._user, self._password))
            else:
                client = ScramClient(ScramMechanism(self._mechanism), self._user, self._password)
                challenge = await self._send(ask, client.first())
                answer = await self._send(ask, client.final(bytes(challenge.auth_bytes)))
                client.check(bytes(answer.auth_bytes))
        except LoginFailed as error:
            raise PeerUnavailable(f"The login failed: {error}") from None
        lifetime_s: float = answer.session_lifetime.total_seconds()
        return SESSION_SHARE_USED * lifetime_s if lifetime_s > 0 else math.inf

    async def _send(self, ask: Ask, message: bytes) -> Entity:
        answer = await ask(SASL_AUTHENTICATE_KEY, _AUTHENTICATE_VERSION, {"auth_bytes": message})
        if answer.error_code != 0:
            raise PeerUnavailable(f"The broker refuses the login of {self._user}: {answer.error_message}")
        return answer
