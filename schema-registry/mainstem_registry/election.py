"""Which instance leads: a consumer group whose members are the instances.

Members subscribe to the topic and get no partitions. Each sends its URL as user data when it joins; the
assignment, made by the member that the group's coordinator chose, carries the URL of the leader to all. The
leader of the previous generation remains, if it is still there, so that instances that come and go do not
move it.

A leader that is cut off does not notice at once that another was elected: what it writes meanwhile is
judged when it is read back (see `state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from mainstem_registry.client_security import Brokers

logger = structlog.get_logger(__name__)

VERSION: Final = 0
"""Of the formats of the consumer protocol: the first, whose user data all brokers carry."""


def choose_leader(members: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What each member learns: the leader's URL, or nothing if it has that URL and does not lead.

    `members` is what each said of itself: {"url": ..., "leads": whether it led before}. Among several that
    led, or none, the smallest member id decides: it only matters that one is chosen.
    """
    ordered = sorted(members.items(), key=lambda member: (not member[1].get("leads"), member[0]))
    leader, said = ordered[0]
    url = str(said.get("url", ""))
    return {member: "" if member != leader and said.get("url") == url else url for member, said in ordered}


class Election:
    """This instance's membership. `leader_url` is None until a first generation is complete."""

    def __init__(
        self, brokers: Brokers, topic: str, group_id: str, url: str, session_timeout_ms: int
    ) -> None:
        self._brokers = brokers
        self._topic = topic
        self._group_id = group_id
        self._url = url
        self._session_timeout_ms = session_timeout_ms
        self.leader_url: str | None = None
        self.generation = 0
        """Grows with each assignment: what a leader knew before may be old."""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self.leader_url == self._url

    def start(self) -> None:
        self._task = asyncio.create_task(self._take_part())

    async def stop(self) -> None:
        """Leave the group, so that another is elected at once."""
        self.leader_url = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait_for_leader(self, timeout_s: float) -> str | None:
        """The leader's URL as soon as it is known; None after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.leader_url is not None)
        except TimeoutError:
            return None
        return self.leader_url

    async def _take_part(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(
                self._topic,
                **self._brokers.arguments(),
                group_id=self._group_id,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                partition_assignment_strategy=[self._assignor()],
                session_timeout_ms=self._session_timeout_ms,
                heartbeat_interval_ms=max(100, self._session_timeout_ms // 4),
                rebalance_timeout_ms=self._session_timeout_ms,
            )
            try:
                await consumer.start()
                # A member must seem to read, or it is taken for stuck. There are no partitions to read from.
                await consumer.getone()
            except (KafkaError, OSError, ValueError) as error:  # a login by SCRAM may end in a ValueError
                logger.warning("the election is interrupted", error=str(error))
                self.leader_url = None
                await asyncio.sleep(1)
            finally:
                await consumer.stop()

    def _assignor(self) -> type[AbstractPartitionAssignor]:
        election = self

        class LeaderAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka is not typed
            name = "mainstem-schema-registry"

            @classmethod
            def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
                said = orjson.dumps({"url": election._url, "leads": election.is_leader})
                return ConsumerProtocolMemberMetadata(VERSION, list(topics), said)

            @classmethod
            def assign(
                cls, _cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
            ) -> dict[str, ConsumerProtocolMemberAssignment]:
                said = {member: orjson.loads(metadata.user_data) for member, metadata in members.items()}
                return {
                    member: ConsumerProtocolMemberAssignment(VERSION, [], learned.encode())
                    for member, learned in choose_leader(said).items()
                }

            @classmethod
            def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
                election._learn(assignment.user_data.decode())

        return LeaderAssignor

    def _learn(self, leader_url: str) -> None:
        self.generation += 1
        if not leader_url:
            # Two instances that take each other for themselves would both write.
            logger.error(
                "another instance has this one's URL and leads: give each its own with --advertised-url",
                url=self._url,
            )
            self.leader_url = None
            return
        if leader_url != self.leader_url:
            logger.info("leader elected", leader=leader_url, is_leader=leader_url == self._url)
        self.leader_url = leader_url
        self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()
