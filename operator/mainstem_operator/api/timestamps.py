"""Times as Kubernetes writes them: RFC 3339 in UTC, in seconds. Pure."""

from __future__ import annotations

import datetime as dt


def moment(text: str) -> dt.datetime:
    """The time that `text` stands for."""
    return dt.datetime.fromisoformat(text)


def moment_noted(text: object) -> dt.datetime | None:
    """The time in an annotation, a status or a message, all of which others can write; None if it is none."""
    try:
        time = moment(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def written(time: dt.datetime) -> str:
    """The text of a time."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
