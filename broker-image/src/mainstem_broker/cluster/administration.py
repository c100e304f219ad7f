"""What handlers ask of the cluster: topics and settings written to ZooKeeper as wishes.

Any broker may write these; each write appends to the feed of changes in the same multi, so that all
brokers hear of it and the controller carries it out (`member.py`). Nothing here waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from uuid import UUID

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    SetData,
    ZooKeeperSession,
)
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)


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
        topic = assignment.topic
        config_path = znodes.topic_config_path(topic)
        data = znodes.encode_config(config)
        entry = znodes.Change(topics=(topic,)).encode()
        while True:
            leftover = await self._zookeeper.get(config_path)
            try:
                await self._zookeeper.multi(
                    [
                        Create(znodes.topic_path(topic), assignment.encode()),
                        Create(config_path, data) if leftover is None else SetData(config_path, data),
                        Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                    ]
                )
                return
            except Conflict:
                if await self._zookeeper.get(znodes.topic_path(topic)) is not None:
                    raise TopicAlreadyExists(f"Topic '{topic}' already exists.") from None
                # It was the settings that came or went meanwhile, with an earlier topic of this name.

    async def grow_topic(self, topic: str, added: Mapping[int, tuple[int, ...]]) -> None:
        """Add partitions to a topic.

        Raises:
            UnknownTopicOrPartition: there is none of that name.
            InvalidPartitions: it changed meanwhile.
        """
        node = await self._zookeeper.get(znodes.topic_path(topic))
        if node is None:
            raise UnknownTopicOrPartition(f"Topic '{topic}' does not exist.")
        known = znodes.TopicAssignment.decode(topic, node.data, node.version)
        if known.replicas.keys() & added.keys():
            raise InvalidPartitions(f"Topic '{topic}' has grown meanwhile; ask again.")
        grown = znodes.TopicAssignment(
            topic,
            known.topic_id,
            {**known.replicas, **added},
            known.adding_replicas,
            known.removing_replicas,
        )
        entry = znodes.Change(topics=(topic,)).encode()
        try:
            await self._zookeeper.multi(
                [
                    SetData(znodes.topic_path(topic), grown.encode(), node.version),
                    Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                ]
            )
        except Conflict:
            raise InvalidPartitions(f"Topic '{topic}' has changed meanwhile; ask again.") from None

    async def change_assignment(
        self, topic: str, topic_id: UUID, change: Callable[[znodes.TopicAssignment], znodes.TopicAssignment]
    ) -> int:
        """Replace a topic's assignment by `change(present one)`; answer the version that says so.

        `change` may be called several times, as others may change it too.

        Raises:
            UnknownTopicOrPartition: the topic is gone.
        """
        entry = znodes.Change(topics=(topic,)).encode()
        while True:
            node = await self._zookeeper.get(znodes.topic_path(topic))
            if node is None:
                raise UnknownTopicOrPartition(f"There is no topic '{topic}'.")
            known = znodes.TopicAssignment.decode(topic, node.data, node.version)
            if known.topic_id != topic_id:
                raise UnknownTopicOrPartition(f"Topic '{topic}' has been deleted and made again; ask again.")
            changed = change(known)
            if changed == known:
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
        """Ask for elections: (topic id, partition, kind). Whoever dies before it has heard does nothing."""
        entry = znodes.Change(elections=tuple(elections)).encode()
        await self._zookeeper.multi([Create(znodes.CHANGE_PREFIX, entry, sequential=True)])

    async def delete_topic(self, topic: str, topic_id: UUID) -> None:
        """Ask the controller to delete a topic; asking twice, or too late, is the same as once.

        Never leaves a marker for a topic that is gone: it would delete the next one of that name.
        """
        path, marker = znodes.topic_path(topic), znodes.deletion_path(topic)
        entry = znodes.Change(deletions=(topic_id,)).encode()
        while True:
            node = await self._zookeeper.get(path)
            if node is None or znodes.TopicAssignment.decode(topic, node.data, 0).topic_id != topic_id:
                return
            try:
                await self._zookeeper.multi(
                    [
                        Check(path, node.version),
                        Create(marker, b""),
                        Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                    ]
                )
                return
            except Conflict:
                if await self._zookeeper.get(marker) is not None:
                    return

    async def change_config(
        self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace an entity's settings by `change(present settings)`; `entity` as in `znodes.config_path`.

        Raises:
            InvalidConfig: they were changed by others at the same time, again and again.
        """
        path = znodes.config_path(entity)
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
        raise InvalidConfig(f"The settings of {entity} are being changed by others; ask again.")

    async def forget_deleted_topic(self, topic_id: UUID) -> None:
        """Note that this broker holds no files of a deleted topic any more; the last one removes the note."""
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
        return {
            znodes.decode_uuid(name): znodes.decode_deleted_topic(node.data)[0]
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
