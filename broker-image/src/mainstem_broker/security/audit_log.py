"""The audit log: who did what to which resource, from where, with what outcome, as lines of the broker's log
and, with `audit.log.topic`, as records of a topic.

Each line has `event` "audit" and a `category`, of which `audit.log.categories` selects:

- `denied`: an operation that the authorizer refused, with the rule or the reason.
- `administration`: an allowed operation that changes topics, groups, settings, rules, users or quotas.
- `authentication`: a login that succeeded or failed, by SASL, also again, or by a certificate; a failed TLS
  handshake. What failed is selected by `denied`, too.

A line that repeats within ten seconds is written once, and afterwards with the number of repetitions. Of
lines of a category that differ, a thousand are written in that time. So a client that tries again and again,
or that makes up names, cannot fill the disk, nor hide what is of another category. Lines are JSON, which
escapes what would begin another line; long texts are cut. They contain names, addresses and reasons, never
the content of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog

from mainstem_broker.runtime.bounded_lines import BoundedLines

logger = structlog.get_logger(__name__)

DENIED: Final = "denied"
ADMINISTRATION: Final = "administration"
AUTHENTICATION: Final = "authentication"
CATEGORIES: Final = (DENIED, ADMINISTRATION, AUTHENTICATION)

ALLOWED: Final = "allowed"
REFUSED: Final = "denied"
"""The outcomes."""

LINES_PER_INTERVAL_MAX: Final = 1_000
TEXT_CHARACTERS_MAX: Final = 300

_Record = tuple[str, tuple[tuple[str, str], ...]]
"""The category, and the fields."""
Publish = Callable[[dict[str, str | int]], None]
"""Takes the fields of a line."""


class AuditLog:
    """Writes records, of which repeated ones are counted. Belongs to the event loop.

    `publish` takes each line too, once somebody sets it.
    """

    def __init__(self, categories: Callable[[], Collection[str]]) -> None:
        """`categories` answers those that are selected now."""
        self.publish: Publish | None = None
        self._categories = categories
        self._lines = BoundedLines[_Record](LINES_PER_INTERVAL_MAX, self._repeat, self._leave_out)

    def record(self, category: str, **fields: str) -> None:
        """Write a record, unless its category is not selected. `fields` without a value are left out."""
        selected = self._categories()
        if category not in selected:
            is_refused_login = category == AUTHENTICATION and fields.get("outcome") == REFUSED
            if not is_refused_login or DENIED not in selected:
                return
        present = tuple((name, text[:TEXT_CHARACTERS_MAX]) for name, text in fields.items() if text)
        if self._lines.add(category, (category, present)):
            self._write((category, present))

    def _repeat(self, record: _Record, count: int) -> None:
        self._write(record, repeated=count)

    def _leave_out(self, category: str, count: int) -> None:
        self._write(("overflow", (("of", category),)), left_out=count)

    def _write(self, record: _Record, **counts: int) -> None:
        category, fields = record
        line: dict[str, str | int] = {"category": category, **dict(fields), **counts}
        is_usual = category == ADMINISTRATION or line.get("outcome") == ALLOWED
        write = logger.info if is_usual else logger.warning
        write("audit", **line)
        if self.publish is not None:
            self.publish(line)
