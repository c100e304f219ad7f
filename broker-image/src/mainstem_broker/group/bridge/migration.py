"""Changes a group from one kind into the other while its members go on (KIP-848, "Online upgrade"). Pure.

Belongs here: what of a group survives the change. When it happens, and how it is stored, belongs to
`group/shard.py`.

A classic group becomes a consumer group with its first member of the consumer protocol. Its members keep what
they have, and the answer to their next heartbeat makes them join again (`mixed_group.py`). It becomes classic
again when its last member of the consumer protocol has left: then all remaining members join again. The
generations of the one kind and the epochs of the other are one series of numbers.
"""

from __future__ import annotations

from enum import Enum

from mainstem_broker.errors import GroupIdNotFound, GroupMaxSizeReached
from mainstem_broker.group.bridge.mixed_group import MixedGroup
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.member import Member
from mainstem_broker.group.classic.rebalancing import ClassicPolicy
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.records import (
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
    classic: ClassicGroup, migration: MigrationPolicy, policy: ConsumerPolicy, topics: Topics, now_ms: int
) -> MixedGroup:
    """The consumer group that a classic group becomes; `classic` itself is left unchanged.

    Raises:
        GroupIdNotFound: it cannot become one. This error makes clients stop with its message.
        GroupMaxSizeReached: it has too many members.
    """
    name = classic.group_id
    group = MixedGroup(name, policy, topics, classic.generation)
    if not classic.members:
        return group
    if not migration.allows_upgrade:
        raise GroupIdNotFound(
            f"Group '{name}' has members of the classic protocol, and group.consumer.migration.policy"
            f" is {migration.value}: stop them first."
        )
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise GroupIdNotFound(
            f"Group '{name}' is not a group of consumers: its protocol type is '{classic.protocol_type}'."
        )
    if len(classic.members) >= policy.members_max:
        raise GroupMaxSizeReached(
            f"Group '{name}' has {len(classic.members)} members, and group.consumer.max.size is"
            f" {policy.members_max}."
        )
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


def _upgrade_member(group: MixedGroup, member: Member, elected: str | None, now_ms: int) -> None:
    protocol = elected if elected is not None else member.protocols[0][0]
    # The elected protocol first: the member goes on with it.
    protocols = tuple(sorted(member.protocols, key=lambda named: named[0] != protocol))
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
    upgraded = ConsumerMember(member.member_id, metadata, CurrentAssignment(), 0)
    group.insert(upgraded)
    group.hold(upgraded, CurrentAssignment(group.epoch, group.epoch, assigned=assigned))
    group.targets[member.member_id] = assigned
    group.renew(upgraded, now_ms)
    for kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY):
        group.changed(kind, member.member_id)


def downgrade(group: MixedGroup, policy: ClassicPolicy, now_ms: int) -> ClassicGroup:
    """The classic group that a group of only classic members becomes; `group` is left unchanged."""
    members = []
    for member in group.members.values():
        metadata = member.metadata
        assert metadata.classic is not None, "only classic members can be in a classic group"
        version = Subscription.decode(metadata.classic.protocols[0][1]).version
        assigned = (
            (topic, number)
            for topic_id, number in member.current.assigned
            if (topic := group.topics.name(topic_id)) is not None
        )
        members.append(
            Member(
                member.member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.classic.session_timeout_ms,
                metadata.rebalance_timeout_ms,
                metadata.classic.protocols,
                now_ms + metadata.classic.session_timeout_ms,
                assignment=encode_assignment(assigned, version),
                generation=member.current.epoch,
            )
        )
    return ClassicGroup.succeed(group.group_id, policy, group.epoch, CONSUMER_PROTOCOL_TYPE, members, now_ms)
