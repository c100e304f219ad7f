"""Limits what the moving of replicas may take from the network (KIP-73). Pure: its clock is given.

Each broker has two limits, in bytes per second: one on what it sends as leader, one on what it fetches as
follower. They bind only replicas that their topics name (`leader.replication.throttled.replicas` and the
like), and of those only the ones that are not in sync: a follower in sync is never held back.

The limit is an allowance that fills with time, up to one second's worth. A fetch may go while there is any
left and is charged afterwards, so a large one leaves a debt that is waited for: over any longer time the
rate is exact, however large the fetches are. The cost is per fetch and partition, never per record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from mainstem_broker.replica.partition import Partition
from mainstem_broker.whole_numbers import is_whole_number

UNLIMITED: Final = 2**63 - 1
"""Kafka's default rate."""
WINDOW_MS: Final = 1_000
"""What is not used within this time is lost: it bounds the burst after a pause."""


class Throttle:
    """One direction's limit on one broker; `now_ms` is its clock."""

    __slots__ = ("_allowance_bytes", "_filled_ms", "_now_ms", "_rate")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._rate = UNLIMITED
        self._allowance_bytes = 0.0
        self._filled_ms = 0

    @property
    def is_limited(self) -> bool:
        return self._rate != UNLIMITED

    def set_rate(self, bytes_per_second: int) -> None:
        if bytes_per_second != self._rate:
            self._rate = bytes_per_second
            self._allowance_bytes = bytes_per_second * WINDOW_MS / 1000
            self._filled_ms = self._now_ms()

    def may_pass(self) -> bool:
        """Whether another fetch may go now."""
        if not self.is_limited:
            return True
        now_ms = self._now_ms()
        passed_ms = max(now_ms - self._filled_ms, 0)  # a clock that was set back fills nothing
        filled = self._allowance_bytes + passed_ms * self._rate / 1000
        self._allowance_bytes = min(filled, self._rate * WINDOW_MS / 1000)
        self._filled_ms = now_ms
        return self._allowance_bytes > 0

    def charge(self, size_bytes: int) -> None:
        """Something has passed."""
        if self.is_limited:
            self._allowance_bytes -= size_bytes


@lru_cache(maxsize=1024)
def throttled_replicas(text: str) -> Callable[[int, int], bool]:
    """What a topic's `throttled.replicas` names: a function of partition and broker.

    `*` is all, else `partition:broker` pairs with commas between. What cannot be read names nothing.
    """
    if text == "*":
        return lambda _partition, _broker: True
    named = set()
    for pair in text.split(","):
        partition, _, broker = pair.partition(":")
        if is_whole_number(partition) and is_whole_number(broker):
            named.add((int(partition), int(broker)))
    return lambda partition, broker: (partition, broker) in named


def is_throttled_leader(partition: Partition, follower: int) -> bool:
    """Whether what the leader `partition` sends to `follower` counts against the limit on moves."""
    if partition.state is None or follower in partition.state.isr:
        return False
    names_replica = throttled_replicas(partition.log.config.leader_replication_throttled_replicas)
    return names_replica(partition.index, partition.local_broker_id)


def is_throttled_follower(partition: Partition) -> bool:
    """Whether what the follower `partition` fetches counts against the limit on moves."""
    if partition.state is None or partition.local_broker_id in partition.state.isr:
        return False
    names_replica = throttled_replicas(partition.log.config.follower_replication_throttled_replicas)
    return names_replica(partition.index, partition.local_broker_id)
