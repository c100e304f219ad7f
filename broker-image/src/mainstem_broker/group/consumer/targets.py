"""The target assignment of a consumer group: which member is to have which partitions. Pure.

How targets are computed belongs to `assignors.py`, how members reach them to `reconciliation.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from mainstem_broker.group.consumer.assignors import ASSIGNORS, Subscriber
from mainstem_broker.group.consumer.member import ConsumerMember
from mainstem_broker.group.consumer.records import Partitions
from mainstem_broker.group.consumer.subscribed_topics import SubscribedTopics


class Targets(dict[str, Partitions]):
    """Partitions by member id; a member without a target is missing."""

    def of(self, member_id: str) -> Partitions:
        return self.get(member_id, frozenset())

    def compute(
        self, members: Collection[ConsumerMember], subscribed: SubscribedTopics, assignor: str
    ) -> list[str]:
        """Compute the targets of all members anew; returns the ids of those whose target has changed."""
        topic_ids = {interest: subscribed.ids(interest) for interest in {one.interest for one in members}}
        subscribers = [
            Subscriber(
                member.member_id,
                member.instance_id,
                topic_ids[member.interest],
                self.of(member.member_id),
            )
            for member in members
        ]
        computed = ASSIGNORS[assignor](subscribers, subscribed.partition_counts(topic_ids))
        changed_ids = [member_id for member_id, target in computed.items() if self.get(member_id) != target]
        self.update(computed)
        return changed_ids


def elect_assignor(members: Iterable[ConsumerMember], names: Sequence[str]) -> str:
    """The assignor that most of the members that name one prefer; the first of `names` if none does."""
    votes = Counter(member.metadata.assignor for member in members if member.metadata.assignor is not None)
    return max(names, key=lambda name: votes[name])
