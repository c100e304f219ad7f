"""A coordinator of groups over its real partition of `__consumer_offsets` (see `LocalPartition`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from tests.unit.broker.coordinator.local_partition import LocalPartition

from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.group.bridge.migration import MigrationPolicy
from mainstem_broker.group.classic.rebalancing import ClassicPolicy
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.coordinator import OFFSETS_TOPIC, CoordinatorSettings, GroupCoordinator
from mainstem_broker.group.messages import Commit, Join, JoinAnswer, Sync, SyncAnswer
from mainstem_broker.group.offsets.records import CommittedOffset
from mainstem_broker.group.shard import GroupPolicies, GroupShard

SUBSCRIPTION = bytes.fromhex("0001 00000001 0001 74 ffffffff")
"""Of the topic "t"."""

_numbers = count(1)


@dataclass
class PlayedTopics:
    ids: dict[str, UUID] = field(default_factory=lambda: {"t": uuid4(), "u": uuid4()})

    version: int = 0

    def topic_id(self, name: str) -> UUID | None:
        return self.ids.get(name)

    def name(self, topic_id: UUID) -> str | None:
        return next((name for name, other_id in self.ids.items() if other_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.ids

    def partition_count(self, name: str) -> int:
        return 1 if name == OFFSETS_TOPIC else 4


class LocalCoordinator(LocalPartition):
    """One coordinator; `restart` is another broker, or this one, that begins from the log."""

    def __init__(
        self,
        directory: Path,
        *,
        followers: bool = False,
        min_insync_replicas: int = 1,
        members_max: int = 100,
        retention_ms: int = 10_000,
        check_interval_ms: int = 3_600_000,
        max_message_bytes: int = 1_048_576,
        migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
    ) -> None:
        config = {
            "min.insync.replicas": str(min_insync_replicas),
            "max.message.bytes": str(max_message_bytes),
        }
        super().__init__(directory, OFFSETS_TOPIC, followers=followers, config=config)
        self.topics = PlayedTopics()
        self._settings = CoordinatorSettings(
            GroupPolicies(
                ClassicPolicy(0, members_max),
                ConsumerPolicy(lambda _: 10_000, members_max, ("uniform", "range")),
                migration,
            ),
            has_consumer_protocol=True,
            session_timeout_ms_min=10,
            session_timeout_ms_max=60_000,
            offsets_retention_ms=retention_ms,
            retention_check_interval_ms=check_interval_ms,
            commit_timeout_ms=1_000,
            metadata_size_max=100,
        )
        self.coordinator = self._new()

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(self._settings, self.topics, lambda _: self.partition, lambda: self.now_ms)

    @property
    def shards(self) -> Shards[GroupShard]:
        return self.coordinator.shards

    # --- Leadership ---

    def set_in_sync(self, isr: tuple[int, ...]) -> None:
        """Another in-sync set within the leader epoch of broker 1."""
        self.isr = isr
        self._set_state(1)

    async def restart(self) -> None:
        await self.coordinator.shards.stop()
        self.follow()
        self.coordinator = self._new()
        await self.load()

    @property
    def shard(self) -> GroupShard:
        shard = self.coordinator.shards.find(0)
        assert shard is not None
        return shard

    # --- What clients ask ---

    def ask_join(
        self,
        group_id: str,
        member_id: str = "",
        *,
        session_ms: int = 10_000,
        subscription: bytes = SUBSCRIPTION,
        instance_id: str | None = None,
    ) -> asyncio.Future[JoinAnswer]:
        def make_request(number: int) -> Join:
            return Join(
                number,
                member_id,
                f"member-{next(_numbers)}",
                instance_id,
                "client",
                "/127.0.0.1",
                session_ms,
                20_000,
                "consumer",
                (("range", subscription),),
                must_know_id=False,
                may_skip_assignment=False,
            )

        return self.coordinator.join(group_id, make_request)

    def ask_sync(self, group_id: str, joined: JoinAnswer) -> asyncio.Future[SyncAnswer]:
        return self.coordinator.sync(
            group_id,
            lambda number: Sync(
                number, joined.member_id, None, joined.generation, None, None, ((joined.member_id, b"all"),)
            ),
        )

    async def member(self, group_id: str, **how: Any) -> JoinAnswer:
        """A lone member of a stable group."""
        joined = await self.ask_join(group_id, **how)
        assert joined.error_code == 0
        synced = self.ask_sync(group_id, joined)
        if self.isr != (1,):
            self.replicate()
        assert (await synced).error_code == 0
        return joined

    def commit(
        self,
        group_id: str,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        member: JoinAnswer | None = None,
        metadata: str = "",
        expire_ms: int | None = None,
    ) -> asyncio.Future[None]:
        value = CommittedOffset(offset, 3, metadata, self.now_ms, expire_ms, self.topics.topic_id(topic))
        member_id, generation = ("", -1) if member is None else (member.member_id, member.generation)
        commit = Commit(member_id, None, generation, 9)
        return self.coordinator.commit(group_id, commit, {(topic, partition): value})

    def committed(self, group_id: str, topic: str = "t", partition: int = 0) -> int | None:
        offsets = self.coordinator.committed(group_id, [(topic, partition)])
        return offsets[topic, partition].offset if offsets else None


@asynccontextmanager
async def loaded(directory: Path, **options: Any) -> AsyncIterator[LocalCoordinator]:
    """A coordinator that has loaded an empty partition; the options are those of `LocalCoordinator`."""
    local = LocalCoordinator(directory, **options)
    await local.load()
    try:
        yield local
    finally:
        await local.coordinator.shards.stop()
