"""Requests of the Kafka protocol that the stock client has no call for, to brokers that it has found."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mainstem.errors import CommandError
from mainstem.kafka.raw_request import ask, reason_of
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.stock_client import ADMIN_TIMEOUT_SECONDS, CLIENT_ID, StockClient

SHORT_TIMEOUT_SECONDS: Final = 3.0


class RawProtocol:
    """Requests to one broker, or to whichever answers."""

    def __init__(self, stock: StockClient) -> None:
        self._stock = stock

    async def describe_cluster(self) -> Any:
        """The live brokers (`nodes`) and the `controller`, None if there is none."""
        return await self._stock.one(
            lambda admin: admin.describe_cluster(request_timeout=ADMIN_TIMEOUT_SECONDS), is_lookup=True
        )

    async def ask_any(self, request: Any) -> Any:
        """The controller's answer, or, if it does not answer, that of any other broker.

        Raises:
            BrokersUnreachable: no broker answers.
        """
        cluster = await self.describe_cluster()
        controller = None if cluster.controller is None else cluster.controller.id
        for node in sorted(cluster.nodes, key=lambda node: node.id != controller):
            try:
                answer = await self.ask(node, request, ADMIN_TIMEOUT_SECONDS)
            except OSError:
                continue
            self._stock.heard()
            return answer
        self._stock.forget("no broker answered at the addresses that it has")
        raise BrokersUnreachable(f"No broker of {self._stock.bootstrap_servers} answered.")

    async def ask(self, node: Any, request: Any, timeout_seconds: float = SHORT_TIMEOUT_SECONDS) -> Any:
        """The answer of one broker.

        Raises:
            OSError: it does not answer.
            BrokersRefused: it does not accept the login.
        """
        try:
            return await asyncio.to_thread(
                ask,
                (node.host, node.port),
                request,
                client_id=CLIENT_ID,
                timeout_seconds=timeout_seconds,
                properties=self._stock.properties,
            )
        except CommandError as error:  # a login that is refused, or keys that cannot be used
            raise BrokersRefused("NOT_LOGGED_IN", str(error)) from error


def accepted(answer: Any) -> Any:
    """An answer, or a part of one, that is not a refusal.

    Raises:
        BrokersRefused: it is one.
    """
    if answer.error_code.value != 0:
        raise BrokersRefused(answer.error_code.name.upper(), reason_of(answer))
    return answer
