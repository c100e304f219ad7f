"""Which software clients say they are (KIP-511), counted for the metrics.

A client chooses its own words, so nothing in them is trusted: words of another form count as unknown, and
only the most frequent ones become series of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from mainstem_broker.api.api_versions import is_software_word

SERIES_MAX: Final = 50
"""Each series costs a metrics store memory for months."""
WORD_LENGTH_MAX: Final = 64


class ClientSoftware(NamedTuple):
    """Such as librdkafka 2.11.0."""

    name: str
    version: str


UNKNOWN: Final = ClientSoftware("unknown", "unknown")
"""Clients that have said nothing (yet), or something of another form; brokers among them."""
OTHER: Final = ClientSoftware("other", "other")


def client_software(name: str, version: str) -> ClientSoftware:
    """What an ApiVersions request says."""
    if all(len(word) <= WORD_LENGTH_MAX and is_software_word(word) for word in (name, version)):
        return _shared(name, version)
    return UNKNOWN


@lru_cache(maxsize=256)  # connections of the same software share one value
def _shared(name: str, version: str) -> ClientSoftware:
    return ClientSoftware(name, version)


def count_software(connections: Iterable[ClientSoftware]) -> Mapping[ClientSoftware, int]:
    """The number of connections by software: the most frequent `SERIES_MAX`, and the others together."""
    counts = Counter(connections)
    if len(counts) <= SERIES_MAX:
        return counts
    # By name where as many have it, so that series do not come and go.
    ranked = sorted(counts, key=lambda software: (-counts[software], software))
    kept = {software: counts[software] for software in ranked[:SERIES_MAX]}
    kept[OTHER] = kept.get(OTHER, 0) + sum(counts[software] for software in ranked[SERIES_MAX:])
    return kept
