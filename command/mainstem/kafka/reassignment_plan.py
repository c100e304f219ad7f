"""Which replicas to move so that a set of brokers holds a set of partitions. Pure.

In this order of importance: every replica on one of the brokers, in the requested number; no two in one
rack while another rack has none; as few copies made as possible; the same number of replicas on every
broker, give or take one; the same number of preferred leaders. A change of leaders alone copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TopicPartition = tuple[str, int]
Replicas = tuple[int, ...]


def plan_moves(
    current: Mapping[TopicPartition, Replicas],
    racks: Mapping[int, str | None],
    replication_factor: int | None = None,
    elsewhere: Iterable[Replicas] = (),
    *,
    keeping: bool = False,
) -> dict[TopicPartition, Replicas]:
    """The new replicas of those partitions that have to change, the preferred leader first.

    Args:
        current: the partitions to place, with their present replicas.
        racks: the brokers to place them on, each with its rack; racks count only if every broker has one.
        replication_factor: None keeps each partition's own, or as many as there are brokers.
        elsewhere: replicas of partitions that stay as they are, but load the brokers too.
        keeping: whether no copy moves only so that every broker holds the same number.
    """
    others = list(elsewhere)
    plan = _Plan(current, racks, others, keeping=keeping)
    for partition, replicas in sorted(current.items()):
        plan.place(partition, min(replication_factor or len(replicas), len(racks)))
    plan.balance_replicas()
    plan.balance_leaders(others)
    return {partition: new for partition, new in plan.result().items() if new != tuple(current[partition])}


class _Plan:
    """The plan in the making: who holds what, and how much each broker holds."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Replicas],
        racks: Mapping[int, str | None],
        elsewhere: Iterable[Replicas],
        *,
        keeping: bool,
    ) -> None:
        self._current = current
        self._keeping = keeping
        self._racks = racks if None not in racks.values() else {}
        self._replicas: dict[TopicPartition, list[int]] = {}
        self._held: dict[int, set[TopicPartition]] = {broker: set() for broker in racks}
        self._load = dict.fromkeys(racks, 0)
        for replicas in elsewhere:
            for broker in replicas:
                if broker in self._load:
                    self._load[broker] += 1
        for partition, replicas in current.items():
            self._replicas[partition] = []
            for broker in replicas:
                if broker in self._load:
                    self._add(partition, broker)

    def result(self) -> dict[TopicPartition, Replicas]:
        return {partition: tuple(replicas) for partition, replicas in self._replicas.items()}

    def _add(self, partition: TopicPartition, broker: int) -> None:
        self._replicas[partition].append(broker)
        self._held[broker].add(partition)
        self._load[broker] += 1

    def _remove(self, partition: TopicPartition, broker: int) -> None:
        self._replicas[partition].remove(broker)
        self._held[broker].remove(partition)
        self._load[broker] -= 1

    def _crowding(self, replicas: Iterable[int]) -> int:
        """How many replicas share a rack with another one; 0 where racks do not count."""
        if not self._racks:
            return 0
        racks = [self._racks[broker] for broker in replicas]
        return len(racks) - len(set(racks))

    def place(self, partition: TopicPartition, count: int) -> None:
        """Give the partition `count` replicas, and spread them over racks."""
        replicas = self._replicas[partition]
        while len(replicas) > count:
            self._remove(partition, max(replicas, key=lambda broker: self._cost_of_keeping(replicas, broker)))
        while len(replicas) < count:
            self._add(partition, self._best_addition(replicas))
        while (exchange := self._exchange_for_racks(replicas)) is not None:
            dropped, added = exchange
            self._remove(partition, dropped)
            self._add(partition, added)

    def _exchange_for_racks(self, replicas: list[int]) -> tuple[int, int] | None:
        """(broker to leave, broker to come) so that fewer replicas share a rack, if that can be had."""
        if self._crowding(replicas) == 0 or len(replicas) == len(self._load):
            return None
        dropped = max(replicas, key=lambda broker: self._cost_of_keeping(replicas, broker))
        others = [broker for broker in replicas if broker != dropped]
        added = self._best_addition(replicas, beside=others)
        return (dropped, added) if self._crowding([*others, added]) < self._crowding(replicas) else None

    def _cost_of_keeping(self, replicas: list[int], broker: int) -> tuple[int, int, int]:
        others = [other for other in replicas if other != broker]
        relief = self._crowding(replicas) - self._crowding(others)
        return relief, self._load[broker], replicas.index(broker)

    def _best_addition(self, replicas: list[int], beside: list[int] | None = None) -> int:
        """The broker outside `replicas` that goes best with those `beside` it, which default to the same."""
        others = replicas if beside is None else beside
        return min(
            (broker for broker in self._load if broker not in replicas),
            key=lambda broker: (self._crowding([*others, broker]), self._load[broker], broker),
        )

    def balance_replicas(self) -> None:
        """Move single replicas from full to empty brokers until none holds two more than another."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        by_load = sorted(self._load, key=lambda broker: (self._load[broker], broker))
        for full in reversed(by_load):
            for empty in by_load:
                if self._load[full] - self._load[empty] < 2:
                    break
                partition = self._partition_to_move(full, empty)
                if partition is not None:
                    self._remove(partition, full)
                    self._add(partition, empty)
                    return True
        return False

    def _partition_to_move(self, full: int, empty: int) -> TopicPartition | None:
        """One whose racks do not suffer; rather one that `full` would have to copy than one that it has."""
        fitting = [
            (full in self._current[partition], partition)
            for partition in self._held[full] - self._held[empty]
            if not (self._keeping and full in self._current[partition])
            and self._crowding(_exchanged(self._replicas[partition], full, empty))
            <= self._crowding(self._replicas[partition])
        ]
        return min(fitting)[1] if fitting else None

    def balance_leaders(self, elsewhere: Iterable[Replicas]) -> None:
        """Put other replicas first until no preferred leader could pass one on to a less busy broker."""
        leads = dict.fromkeys(self._load, 0)
        for replicas in [*elsewhere, *self._replicas.values()]:
            if replicas[0] in leads:
                leads[replicas[0]] += 1
        changed = True
        while changed:
            changed = False
            for _, ordered in sorted(self._replicas.items()):
                first, least = ordered[0], min(ordered, key=lambda broker: (leads[broker], broker))
                if leads[first] - leads[least] >= 2:
                    ordered.remove(least)
                    ordered.insert(0, least)
                    leads[first] -= 1
                    leads[least] += 1
                    changed = True


def _exchanged(replicas: list[int], dropped: int, added: int) -> list[int]:
    return [added if broker == dropped else broker for broker in replicas]
