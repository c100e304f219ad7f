"""Which in-sync replica a consumer should read from, as Apache Kafka's RackAwareReplicaSelector (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A replica that could serve the consumer's next fetch."""

    broker: int
    rack: str | None
    log_end_offset: int
    caught_up_ms: int
    """When it is known to have had everything."""


def nearest_replica(rack: str, leader_rack: str | None, followers: Iterable[Candidate]) -> int | None:
    """The follower in the consumer's rack that is most caught up; None: it should read from the leader."""
    if not rack or rack == leader_rack:
        return None
    nearby = [follower for follower in followers if follower.rack == rack]
    if not nearby:
        return None
    return max(nearby, key=lambda one: (one.log_end_offset, one.caught_up_ms, -one.broker)).broker
