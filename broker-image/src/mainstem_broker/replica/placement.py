"""Which brokers hold the replicas of new partitions: pure arithmetic, rack-aware (KIP-36).

Leaders go round-robin over the brokers, the followers of one partition are shifted by a distance that
grows each time the round is complete, so that the load of a failed broker spreads over all others.
With racks, brokers are first interleaved rack by rack, and no rack holds two replicas of a partition
while another rack holds none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem_broker.errors import InvalidReplicationFactor

Assignment = dict[int, tuple[int, ...]]
"""Partition number to broker ids; the first is the preferred leader."""


def assign_replicas(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    first_partition: int = 0,
    start: int = 0,
) -> Assignment:
    """Place `partition_count` partitions over the live brokers.

    Args:
        racks: rack of each live broker; racks count only when every broker has one.
        first_partition: number of the first partition to place (more than 0 when a topic grows).
        start: moves the round's beginning, so that topics do not all begin at one broker.

    Raises:
        InvalidReplicationFactor: it is below 1 or above the number of live brokers.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        raise InvalidReplicationFactor(
            f"Replication factor {replication_factor} is larger than the number of available brokers:"
            f" {len(racks)}."
        )
    brokers = _interleaved_by_rack(racks)
    rack_count = len(set(racks.values()))
    assignment: Assignment = {}
    for partition in range(first_partition, first_partition + partition_count):
        leader_index = (partition + start) % len(brokers)
        shift = (partition // len(brokers)) % max(len(brokers) - 1, 1)
        order = [brokers[leader_index]] + [
            brokers[(leader_index + 1 + (shift + step) % (len(brokers) - 1)) % len(brokers)]
            for step in range(len(brokers) - 1)
        ]
        assignment[partition] = tuple(_spread(order, racks, rack_count)[:replication_factor])
    return assignment


def _interleaved_by_rack(racks: Mapping[int, str | None]) -> list[int]:
    brokers = sorted(racks)
    if any(racks[broker] is None for broker in brokers):
        return brokers
    by_rack: dict[str | None, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(racks[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack, key=str)]
    depth = max((len(column) for column in columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _spread(order: Sequence[int], racks: Mapping[int, str | None], rack_count: int) -> list[int]:
    """`order` with brokers of racks not yet used first, round by round."""
    if any(racks[broker] is None for broker in order) or rack_count == 1:
        return list(order)
    chosen: list[int] = []
    waiting = list(order)
    while waiting:
        used: set[str | None] = set()
        later: list[int] = []
        for broker in waiting:
            if racks[broker] in used:
                later.append(broker)
            else:
                used.add(racks[broker])
                chosen.append(broker)
        waiting = later
    return chosen
