"""What a listener demands of its clients: TLS, certificates, a login; and what follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.listener_config import ListenerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.security.audit_log import ALLOWED, REFUSED
from mainstem_broker.security.distinguished_names import subject_of
from mainstem_broker.security.exchanges import Exchange
from mainstem_broker.security.jaas import parse_jaas
from mainstem_broker.security.login import Login
from mainstem_broker.security.plain import PlainServer, users_of
from mainstem_broker.security.principal_rules import name_by_rules, parse_rules
from mainstem_broker.security.principals import ANONYMOUS, Principal
from mainstem_broker.security.scram import ScramServer
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism
from mainstem_broker.server.connection import Connection
from mainstem_broker.server.refusal_log import RefusalLog
from mainstem_broker.server.tls_context import TlsContext

if TYPE_CHECKING:
    from mainstem_broker.server.tokens import Tokens

logger = structlog.get_logger(__name__)

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
LOG_IN: Final = "LogIn"
LOG_IN_AGAIN: Final = "LogInAgain"
TLS_HANDSHAKE: Final = "TlsHandshake"
_CERTIFICATE: Final = "certificate"
LOGIN_S_MAX: Final = 10.0
"""From the accepted connection, or the end of its TLS handshake, to its login: as long as the handshake may
take. A login takes three round trips, and a token's keys may be fetched from its issuer. Any byte renews
`connections.max.idle.ms`, so without this a stranger could keep a descriptor for ever."""
USER_CHARACTERS_MAX: Final = 100
"""Of a user's name in the log: it is whatever a stranger sends."""

CredentialOf = Callable[[str, ScramMechanism], ScramCredential]
"""Of a user's name; a decoy if there is no such user."""


class RecordLogin(Protocol):
    """Takes the fields of an audit record of the category `authentication`."""

    def __call__(self, **fields: str) -> None: ...


def _record_nothing(**_: str) -> None:
    """In place of an audit log."""


