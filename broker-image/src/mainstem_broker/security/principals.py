"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """An authenticated identity, in text `User:alice`. Kafka has no other kind than User by itself."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Kafka's principal of clients that did not authenticate."""
