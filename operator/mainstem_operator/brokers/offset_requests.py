"""A commit of offsets as requests of the Kafka protocol, and what they are answered: values, and nothing
that sends.

The stock client cannot store metadata with offsets of a group that has no members, nor for how long they
are kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem.kafka.raw_request import reason_of
from mainstem_operator.brokers.topic_state import TopicPartition

OFFSETS_TOPIC: Final = "__consumer_offsets"
END: Final = "\0"
"""Ends the metadata: confluent-kafka 2.16 reads it as a C string, whatever its length, and beyond its end."""
_GROUP_KEY: Final = 0
_NO_GENERATION: Final = -1  # a commit from outside the group, which brokers accept while it has no members
_KEPT: Final = dt.timedelta(days=36_500)  # else a record would expire a week after the reset


def find_coordinator(group: str) -> Any:
    """Which broker coordinates the group? (FindCoordinator)"""
    from kio.schema.find_coordinator.v1.request import FindCoordinatorRequest

    return FindCoordinatorRequest(key=group, key_type=_GROUP_KEY)


def commit(group: str, offsets: Mapping[TopicPartition, int], record: Sequence[str]) -> Any:
    """Store these offsets, and the pieces of a record as metadata for OFFSETS_TOPIC. (OffsetCommit, version
    4)

    Version 4 is the last one that says how long offsets are kept. A coordinator stores all of a commit or
    nothing.
    """
    from kio.schema.offset_commit.v4.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )
    from kio.static.primitive import i64Timedelta

    partitions: dict[str, list[Any]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        partitions.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    for piece, text in enumerate(record):
        partitions.setdefault(OFFSETS_TOPIC, []).append(
            OffsetCommitRequestPartition(
                partition_index=piece, committed_offset=0, committed_metadata=text + END
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        retention_time=i64Timedelta.parse(_KEPT),
        topics=tuple(
            OffsetCommitRequestTopic(name=topic, partitions=tuple(items))
            for topic, items in sorted(partitions.items())
        ),
    )


def refusals_in(answer: Any) -> dict[TopicPartition, str]:
    """What an OffsetCommit was refused, as a sentence for each partition."""
    return {
        (topic.name, partition.partition_index): reason_of(partition)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code.value != 0
    }
