"""Brokers and the API server, played as far as moves and throttles go, and an operator that looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from tests.unit.operator.snapshots import cluster

from mainstem_operator.api.fields import Object
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.topic_state import (
    MoveState,
    PartitionState,
    Replicas,
    TopicPartition,
    TopicState,
)
from mainstem_operator.cluster.throttles.limited_moves import LimitedMoves
from mainstem_operator.cluster.throttles.plan import (
    ALL_BROKERS,
    RATES,
    RECEIVERS,
    SENDERS,
    Change,
    Changes,
    Operation,
    Settings,
)
from mainstem_operator.kubernetes.client import Kube, Refused

CLICKS: Final = ("clicks", 0)
VIEWS: Final = ("views", 0)
PARTITIONS: Final = [("clicks", 0), ("clicks", 1), ("views", 0)]


class Ended(BaseException):
    """The operator's process ends."""


class PlayedCluster:
    """Brokers and the API server. `writes_left` counts down to the operator's end; None lets it live."""

    def __init__(self) -> None:
        self.replicas: dict[TopicPartition, Replicas] = dict.fromkeys(PARTITIONS, (0, 1))
        self.under_way: dict[TopicPartition, MoveState] = {}
        self.begun_by_operator: set[TopicPartition] = set()
        self.not_limited: list[TopicPartition] = []
        """Moves that began without their throttles though there was a limit; empty at the end of a test."""
        self.refused: set[TopicPartition] = set()
        self.refused_settings: set[str] = set()
        self.is_leader = True
        self.settings: dict[str, dict[str, str]] = {ALL_BROKERS: {}, "clicks": {}, "views": {}}
        self.config_map: Object | None = None
        self.lag = 0
        """How many times brokers tell of the throttles of before when some have been put."""
        self._stale: list[Settings] = []
        self.writes = 0
        self.questions = 0
        self.writes_left: int | None = None
        self.limit: int | None = None

    def catch_up(self) -> None:
        self._stale = []

    def is_limited(self, partition: TopicPartition) -> bool:
        """Whether all that this move copies is bound by a rate, ours or one set by hand."""
        topic, number = partition
        move, named = self.under_way[partition], self.settings[topic]
        return all(
            f"{number}:{broker}" in (items := named.get(setting, "").split(",")) or "*" in items
            for setting, brokers in ((SENDERS, move.origin), (RECEIVERS, move.adding))
            for broker in brokers
        ) and self.settings[ALL_BROKERS].keys() == set(RATES)

    def written(self) -> None:
        if self.writes_left == 0:
            raise Ended
        if self.writes_left is not None:
            self.writes_left -= 1
        self.writes += 1

    def begin(self, partition: TopicPartition, target: Replicas) -> None:
        origin = frozenset(self.replicas[partition])
        self.under_way[partition] = MoveState(target, origin ^ frozenset(target))

    def end(self, partition: TopicPartition, *, taken_back: bool = False) -> None:
        move = self.under_way.pop(partition)
        self.begun_by_operator.discard(partition)
        if not taken_back:
            self.replicas[partition] = move.target

    # --- As the operator sees brokers ---

    def connect_to(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        """It is reached anyway."""

    async def moves(self) -> dict[TopicPartition, MoveState]:
        self.questions += 1
        return dict(self.under_way)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        self.questions += 1
        return {name: self.topic(name) for name in set(names)}

    def topic(self, name: str) -> TopicState:
        parts = {
            number: PartitionState(held[0], (*held, *self.coming(topic, number)), frozenset(held))
            for (topic, number), held in self.replicas.items()
            if topic == name
        }
        return TopicState(name, f"id of {name}", parts)

    def coming(self, topic: str, number: int) -> Replicas:
        move = self.under_way.get((topic, number))
        return tuple(sorted(move.adding)) if move else ()

    async def topic_names(self) -> set[str]:
        return {topic for topic, _ in self.replicas}

    async def racks(self) -> dict[int, str | None]:
        return dict.fromkeys(range(4))

    async def throttles(self, topics: Iterable[str]) -> Settings:
        await asyncio.sleep(0)
        self.questions += 1
        reported = self._stale.pop() if self._stale else self.settings
        return {name: dict(reported[name]) for name in (*topics, ALL_BROKERS)}

    async def put_throttles(self, changes: Changes) -> dict[str, str]:
        """As brokers do: nothing of a resource that is refused, and lists that may be left empty."""
        await asyncio.sleep(0)
        taken = changes.keys() - self.refused_settings
        if taken:
            self._stale = [{name: dict(settings) for name, settings in self.settings.items()}] * self.lag
        for where in taken:
            self.written()
            for name, change in changes[where].items():
                self._change(self.settings[where], name, change)
        return {where: f"{where}: It is full." for where in changes.keys() & self.refused_settings}

    @staticmethod
    def _change(settings: dict[str, str], name: str, change: Change) -> None:
        there = [item for item in settings.pop(name, "").split(",") if item]
        named = (change.value or "").split(",")
        match change.operation:
            case Operation.SET:
                settings[name] = str(change.value)
            case Operation.APPEND:
                settings[name] = ",".join([*there, *(item for item in named if item not in there)])
            case Operation.SUBTRACT:
                settings[name] = ",".join(item for item in there if item not in named)

    async def may_act(self) -> bool:
        return self.is_leader

    async def move(self, targets: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, str]:
        self.written()
        self.catch_up()  # who answers shows the move, and so what was put before it
        for partition, target in targets.items():
            if partition in self.refused:
                continue
            self.begin(partition, target)
            self.begun_by_operator.add(partition)
            if self.limit is not None and self.under_way[partition].adding and not self.is_limited(partition):
                self.not_limited.append(partition)
        return dict.fromkeys(targets.keys() & self.refused, "It may not.")

    # --- As it sees Kubernetes ---

    async def get(self, _version: str, _kind: str, _namespace: str, name: str) -> Object | None:
        self.questions += 1
        assert name == "events-throttles"
        return self.config_map

    async def apply(
        self, manifest: dict[str, Any], live: Object | None, *, unchanged: bool = False
    ) -> Object:
        assert unchanged
        self._refuse_if_changed(live)
        owners = manifest["metadata"]["ownerReferences"]
        if live is None or live["data"] != manifest["data"] or live["metadata"]["ownerReferences"] != owners:
            self.written()
            metadata = {**manifest["metadata"], "uid": "u-7", "resourceVersion": str(self.writes)}
            self.config_map = {**manifest, "metadata": metadata}
        assert self.config_map is not None
        return self.config_map

    async def delete_owned(self, manifest: Object, *, unchanged: bool = False) -> None:
        assert unchanged
        assert manifest["metadata"]["uid"] == "u-7"
        self._refuse_if_changed(manifest)
        self.written()
        self.config_map = None

    def _refuse_if_changed(self, live: Object | None) -> None:
        if live is not None and self.config_map is not None:
            seen, now = live["metadata"], self.config_map["metadata"]
            if seen["resourceVersion"] != now["resourceVersion"]:
                raise Refused(409, "It has changed.")


class Operator:
    """One process after the other; a new one knows of nothing but what a look at the BrokerCluster shows."""

    def __init__(self, played: PlayedCluster) -> None:
        self.played = played
        self.start()

    def start(self) -> None:
        kube, brokers = cast(Kube, self.played), cast(Brokers, self.played)
        self.moves = LimitedMoves(kube, brokers, self.played.may_act, wait_seconds=0)

    def look(
        self,
        targets: Mapping[TopicPartition, Replicas] | None = None,
        *,
        ends_after_writes: int | None = None,
        at_topics: bool = False,
        may_put: bool = True,
    ) -> dict[TopicPartition, str]:
        """One pass; at Topics, nobody shows it which ConfigMaps there are."""
        played = self.played
        limit = {"moveBytesPerSecond": played.limit} if played.limit is not None else {}
        self.moves.is_noted |= not at_topics and played.config_map is not None
        played.writes_left = ends_after_writes
        try:
            return asyncio.run(
                self.moves.carry_out(
                    cluster(rolling=limit), targets or {}, set(played.begun_by_operator), may_put=may_put
                )
            )
        except Ended:
            self.start()
            self.played.catch_up()  # the next one has to become the leader first
            return {}
        finally:
            played.writes_left = None


def played(limit: int | None) -> tuple[PlayedCluster, Operator]:
    result = PlayedCluster()
    result.limit = limit
    return result, Operator(result)
