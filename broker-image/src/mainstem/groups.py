"""Consumer groups as the cluster knows them: who is in them, what they committed; changing that.

The commands are `group_commands.py` and `group_reset.py`.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import OffsetSpec

from mainstem.asking import ask_coordinator
from mainstem.bare_request import reason_of
from mainstem.client import ADMIN_TIMEOUT_SECONDS, Broker, Cluster, sentence_of
from mainstem.errors import BadInput, ClusterRefused
from mainstem.reassignment_plan import TopicPartition

_MEMBER_ID_TAIL: Final = 9  # of the random end of an id: enough to tell members apart, and a dash
# A coordinator that was just elected, or loads its groups; librdkafka does not ask again by itself.
_NOT_READY: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_QUESTIONS_MAX: Final = 50
_PAUSE_SECONDS: Final = 0.2
_DEAD: Final = "dead"
_AT_REST: Final = ("empty", _DEAD)


@dataclass(frozen=True, slots=True)
class Listing:
    """A group in a list: its state, and `kind`, the protocol that its members speak."""

    name: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member; `partitions` are those that it was given."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]

    @property
    def label(self) -> str:
        """Short, and another one for each member of a group."""
        if self.instance_id is not None:
            return self.instance_id
        if not self.member_id.startswith(self.client_id):
            return self.member_id
        return self.member_id[: len(self.client_id) + _MEMBER_ID_TAIL]


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator describes it; there is none to name of a group that there is not."""

    name: str
    state: str
    kind: str
    assignor: str
    coordinator: Broker | None
    members: list[GroupMember]

    @property
    def at_rest(self) -> bool:
        """Whether it has no members, so that its offsets may be changed."""
        return self.state in _AT_REST


def list_groups(cluster: Cluster) -> tuple[dict[str, Listing], list[str]]:
    """All groups by name, and what brokers that did not answer had to say.

    Raises:
        ClusterUnreachable, ClusterRefused: nobody answered.
    """
    future = cluster.admin.list_consumer_groups(request_timeout=ADMIN_TIMEOUT_SECONDS)
    found = cluster.result(future, "Asking for the groups failed")
    troubles = sorted({sentence_of(exception.args[0]) for exception in found.errors or []})
    listings = [Listing(one.group_id, _word(one.state), _word(one.type)) for one in found.valid or []]
    return {one.name: one for one in sorted(listings, key=lambda one: one.name)}, troubles


def describe_groups(cluster: Cluster, names: Iterable[str]) -> list[Group]:
    """The groups of these names; one that there is not is told as dead, without members.

    Raises:
        ClusterUnreachable, ClusterRefused: a coordinator does not answer, or says no.
    """
    asked = list(names)
    if not asked:
        return []
    futures = cluster.admin.describe_consumer_groups(asked, request_timeout=ADMIN_TIMEOUT_SECONDS)
    return [_described(cluster, name, futures[name]) for name in sorted(futures)]


def _described(cluster: Cluster, name: str, future: Any, asked: int = 1) -> Group:
    try:
        return _group(future.result())
    except KafkaException as exception:
        if exception.args[0].code() in _NOT_READY and asked < _QUESTIONS_MAX:
            time.sleep(_PAUSE_SECONDS)
            again = cluster.admin.describe_consumer_groups([name], request_timeout=ADMIN_TIMEOUT_SECONDS)
            return _described(cluster, name, again[name], asked + 1)
        # What brokers of the newer group protocol (KIP-848, KIP-1043) say of a group that there is not.
        if exception.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return Group(name, _DEAD, "", "", None, [])
        raise cluster.refusal(exception, f"Group {name} cannot be described") from exception


def _group(found: Any) -> Group:
    node = found.coordinator
    members = [
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host.removeprefix("/"),
            sorted((part.topic, part.partition) for part in member.assignment.topic_partitions),
        )
        for member in found.members
    ]
    return Group(
        found.group_id,
        _word(found.state),
        _word(found.type),
        found.partition_assignor or "",
        Broker(node.id, node.host, node.port, node.rack),
        sorted(members, key=lambda member: (member.partitions, member.member_id)),
    )


def _word(state: Any) -> str:
    name = str(state.name).lower().replace("_", " ")
    return {"preparing rebalancing": "rebalancing", "completing rebalancing": "rebalancing"}.get(name, name)


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """What the group has committed; empty for a group that there is not.

    Raises:
        ClusterUnreachable, ClusterRefused: its coordinator does not answer, or says no.
    """
    doing = f"The offsets of group {group} are not told"
    futures = cluster.admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    answer = cluster.result(futures[group], doing)
    offsets = {}
    for position in answer.topic_partitions:
        if position.error is not None:
            raise cluster.refusal(KafkaException(position.error), doing)
        if position.offset >= 0:
            offsets[position.topic, position.partition] = int(position.offset)
    return offsets


