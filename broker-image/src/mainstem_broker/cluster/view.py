"""What this broker knows of the cluster: brokers, controller, topics, partition states, settings.

One object, owned by the broker's event loop, filled from ZooKeeper and from nowhere else. Versions keep
it right when news arrives twice or out of order: a partition state replaces only one of a lower znode
version. No IO here: `member.py` reads ZooKeeper and updates the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from mainstem_broker.cluster.config_entities import DEFAULT_ENTITY
from mainstem_broker.cluster.znodes import BrokerRegistration, Claim, Restores, TopicAssignment
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.security.acl import ResourcePattern, Rule
from mainstem_broker.security.scram_decoys import ScramDecoys


@dataclass(slots=True)
class Topic:
    """A topic; `states` has no entry for partitions that the controller has not begun yet."""

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
    """The cluster as last read."""

    cluster_id: str = ""
    controller_id: int = -1
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    absent_incarnations: dict[int, int] = field(default_factory=dict)
    """The last incarnation of each broker that was not registered when the registrations were read."""
    topics: dict[str, Topic] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    entity_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is set on users, clients and groups, as `users/U/clients/C` or `groups/G`; none is empty."""
    scram_decoys: ScramDecoys = field(default_factory=ScramDecoys)
    """By the credentials among `entity_configs`."""
    acls: dict[ResourcePattern, frozenset[Rule]] = field(default_factory=dict)
    """The rules about the resources of each pattern; none is empty."""
    unreadable_acls: set[ResourcePattern] = field(default_factory=set)
    """Patterns whose rules cannot be read; they deny everything."""
    pending_deletions: set[str] = field(default_factory=set)
    """Topics whose deletion was requested and that still exist."""
    stopped_topics: dict[str, dict[str, str]] = field(default_factory=dict)
    """Topics of which nodes have a format that this broker does not read: why, by the paths of these nodes.
    What the view has of such a topic is out of date, and nothing may be done by it."""
    newer_nodes: dict[str, str] = field(default_factory=dict)
    """Other nodes in such a format, by path."""
    unreadable_brokers: frozenset[int] = frozenset()
    """Brokers that are registered in such a format. While there are any, this broker is no controller."""
    restores: Restores = field(default_factory=Restores)
    moving_topics: set[str] = field(default_factory=set)
    """Topics of which replicas are being moved."""
    topics_version: int = 0
    """Changes whenever a topic comes, goes or grows."""
    _some_offline: bool = False

    def brokers_for(self, topic_id: UUID, partition: int) -> Mapping[int, BrokerRegistration]:
        """The live brokers, without those whose replica of the partition is offline."""
        if not self._some_offline:
            return self.brokers
        key = (topic_id, partition)
        return {number: broker for number, broker in self.brokers.items() if key not in broker.offline}

    def has_known(self, broker_id: int) -> bool:
        """Whether a broker is registered, or was once."""
        return broker_id in self.brokers or broker_id in self.absent_incarnations

    def set_brokers(self, registrations: Iterable[BrokerRegistration]) -> None:
        self.brokers = {registration.broker_id: registration for registration in registrations}
        self._some_offline = any(broker.offline for broker in self.brokers.values())

    def set_topic(self, assignment: TopicAssignment, config: Mapping[str, str]) -> Topic:
        """Take a topic's assignment and settings; its states stay if it is still the same topic."""
        previous = self.topics.get(assignment.topic)
        if previous is None or previous.topic_id != assignment.topic_id:
            if previous is not None:
                self.remove_topic(previous.name, previous.topic_id)
            previous = Topic(assignment)
            self.topics[assignment.topic] = previous
            self.topic_names[assignment.topic_id] = assignment.topic
            self.topics_version += 1
        elif assignment.version >= previous.assignment.version:
            if len(assignment.replicas) != len(previous.assignment.replicas):
                self.topics_version += 1
            previous.assignment = assignment
        previous.config = dict(config)
        if previous.assignment.adding_replicas or previous.assignment.removing_replicas:
            self.moving_topics.add(previous.name)
        else:
            self.moving_topics.discard(previous.name)
        return previous

    def set_state(self, topic: str, partition: int, state: PartitionState) -> bool:
        """Take a partition's state.

        False if a newer state is known, or not the topic, or only an assignment from before replicas were
        moved away: a broker that is moved away must not act on the state that ended the move.
        """
        cluster_topic = self.topics.get(topic)
        if cluster_topic is None or partition not in cluster_topic.assignment.replicas:
            return False
        if self.lacks_assignment_of(topic, state):
            return False
        current = cluster_topic.states.get(partition)
        if current is not None and current.partition_epoch >= state.partition_epoch:
            return False
        cluster_topic.states[partition] = state
        return True

    def lacks_assignment_of(self, topic: str, state: PartitionState) -> bool:
        """Whether a topic's state shows that replicas were moved away since its assignment was read."""
        cluster_topic = self.topics.get(topic)
        return cluster_topic is not None and cluster_topic.assignment.version < state.assignment_version

    def remove_topic(self, topic: str, topic_id: UUID) -> bool:
        """Forget the topic, unless another one of the same name has taken its place."""
        cluster_topic = self.topics.get(topic)
        if cluster_topic is None or cluster_topic.topic_id != topic_id:
            return False
        self.topics_version += 1
        del self.topics[topic]
        del self.topic_names[topic_id]
        self.pending_deletions.discard(topic)
        self.moving_topics.discard(topic)
        self.stopped_topics.pop(topic, None)
        return True

    def newer_formats(self) -> list[str]:
        """What is stopped because its nodes have a format that this broker does not read."""
        return [
            f"{path}: {reason}"
            for nodes in (*self.stopped_topics.values(), self.newer_nodes)
            for path, reason in nodes.items()
        ]

    def set_config(self, entity: str, config: Mapping[str, str]) -> None:
        """Take the settings of any entity but a topic."""
        kind, _, name = entity.partition("/")
        if kind == "brokers":
            self.broker_configs[name] = dict(config)
            return
        if kind == "users" and "/" not in name:
            self.scram_decoys.replace(self.entity_configs.get(entity, {}), config)
        if config:
            self.entity_configs[entity] = dict(config)
        else:
            self.entity_configs.pop(entity, None)

    def set_acls(self, pattern: ResourcePattern, rules: frozenset[Rule] | None) -> None:
        """Take the rules about the resources of a pattern; None if they cannot be read."""
        self.unreadable_acls.discard(pattern)
        self.acls.pop(pattern, None)
        if rules is None:
            self.unreadable_acls.add(pattern)
        elif rules:
            self.acls[pattern] = rules

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
    acls: set[ResourcePattern] = field(default_factory=set)
    """Patterns whose rules changed."""
    elections: set[tuple[UUID, int]] = field(default_factory=set)
    """Partitions (topic, number) that somebody asks the preferred leader to lead."""
    brokers: bool = False
    """Whether brokers came, went or began a new incarnation."""

    def __bool__(self) -> bool:
        return bool(
            self.partitions or self.deleted or self.configs or self.acls or self.elections or self.brokers
        )
