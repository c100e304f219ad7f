"""Reads ZooKeeper into this broker's view: everything at first, then what the feed of changes names.

The feed (`/mainstem/changes`) stands for a watch per partition, which would not scale. Each write to the
cluster's state appends an entry that names what it changed. Entry numbers are dense, so a gap means that
entries were trimmed before this broker read them, and everything is loaded again.

In scope: every read of cluster state. Out of scope: when a read is due (`member_state`), and writes, but for
trimming the feed, which the controller does when it has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

import structlog

from mainstem_broker.cluster import acl_znodes, config_entities, znodes
from mainstem_broker.cluster.controller import must_claim
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.elections import ElectionType
from mainstem_broker.cluster.member_state import Event
from mainstem_broker.cluster.reassignment import is_moving
from mainstem_broker.cluster.view import ClusterView, Delta
from mainstem_broker.cluster.zookeeper import ZooKeeperSession
from mainstem_broker.errors import NewerFormat, StartupError
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.runtime.turns import in_turns
from mainstem_broker.security.acl import Rule
from mainstem_broker.whole_numbers import is_whole_number

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
Content = TypeVar("Content")

NOTHING_READ: Final = -1
"""In place of the number of the last entry that was read; the first entry has 0."""


ENTRIES_PER_TURN: Final = 4
"""Of the feed: each has up to `STATES_PER_MULTI` states, which take a few milliseconds to read."""


class FeedReader:
    """Keeps `view` up to date. What changed is added to the delta that each call is given."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        view: ClusterView,
        controllership: Controllership,
        on_event: Callable[[Event], None],
    ) -> None:
        """`on_event` is called on the loop when a watch fires."""
        self._zookeeper = zookeeper
        self._view = view
        self._controllership = controllership
        self._on_event = on_event
        self._last_number = NOTHING_READ

    @property
    def last_number(self) -> int:
        """The number of the last entry of the feed that was read, or -1."""
        return self._last_number

    # Bound methods, which are equal each time: so a node that is read again gets no second watch.

    def _on_feed_changed(self) -> None:
        self._on_event(Event.FEED_CHANGED)

    def _on_brokers_changed(self) -> None:
        self._on_event(Event.BROKERS_CHANGED)

    # --- Everything ---

    async def load(self, delta: Delta) -> None:
        """Read everything. The feed's end is noted first, so what changes meanwhile is read again.

        Raises:
            StartupError: ZooKeeper was replaced by an older backup meanwhile. What was made since the backup
                would seem deleted, and its logs would be (R43).
        """
        zookeeper, view = self._zookeeper, self._view
        last_number = await self._find_end()
        if last_number < self._last_number:
            await zookeeper.sync()  # this server may only lag behind the one before
            last_number = await self._find_end()
            if last_number < self._last_number:
                raise StartupError(
                    "ZooKeeper is older than what this broker has read from it, as after a restore from a"
                    " backup: restart this broker."
                )
        await self.read_brokers(delta)
        topic_names = await zookeeper.children(znodes.TOPICS)
        await self.read_topics(topic_names, delta)
        for topic in set(view.topics) - set(topic_names):
            self._remove(topic, view.topics[topic].topic_id, delta)
        for topic in view.stopped_topics.keys() - set(topic_names):
            del view.stopped_topics[topic]
        paths = [(topic.name, index) for topic in view.topics.values() for index in topic.assignment.replicas]
        await self._read_states(paths, delta)
        claimed = [
            (topic.name, index)
            for topic in view.topics.values()
            for index, state in topic.states.items()
            if must_claim(state, view.brokers_for(topic.topic_id, index))
        ]
        await self._read_claims(claimed)
        view.pending_deletions = set(await zookeeper.children(znodes.DELETE_TOPICS))
        entities = await self._configured_entities()
        await self._read_configs(sorted({*entities, *view.entity_configs}), delta)
        acl_paths = await self._acl_paths()
        acl_nodes = (*self._view.acls, *self._view.unreadable_acls)
        await self._read_acls(sorted({*acl_paths, *map(acl_znodes.acl_path, acl_nodes)}), delta)
        self._last_number = last_number
        self._controllership.look_again()

    async def _find_end(self) -> int:
        """The number of the last entry of the feed, also if somebody has removed it by hand, or
        `NOTHING_READ`."""
        return await self._zookeeper.sequence_end(znodes.CHANGES, self._on_feed_changed) - 1

    # --- The feed ---

    async def read_feed(self, delta: Delta) -> None:
        """Read the entries that were appended since the last call; everything, if some were trimmed.

        Raises:
            StartupError: as `load`.
        """
        names = await self._zookeeper.children(znodes.CHANGES, self._on_feed_changed)
        numbers = sorted(znodes.change_number(name) for name in names)
        unread = [number for number in numbers if number > self._last_number]
        has_gap = unread and unread[0] > self._last_number + 1
        goes_back = max(numbers, default=NOTHING_READ) < self._last_number
        if has_gap or goes_back:
            await self.load(delta)
            return
        nodes = await self._zookeeper.get_many([f"{znodes.CHANGE_PREFIX}{number:010d}" for number in unread])
        # An entry of a failover carries hundreds of states.
        async for number, node in in_turns(zip(unread, nodes, strict=True), ENTRIES_PER_TURN):
            if node is None:  # trimmed between the two reads
                await self.load(delta)
                return
            try:
                change = znodes.Change.decode(node.data)
            except NewerFormat as error:
                # What it announces is in the nodes that were changed, each of which has a version of its own.
                # Requests for elections are in the feed only: brokers that read this format carry them out.
                newer = self._view.newer_nodes
                self._note_newer(newer, znodes.CHANGES, error, "everything is read at each change")
                await self.load(delta)
                return
            await self._apply(change, delta)
            self._last_number = number
        if self._controllership.is_held:
            await self._controllership.trim_feed(numbers)

    async def _apply(self, change: znodes.Change, delta: Delta) -> None:
        view = self._view
        if change.brokers:
            await self.read_brokers(delta)
        for topic, topic_id in change.deleted:
            self._remove(topic, topic_id, delta)
        if change.topics:
            await self.read_topics(change.topics, delta)
        for topic_id, partition, state in change.states:
            name = view.topic_names.get(topic_id)
            if name is not None and view.set_state(name, partition, state):
                delta.partitions.add((name, partition))
                if self._resume(name, znodes.state_path(name, partition)):
                    delta.partitions.update((name, index) for index in view.topics[name].states)
                if self._is_unfinished(name, partition, state):
                    self._controllership.look_again([name])
        await self._read_claims(change.claims)
        view.pending_deletions.update(
            view.topic_names[topic_id] for topic_id in change.deletions if topic_id in view.topic_names
        )
        for topic_id, partition, election in change.elections:
            if election == ElectionType.PREFERRED:
                delta.elections.add((topic_id, partition))
            elif self._controllership.is_held:
                self._controllership.request_unclean_election(topic_id, partition)
        if change.acls:
            await self._read_acls(change.acls, delta)
        for entity in change.configs:
            kind, _, name = entity.partition("/")
            if kind == "topics":
                await self.read_topics([name], delta)
            else:
                await self._read_configs([entity], delta)

    def _is_unfinished(self, topic: str, partition: int, state: PartitionState) -> bool:
        """Whether the controller has to act on what a leader wrote: its in-sync set or its successor."""
        leaving = any(
            broker in self._view.brokers and self._view.brokers[broker].leaving for broker in state.isr
        )
        return leaving or is_moving(self._view.topics[topic].assignment, partition)

    # --- Brokers ---

    async def read_brokers(self, delta: Delta) -> None:
        """Read all registrations. A broker with a node that cannot be read counts as not registered."""
        # Before the registrations: a broker that registers in between is then no longer absent, or has
        # another incarnation than the one noted here (`Controllership._checks_of_absence`).
        names = await self._zookeeper.children(znodes.INCARNATIONS)
        earlier_ids = [int(name) for name in names if is_whole_number(name)]
        earlier = await self._zookeeper.get_many([znodes.incarnation_path(each) for each in earlier_ids])
        names = await self._zookeeper.children(znodes.BROKER_IDS, self._on_brokers_changed)
        ids = [int(name) for name in names if is_whole_number(name)]
        nodes = await self._zookeeper.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        incarnations = await self._zookeeper.get_many(
            [znodes.incarnation_path(broker_id) for broker_id in ids]
        )
        offline = await self._zookeeper.get_many([znodes.offline_path(broker_id) for broker_id in ids])
        before, unreadable = dict(self._view.brokers), set()
        registrations = []
        for broker_id, node, incarnation, lost in zip(ids, nodes, incarnations, offline, strict=True):
            if node is None or incarnation is None:
                continue
            path = znodes.broker_path(broker_id)
            try:
                registration = readable(znodes.BrokerRegistration.decode, broker_id, node.data, node.czxid)
                last_unclean = readable(znodes.decode_incarnation, incarnation.data)
                offline_here = lost and readable(znodes.decode_offline, lost.data)
            except NewerFormat as error:
                self._note_newer(self._view.newer_nodes, path, error, "this broker cannot be controller")
                unreadable.add(broker_id)
                if broker_id in before:  # it lives, though what is known of it may be out of date
                    registrations.append(before[broker_id])
                continue
            self._view.newer_nodes.pop(path, None)
            if registration is not None and last_unclean is not None:
                registrations.append(
                    replace(
                        registration,
                        incarnation=incarnation.version,
                        last_unclean=last_unclean,
                        offline=offline_here or frozenset(),
                    )
                )
        for broker_id in self._view.unreadable_brokers - set(ids):
            self._view.newer_nodes.pop(znodes.broker_path(broker_id), None)
        if self._view.unreadable_brokers and not unreadable:
            self._on_event(Event.CONTROLLER_CHANGED)  # this broker may be elected again
        self._view.unreadable_brokers = frozenset(unreadable)
        self._view.set_brokers(registrations)
        self._view.absent_incarnations = {
            broker_id: node.version
            for broker_id, node in zip(earlier_ids, earlier, strict=True)
            if node is not None and broker_id not in self._view.brokers
        }
        if self._view.brokers != before:
            self._controllership.look_again()
            delta.brokers = True

    # --- Topics ---

    async def read_topics(self, names: Collection[str], delta: Delta) -> set[str]:
        """Read assignments and settings.

        Returns the topics whose assignment in the view is now the one that was read.
        """
        current = set()
        assignments = await self._zookeeper.get_many([znodes.topic_path(name) for name in names])
        configs = await self._zookeeper.get_many([znodes.topic_config_path(name) for name in names])
        async for name, node, config in in_turns(zip(names, assignments, configs, strict=True)):
            if node is None:
                continue  # deleted since; an entry of the feed follows
            was_stopped = name in self._view.stopped_topics
            paths = znodes.topic_path(name), znodes.topic_config_path(name)
            path = paths[0]
            try:
                assignment = readable(znodes.TopicAssignment.decode, name, node.data, node.version)
                path = paths[1]
                overrides = {} if config is None else readable(znodes.decode_config, config.data) or {}
            except NewerFormat as error:
                self._stop(name, path, error, delta)
                continue
            if assignment is None:
                continue
            before = self._view.topics.get(name)
            if before is not None and before.topic_id != assignment.topic_id:
                self._remove(name, before.topic_id, delta)
            replicas_before = None if before is None else before.assignment.replicas
            topic = self._view.set_topic(assignment, overrides)
            for path in paths:
                self._resume(name, path)
            if was_stopped and name not in self._view.stopped_topics:
                delta.partitions.update((name, partition) for partition in topic.states)
            delta.configs.add(f"topics/{name}")
            if replicas_before is not None:
                delta.partitions.update(
                    (name, partition)
                    for partition, replicas in topic.assignment.replicas.items()
                    if replicas_before.get(partition) != replicas
                )
            self._controllership.look_again([name])
            if topic.assignment is assignment:  # not if the view has a later one
                current.add(name)
        return current

    async def _read_states(self, partitions: list[tuple[str, int]], delta: Delta) -> None:
        nodes = await self._zookeeper.get_many([znodes.state_path(*key) for key in partitions])
        states: dict[tuple[str, int], PartitionState] = {}
        async for key, node in in_turns(zip(partitions, nodes, strict=True)):
            if node is None:
                continue
            path = znodes.state_path(*key)
            try:
                state = readable(znodes.decode_state, node.data, node.version)
            except NewerFormat as error:
                self._stop(key[0], path, error, delta)
                continue
            if state is not None:
                states[key] = state
                if self._resume(key[0], path):
                    delta.partitions.update((key[0], index) for index in self._view.topics[key[0]].states)
        # The end of a move writes states and assignment together. A state that names a later assignment than
        # the view has was written between the two reads, so those assignments are read again.
        moved = {
            topic for (topic, _), state in states.items() if self._view.lacks_assignment_of(topic, state)
        }
        if moved:
            before = {name: self._view.topics[name] for name in moved}
            read = await self.read_topics(sorted(moved), delta)
            # A topic that was deleted, and perhaps created again, in between has other states by now.
            same = {name for name in read if self._view.topics.get(name) is before[name]}
            states = {key: state for key, state in states.items() if key[0] in same or key[0] not in moved}
        rewritten = set()
        async for (topic, partition), state in in_turns(states.items()):
            if self._view.lacks_assignment_of(topic, state):  # ZooKeeper itself has no later assignment
                rewritten.add(topic)
                version = self._view.topics[topic].assignment.version
                state = replace(state, assignment_version=version)  # noqa: PLW2901
            if self._view.set_state(topic, partition, state):
                delta.partitions.add((topic, partition))
        for topic in sorted(rewritten):
            logger.error("assignment older than its states: it was replaced", topic=topic)

    async def _read_claims(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read the claims of partitions: how far their replicas' logs reach."""
        replicas = [
            (topic, partition, broker)
            for name, partition in partitions
            if (topic := self._view.topics.get(name)) is not None
            for broker in topic.assignment.replicas.get(partition, ())
        ]
        if not replicas:
            return
        paths = [znodes.claim_path(topic.name, partition, broker) for topic, partition, broker in replicas]
        nodes = await self._zookeeper.get_many(paths)
        for topic, partition, _ in replicas:
            topic.claims[partition] = {}
        async for (topic, partition, broker), path, node in in_turns(
            zip(replicas, paths, nodes, strict=True)
        ):
            if node is not None:
                try:
                    topic.claims[partition][broker] = znodes.Claim.decode(broker, node.data)
                except NewerFormat as error:
                    # Without it nobody is elected by the lengths of the logs.
                    logger.error("newer format of a claim: upgrade this broker", path=path, reason=str(error))
        self._controllership.look_again({topic.name for topic, _, _ in replicas})

    # --- Newer formats (R44) ---

    def _stop(self, topic: str, path: str, error: NewerFormat, delta: Delta) -> None:
        """Do nothing with a topic any more until all of its nodes can be read."""
        nodes = self._view.stopped_topics.setdefault(topic, {})
        self._note_newer(nodes, path, error, "its topic is stopped on this broker")
        if topic in self._view.topics:
            delta.partitions.update((topic, index) for index in self._view.topics[topic].states)

    def _resume(self, topic: str, path: str) -> bool:
        """A node of a topic can be read; whether that ends the stop of its topic."""
        nodes = self._view.stopped_topics.get(topic, {})
        if nodes.pop(path, None) is None or nodes:
            return False
        del self._view.stopped_topics[topic]
        logger.info("topic resumed", topic=topic)
        return True

    @staticmethod
    def _note_newer(nodes: dict[str, str], path: str, error: NewerFormat, consequence: str) -> None:
        """One line in the log for each node."""
        if nodes.get(path) != str(error):
            nodes[path] = str(error)
            logger.error(f"newer format: {consequence}; upgrade this broker", path=path, reason=str(error))

    def _remove(self, topic: str, topic_id: UUID, delta: Delta) -> None:
        if self._view.remove_topic(topic, topic_id):
            delta.deleted.append((topic, topic_id))

    # --- Settings ---

    async def _configured_entities(self) -> list[str]:
        """All entities but topics that have settings."""
        entities = []
        for folder in ("brokers", "clients", "users", "groups"):
            for name in await self._zookeeper.children(config_entities.config_path(folder)):
                entity = f"{folder}/{name}"
                entities.append(entity)
                if folder == "users":
                    below = f"{entity}/clients"
                    names = await self._zookeeper.children(config_entities.config_path(below))
                    entities += [f"{below}/{client}" for client in names]
        return entities

    async def _read_configs(self, entities: Collection[str], delta: Delta) -> None:
        """Read the settings of entities other than topics; one without a node has none."""
        nodes = await self._zookeeper.get_many([config_entities.config_path(entity) for entity in entities])
        for entity, node in zip(entities, nodes, strict=True):
            path = config_entities.config_path(entity)
            try:
                config = None if node is None else _decode_entity_config(entity, node.data)
            except NewerFormat as error:
                self._note_newer(self._view.newer_nodes, path, error, "its former settings stay in effect")
                continue
            self._view.newer_nodes.pop(path, None)
            self._view.set_config(entity, config or {})
            delta.configs.add(entity)

    # --- Rules ---

    async def _acl_paths(self) -> list[str]:
        """The paths of all nodes with rules."""
        paths = []
        for root, folders in acl_znodes.FOLDERS.items():
            kinds = set(await self._zookeeper.children(root))
            for folder in folders:
                if folder.rpartition("/")[2] in kinds:
                    paths += [f"{folder}/{name}" for name in await self._zookeeper.children(folder)]
        return paths

    async def _read_acls(self, paths: Sequence[str], delta: Delta) -> None:
        """Read rules; where no node is left there are none."""
        nodes = await self._zookeeper.get_many(paths)
        for path, node in zip(paths, nodes, strict=True):
            try:
                pattern = acl_znodes.pattern_at(path)
            except KeyError:
                continue  # of a type that this version does not know, and so never reads
            rules: frozenset[Rule] | None = frozenset()
            if node is not None:
                try:
                    rules = acl_znodes.decode_rules(node.data)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    # One of them may have been a denial, so nothing about these resources can be allowed.
                    rules = None
                    logger.error("rules denied as they cannot be read", path=path, reason=repr(error)[:200])
            self._view.set_acls(pattern, rules)
            delta.acls.add(pattern)


def _decode_entity_config(entity: str, data: bytes) -> dict[str, str] | None:
    """As `readable`, but what is logged has no content: that of a user contains credentials."""
    try:
        return znodes.decode_config(data)
    except NewerFormat:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.error("znode ignored", path=config_entities.config_path(entity), reason=type(error).__name__)
        return None


def readable(decode: Callable[P, Content], *arguments: P.args, **named: P.kwargs) -> Content | None:
    """A node's content, or None: an invalid node, such as one that a person wrote, must not stop the rest.

    Raises:
        NewerFormat: it is valid, for a later version of this broker.
    """
    try:
        return decode(*arguments, **named)
    except NewerFormat:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.error("znode ignored", content=repr(arguments)[:500], reason=repr(error))
        return None
