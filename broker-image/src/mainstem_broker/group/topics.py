"""The interface by which groups see the cluster's topics; the broker implements it over its view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID


class Topics(Protocol):
    """The topics as they are now."""

    @property
    def version(self) -> int:
        """Changes whenever a topic is created, deleted or given more partitions."""
        ...

    def topic_id(self, name: str) -> UUID | None:
        """The id of the topic of that name, or None if there is none."""
        ...

    def name(self, topic_id: UUID) -> str | None:
        """The name of the topic with that id, or None if there is none."""
        ...

    def names(self) -> Iterable[str]:
        """All topics that an expression may match: not the internal ones."""
        ...

    def partition_count(self, name: str) -> int:
        """The number of partitions; 0 if there is no such topic."""
        ...
