"""Consumer groups: their members and committed offsets, and changes of them.

`cli/group.py` and `cli/group_reset.py` are the commands.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Broker, Cluster, sentence_of
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.routed_requests import ask_coordinator

_MEMBER_ID_TAIL: Final = 9  # of the random end of an id: enough to tell members apart, and a dash
# The coordinator was just elected, or loads its groups; librdkafka does not retry by itself.
_NOT_READY: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_ATTEMPTS_MAX: Final = 50
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
    """A member; `partitions` are those assigned to it."""

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
    """A group as its coordinator describes it; a group that does not exist has no coordinator."""

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


def why_not_at_rest(group: Group) -> str:
    """Why the offsets of a group that has members cannot be changed, and what to do."""
    count = len(group.members)
    who = ", ".join(f"{member.label} at {member.host}" for member in group.members[:3])
    more = f" and {count - 3:,} more" if count > 3 else ""
    if not count:
        return f"Group {group.name} is {group.state}: wait until it is empty, then try again."
    return (
        f"Group {group.name} has {count:,} member{'s' * (count != 1)} ({who}{more}): stop "
        f"{'it' if count == 1 else 'them'}, then try again. A member that was killed is gone when its "
        "session ends."
    )


def list_groups(cluster: Cluster) -> tuple[dict[str, Listing], list[str]]:
    """All groups by name, and the errors of brokers that could not list theirs.

    Raises:
        ClusterUnreachable, ClusterRefused: no broker answered.
    """
    future = cluster.admin.list_consumer_groups(request_timeout=ADMIN_TIMEOUT_SECONDS)
    listing = cluster.result(future, "Asking for the groups failed")
    # KafkaException by confluent_kafka's documentation, and KafkaError where a broker did not answer.
    errors = [one.args[0] if isinstance(one, KafkaException) else one for one in listing.errors or []]
    troubles = sorted({sentence_of(error) for error in errors})
    listings = [Listing(one.group_id, _word(one.state), _word(one.type)) for one in listing.valid or []]
    return {one.name: one for one in sorted(listings, key=lambda one: one.name)}, troubles


def describe_groups(cluster: Cluster, names: Iterable[str]) -> list[Group]:
    """The groups of these names; a group that does not exist is dead and has no members.

    Raises:
        ClusterUnreachable, ClusterRefused: a coordinator does not answer, or says no.
    """
    requested = list(names)
    if not requested:
        return []
    futures = cluster.admin.describe_consumer_groups(requested, request_timeout=ADMIN_TIMEOUT_SECONDS)
    return [_described(cluster, name, futures[name]) for name in sorted(futures)]


def _described(cluster: Cluster, name: str, future: Any, attempt: int = 1) -> Group:
    try:
        return _group(future.result())
    except KafkaException as exception:
        if exception.args[0].code() in _NOT_READY and attempt < _ATTEMPTS_MAX:
            time.sleep(_PAUSE_SECONDS)
            again = cluster.admin.describe_consumer_groups([name], request_timeout=ADMIN_TIMEOUT_SECONDS)
            return _described(cluster, name, again[name], attempt + 1)
        # The answer of brokers with the newer group protocol (KIP-848, KIP-1043) for an unknown group.
        if exception.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return Group(name, _DEAD, "", "", None, [])
        raise cluster.refusal(exception, f"Group {name} cannot be described") from exception


def _group(described: Any) -> Group:
    node = described.coordinator
    members = [
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host.removeprefix("/"),
            sorted((part.topic, part.partition) for part in member.assignment.topic_partitions),
        )
        for member in described.members
    ]
    return Group(
        described.group_id,
        _word(described.state),
        _word(described.type),
        described.partition_assignor or "",
        Broker(node.id, node.host, node.port, node.rack),
        sorted(members, key=lambda member: (member.partitions, member.member_id)),
    )


def _word(state: Any) -> str:
    name = str(state.name).lower().replace("_", " ")
    return {"preparing rebalancing": "rebalancing", "completing rebalancing": "rebalancing"}.get(name, name)


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """The committed offsets of a group; empty for a group that does not exist.

    Raises:
        ClusterUnreachable, ClusterRefused: its coordinator does not answer, or says no.
    """
    doing = f"The offsets of group {group} could not be read"
    futures = cluster.admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    answer = cluster.result(futures[group], doing)
    offsets = {}
    for position in answer.topic_partitions:
        if position.error is not None:
            raise cluster.refusal(KafkaException(position.error), doing)
        # For this topic a group has only metadata: the operator's record of completed resets.
        if position.offset >= 0 and position.topic != "__consumer_offsets":
            offsets[position.topic, position.partition] = int(position.offset)
    return offsets


def unknown_group(cluster: Cluster, name: str) -> BadInput:
    """The error for a group that does not exist; names similar ones."""
    near = difflib.get_close_matches(name, list_groups(cluster)[0], n=3)
    if near:
        return BadInput(f"There is no group {name}: did you mean {' or '.join(near)}?")
    return BadInput(f"There is no group {name}: `mainstem group list` shows the existing ones.")


def commit_for(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Commit offsets for a group without members; returns the refused partitions with the reasons.

    Raises:
        ClusterRefused: the group has members, or its coordinator says no.
        ClusterUnreachable: no broker answered.
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


_STOP_MEMBERS: Final = "it has members. Stop them (`mainstem group describe` shows them), then try again."


def delete_group(cluster: Cluster, name: str) -> None:
    """Delete a group without members, with its offsets.

    Raises:
        BadInput: there is no such group.
        ClusterRefused: it has members, or its coordinator says no.
        ClusterUnreachable: no broker answered.
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
    """Delete a group's offsets of these partitions; returns the refused ones with the reasons.

    Raises:
        BadInput: there is no such group.
        ClusterRefused: its coordinator says no.
        ClusterUnreachable: no broker answered.
    """
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    partitions_by_topic: dict[str, list[Any]] = {}
    for topic, number in partitions:
        partitions_by_topic.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=number))
    topics = tuple(
        OffsetDeleteRequestTopic(name=topic, partitions=tuple(parts))
        for topic, parts in partitions_by_topic.items()
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
        return "members of the group read this topic: stop them, then try again."
    return reason_of(part)
