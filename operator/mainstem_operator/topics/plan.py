"""What is to be done so that topics are as their Topics say, and what a Topic's status says then. Pure.

One way only: the manifest decides what it names, and what it leaves out is not touched. A topic without a
Topic is nobody's business here: absence is never a reason to delete.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.conditions import Condition, merged, pruned
from mainstem_operator.api.fields import Object
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.brokers.topic_state import MoveState, Replicas, TopicPartition, TopicState
from mainstem_operator.cluster.moves import moving_to, plan_replication
from mainstem_operator.cluster.throttles.plan import RECEIVERS, SENDERS
from mainstem_operator.topics.loads.runs import LoadStatus

NEVER_RESET: Final = frozenset({SENDERS, RECEIVERS})
"""Settings that whoever moves replicas sets, and takes away when they have moved."""

NOT_ITS_TOPIC: Final = frozenset({"ResourceConflict", "InternalTopic"})
"""Reasons why a Topic does not manage the topic that it names; it does not load it either."""


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """What the brokers say. `settings` are those that a topic has of its own; `racks` the live brokers.

    `limited` are settings of topics that have throttles of the operator's moves, and are left alone as long.
    """

    topics: Mapping[str, TopicState]
    settings: Mapping[str, Mapping[str, str]]
    moves: Mapping[TopicPartition, MoveState]
    racks: Mapping[int, str | None]
    limited: Collection[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do for one Topic; `refusals` are parts of its manifest that can't be brought about.

    `under_way` are the moves that give it the number of replicas that it is to have.
    """

    spec: TopicSpec
    create: tuple[int, int, Mapping[str, str]] | None = None
    grow: int | None = None
    alter: Mapping[str, str | None] = field(default_factory=dict)
    move: Mapping[TopicPartition, Replicas] = field(default_factory=dict)
    under_way: frozenset[TopicPartition] = frozenset()
    managed_settings: tuple[str, ...] = ()
    refusals: tuple[Condition, ...] = ()
    recreated: bool = False

    @property
    def idle(self) -> bool:
        return self.create is None and self.grow is None and not self.alter and not self.move


def plan_topics(
    specs: Iterable[TopicSpec], statuses: Mapping[tuple[str, str], Object], seen: TopicsSeen
) -> list[TopicPlan]:
    """The plans of those Topics of one BrokerCluster that are to be acted on.

    Args:
        statuses: the status of each Topic, by namespace and name.
    """
    alive = [spec for spec in specs if not spec.identity.deleting and spec.managed]
    owners = _owners(alive)
    return [
        _plan(spec, owners[spec.topic], statuses.get(spec.identity.key, {}), seen)
        for spec in alive
        if not spec.paused
    ]


def _owners(specs: Sequence[TopicSpec]) -> dict[str, TopicSpec]:
    """Of several Topics that claim a topic the oldest has it; of the same age, the first by name."""
    owners: dict[str, TopicSpec] = {}
    for spec in sorted(specs, key=lambda item: (item.identity.created, item.identity.key)):
        owners.setdefault(spec.topic, spec)
    return owners


def _plan(spec: TopicSpec, owner: TopicSpec, status: Object, seen: TopicsSeen) -> TopicPlan:
    if owner is not spec:
        text = f"The Topic {owner.identity.name} is older and claims the topic {spec.topic} too."
        return _left_alone(spec, status, Condition("Ready", False, "ResourceConflict", text))
    if spec.topic.startswith("__"):
        text = f"{spec.topic} is an internal topic, which the brokers manage."
        return _left_alone(spec, status, Condition("Ready", False, "InternalTopic", text))
    config = {name: value for name, value in spec.config.items() if value is not None}
    present = seen.topics.get(spec.topic)
    if present is None:
        return _plan_creation(spec, config, status, seen)
    known_topic_id = status.get("topicId")
    refusals = []
    grow = None
    if spec.partitions is not None and spec.partitions > len(present.partitions):
        grow = spec.partitions
    elif spec.partitions is not None and spec.partitions < len(present.partitions):
        text = (
            f"The topic has {len(present.partitions)} partitions and {spec.partitions} are requested:"
            " their number can only grow."
        )
        refusals.append(Condition("Ready", False, "NotSupported", text))
    move: Mapping[TopicPartition, Replicas] = {}
    if spec.replicas is not None and _differs(spec, present, seen):
        if spec.replicas > len(seen.racks):
            refusals.append(_too_few(spec.replicas, seen))
        else:
            move = plan_replication(present, spec.replicas, seen.topics, seen.moves, seen.racks)
    return TopicPlan(
        spec,
        grow=grow,
        alter=_changes(spec, config, status, seen),
        move=move,
        under_way=frozenset(moving_to(spec.replicas, present, seen.moves) if spec.replicas else ()),
        managed_settings=tuple(sorted(config)),
        refusals=tuple(refusals),
        recreated=bool(known_topic_id) and known_topic_id != present.topic_id,
    )


def _left_alone(spec: TopicSpec, status: Object, refusal: Condition) -> TopicPlan:
    """Nothing is done, so the settings that this Topic has set before are still its own to take back."""
    return TopicPlan(spec, managed_settings=tuple(status.get("managedSettings") or ()), refusals=(refusal,))


def _differs(spec: TopicSpec, present: TopicState, seen: TopicsSeen) -> bool:
    return any(
        len(
            seen.moves[present.name, number].target if (present.name, number) in seen.moves else part.replicas
        )
        != spec.replicas
        for number, part in present.partitions.items()
    )


