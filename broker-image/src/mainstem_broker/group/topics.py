"""What groups need to know of the cluster's topics. An interface; the broker fills it from its view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID


class Topics(Protocol):
    """The topics as they are now."""

    @property
    def version(self) -> int:
        """Changes whenever a topic comes, goes or grows."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """The id of the topic of that name, or None if there is none."""
        ...

    def name(self, topic_id: UUID) -> str | None:
        """The name of the topic with that id, or None if there is none."""
        ...

    def names(self) -> Iterable[str]:
        """Of all topics that people may subscribe to by a pattern: not those that are the brokers' own."""
        ...

    def partition_count(self, name: str) -> int:
        """0 if there is no such topic."""
        ...
