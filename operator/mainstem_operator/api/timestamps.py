"""Times as Kubernetes writes them: RFC 3339 in UTC, in seconds. Pure."""

from __future__ import annotations

import datetime as dt


def moment(text: str) -> dt.datetime:
    """The time that `text` stands for."""
    return dt.datetime.fromisoformat(text)


def written(time: dt.datetime) -> str:
    """The text of a time."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
