"""A group that turns from one kind into the other while its members go on (KIP-848, "Online upgrade"). Pure.

Lives here: what of a group outlives that. Must not: when it is done, and writing it (`shard.py`).

A classic group becomes one of KIP-848 with the first member that speaks the new protocol: its members stay
with what they have, and learn by their next heartbeat that they have to join again (`classic_members.py`). It
becomes classic again when its last member of the new protocol has gone: then all that are left join anew.
Either way generations and epochs are one series of numbers.
"""

from __future__ import annotations

from enum import Enum

from mainstem_broker.errors import GroupIdNotFound, GroupMaxSizeReached
from mainstem_broker.group.consumer_group import ConsumerGroup, ConsumerPolicy
from mainstem_broker.group.consumer_member import ConsumerMember
from mainstem_broker.group.consumer_records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ClassicProtocols,
    ConsumerMemberMetadata,
    CurrentAssignment,
)
from mainstem_broker.group.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    encode_assignment,
)
from mainstem_broker.group.member import Member
from mainstem_broker.group.membership import Group, GroupPolicy
from mainstem_broker.group.topics import Topics


class MigrationPolicy(Enum):
    """The setting group.consumer.migration.policy."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


def upgrade(
    classic: Group, migration: MigrationPolicy, policy: ConsumerPolicy, topics: Topics, now_ms: int
) -> ConsumerGroup:
    """The group of KIP-848 that a classic one becomes; `classic` itself stays as it is.

    Raises:
        GroupIdNotFound: it cannot become one, which is how clients are told.
        GroupMaxSizeReached: it has too many members.
    """
    name = classic.group_id
    group = ConsumerGroup(name, policy, topics, classic.generation)
    if not classic.members:
        return group
    if not migration.allows_upgrade:
        raise GroupIdNotFound(
            f"Group '{name}' has members of the classic protocol, and group.consumer.migration.policy"
            f" is {migration.value}: stop them first."
        )
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise GroupIdNotFound(f"Group '{name}' is no group of consumers, but of '{classic.protocol_type}'.")
    if len(classic.members) >= policy.members_max:
        raise GroupMaxSizeReached(f"Group '{name}' has more members than group.consumer.max.size allows.")
    for member in classic.members:
        try:
            _upgrade_member(group, member, classic.protocol, now_ms)
        except ValueError as error:
            raise GroupIdNotFound(
                f"Group '{name}' has a member whose metadata is not a consumer's: {error}."
            ) from None
    group.changed(GROUP_KEY)
    group.changed(TARGET_EPOCH_KEY)
    return group


def _upgrade_member(group: ConsumerGroup, member: Member, protocol: str | None, now_ms: int) -> None:
    name = protocol if protocol is not None else member.protocols[0][0]
    # What the group has agreed on comes first: it is what the member goes on with.
    protocols = tuple(sorted(member.protocols, key=lambda one: one[0] != name))
    subscription = Subscription.decode(protocols[0][1])
    assigned = frozenset(
        (topic_id, number)
        for topic, number in decode_assignment(member.assignment)
        if (topic_id := group.topics.topic_id(topic)) is not None
    )
    metadata = ConsumerMemberMetadata(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicProtocols(member.session_timeout_ms, protocols),
    )
    moved = ConsumerMember(member.member_id, metadata, CurrentAssignment(), 0)
    group.insert(moved)
    group.hold(moved, CurrentAssignment(group.epoch, group.epoch, assigned=assigned))
    group.targets[member.member_id] = assigned
    group.renew(moved, now_ms)
    for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
        group.changed(kind, member.member_id)


def downgrade(group: ConsumerGroup, policy: GroupPolicy, now_ms: int) -> Group:
    """The classic group that one with no other members becomes; `group` stays as it is."""
    members = []
    for member in group.members.values():
        told = member.metadata
        assert told.classic is not None, "only classic members can be in a classic group"
        version = Subscription.decode(told.classic.protocols[0][1]).version
        assigned = (
            (topic, number)
            for topic_id, number in member.current.assigned
            if (topic := group.topics.name(topic_id)) is not None
        )
        members.append(
            Member(
                member.member_id,
                told.instance_id,
                told.client_id,
                told.client_host,
                told.classic.session_timeout_ms,
                told.rebalance_timeout_ms,
                told.classic.protocols,
                now_ms + told.classic.session_timeout_ms,
                assignment=encode_assignment(assigned, version),
                generation=member.current.epoch,
            )
        )
    return Group.succeed(group.group_id, policy, group.epoch, CONSUMER_PROTOCOL_TYPE, members, now_ms)