def unknown_group(cluster: Cluster, name: str) -> BadInput:
    """The error for a group that there is not; names similar ones."""
    near = difflib.get_close_matches(name, list_groups(cluster)[0], n=3)
    if near:
        return BadInput(f"There is no group {name}: did you mean {' or '.join(near)}?")
    return BadInput(f"There is no group {name}: `mainstem group list` shows those that there are.")


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], *points: OffsetSpec
) -> dict[TopicPartition, list[int | None]]:
    """For each partition its offset at each point; None where its leader does not answer.

    Partitions that there are not are left out.
    """
    topics = cluster.topics()
    wanted: dict[str, set[int]] = {}
    for topic, number in partitions:
        wanted.setdefault(topic, set()).add(number)
    found: dict[TopicPartition, list[int | None]] = {}
    for topic in sorted(wanted.keys() & topics.keys()):
        there = [part for part in topics[topic].partitions if part.number in wanted[topic]]
        led = [Position(topic, part.number) for part in there if part.leader is not None]
        answers = cluster.offsets(led, *points)
        for part in there:
            found[topic, part.number] = [offsets.get(part.number) for offsets in answers]
    return found


def commit_for(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Commit offsets in the name of a group that is at rest; answers the refusals.

    Raises:
        ClusterRefused: the group has members, or its coordinator says no.
        ClusterUnreachable: nobody answered.
    """
    positions = [Position(topic, number, offset) for (topic, number), offset in offsets.items()]
    futures = cluster.admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, positions)], request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    try:
        answer = futures[group].result()
    except KafkaException as exception:
        if exception.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
            raise ClusterRefused(
                f"The offsets of group {group} were not changed: {_STOP_MEMBERS}"
            ) from exception
        raise cluster.refusal(exception, f"The offsets of group {group} were not changed") from exception
    refused = {
        (position.topic, position.partition): position.error
        for position in answer.topic_partitions
        if position.error is not None
    }
    if any(error.code() == KafkaError.UNKNOWN_MEMBER_ID for error in refused.values()):
        raise ClusterRefused(f"The offsets of group {group} were not changed: {_STOP_MEMBERS}")
    return {key: sentence_of(error) for key, error in refused.items()}


_STOP_MEMBERS: Final = (
    "it has members. Stop them (`mainstem group describe` shows who they are), then ask again."
)


def delete_group(cluster: Cluster, name: str) -> None:
    """Delete a group that is at rest, with its offsets.

    Raises:
        BadInput: there is none of that name.
        ClusterRefused: it has members, or its coordinator says no.
        ClusterUnreachable: nobody answered.
    """
    future = cluster.admin.delete_consumer_groups([name], request_timeout=ADMIN_TIMEOUT_SECONDS)[name]
    try:
        future.result()
    except KafkaException as exception:
        code = exception.args[0].code()
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            raise unknown_group(cluster, name) from exception
        if code == KafkaError.NON_EMPTY_GROUP:
            raise ClusterRefused(f"Group {name} was not deleted: {_STOP_MEMBERS}") from exception
        raise cluster.refusal(exception, f"Group {name} was not deleted") from exception


def forget_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Delete what a group has committed for these partitions; answers the refusals.

    Raises:
        BadInput: there is no such group.
        ClusterRefused: its coordinator says no.
        ClusterUnreachable: nobody answered.
    """
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    wanted: dict[str, list[Any]] = {}
    for topic, number in partitions:
        wanted.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=number))
    topics = tuple(
        OffsetDeleteRequestTopic(name=topic, partitions=tuple(parts)) for topic, parts in wanted.items()
    )
    answer = ask_coordinator(cluster, group, OffsetDeleteRequest(group_id=group, topics=topics))
    if answer.error_code.name == "group_id_not_found":
        raise unknown_group(cluster, group)
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The offsets of group {group} were not deleted: {reason_of(answer)}")
    return {
        (topic.name, part.partition_index): _why_kept(part)
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code.value != 0
    }


def _why_kept(part: Any) -> str:
    if part.error_code.name == "group_subscribed_to_topic":
        return "members of the group read this topic: stop them, then ask again."
    return reason_of(part)
