"""The stock admin client: called in threads, because it blocks, and replaced once it has found no broker.

librdkafka reads a cluster's addresses once and then refreshes them every five minutes. A client that is
created while brokers restart may know only addresses that no longer answer, and every call times
out until that refresh. So the addresses are refreshed often, and a client whose call found no broker is not
used again: the next call starts from the bootstrap servers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable

logger = structlog.get_logger(__name__)

ADMIN_TIMEOUT_SECONDS: Final = 30.0
CLIENT_ID: Final = "mainstem-operator"
_REFRESH_MS: Final = 10_000


class StockClient:
    """An AdminClient for `bootstrap_servers`, created when it is first used."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.properties: Mapping[str, str] = {}
        self._lock = threading.Lock()  # calls come from several threads
        self._admin: AdminClient | None = None
        self._silent_calls = 0  # how many of the last calls found no broker

    def connect_to(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        """Let the next call connect there, with these settings of encryption and login."""
        with self._lock:
            if (bootstrap_servers, properties) != (self.bootstrap_servers, self.properties):
                self.bootstrap_servers, self.properties = bootstrap_servers, dict(properties)
                self._admin = None

    async def call(self, action: Any, *, is_lookup: bool = False) -> Any:
        """The result of one call of the client, made in a thread.

        Args:
            is_lookup: it only asks where brokers are, so its answer does not say that these can be reached.

        Raises:
            BrokersUnreachable: no broker answered.
            BrokersRefused: a broker answered with an error.
        """
        return await asyncio.to_thread(self._call, action, is_lookup)

    async def one(self, action: Any, *, is_lookup: bool = False) -> Any:
        """The result of the future that `action` returns."""
        return await self.call(lambda admin: action(admin).result(), is_lookup=is_lookup)

    async def each(self, action: Any) -> dict[Any, Any]:
        """The result of each of the futures that `action` returns; a refusal is a result."""

        def run(admin: AdminClient) -> dict[Any, Any]:
            results: dict[Any, Any] = {}
            for key, future in action(admin).items():
                try:
                    results[key] = future.result()
                except KafkaException as exception:
                    error = _error_of(exception, self.bootstrap_servers)
                    if isinstance(error, BrokersUnreachable):
                        raise  # for all of them
                    results[key] = error
            return results

        results: dict[Any, Any] = await self.call(run)
        return results

    async def all(self, action: Any) -> dict[Any, Any]:
        """As `each`; a refusal for any other reason than an unknown topic is raised."""
        results = await self.each(action)
        for result in results.values():
            if isinstance(result, BrokersRefused) and result.code != "UNKNOWN_TOPIC_OR_PART":
                raise result
        return results

    async def refusals(self, action: Any) -> dict[Any, BrokersRefused]:
        """The refusals among the results of `each`."""
        results = await self.each(action)
        return {key: result for key, result in results.items() if isinstance(result, BrokersRefused)}

    def forget(self, reason: str, admin: AdminClient | None = None) -> None:
        """Let the next call start from the bootstrap servers, since no broker has answered.

        While none does, calls end so every half minute; only the second one is logged. One alone may have
        been cut off by a broker that was restarted.

        Args:
            admin: the client that failed, which another call may have replaced already; None for any.
        """
        with self._lock:
            if self._admin is None or admin not in (None, self._admin):
                return
            self._admin = None
            self._silent_calls += 1
            is_news = self._silent_calls == 2
        if is_news:
            logger.warning("no broker answers", servers=self.bootstrap_servers, reason=reason)

    def heard(self) -> None:
        """A broker has answered."""
        with self._lock:
            is_news, self._silent_calls = self._silent_calls > 1, 0
        if is_news:
            logger.warning("brokers answer again", servers=self.bootstrap_servers)

    def _call(self, action: Any, is_lookup: bool) -> Any:
        try:
            admin = self._client()
        except KafkaException as exception:  # keys that cannot be used
            raise _error_of(exception, self.bootstrap_servers) from exception
        try:
            result = action(admin)
        except KafkaException as exception:
            error = _error_of(exception, self.bootstrap_servers)
            if isinstance(error, BrokersUnreachable):
                self.forget(str(exception.args[0]), admin)
            else:
                self.heard()
            raise error from exception
        if not is_lookup:
            self.heard()
        return result

    def _client(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(
                    {
                        "bootstrap.servers": self.bootstrap_servers,
                        "client.id": CLIENT_ID,
                        "log_level": 0,
                        "topic.metadata.refresh.interval.ms": _REFRESH_MS,
                        "metadata.max.age.ms": 3 * _REFRESH_MS,  # what librdkafka does without a refresh
                        "reconnect.backoff.max.ms": 1000,
                        **self.properties,
                    }
                )
            return self._admin


_NOBODY_ANSWERED: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  # librdkafka's own codes are published so
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    }
)


def _error_of(exception: KafkaException, bootstrap_servers: str) -> BrokersRefused | BrokersUnreachable:
    error: KafkaError = exception.args[0]
    if error.code() in _NOBODY_ANSWERED:
        return BrokersUnreachable(f"No broker of {bootstrap_servers} answered.")
    text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ")
    return BrokersRefused(error.name(), f"{text.rstrip('.')}.")
