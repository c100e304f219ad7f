"""The offsets that partitions hold: their ends, and where a reader starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import OffsetSpec

from mainstem.errors import ClusterRefused
from mainstem.kafka.client import Cluster
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.start_point import Kind, StartPoint, offset_to_start_at, require_within


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], *points: OffsetSpec
) -> dict[TopicPartition, list[int | None]]:
    """For each partition its offset at each point; None if its leader does not answer.

    Partitions that do not exist are left out.

    Raises:
        ClusterUnreachable, ClusterRefused: no broker answered, or one answered with an error.
    """
    topics = cluster.topics()
    numbers_by_topic: dict[str, set[int]] = {}
    for topic, number in partitions:
        numbers_by_topic.setdefault(topic, set()).add(number)
    ends: dict[TopicPartition, list[int | None]] = {}
    for topic in sorted(numbers_by_topic.keys() & topics.keys()):
        existing = [part for part in topics[topic].partitions if part.number in numbers_by_topic[topic]]
        led = [Position(topic, part.number) for part in existing if part.leader is not None]
        answers = cluster.offsets(led, *points)
        for part in existing:
            ends[topic, part.number] = [offsets.get(part.number) for offsets in answers]
    return ends


def read_range(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    start: StartPoint,
    on_adjusted_start: Callable[[str], None],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The offset to start at in each partition, and its end.

    `on_adjusted_start` receives a sentence for a partition that no longer holds the requested offset.

    Raises:
        BadInput: the requested offset lies beyond the end of every partition.
        ClusterRefused: a partition has no leader that answers.
    """
    points = [OffsetSpec.earliest(), OffsetSpec.latest()]
    if start.kind is Kind.TIME:
        points.append(OffsetSpec.for_timestamp(start.number))
    offset_by_partition = {
        key: require_leader(key, offsets) for key, offsets in log_ends(cluster, partitions, *points).items()
    }
    require_within(start, (latest for _, latest, *_ in offset_by_partition.values()))
    if start.kind is Kind.OFFSET:
        for (topic, number), (earliest, *_) in offset_by_partition.items():
            if start.number < earliest:
                on_adjusted_start(
                    f"partition {number} of {topic} begins at offset {earliest:,} now: reading starts there."
                )
    starts = {
        key: offset_to_start_at(start, earliest, latest, at_time[0] if at_time and at_time[0] >= 0 else None)
        for key, (earliest, latest, *at_time) in offset_by_partition.items()
    }
    return starts, {key: latest for key, (_, latest, *_) in offset_by_partition.items()}


def require_leader(key: TopicPartition, offsets: Sequence[int | None]) -> list[int]:
    """`offsets` of a partition whose leader answered.

    Raises:
        ClusterRefused: an offset is None, so the leader did not answer.
    """
    known_offsets = [offset for offset in offsets if offset is not None]
    if not known_offsets or len(known_offsets) != len(offsets):
        raise ClusterRefused(
            f"Partition {key[1]} of {key[0]} has no leader that answers: start the broker that holds it, or "
            "read others with --partition."
        )
    return known_offsets
