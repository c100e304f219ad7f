"""What the ownership registry of a group said over time, and whether deliveries agree with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from mainstem.zookeeper_tree import ZooKeeperTree


class Delivery(NamedTuple):
    """A message that a consumer got: when it asked for one and when it had it, and which it is."""

    asked_ms: int
    given_ms: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Tenure:
    """A partition was owned by a stream from `since_ms`, by ZooKeeper's clock; `until_ms` is when the next
    owner came, infinite for the last."""

    partition: int
    owner: str
    since_ms: float
    until_ms: float


class OwnershipWatch:
    """Reads the owners of a topic whenever they change."""

    def __init__(self, zookeeper: str, group: str, topic: str) -> None:
        self._zookeeper, self._path = zookeeper, f"/consumers/{group}/owners/{topic}"
        self._ids = f"/consumers/{group}/ids"
        self._child_changes = 0
        self._seen: dict[int, dict[int, tuple[int, str]]] = {}
        """By partition and czxid: when it was claimed, and by whom."""
        self._cluster_changes, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ownership watch")
        self.owners: dict[int, str] = {}
        self.registered: frozenset[str] = frozenset()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._cluster_changes.set()
            self._thread.join()

    def _on_change(self, _event: Any) -> None:
        self._cluster_changes.set()

    def _run(self) -> None:
        with ZooKeeperTree(self._zookeeper) as tree:
            while not self._ended.is_set():
                self._cluster_changes.clear()
                registered = tree.reading(self._ids, False, self._on_change)
                owners = tree.reading(self._path, False, self._on_change)
                registered.pop(self._ids, None)
                top = owners.pop(self._path, None)
                self._child_changes = top.stat.cversion if top else 0
                self.registered = frozenset(path.rpartition("/")[2] for path in registered)
                self.owners = {
                    int(path.rpartition("/")[2]): node.data.decode() for path, node in owners.items()
                }
                for partition, node in zip(self.owners, owners.values(), strict=True):
                    claims = self._seen.setdefault(partition, {})
                    claims[node.stat.czxid] = (node.stat.ctime, node.data.decode())
                self._cluster_changes.wait()

    def missed_count(self) -> int:
        """How many claims and releases came and went unseen between two readings, as ZooKeeper counts."""
        claims = sum(len(claims) for claims in self._seen.values())
        return self._child_changes - (2 * claims - len(self.owners))

    def is_shared(self, consumers: int, partitions: int) -> bool:
        """Whether so many are registered, and own all partitions between them, each its fair share."""
        owners, registered = self.owners, self.registered
        shares = [sum(owner.startswith(f"{one}-") for owner in owners.values()) for one in registered]
        return (
            len(registered) == consumers
            and len(owners) == sum(shares) == partitions
            and max(shares) - min(shares) <= 1
        )

    def tenures(self) -> list[Tenure]:
        results = []
        for partition, claims in self._seen.items():
            ordered = [claims[czxid] for czxid in sorted(claims)]
            ends: list[float] = [since_ms for since_ms, _ in ordered[1:]]
            for (since_ms, owner), until_ms in zip(ordered, [*ends, float("inf")], strict=True):
                results.append(Tenure(partition, owner, since_ms, until_ms))
        return results


def deliveries_of_others(
    deliveries: Iterable[Delivery], consumer: str, tenures: Iterable[Tenure]
) -> list[Delivery]:
    """The deliveries at no moment of which, between `asked` and `given`, a stream of `consumer` owned it.

    `consumer` is how the ids of that consumer begin. Both clocks are the wall clock of one machine.
    """
    own: dict[int, list[Tenure]] = {}
    for tenure in tenures:
        if tenure.owner.startswith(consumer):
            own.setdefault(tenure.partition, []).append(tenure)
    return [
        delivery
        for delivery in deliveries
        if not any(
            tenure.since_ms <= delivery.given_ms and delivery.asked_ms <= tenure.until_ms
            for tenure in own.get(delivery.partition, ())
        )
    ]
