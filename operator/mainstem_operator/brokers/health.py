"""What single brokers and ZooKeeper servers report about themselves."""

from __future__ import annotations

from typing import Any

from mainstem_operator.brokers.four_letter_words import server_mode
from mainstem_operator.brokers.status_page import StatusPages
from mainstem_operator.snapshot import BrokerReport


class Health:
    """Requests to single processes; tests answer them in its place."""

    def __init__(self) -> None:
        self._pages = StatusPages()

    async def close(self) -> None:
        await self._pages.close()

    async def report(self, host: str, port: int) -> BrokerReport | None:
        """The broker's report; None if there is none."""
        return await self._pages.read(host, port)

    async def loads(self, host: str, port: int) -> Any:
        """What the resident loader says of its loads; None if it does not answer."""
        return await self._pages.read_json(host, port)

    async def zookeeper_mode(self, host: str, port: int) -> str | None:
        """leader, follower or standalone; None if the server does not serve."""
        return await server_mode(host, port)
