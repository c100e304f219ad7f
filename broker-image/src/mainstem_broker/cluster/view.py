"""What this broker knows of the cluster: brokers, controller, topics, partition states, settings.

One object, owned by the broker's event loop, filled from ZooKeeper and from nowhere else. Versions keep
it right when news arrives twice or out of order: a partition state replaces only one of a lower znode
version. No IO here: `member.py` reads ZooKeeper and tells the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from mainstem_broker.cluster.znodes import DEFAULT_ENTITY, BrokerRegistration, Claim, TopicAssignment
from mainstem_broker.replica.state import PartitionState


@dataclass(slots=True)
class Topic:
    """A topic; `states` lacks partitions that the controller has not begun yet."""

    assignment: TopicAssignment
    states: dict[int, PartitionState] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    claims: dict[int, dict[int, Claim]] = field(default_factory=dict)
    """By partition and broker."""

    @property
    def name(self) -> str:
        return self.assignment.topic

    @property
    def topic_id(self) -> UUID:
        return self.assignment.topic_id

    def all_led(self, partitions: Iterable[int]) -> bool:
        """Whether each of these partitions is known and has a leader."""
        return all(
            partition in self.states and self.states[partition].leader >= 0 for partition in partitions
        )


@dataclass(slots=True)
class ClusterView:
    """The cluster as last heard of."""

    cluster_id: str = ""
    controller_id: int = -1
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    entity_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is set on users, clients and groups, as `users/U/clients/C` or `groups/G`; none is empty."""
    pending_deletions: set[str] = field(default_factory=set)
    """Topics that somebody asked to delete and that are still there."""
    topics_version: int = 0
    """Changes whenever a topic comes, goes or grows."""
    _some_offline: bool = False

    def brokers_for(self, topic_id: UUID, partition: int) -> Mapping[int, BrokerRegistration]:
        """The live brokers, without those whose replica of the partition is offline."""
        if not self._some_offline:
            return self.brokers
        key = (topic_id, partition)
        return {number: broker for number, broker in self.brokers.items() if key not in broker.offline}

    def set_brokers(self, registrations: Iterable[BrokerRegistration]) -> None:
        self.brokers = {registration.broker_id: registration for registration in registrations}
        self._some_offline = any(broker.offline for broker in self.brokers.values())

    def set_topic(self, assignment: TopicAssignment, config: Mapping[str, str]) -> Topic:
        """Take a topic's assignment and settings; its states stay if it is still the same topic."""
        known = self.topics.get(assignment.topic)
        if known is None or known.topic_id != assignment.topic_id:
            if known is not None:
                self.remove_topic(known.name, known.topic_id)
            known = Topic(assignment)
            self.topics[assignment.topic] = known
            self.topic_names[assignment.topic_id] = assignment.topic
            self.topics_version += 1
        elif assignment.version >= known.assignment.version:
            if len(assignment.replicas) != len(known.assignment.replicas):
                self.topics_version += 1
            known.assignment = assignment
        known.config = dict(config)
        return known

    def set_state(self, topic: str, partition: int, state: PartitionState) -> bool:
        """Take a partition's state.

        False if a newer state is known, or not the topic, or only an assignment from before replicas were
        moved away: whoever is moved away must not go by the state that this ended with.
        """
        known = self.topics.get(topic)
        if known is None or partition not in known.assignment.replicas:
            return False
        if self.lacks_assignment_of(topic, state):
            return False
        current = known.states.get(partition)
        if current is not None and current.partition_epoch >= state.partition_epoch:
            return False
        known.states[partition] = state
        return True

    def lacks_assignment_of(self, topic: str, state: PartitionState) -> bool:
        """Whether a topic's state tells that replicas were moved away since its assignment was read."""
        known = self.topics.get(topic)
        return known is not None and known.assignment.version < state.assignment_version

    def remove_topic(self, topic: str, topic_id: UUID) -> bool:
        """Forget the topic, unless another one of the same name has taken its place."""
        known = self.topics.get(topic)
        if known is None or known.topic_id != topic_id:
            return False
        self.topics_version += 1
        del self.topics[topic]
        del self.topic_names[topic_id]
        self.pending_deletions.discard(topic)
        return True

    def set_config(self, entity: str, config: Mapping[str, str]) -> None:
        """Take the settings of any entity but a topic."""
        kind, _, name = entity.partition("/")
        if kind == "brokers":
            self.broker_configs[name] = dict(config)
        elif config:
            self.entity_configs[entity] = dict(config)
        else:
            self.entity_configs.pop(entity, None)

    def dynamic_broker_config(self, broker_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """(what is set for this broker, what is set for all)."""
        return self.broker_configs.get(str(broker_id), {}), self.broker_configs.get(DEFAULT_ENTITY, {})


@dataclass(slots=True)
class Delta:
    """What a pass changed in the view."""

    partitions: set[tuple[str, int]] = field(default_factory=set)
    deleted: list[tuple[str, UUID]] = field(default_factory=list)
    configs: set[str] = field(default_factory=set)
    """Entities as `topics/T`, `brokers/N`, `brokers/<default>`, `users/U`, `clients/C`, `groups/G`."""
    elections: set[tuple[UUID, int]] = field(default_factory=set)
    """Partitions (topic, number) that somebody asks the preferred leader to lead."""
    brokers: bool = False
    """Whether brokers came, went or began a new life."""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.deleted or self.configs or self.elections or self.brokers)
