"""The page /status that a broker, and the resident loader, serves over HTTP."""

from __future__ import annotations

from typing import Any, Final

import aiohttp

from mainstem_operator.api import names
from mainstem_operator.snapshot import BrokerReport, report_of

_TIMEOUT_SECONDS: Final = 3.0


class StatusPages:
    """Reads the pages of all brokers over connections that are kept."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, host: str, port: int) -> BrokerReport | None:
        """The broker's report; None if it does not answer, or its answer is not a report."""
        try:
            return report_of(await self.read_json(host, port))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    async def read_json(self, host: str, port: int) -> Any:
        """The page as it is; None if there is no answer."""
        if self._session is None:  # a session belongs to the loop that runs when it is created
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS))
        try:
            async with self._session.get(f"http://{names.address(host, port)}/status") as answer:
                return await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
