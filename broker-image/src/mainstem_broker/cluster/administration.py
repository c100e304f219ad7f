"""What handlers request from the cluster: topics and settings, written to ZooKeeper.

Any broker may write these; each write appends to the feed of changes in the same multi, so that all
brokers read it and the controller executes it (`member.py`). Nothing here waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from mainstem_broker.cluster import acl_znodes, config_entities, znodes
from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidPartitions,
    NewerFormat,
    ProtocolError,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from mainstem_broker.security.acl import ResourcePattern, Rule

logger = structlog.get_logger(__name__)

TOPICS_PER_MULTI: Final = 250
TOPICS_BYTES_PER_MULTI: Final = 400_000
"""A multi must stay below ZooKeeper's `jute.maxbuffer` of 1 MiB. A larger topic has a multi of its own."""
_OVERHEAD_BYTES: Final = 150
"""Of the operations on one topic, beside its paths and data."""


class NewTopic(NamedTuple):
    """A topic that is to be created, with its settings."""

    assignment: znodes.TopicAssignment
    config: Mapping[str, str]


class _TopicWrite(NamedTuple):
    """The nodes of a new topic."""

    topic: str
    path: str
    assignment: bytes
    config_path: str
    config: bytes

    @classmethod
    def of(cls, new: NewTopic) -> _TopicWrite:
        topic = new.assignment.topic
        return cls(
            topic,
            znodes.topic_path(topic),
            new.assignment.encode(),
            znodes.topic_config_path(topic),
            znodes.encode_config(new.config),
        )

    @property
    def size_bytes(self) -> int:
        names = 3 * len(self.topic) + _OVERHEAD_BYTES  # two paths and the feed
        return names + len(self.assignment) + len(self.config)


