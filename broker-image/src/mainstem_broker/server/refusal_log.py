"""Log lines about clients that a listener turns away or cuts off: handshakes and logins that fail, requests
that make no sense.

Anybody who reaches the port can cause them, thousands a second. Of one address a line with the same reason is
written once in ten seconds, and then with the number of repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from mainstem_broker.runtime.bounded_lines import BoundedLines

logger = structlog.get_logger(__name__)

LINES_PER_INTERVAL_MAX: Final = 100
"""Of each event, for all addresses and reasons of a listener."""

_Line = tuple[str, str, tuple[tuple[str, str], ...]]
"""The event, the address, and the other fields."""


OnRefusal = Callable[[str, str], None]
"""Takes the address and the reason of each refusal, also of those whose line is only counted."""


class RefusalLog:
    """The lines of one listener. Belongs to the event loop."""

    def __init__(self, on_refusal: OnRefusal | None = None) -> None:
        self._on_refusal = on_refusal
        self._lines = BoundedLines[_Line](LINES_PER_INTERVAL_MAX, self._repeat, self._leave_out)

    def write(self, event: str, peer: str, **fields: str | None) -> None:
        """Write a line, or count it.

        Args:
            event: what the client was refused.
            peer: address and port, with a colon between.
            fields: others, such as the reason; those of None are left out.
        """
        if self._on_refusal is not None:
            self._on_refusal(peer.rpartition(":")[0], fields.get("reason") or "")
        present = tuple((name, text) for name, text in fields.items() if text is not None)
        if self._lines.add(event, (event, peer.rpartition(":")[0], present)):
            logger.info(event, peer=peer, **dict(present))

    def _repeat(self, line: _Line, count: int) -> None:
        event, address, fields = line
        logger.info(event, peer=address, **dict(fields), repeated=count)

    def _leave_out(self, event: str, count: int) -> None:
        logger.info(event, left_out=count)
