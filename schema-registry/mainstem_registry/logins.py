"""Who may use the HTTP API: users of the brokers, whose passwords the brokers check.

A request has a user and a password by basic authentication (RFC 7617). The registry logs in to a broker with
them, so it keeps no passwords, and a user that is created, changed or removed there is so here. An accepted
login holds for a short time: producers ask for many schemas at their start.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, SaslAuthenticationFailed

from mainstem_registry.client_security import Brokers
from mainstem_registry.errors import login_unchecked, unauthorized

logger = structlog.get_logger(__name__)

ACCEPTED_S: Final = 60.0
"""How long a login holds without another, so also how long a removed user still gets in."""
ACCEPTED_MAX: Final = 10_000
PARALLEL_LOGINS_MAX: Final = 8
"""At the brokers: what guesses passwords must not take their connections."""
LOGIN_TIMEOUT_S: Final = 10.0
BROKER_TIMEOUT_MS: Final = 3_000
"""For each answer of one broker, before the next is tried."""
REFUSED_LINES_S: Final = 10.0
"""At most one line of the log in this time is about refused logins."""


class LoginRefused(Exception):
    """The brokers do not know the user, or the password is another."""


Login = Callable[[str, str], Awaitable[None]]
"""Logs in a user with a password. It raises LoginRefused, OSError or KafkaError."""


def parse_basic(header: str | None) -> tuple[str, str] | None:
    """User and password of a header `Authorization`; None if it is missing or of another form."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:  # of base64, of its bytes, or of characters that no header has
        return None
    user, colon, password = text.partition(":")
    # A NUL would begin another field of a login by PLAIN.
    return (user, password) if user and colon and "\0" not in text else None


class BrokerLogin:
    """Logs in to the first broker that can be reached."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def __call__(self, user: str, password: str) -> None:
        failure: Exception | None = None
        for address in self._brokers.bootstrap_servers.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                connection = await create_conn(
                    host.strip("[]"),
                    int(port),
                    client_id="schema-registry",
                    request_timeout_ms=BROKER_TIMEOUT_MS,
                    **self._brokers.login_arguments(user, password),
                )
            except SaslAuthenticationFailed:
                # The broker's message may have the user's name, which may be a password in the wrong field.
                raise LoginRefused from None
            except (OSError, KafkaError) as error:
                failure = error
                continue
            connection.close()
            return
        raise failure or OSError("no broker is named")


class Logins:
    """The users of requests. Answers do not say whether it is the user or the password that is wrong."""

    def __init__(self, log_in: Login, clock: Callable[[], float] = time.monotonic) -> None:
        self._log_in = log_in
        self._clock = clock
        self._digest_key = secrets.token_bytes(32)
        self._accepted: dict[bytes, float] = {}
        """When logins end, by a keyed digest of user and password; the oldest first."""
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(PARALLEL_LOGINS_MAX)
        self._refused_since_line = 0
        self._next_line = 0.0

    async def user_of(self, header: str | None, address: str) -> str:
        """The user of a request with this header `Authorization`, from this address.

        Raises:
            RegistryError: status 401, or 503 if no broker can say.
        """
        given = parse_basic(header)
        if given is None:
            raise unauthorized()
        user, password = given
        digest = hmac.digest(self._digest_key, f"{len(user)}:{user}{password}".encode(), "sha256")
        if self._accepted.get(digest, 0.0) > self._clock():
            return user
        # All who wait for the same login share it, and one that goes away does not end it.
        login = self._under_way.get(digest)
        if login is None:
            login = asyncio.create_task(self._check(digest, user, password))
            self._under_way[digest] = login
            login.add_done_callback(partial(self._end, digest))
        try:
            await asyncio.shield(login)
        except LoginRefused:
            self._log_refused(address)
            raise unauthorized() from None
        except (OSError, KafkaError, ValueError) as error:
            # A ValueError is aiokafka's for a broker that does not prove that it knows the password.
            logger.warning("logins cannot be checked", error=f"{type(error).__name__}: {error}"[:200])
            raise login_unchecked() from None
        return user

    def _end(self, digest: bytes, login: asyncio.Task[None]) -> None:
        del self._under_way[digest]
        if not login.cancelled():
            login.exception()  # known, even if all who waited have gone away

    async def _check(self, digest: bytes, user: str, password: str) -> None:
        async with asyncio.timeout(LOGIN_TIMEOUT_S), self._slots:
            await self._log_in(user, password)
        now = self._clock()
        while self._accepted and (
            len(self._accepted) >= ACCEPTED_MAX or next(iter(self._accepted.values())) <= now
        ):
            del self._accepted[next(iter(self._accepted))]
        self._accepted.pop(digest, None)
        self._accepted[digest] = now + ACCEPTED_S

    def _log_refused(self, address: str) -> None:
        self._refused_since_line += 1
        now = self._clock()
        if now >= self._next_line:
            logger.warning("login refused", address=address, count=self._refused_since_line)
            self._refused_since_line, self._next_line = 0, now + REFUSED_LINES_S
