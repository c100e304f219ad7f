"""Members of a cluster over a real ZooKeeper, many in one process, with handles to hold them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID, uuid4

from kazoo.client import KazooClient
from tests.support.waiting import let_pass

from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.member import BeginLease, ClusterMember
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.cluster.zookeeper import ZooKeeper
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.partition_state import PartitionState

SESSION_TIMEOUT_MS: Final = 4000
WAIT_MS: Final = 120_000


class Member(ClusterMember):
    """A member that notes its news, and whose passes can be held back."""

    def __init__(self, broker_id: int, servers: str, host: str, session_timeout_ms: int) -> None:
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", host, 9090 + broker_id)
        self.news: list[Delta] = []
        self.broker_id = broker_id
        self.lease = Lease(time.monotonic, session_timeout_ms / 1000)
        self.unclean = False
        """`unclean.leader.election.enable` for all topics, as set for all brokers."""
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._stands_still = asyncio.Event()
        super().__init__(
            BrokerRegistration(broker_id, (endpoint,), None),
            lambda listener: ZooKeeper(servers, session_timeout_ms, listener),
            self.lease,
            now_s=time.monotonic,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=WAIT_MS,
            on_settings=self._take_settings,
            on_change=self._take_news,
            policy_of=lambda topic: ElectionPolicy(
                int(topic.config.get("min.insync.replicas", "1")),
                self.unclean or topic.config.get("unclean.leader.election.enable") == "true",
            ),
        )

    async def _take_news(self, delta: Delta, begin_lease: BeginLease | None) -> None:
        if begin_lease is not None:
            begin_lease()
        if delta:
            self.news.append(delta)

    def _take_settings(self) -> None:
        _, for_all = self.view.dynamic_broker_config(self.broker_id)
        self.unclean = for_all.get("unclean.leader.election.enable") == "true"

    async def hold_back(self) -> None:
        """Let it begin no pass until `let_go`, as if the broker stalled; returns when it stands still."""
        self._may_pass.clear()
        self._stands_still.clear()
        self._wake.set()
        await self._stands_still.wait()

    def let_go(self) -> None:
        self._may_pass.set()

    async def _pass(self) -> None:
        if not self._may_pass.is_set():
            self._stands_still.set()
            await self._may_pass.wait()
        await super()._pass()

    @property
    def session_id(self) -> int:
        return self._zookeeper.session_id

    async def until(self, condition: Callable[[], object]) -> None:
        """Until `condition()` holds of the view; it does not while what it looks for is not known yet. Fails
        after WAIT_MS.
        """

        def holds() -> bool:
            try:
                return bool(condition())
            except KeyError:  # a topic, or a partition of it
                return False

        await self.wait_until(holds, WAIT_MS)

    def knows(self, topic: str, topic_id: UUID | None = None) -> bool:
        """Whether it knows the topic, and all its partitions are led."""
        current = self.view.topics.get(topic)
        return (
            current is not None
            and (topic_id is None or current.topic_id == topic_id)
            and current.all_led(current.assignment.replicas)
        )

    def states_of(self, topic: str) -> dict[int, PartitionState]:
        return dict(self.view.topics[topic].states)

    def told(self, topic: str) -> set[int]:
        """Partitions of which the news spoke."""
        return {index for delta in self.news for name, index in delta.partitions if name == topic}

    async def create(
        self, topic: str, leaders: Sequence[int], config: Mapping[str, str] | None = None
    ) -> UUID:
        """Wish for a topic with one partition for each of these brokers; does not wait for it."""
        return await self.create_replicated(topic, [(leader,) for leader in leaders], config)

    async def create_replicated(
        self, topic: str, replicas: Sequence[tuple[int, ...]], config: Mapping[str, str] | None = None
    ) -> UUID:
        """Likewise, with one partition for each of these sets of replicas."""
        assignment = TopicAssignment(topic, uuid4(), dict(enumerate(replicas)))
        await self.administration.create_topic(assignment, config or {})
        return assignment.topic_id


@asynccontextmanager
async def joined(
    broker_id: int,
    servers: str,
    *,
    host: str = "127.0.0.1",
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    stopped_uncleanly: bool = False,
) -> AsyncIterator[Member]:
    """A member from its start to its end."""
    member = Member(broker_id, servers, host, session_timeout_ms)
    try:
        await member.connect()
        await member.load()
        await member.join(stopped_uncleanly=stopped_uncleanly)
        yield member
    finally:
        member.let_go()
        await member.leave()


def client_of(member: Member) -> KazooClient:
    """The client of a member's session."""
    assert isinstance(member._zookeeper, ZooKeeper)
    return member._zookeeper._client


def is_registered(shell: KazooClient, member: Member) -> bool:
    """Whether the member's present session owns the registration of its broker."""
    stat = shell.exists(f"/brokers/ids/{member.broker_id}")
    return stat is not None and stat.ephemeralOwner == member.session_id != 0


async def end_session(member: Member, servers: str) -> None:
    """End a member's session from outside, as if ZooKeeper had not heard from it for too long.

    Another client takes the session over and closes it, unless the member's own client, which has lost its
    connection, is faster and takes it back. Then it is tried again.
    """
    client = client_of(member)
    session = client.client_id

    def end() -> None:
        while client.client_id == session:
            other = KazooClient(servers, client_id=session, timeout=SESSION_TIMEOUT_MS / 1000)
            other.start()
            other.stop()
            other.close()
            let_pass(0.05, "the member's client hears of it")

    await asyncio.to_thread(end)
