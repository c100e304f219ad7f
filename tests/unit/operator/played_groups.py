"""Brokers with consumer groups, played as far as resets go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.topic_state import GroupState, PartitionState, TopicPartition, TopicState
from mainstem_operator.proofs import OffsetMove


class PlayedGroups:
    """Groups without members that have consumed ten records, and consume them again after each reset.

    `refuses` is a group whose offsets are refused; `without_coordinator` one whose coordinator is away.
    """

    def __init__(self, operators: int = 1, refuses: str = "") -> None:
        self._both = asyncio.Barrier(operators)
        self._read: set[asyncio.Task[Any] | None] = set()
        self._refuses = refuses
        self.put: list[tuple[str, dict[TopicPartition, int]]] = []
        self.is_reachable = True
        self.without_coordinator = ""

    async def groups(self, group_names: Iterable[str]) -> dict[str, GroupState | str]:
        if not self.is_reachable:
            raise BrokersUnreachable("No broker of events:9092 answered.")
        return {name: GroupState(name, "EMPTY", 0, {("clicks", 0): 10}) for name in group_names}

    async def topics(self, topic_names: Iterable[str]) -> dict[str, TopicState]:
        if (task := asyncio.current_task()) not in self._read:  # before any operator notes what it will do
            self._read.add(task)
            await self._both.wait()
        partitions = {0: PartitionState(0, (0,), frozenset({0}))}
        return {name: TopicState(name, "id", partitions) for name in topic_names}

    async def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    async def put_offsets(self, proof: OffsetMove) -> dict[TopicPartition, str]:
        if proof.group == self.without_coordinator:
            raise BrokersUnreachable(f"The coordinator of group {proof.group} does not answer.")
        if proof.group == self._refuses:
            raise BrokersRefused("COORDINATOR_NOT_AVAILABLE", "No broker coordinates the group.")
        self.put.append((proof.group, dict(proof.offsets)))
        return {}
