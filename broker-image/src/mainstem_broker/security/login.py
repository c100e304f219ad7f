"""The login of one connection: SaslHandshake and SaslAuthenticate in the order that Kafka allows, and again
after some time (KIP-43, KIP-152, KIP-368). Pure: messages in, answers out; its clock is the caller's.

Before the login only ApiVersions, the handshake and the mechanism's messages are taken, and during a login
nothing else. Whatever comes instead ends the connection, and so does a login that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mainstem_broker.security.exchanges import Exchange, LoginFailed
from mainstem_broker.security.principals import Principal

SASL_HANDSHAKE_KEY: Final = 17
API_VERSIONS_KEY: Final = 18
SASL_AUTHENTICATE_KEY: Final = 36
TWO_LOGINS_MIN_S: Final = 1.0
"""Kafka's: a client that logs in again sooner than this is disconnected."""

Mechanisms = Mapping[str, Callable[[], Exchange]]
"""By its name, what begins an exchange."""
LoggedIn = Callable[[Principal, int], None]
"""Takes who it is, and after how many milliseconds they have to log in again; 0 for never."""
Failed = Callable[[str], None]
"""Takes the reason, for the log."""


class Login:
    """`is_under_way` until the client has logged in, and while it logs in again."""

    def __init__(
        self, mechanisms: Mechanisms, session_ms_max: int, logged_in: LoggedIn, failed: Failed
    ) -> None:
        """`session_ms_max` is `connections.max.reauth.ms`. With 0 a session ends only with what the client
        proves, such as a token (as in Kafka).
        """
        self._mechanisms = mechanisms
        self._session_ms_max = session_ms_max
        self._logged_in = logged_in
        self._failed = failed
        self._mechanism: str | None = None
        self._exchange: Exchange | None = None
        self._principal: Principal | None = None
        self._began_s = 0.0
        self._session_ms = 0
        """Of the last login; 0: it has no end, and the client need not log in again."""
        self.is_under_way = True
        self.expects_raw_message = False
        """Whether the next frame is a message of the mechanism without a header, after SaslHandshake v0."""

    @property
    def enabled_mechanisms(self) -> list[str]:
        return list(self._mechanisms)

    @property
    def mechanism(self) -> str | None:
        """The one that the client has chosen."""
        return self._mechanism

    @property
    def claimed_user(self) -> str | None:
        return None if self._exchange is None else self._exchange.claimed_user

    def allows(self, api_key: int) -> bool:
        """Whether this request may come now, while a login is under way."""
        if self._exchange is not None:
            return api_key == SASL_AUTHENTICATE_KEY
        return api_key in (SASL_HANDSHAKE_KEY, API_VERSIONS_KEY)

    def choose(self, mechanism: str, version: int, now_s: float) -> bool:
        """Take a SaslHandshake; whether the mechanism is served. If it is not, the login has failed.

        Raises:
            LoginFailed: the client has logged in already, and need not again.
        """
        if self._principal is not None:
            if self._session_ms == 0:
                raise LoginFailed("The client has logged in already.")
            self.is_under_way = True
            if now_s - self._began_s < TWO_LOGINS_MIN_S:
                self.fail("The client logs in again too soon.")
                return False
            if mechanism != self._mechanism:
                self.fail("The client logs in again by another mechanism.")
                return False
        begin = self._mechanisms.get(mechanism)
        if begin is None:
            self.fail(f"The mechanism {mechanism[:40]!r} is not among sasl.enabled.mechanisms.")
            return False
        self._mechanism = mechanism
        self._exchange = begin()
        self._began_s = now_s
        self.expects_raw_message = version == 0
        return True

    def respond(self, message: bytes) -> tuple[bytes, int]:
        """Take a message of the mechanism: the answer, and the milliseconds that the session lasts, if any.

        Raises:
            LoginFailed: it failed, or no login is under way.
        """
        exchange = self._exchange
        if exchange is None:
            raise LoginFailed("No login is under way.")
        try:
            answer = exchange.respond(message)
            session_ms = self._session_ms_max
            if exchange.user is not None:
                if exchange.session_ms is not None:
                    if exchange.session_ms <= 0:  # 0 would be no end (KAFKA-13848)
                        raise LoginFailed("What the client proved has expired.")
                    session_ms = min(session_ms or exchange.session_ms, exchange.session_ms)
                self._finish(Principal(exchange.user), session_ms)
        except LoginFailed as error:
            self.fail(str(error))
            raise
        return answer, 0 if self.is_under_way else session_ms

    def _finish(self, principal: Principal, session_ms: int) -> None:
        if self._principal not in (None, principal):
            raise LoginFailed("The client logs in again as another user.")
        self._principal = principal
        self._session_ms = session_ms
        self._exchange = None
        self.is_under_way = self.expects_raw_message = False
        self._logged_in(principal, session_ms)

    def fail(self, reason: str) -> None:
        """End the login. Its refusal is the reason, if a client goes on after one with another request."""
        refusal = None if self._exchange is None else self._exchange.refusal
        self._failed(refusal or reason)
        self._exchange = None
