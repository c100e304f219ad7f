"""A message as producers hand it over and consumers get it back, whatever the client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """`timestamp_ms` is since the epoch; a None key or value is Kafka's null, not an empty one."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