class Administration:
    """Writes of the broker `broker_id` through its session."""

    def __init__(self, zookeeper: ZooKeeperSession, broker_id: int) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id

    async def create_topic(self, assignment: znodes.TopicAssignment, config: Mapping[str, str]) -> None:
        """Write a new topic; the controller then elects its leaders.

        Raises:
            TopicAlreadyExists: there is one of that name.
        """
        errors = await self.create_topics([NewTopic(assignment, config)])
        for error in errors.values():
            raise error

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, ProtocolError]:
        """Write new topics, many in one multi; the controller then elects their leaders.

        Returns the errors by the names of the topics that were not written, or of which that is not known:
        TopicAlreadyExists, ZooKeeperUnavailable.
        """
        errors: dict[str, ProtocolError] = {}
        batch: list[_TopicWrite] = []
        size_bytes = 0
        outage: ZooKeeperUnavailable | None = None
        for write in (*map(_TopicWrite.of, topics), None):  # None writes the last batch
            is_full = len(batch) == TOPICS_PER_MULTI or (
                write is not None and size_bytes + write.size_bytes > TOPICS_BYTES_PER_MULTI
            )
            if batch and (write is None or is_full):
                if outage is None:
                    try:
                        errors |= await self._create_together(batch)
                    except ZooKeeperUnavailable as error:
                        outage = error
                if outage is not None:
                    errors |= {one.topic: outage for one in batch}
                batch, size_bytes = [], 0
            if write is not None:
                batch.append(write)
                size_bytes += write.size_bytes
        return errors

    async def _create_together(self, writes: Sequence[_TopicWrite]) -> dict[str, ProtocolError]:
        """Write all of these topics but those that exist, which the result names.

        Raises:
            ZooKeeperUnavailable: all may be written, or none.
        """
        errors: dict[str, ProtocolError] = {}
        left = list(writes)
        while left:
            leftovers = await self._zookeeper.get_many([one.config_path for one in left])
            operations: list[Operation] = []
            for one, leftover in zip(left, leftovers, strict=True):
                operations.append(Create(one.path, one.assignment))
                if leftover is None:
                    operations.append(Create(one.config_path, one.config))
                else:
                    operations.append(SetData(one.config_path, one.config))
            entry = znodes.Change(topics=tuple(one.topic for one in left)).encode()
            try:
                await self._zookeeper.multi(
                    [*operations, Create(znodes.CHANGE_PREFIX, entry, sequential=True)]
                )
                return errors
            except Conflict:
                present = await self._zookeeper.get_many([one.path for one in left])
            # If none of them exists, settings came or went meanwhile, with an earlier topic of that name.
            for one, node in zip(left, present, strict=True):
                if node is not None:
                    errors[one.topic] = TopicAlreadyExists(f"Topic '{one.topic}' already exists.")
            left = [one for one in left if one.topic not in errors]
        return errors

    async def grow_topic(self, topic: str, added: Mapping[int, tuple[int, ...]]) -> None:
        """As `grow_topics`, for one topic, but raises its error."""
        for error in (await self.grow_topics({topic: added})).values():
            raise error

    async def grow_topics(
        self, added: Mapping[str, Mapping[int, tuple[int, ...]]]
    ) -> dict[str, ProtocolError]:
        """Add partitions to topics, many in one multi.

        Returns the errors by the names of the topics that did not grow, or of which that is not known:
        UnknownTopicOrPartition, InvalidPartitions (it has changed meanwhile), ZooKeeperUnavailable.
        """
        errors: dict[str, ProtocolError] = {}
        left = dict(added)
        try:
            while left:
                await self._grow_some(left, errors)
        except ZooKeeperUnavailable as outage:
            errors |= dict.fromkeys(left, outage)
        return errors

    async def _grow_some(
        self, left: dict[str, Mapping[int, tuple[int, ...]]], errors: dict[str, ProtocolError]
    ) -> None:
        """Take out of `left` what one multi can do, or what cannot be done; nothing if it came too late."""
        names = list(left)[:TOPICS_PER_MULTI]
        nodes = await self._zookeeper.get_many([znodes.topic_path(name) for name in names])
        writes: dict[str, Operation] = {}
        size_bytes = 0
        for name, node in zip(names, nodes, strict=True):
            try:
                data = _grown(name, node, left[name])
            except ProtocolError as error:
                errors[name] = error
                del left[name]
                continue
            size_bytes += len(data) + 2 * len(name) + _OVERHEAD_BYTES
            if writes and size_bytes > TOPICS_BYTES_PER_MULTI:
                break
            assert node is not None
            writes[name] = SetData(znodes.topic_path(name), data, node.version)
        if writes:
            entry = znodes.Change(topics=tuple(writes)).encode()
            try:
                await self._zookeeper.multi(
                    [*writes.values(), Create(znodes.CHANGE_PREFIX, entry, sequential=True)]
                )
            except Conflict:
                return  # one of them has changed, and the next read tells how
            for name in writes:
                del left[name]

    async def change_assignment(
        self, topic: str, topic_id: UUID, change: Callable[[znodes.TopicAssignment], znodes.TopicAssignment]
    ) -> int:
        """Replace a topic's assignment by `change(present one)`; returns the new version.

        `change` may be called several times, as others may change it too.

        Raises:
            UnknownTopicOrPartition: the topic is gone.
        """
        entry = znodes.Change(topics=(topic,)).encode()
        while True:
            node = await self._zookeeper.get(znodes.topic_path(topic))
            if node is None:
                raise UnknownTopicOrPartition(f"There is no topic '{topic}'.")
            assignment = znodes.TopicAssignment.decode(topic, node.data, node.version)
            if assignment.topic_id != topic_id:
                raise UnknownTopicOrPartition(f"Topic '{topic}' was deleted and created again; try again.")
            changed = change(assignment)
            if changed == assignment:
                return node.version
            try:
                await self._zookeeper.multi(
                    [
                        SetData(znodes.topic_path(topic), changed.encode(), node.version),
                        Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                    ]
                )
                return node.version + 1
            except Conflict:
                continue

    async def ask_for_elections(self, elections: Iterable[tuple[UUID, int, int]]) -> None:
        """Request elections: (topic id, partition, kind). A broker that stops before it reads them does
        nothing."""
        entry = znodes.Change(elections=tuple(elections)).encode()
        await self._zookeeper.multi([Create(znodes.CHANGE_PREFIX, entry, sequential=True)])

    async def delete_topic(self, topic: str, topic_id: UUID) -> None:
        """As `delete_topics`, for one topic, but raises its error."""
        for error in (await self.delete_topics({topic: topic_id})).values():
            raise error

    async def delete_topics(self, topics: Mapping[str, UUID]) -> dict[str, ProtocolError]:
        """Request the deletion of topics from the controller, many in one multi; a repetition has no effect.

        Never leaves a marker for a topic that is gone: it would delete the next one of that name.

        Returns ZooKeeperUnavailable by the names of the topics whose deletion may not have been requested.
        """
        left = dict(topics)
        try:
            while left:
                await self._delete_some(left)
        except ZooKeeperUnavailable as outage:
            return dict.fromkeys(left, outage)
        return {}

    async def _delete_some(self, left: dict[str, UUID]) -> None:
        """Take out of `left` what one multi can do, or what is done; nothing more if it came too late."""
        names = list(left)[:TOPICS_PER_MULTI]
        nodes = await self._zookeeper.get_many([znodes.topic_path(name) for name in names])
        markers = await self._zookeeper.get_many([znodes.deletion_path(name) for name in names])
        operations: list[Operation] = []
        requested: dict[str, UUID] = {}
        for name, node, marker in zip(names, nodes, markers, strict=True):
            if (
                node is None
                or marker is not None
                or znodes.TopicAssignment.decode(name, node.data, 0).topic_id != left[name]
            ):
                del left[name]
                continue
            requested[name] = left[name]
            operations.append(Check(znodes.topic_path(name), node.version))
            operations.append(Create(znodes.deletion_path(name), b""))
        if not requested:
            return
        entry = znodes.Change(deletions=tuple(requested.values())).encode()
        try:
            await self._zookeeper.multi([*operations, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except Conflict:
            return  # one of them has changed, or another broker has requested it: the next read tells
        for name in requested:
            del left[name]

    async def change_config(
        self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace an entity's settings by `change(present settings)`; `entity` is as for `config_path`.

        Raises:
            InvalidConfig: they were changed by others at the same time, again and again.
        """
        path = config_entities.config_path(entity)
        entry = znodes.Change(configs=(entity,)).encode()
        for _ in range(5):
            node = await self._zookeeper.get(path)
            data = znodes.encode_config(change({} if node is None else znodes.decode_config(node.data)))
            if node is None:
                await self._zookeeper.ensure_paths([path.rpartition("/")[0]])
            write: Operation = Create(path, data) if node is None else SetData(path, data, node.version)
            try:
                await self._zookeeper.multi([write, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
                return
            except Conflict:
                continue
        raise InvalidConfig(f"The settings of {entity} are being changed by others; try again.")

    async def change_rules(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Rule]], frozenset[Rule]]
    ) -> None:
        """Replace the rules about the resources of a pattern by `change(present ones)`.

        `change` may be called several times, as others may change them too.

        Raises:
            UnknownServerError: the present ones cannot be read, or others change them again and again.
        """
        path = acl_znodes.acl_path(pattern)
        entry = znodes.Change(acls=(path,)).encode()
        for _ in range(20):
            node = await self._zookeeper.get(path)
            try:
                present = frozenset[Rule]() if node is None else acl_znodes.decode_rules(node.data)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UnknownServerError(
                    f"The rules at {path} in ZooKeeper cannot be read, so they are not changed: correct or"
                    " delete that node."
                ) from None
            changed = change(present)
            if changed == present:
                return
            write: Operation
            if node is None:
                await self._zookeeper.ensure_paths([path.rpartition("/")[0]])
                write = Create(path, acl_znodes.encode_rules(changed))
            elif changed:
                write = SetData(path, acl_znodes.encode_rules(changed), node.version)
            else:
                write = Delete(path, node.version)
            try:
                await self._zookeeper.multi([write, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
                return
            except Conflict:
                continue
        raise UnknownServerError(f"The rules of {pattern} are being changed by others; try again.")

    async def forget_deleted_topic(self, topic_id: UUID) -> None:
        """Record that this broker holds no files of a deleted topic any more; the last broker removes the
        node."""
        path = f"{znodes.DELETED_TOPICS}/{znodes.encode_uuid(topic_id)}"
        while True:
            node = await self._zookeeper.get(path)
            if node is None:
                return
            topic, brokers = znodes.decode_deleted_topic(node.data)
            left = brokers - {self._broker_id}
            if left == brokers:
                return
            operation: Operation = (
                SetData(path, znodes.encode_deleted_topic(topic, left), node.version)
                if left
                else Delete(path, node.version)
            )
            try:
                await self._zookeeper.multi([operation])
                return
            except Conflict:
                continue

    async def wait_removed(
        self, topic_id: UUID, live: Callable[[], Collection[int]], timeout_ms: float
    ) -> None:
        """Return when no live broker has files of a deleted topic any more, or when the time is over."""
        path = f"{znodes.DELETED_TOPICS}/{znodes.encode_uuid(topic_id)}"
        changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    node = await self._zookeeper.get(path, changed.set)
                    if node is None or not znodes.decode_deleted_topic(node.data)[1] & set(live()):
                        return
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass  # the topic is deleted; a broker that is slow removes its files later

    async def deleted_topics(self) -> dict[UUID, str]:
        """Deleted topics of which some broker still has files."""
        names = await self._zookeeper.children(znodes.DELETED_TOPICS)
        nodes = await self._zookeeper.get_many([f"{znodes.DELETED_TOPICS}/{name}" for name in names])
        topics = {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                try:
                    topics[znodes.decode_uuid(name)] = znodes.decode_deleted_topic(node.data)[0]
                except NewerFormat as error:
                    logger.error(
                        "newer format of a deleted topic, whose files stay: upgrade this broker",
                        topic_id=name,
                        reason=str(error),
                    )
        return topics


def _grown(topic: str, node: Node | None, added: Mapping[int, tuple[int, ...]]) -> bytes:
    """The data of a topic's node with more partitions.

    Raises:
        UnknownTopicOrPartition, InvalidPartitions: as `grow_topics`.
    """
    if node is None:
        raise UnknownTopicOrPartition(f"Topic '{topic}' does not exist.")
    assignment = znodes.TopicAssignment.decode(topic, node.data, node.version)
    if min(added) != len(assignment.replicas):
        raise InvalidPartitions(f"Topic '{topic}' has grown meanwhile; try again.")
    return znodes.TopicAssignment(
        topic,
        assignment.topic_id,
        {**assignment.replicas, **added},
        assignment.adding_replicas,
        assignment.removing_replicas,
    ).encode()
