"""What a reset of a group's offsets needs from the cluster: the chosen partitions and their bounds.

`offset_reset_plan.py` computes the new offsets from them.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import OffsetSpec

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Cluster
from mainstem.kafka.offset_reset_plan import Bounds, Target, parse_topic_choice
from mainstem.kafka.offsets import log_ends
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.start_point import Kind, StartPoint


def choose_partitions(
    cluster: Cluster,
    topics: Iterable[str] | None,
    offsets: Iterable[TopicPartition],
    *,
    known_only: bool = False,
) -> list[TopicPartition]:
    """The partitions that `--topic` texts name; without any, those of `offsets`.

    With `known_only`, a topic need not be existing any more if `offsets` has it.

    Raises:
        BadInput: existing is no such topic or partition, or nothing is chosen.
    """
    committed_partitions = sorted(set(offsets))
    if topics is None:
        if not committed_partitions:
            raise BadInput("The group has committed nothing yet: name topics with --topic.")
        return committed_partitions
    chosen: set[TopicPartition] = set()
    for text in topics:
        name, numbers = parse_topic_choice(text)
        if known_only and any(topic == name for topic, _ in committed_partitions):
            existing = [number for topic, number in committed_partitions if topic == name]
            chosen |= {(name, number) for number in (existing if numbers is None else numbers)}
            continue
        existing = [partition.number for partition in cluster.topic(name).partitions]
        for number in existing if numbers is None else numbers:
            if number not in existing:
                raise BadInput(f"Topic {name} has partitions 0 to {len(existing) - 1}, not {number}.")
            chosen.add((name, number))
    return sorted(chosen)


def bounds_of(cluster: Cluster, chosen: list[TopicPartition], target: Target) -> dict[TopicPartition, Bounds]:
    points = [OffsetSpec.earliest(), OffsetSpec.latest()]
    if isinstance(target, StartPoint) and target.kind is Kind.TIME:
        points.append(OffsetSpec.for_timestamp(target.number))
    ends_by_partition = log_ends(cluster, chosen, *points)
    bounds: dict[TopicPartition, Bounds] = {}
    for topic, number in chosen:
        if (topic, number) not in ends_by_partition:
            raise BadInput(f"There is no partition {number} of {topic}: leave it out.")
        earliest, latest, *at_time = ends_by_partition[topic, number]
        if earliest is None or latest is None or None in at_time:
            raise ClusterRefused(
                f"Partition {number} of {topic} has no leader that answers: start the broker that holds it, "
                "or name other partitions with --topic."
            )
        at = at_time[0] if at_time else None
        bounds[topic, number] = Bounds(earliest, latest, None if at is None or at < 0 else at)
    return bounds
