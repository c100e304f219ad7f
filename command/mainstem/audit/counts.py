"""What a producer posts to the audit topic, and how posts are combined. Pure.

A post is a record of the topic `_audit`, which is compacted, and keeps counts for 90 days:

    key    {"producer": "web-1/8c1f", "topic": "clicks", "window_ms": 1735689600000}
    value  {"produced": 120, "delivered": 100, "failed": 0, "posted_ms": 1735689661000}

A window begins at a multiple of ten minutes since 1970, UTC, and a record belongs to the window of its
timestamp. Counts are cumulative for the producer, so that a post that comes late, twice or in another order
changes nothing: the reader takes the maximum of each count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

AUDIT_TOPIC: Final = "_audit"
WINDOW_MS: Final = 600_000


@dataclass(frozen=True, slots=True, order=True)
class CountKey:
    """Whose records of which topic and window are counted. `producer` is unlike that of any other process."""

    producer: str
    topic: str
    window_ms: int


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """What became of the records of a window.

    Attributes:
        produced: handed to the producer.
        delivered: acknowledged by brokers.
        failed: given up, and reported to the application.
        posted_ms: when these counts held, in ms since 1970.
    """

    produced: int = 0
    delivered: int = 0
    failed: int = 0
    posted_ms: int = 0

    @property
    def expected(self) -> int:
        """How many records should be stored."""
        return self.produced - self.failed

    @property
    def unconfirmed(self) -> int:
        """How many records were under way when the counts were posted."""
        return max(self.expected - self.delivered, 0)

    def at_most_of(self, other: ProducerCounts) -> ProducerCounts:
        """Both posts of the same key, combined: each count's maximum."""
        return ProducerCounts(
            max(self.produced, other.produced),
            max(self.delivered, other.delivered),
            max(self.failed, other.failed),
            max(self.posted_ms, other.posted_ms),
        )

    def plus(self, other: ProducerCounts) -> ProducerCounts:
        """The counts of two producers."""
        return replace(
            self,
            produced=self.produced + other.produced,
            delivered=self.delivered + other.delivered,
            failed=self.failed + other.failed,
            posted_ms=max(self.posted_ms, other.posted_ms),
        )


def window_of(timestamp_ms: int) -> int:
    """The beginning of the window of a timestamp."""
    return timestamp_ms - timestamp_ms % WINDOW_MS


def to_record(key: CountKey, counts: ProducerCounts) -> tuple[bytes, bytes]:
    """A post as key and value of a record."""
    name = {"producer": key.producer, "topic": key.topic, "window_ms": key.window_ms}
    value = {
        "produced": counts.produced,
        "delivered": counts.delivered,
        "failed": counts.failed,
        "posted_ms": counts.posted_ms,
    }
    return json.dumps(name).encode(), json.dumps(value).encode()


def from_record(key: bytes | None, value: bytes | None) -> tuple[CountKey, ProducerCounts] | None:
    """The inverse of `to_record`; None for what is not a post. Unknown fields are ignored."""
    try:
        name, counts = json.loads(key or b""), json.loads(value or b"")
        count_key = CountKey(_text(name["producer"]), _text(name["topic"]), _number(name["window_ms"]))
        return count_key, ProducerCounts(
            _number(counts["produced"]),
            _number(counts["delivered"]),
            _number(counts["failed"]),
            _number(counts["posted_ms"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def combined(
    posts: Iterable[tuple[CountKey, ProducerCounts]],
) -> dict[CountKey, ProducerCounts]:
    """All posts, whatever their order and however often each is there."""
    totals: dict[CountKey, ProducerCounts] = {}
    for key, counts in posts:
        totals[key] = counts.at_most_of(totals.get(key, counts))
    return totals


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a count")
    return value
