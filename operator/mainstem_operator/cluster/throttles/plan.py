"""Which throttles keep the operator's moves to their limit, and which are to go again (KIP-73). Pure.

A limit is a rate, which holds for what brokers send and for what they fetch, and in each topic the replicas
that it binds, as `partition:broker`: those that a partition has, as senders, and those that come, as
receivers. No other partition is bound. But a sender that leads holds back every follower of its partition
that is out of sync: an old replica that comes back while its partition moves shares the limit.

The rate is put as the default of all brokers (KIP-226). The tools put theirs on single brokers, where it
counts more: so both can stand side by side, and a broker that was away has the rate when it is back.

What is ours is noted before it is put, and the note is cut down once brokers tell that something is gone: at
every moment the note names all that is ours and is there, even if the operator ends in between, and what is
there without being noted belongs to someone else and is left alone. What is noted and is not wanted any more
is taken away whether it was seen or not: it may be on its way.

A note may be lost: with its BrokerCluster, or by hand. So pairs of our moves under way are ours, whether
they were there before or not. A rate is not: someone may have set it for good. One that
is left over binds nothing without pairs; if it differs from the limit, the status says so.

Pairs are added to lists and taken from them, never put as a whole: other tools change the same lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from mainstem_operator.brokers.topic_state import MoveState, Replicas, TopicPartition

ALL_BROKERS: Final = ""
"""Beside topics: the default of all brokers."""
SENDERS: Final = "leader.replication.throttled.replicas"
RECEIVERS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

Settings = Mapping[str, Mapping[str, str]]
"""The throttles of topics and of ALL_BROKERS; a topic that does not exist is left out."""
Noted = Mapping[tuple[str, str], frozenset[str]]
"""Of topics or ALL_BROKERS, by setting: the pairs, or the rates, that are ours if they are there."""


class Operation(IntEnum):
    """What a change does to a setting, by the numbers of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one setting; the value of a DELETE is None.

    A SUBTRACT leaves an empty value behind, also where the setting was not there; APPEND never adds twice.
    """

    operation: Operation
    value: str | None = None

    def is_shown_by(self, present: str | None) -> bool:
        """Whether a setting with this value has been changed."""
        named, there = items_of(self.value), items_of(present)
        match self.operation:
            case Operation.APPEND:
                return named <= there
            case Operation.SUBTRACT:
                return present is not None and not named & there
        return present == self.value


Changes = Mapping[str, Mapping[str, Change]]
"""What is to be changed of topics and of ALL_BROKERS, by setting."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Of one partition's move: the brokers that have the data, and those that are to get it."""

    senders: frozenset[int]
    receivers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ThrottlePlan:
    """What is to be noted, then put, then taken away, and then left noted.

    `rates_of_others` are defaults of all brokers that bind our moves and that we have not set.
    """

    before: Noted
    puts: Changes
    takes: Changes
    after: Noted
    rates_of_others: Mapping[str, str] = field(default_factory=dict)


def copies_of(move: MoveState) -> Copies:
    """What a move that is under way copies."""
    return Copies(move.origin, move.adding)


def copies_to(target: Replicas, replicas: Replicas, move: MoveState | None) -> Copies:
    """What a move to `target` will copy.

    Args:
        replicas: those of now, with those that are coming.
        move: the one that it replaces, if one is under way.
    """
    present = frozenset(replicas) - (move.adding if move is not None else frozenset())
    return Copies(present, frozenset(target) - present)


def partitions_in(noted: Noted) -> set[TopicPartition]:
    """The partitions whose moves are limited by what is noted."""
    return {
        (topic, int(pair.partition(":")[0]))
        for (topic, _), pairs in noted.items()
        if topic != ALL_BROKERS
        for pair in pairs
    }


def items_of(text: str | None) -> frozenset[str]:
    """What the value of a list names; None is a list that is not set."""
    return frozenset(item.strip() for item in (text or "").split(",") if item.strip())


