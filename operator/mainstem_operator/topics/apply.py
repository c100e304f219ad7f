"""Bringing topics about: asks brokers, lets `plan.py` decide, acts in batches. Knows no Kubernetes.

So the same manifests work where there is none: on the local stack (`standalone.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.brokers.topic_state import Replicas, TopicPartition
from mainstem_operator.topics.plan import TopicPlan, TopicsSeen, plan_topics, refused

Move = Callable[
    [Mapping[TopicPartition, Replicas], Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, str]]
]
"""Begins the moves to these replicas, told which are under way, and answers the refusals."""


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What was done for one Topic; `plan` is None where nothing was to be done to it."""

    spec: TopicSpec
    plan: TopicPlan | None
    refusals: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class TopicsOutcome:
    """What was done for the Topics of a BrokerCluster, and what the brokers said after it."""

    outcomes: Sequence[TopicOutcome]
    seen: TopicsSeen


async def see_topics(brokers: Brokers, specs: Sequence[TopicSpec]) -> TopicsSeen:
    """What brokers say of the topics of `specs`: of all topics, if replicas have to be placed among them."""
    names = {spec.topic for spec in specs}
    topics = await brokers.topics(names)
    racks = await brokers.racks()
    moves = await brokers.moves()
    resized = any(
        spec.replicas not in (None, topics[spec.topic].replication_factor)
        for spec in specs
        if spec.topic in topics
    )
    if resized:
        topics = await brokers.topics(names | await brokers.topic_names())
    with_settings = [spec.topic for spec in specs if spec.topic in topics]
    return TopicsSeen(topics, await brokers.settings(with_settings), moves, racks)


async def bring_about_topics(
    brokers: Brokers,
    specs: Sequence[TopicSpec],
    statuses: Mapping[tuple[str, str], Object],
    move: Move | None = None,
    limited: Collection[tuple[str, str]] = (),
) -> TopicsOutcome:
    """Make, grow, change and move topics as `specs` say; nothing is deleted here.

    Args:
        move: what begins moves, and is told of those under way; None asks the brokers, without a limit.
        limited: settings of topics that have throttles of the operator's moves.

    Raises:
        BrokersUnreachable: no broker answers.
    """
    seen = replace(await see_topics(brokers, specs), limited=limited)
    plans = plan_topics(specs, statuses, seen)
    refusals: dict[str, list[Condition]] = {}

    def note(topic: str, error: BrokersRefused) -> None:
        refusals.setdefault(topic, []).append(refused(error.code, str(error)))

    creations = {plan.spec.topic: plan.create for plan in plans if plan.create is not None}
    if creations:
        for topic, error in (await brokers.create_topics(creations)).items():
            if error.code != "TOPIC_ALREADY_EXISTS":  # it came meanwhile: the next look takes it over
                note(topic, error)
    growths = {plan.spec.topic: plan.grow for plan in plans if plan.grow is not None}
    if growths:
        for topic, error in (await brokers.grow_topics(growths)).items():
            note(topic, error)
    changes = {plan.spec.topic: plan.alter for plan in plans if plan.alter}
    if changes:
        for topic, error in (await brokers.alter_topics(changes)).items():
            note(topic, error)
    targets = {key: replicas for plan in plans for key, replicas in plan.move.items()}
    under_way = {key for plan in plans for key in plan.under_way}
    not_moved: Mapping[TopicPartition, str] = {}
    if move is not None:
        not_moved = await move(targets, under_way)
    elif targets:
        not_moved = await brokers.move(targets)
    for (topic, _), sentence in not_moved.items():
        note(topic, BrokersRefused("REASSIGNMENT", sentence))
    if creations or growths or targets:
        seen = TopicsSeen(
            await brokers.topics({spec.topic for spec in specs}),
            seen.settings,
            await brokers.moves() if targets else seen.moves,
            seen.racks,
        )
    by_spec = {plan.spec.identity.key: plan for plan in plans}
    return TopicsOutcome(
        [
            TopicOutcome(
                spec,
                by_spec.get(spec.identity.key),
                tuple(refusals.get(spec.topic, ())) if spec.identity.key in by_spec else (),
            )
            for spec in specs
        ],
        seen,
    )