class ListenerSecurity:
    """Of one listener; `tls` and `logins` are None where its protocol has none."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        credential_of: CredentialOf,
        record: RecordLogin = _record_nothing,
        *,
        is_between_brokers: bool = False,
    ) -> None:
        """Read settings and files.

        `is_between_brokers`: only brokers connect here. Their connections may stay without a login: brokers
        hold some open only to notice when another one dies (`failure_detector.py`).

        Raises:
            StartupError, InvalidSetting: one of them cannot be used.
        """
        self._listener = endpoint.listener
        settings = config.listener(endpoint.listener)
        has_logins = endpoint.security_protocol in SASL_PROTOCOLS
        self.tls: TlsContext | None = None
        if endpoint.security_protocol in TLS_PROTOCOLS:
            # As in Kafka: who logs in shows no certificate, unless it is demanded of this very listener.
            name = "ssl.client.auth"
            asks = not has_logins or settings.is_overridden(name)
            self.tls = TlsContext(settings, client_authentication=settings.string(name) if asks else "none")
        login_s_max = None if is_between_brokers else LOGIN_S_MAX
        self.logins = Logins(settings, credential_of, record, login_s_max) if has_logins else None
        self._record = record
        self._rules = parse_rules(settings.string("ssl.principal.mapping.rules"))

    @property
    def has_scram(self) -> bool:
        """Whether clients may log in by SCRAM."""
        return self.logins is not None and self.logins.has_scram

    def principal_of(self, certificate: bytes | None, host: str) -> Principal | None:
        """Who shows this certificate (DER, verified); None, with a log line, if no name can be made of it."""
        if certificate is None or self.logins is not None:
            return ANONYMOUS  # until the login, if there is one
        try:
            subject = subject_of(certificate)
        except ValueError as error:
            self._refuse(str(error), host)
            return None
        name = name_by_rules(self._rules, subject)
        if name is None:
            self._refuse("no rule of ssl.principal.mapping.rules makes a name of its subject", host, subject)
            return None
        principal = Principal(name)
        self._record(
            outcome=ALLOWED,
            principal=str(principal),
            host=host,
            operation=LOG_IN,
            mechanism=_CERTIFICATE,
            listener=self._listener,
        )
        return principal

    def record_failed_handshake(self, host: str, reason: str) -> None:
        """Record that a client did not get as far as showing who it is."""
        self._record(
            outcome=REFUSED, host=host, operation=TLS_HANDSHAKE, listener=self._listener, reason=reason
        )

    def _refuse(self, reason: str, host: str, subject: str | None = None) -> None:
        logger.info("client certificate refused", listener=self._listener, subject=subject, reason=reason)
        self._record(
            outcome=REFUSED,
            subject=subject or "",
            host=host,
            operation=LOG_IN,
            mechanism=_CERTIFICATE,
            listener=self._listener,
            reason=reason,
        )


class Logins:
    """Begins the login of each connection of a listener, and does to the connection what follows from it."""

    def __init__(
        self,
        config: ListenerConfig,
        credential_of: CredentialOf,
        record: RecordLogin = _record_nothing,
        login_s_max: float | None = None,
    ) -> None:
        """`login_s_max`: how long a client may take for its login, in seconds; None: as long as it likes."""
        self._record = record
        self._login_s_max = login_s_max
        self._listener = config.listener
        self._message_bytes_max = config.integer("sasl.server.max.receive.size")
        self._session_ms_max = config.integer("connections.max.reauth.ms")
        names = config.items("sasl.enabled.mechanisms")
        self.tokens = _tokens(config) if "OAUTHBEARER" in names else None
        """Where tokens are taken: the keys of their issuer, and what begins an exchange."""
        self._mechanisms = {
            name: _beginning(config, name, credential_of) for name in names if name != "OAUTHBEARER"
        }
        if self.tokens is not None:
            self._mechanisms["OAUTHBEARER"] = self.tokens.begin
        # Closes a connection that has not logged in in time: at first, or again.
        self._ends: dict[Connection, asyncio.TimerHandle] = {}
        self._refusals = RefusalLog()

    @property
    def has_scram(self) -> bool:
        return any(name.startswith("SCRAM-") for name in self._mechanisms)

    def begin(self, connection: Connection) -> None:
        request_bytes_max = connection.request_bytes_max
        connection.request_bytes_max = min(request_bytes_max, self._message_bytes_max)
        connection.login = Login(
            self._mechanisms,
            self._session_ms_max,
            partial(self._logged_in, connection, request_bytes_max),
            partial(self._failed, connection),
        )
        if self._login_s_max is not None:
            self._ends[connection] = asyncio.get_running_loop().call_later(
                self._login_s_max,
                connection.close,
                f"the client has not logged in within {self._login_s_max:g} s",
            )

    def end(self, connection: Connection) -> None:
        """The connection is closed."""
        connection.login = None
        if (timer := self._ends.pop(connection, None)) is not None:
            timer.cancel()

    def _logged_in(
        self, connection: Connection, request_bytes_max: int, principal: Principal, session_ms: int
    ) -> None:
        login = connection.login
        assert login is not None
        self._record(
            outcome=ALLOWED,
            principal=str(principal),
            host=connection.peer.rpartition(":")[0],
            operation=LOG_IN if connection.principal == ANONYMOUS else LOG_IN_AGAIN,
            mechanism=login.mechanism or "",
            listener=self._listener,
        )
        connection.principal = principal
        connection.request_bytes_max = request_bytes_max
        if (timer := self._ends.pop(connection, None)) is not None:
            timer.cancel()
        if session_ms > 0:
            self._ends[connection] = asyncio.get_running_loop().call_later(
                session_ms / 1000, connection.finish, "the client has not logged in again in time"
            )

    def _failed(self, connection: Connection, reason: str) -> None:
        login = connection.login
        assert login is not None
        user = login.claimed_user
        self._refusals.write(
            "login failed",
            connection.peer,
            listener=self._listener,
            mechanism=login.mechanism,
            user=None if user is None else user[:USER_CHARACTERS_MAX],
            reason=reason,
        )
        self._record(
            outcome=REFUSED,
            principal="" if user is None else str(Principal(user[:USER_CHARACTERS_MAX])),
            host=connection.peer.rpartition(":")[0],
            operation=LOG_IN if connection.principal == ANONYMOUS else LOG_IN_AGAIN,
            mechanism=(login.mechanism or "")[:USER_CHARACTERS_MAX],
            listener=self._listener,
            reason=reason,
        )
        connection.finish("its login failed")


def _beginning(config: ListenerConfig, mechanism: str, credential_of: CredentialOf) -> Callable[[], Exchange]:
    """What begins an exchange.

    Raises:
        StartupError, InvalidSetting: the mechanism's settings cannot be used.
    """
    if mechanism == "PLAIN":
        users = users_of(jaas_of(config, mechanism))
        if not users:
            raise StartupError(
                f"The listener {config.listener} has PLAIN among sasl.enabled.mechanisms, but no users: add"
                f' user_NAME="PASSWORD" to listener.name.{config.listener.lower()}.plain.sasl.jaas.config.'
            )
        return partial(PlainServer, users)
    scram = ScramMechanism(mechanism)
    return partial(ScramServer, scram, lambda user: credential_of(user, scram))


def _tokens(config: ListenerConfig) -> Tokens:
    # Its libraries take a tenth of a second to import.
    from mainstem_broker.server.tokens import Tokens

    return Tokens(config)


def jaas_of(config: ListenerConfig, mechanism: str) -> dict[str, str]:
    """The options of a mechanism's login module; none if it has none.

    Raises:
        InvalidSetting: they cannot be read.
    """
    text = config.optional_string("sasl.jaas.config", mechanism)
    name = f"listener.name.{config.listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    return {} if text is None else dict(parse_jaas(text, name))