def plan_throttles(
    limit: int | None,
    copies: Mapping[TopicPartition, Copies],
    noted: Noted,
    present: Settings,
    *,
    may_put: bool = True,
) -> ThrottlePlan:
    """What is to be put so that these moves keep to the limit, and nothing else of ours is left.

    Args:
        limit: in bytes per second; None if there is none.
        copies: of the operator's moves that are under way, or are to begin.
        present: for ALL_BROKERS and for every topic in `copies` and `noted`.
        may_put: whether anything may be put; if not, what is not wanted any more goes still.
    """
    target_pairs = _pairs(copies) if limit is not None else {}
    rate = str(limit) if target_pairs else None
    steps = {
        (topic, setting): _plan_pairs(
            items_of(present[topic].get(setting)),
            noted.get((topic, setting), frozenset()),
            target_pairs.get((topic, setting), frozenset()),
            may_put,
        )
        for topic, setting in sorted(target_pairs.keys() | noted.keys())
        if topic != ALL_BROKERS and topic in present  # with a topic its settings go
    }
    rates_of_others = {}
    for setting in RATES:
        ours, there = noted.get((ALL_BROKERS, setting), frozenset()), present[ALL_BROKERS].get(setting)
        steps[ALL_BROKERS, setting] = _plan_rate(there, ours, rate, may_put)
        if rate is not None and there is not None and there not in ours and there != rate:
            rates_of_others[setting] = there
    return ThrottlePlan(
        {key: step.before for key, step in steps.items() if step.before},
        _changes((key, step.put) for key, step in steps.items()),
        _changes((key, step.take) for key, step in steps.items()),
        {key: step.after for key, step in steps.items() if step.after},
        rates_of_others,
    )


def _changes(steps: Iterable[tuple[tuple[str, str], Change | None]]) -> Changes:
    changes: dict[str, dict[str, Change]] = {}
    for (where, setting), change in steps:
        if change is not None:
            changes.setdefault(where, {})[setting] = change
    return changes


@dataclass(frozen=True, slots=True)
class _Step:
    """What becomes of one setting; `before` and `after` are what is noted of it."""

    before: frozenset[str]
    after: frozenset[str]
    put: Change | None = None
    take: Change | None = None


def _plan_pairs(
    present: frozenset[str], ours: frozenset[str], target: frozenset[str], may_put: bool
) -> _Step:
    if "*" in present:
        target = frozenset()  # all replicas are named, and nothing can stand beside that
    missing = target - present if may_put else frozenset()
    stale, kept = ours - target, target if may_put else ours & target
    return _Step(
        ours | kept,
        kept,
        Change(Operation.APPEND, _listed(missing)) if missing else None,
        Change(Operation.SUBTRACT, _listed(stale)) if stale else None,
    )


def _plan_rate(present: str | None, ours: frozenset[str], target: str | None, may_put: bool) -> _Step:
    if present is not None and present not in ours:
        return _Step(frozenset(), frozenset())  # somebody else's
    if target is None:
        return _Step(ours, frozenset(), take=Change(Operation.DELETE) if ours else None)
    if not may_put:
        return _Step(ours, ours)
    put = Change(Operation.SET, target) if present != target else None
    return _Step(ours | {target}, frozenset({target}), put)


def _pairs(copies: Mapping[TopicPartition, Copies]) -> dict[tuple[str, str], frozenset[str]]:
    """What topics have to name. A move that copies nothing needs no limit."""
    replicas_by_topic: dict[tuple[str, str], set[str]] = {}
    for (topic, partition), copy in copies.items():
        if copy.receivers:
            for setting, brokers in ((SENDERS, copy.senders), (RECEIVERS, copy.receivers)):
                replicas_by_topic.setdefault((topic, setting), set()).update(
                    f"{partition}:{it}" for it in brokers
                )
    return {key: frozenset(pairs) for key, pairs in replicas_by_topic.items()}


def _listed(pairs: frozenset[str]) -> str:
    return ",".join(sorted(pairs, key=lambda pair: [int(number) for number in pair.split(":")]))