def _plan_creation(spec: TopicSpec, config: Mapping[str, str], status: Object, seen: TopicsSeen) -> TopicPlan:
    managed = tuple(sorted(config))
    if spec.replicas is not None and spec.replicas > len(seen.racks):
        return TopicPlan(spec, refusals=(_too_few(spec.replicas, seen),))
    return TopicPlan(
        spec,
        create=(spec.partitions or -1, spec.replicas or -1, config),
        managed_settings=managed,
        recreated=bool(status.get("topicId")),
    )


def _too_few(replicas: int, seen: TopicsSeen) -> Condition:
    text = f"{replicas} replicas need as many brokers, and {len(seen.racks)} are alive."
    return Condition("Ready", False, "NotEnoughBrokers", text)


def _changes(
    spec: TopicSpec, config: Mapping[str, str], status: Object, seen: TopicsSeen
) -> dict[str, str | None]:
    """Settings to set, and, as None, those to take back: set by this Topic once, and no longer in it."""
    present = seen.settings.get(spec.topic, {})
    changes: dict[str, str | None] = {
        name: value
        for name, value in config.items()
        if not same_value(present.get(name), value) and (spec.topic, name) not in seen.limited
    }
    for name in status.get("managedSettings") or ():
        if name not in spec.config and name in present and name not in NEVER_RESET:
            changes[name] = None
    return changes


# --- The status ---

_REASONS: Final = {
    "INVALID_CONFIG": "InvalidConfig",
    "INVALID_REPLICATION_FACTOR": "NotEnoughBrokers",
    "INVALID_PARTITIONS": "NotSupported",
    "POLICY_VIOLATION": "NotSupported",
    "TOPIC_EXCEPTION": "InvalidName",
}


def refused(code: str, sentence: str) -> Condition:
    """The condition for what a broker refused, by the name of its error."""
    return Condition("Ready", False, _REASONS.get(code, names.BROKERS_REFUSED), sentence)


def topic_status(
    spec: TopicSpec,
    plan: TopicPlan | None,
    refusals: Sequence[Condition],
    seen: TopicsSeen,
    present: Object,
    now: dt.datetime,
    loads: LoadStatus | None = None,
) -> dict[str, Any]:
    """The status after a look.

    Args:
        plan: what was done; None for a Topic that is paused or not managed.
        refusals: what the brokers refused of it.
        seen: what the brokers say after it was done.
        present: the status as it is.
        loads: what there is to say of loads; None where there are none.
    """
    topic = seen.topics.get(spec.topic)
    moving = [key for key in seen.moves if key[0] == spec.topic]
    conflict = plan is not None and any(item.reason == "ResourceConflict" for item in plan.refusals)
    if conflict:
        topic = None
    conditions = [
        _ready(spec, plan, [*(plan.refusals if plan else ()), *refusals], topic),
        _reassigning(moving, topic),
        Condition("Paused", spec.paused, "Annotated" if spec.paused else "NotPaused"),
        Condition("Unmanaged", not spec.managed, "Annotated" if not spec.managed else "Managed"),
        *(loads.conditions if loads else ()),
    ]
    fields = {
        "observedGeneration": spec.identity.generation,
        "topicName": spec.topic,
        "topicId": topic.topic_id if topic else None,
        "partitions": len(topic.partitions) if topic else None,
        "replicas": topic.replication_factor if topic else None,
        "underReplicatedPartitions": topic.under_replicated if topic else None,
        "offlinePartitions": topic.offline if topic else None,
        "managedSettings": _managed(plan, refusals) if plan else present.get("managedSettings"),
        "move": _move(spec, moving, present, now),
        "lastLoad": loads.last_load if loads else None,
        "lastGoodLoad": loads.last_good_load if loads else None,
        "lastRejection": loads.last_rejection if loads else None,
        "loadedUpTo": loads.loaded_up_to if loads else None,
        "freshnessSeconds": loads.freshness_seconds if loads else None,
        "loadRequests": list(loads.requests) if loads and loads.requests else None,
        "conditions": merged(present, conditions, spec.identity.generation, now),
    }
    return pruned(fields)


def _managed(plan: TopicPlan, refusals: Sequence[Condition]) -> list[str]:
    """The settings that this Topic has set and has to take back one day.

    Brokers take all changes of a topic's settings or none. After a refusal the settings that the manifest no
    longer names may still be in force, and without their names nobody would remove them.
    """
    leaving = [name for name, value in plan.alter.items() if value is None] if refusals else []
    return sorted({*plan.managed_settings, *leaving})


def _ready(
    spec: TopicSpec, plan: TopicPlan | None, refusals: Sequence[Condition], topic: TopicState | None
) -> Condition:
    if refusals:
        return refusals[0]
    if plan is None:
        word = "Paused" if spec.paused else "Unmanaged"
        mark = names.PAUSE if spec.paused else names.MANAGED
        return Condition("Ready", topic is not None, word, f"The topic is not changed, because of {mark}.")
    if topic is None:
        return Condition("Ready", False, "Creating", "The topic is being created.")
    if topic.offline:
        return Condition("Ready", False, "Offline", f"{topic.offline} partitions have no leader.")
    return Condition("Ready", True, "Synced", "The topic is as in the manifest.")


def _reassigning(moving: Sequence[TopicPartition], topic: TopicState | None) -> Condition:
    if moving and topic is not None:
        text = f"{len(moving)} of {len(topic.partitions)} partitions are being moved."
        return Condition("Reassigning", True, "Moving", text)
    return Condition("Reassigning", False, "Settled")


def _move(
    spec: TopicSpec, moving: Sequence[TopicPartition], present: Object, now: dt.datetime
) -> dict[str, Any] | None:
    if not moving:
        return None
    before = present.get("move") or {}
    return pruned(
        {
            "replicas": spec.replicas,
            "partitionsLeft": len(moving),
            "started": before.get("started") or written(now),
        }
    )
