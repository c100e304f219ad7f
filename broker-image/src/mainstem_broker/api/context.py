"""What a handler is given: the broker it works for, and the request's surroundings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

import structlog

from mainstem_broker.cluster.config_entities import group_path, user_path
from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.group_settings import GroupConfig
from mainstem_broker.config.topic_configs import TopicConfigs
from mainstem_broker.errors import (
    InvalidSetting,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicOrPartition,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC, GroupCoordinator
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import ClientQuotas, Mutations
from mainstem_broker.replica.consumer_sessions import ConsumerSessions
from mainstem_broker.replica.follower_sessions import FollowerSessions
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.opening import ReplicasBeingOpened
from mainstem_broker.replica.partition import Partition
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.runtime.fair_worker import FairWorker
from mainstem_broker.security.audit_log import AuditLog
from mainstem_broker.security.authorizer import Authorizer
from mainstem_broker.security.login import Login
from mainstem_broker.security.principals import ANONYMOUS, Principal
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism, credential_of
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator
from mainstem_broker.txn.verification import TransactionVerifier

logger = structlog.get_logger(__name__)

_MILLISECOND: Final = timedelta(milliseconds=1)

INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
"""What brokers keep for themselves: clients may not produce there, and no pattern of theirs matches them."""
CATCH_UP_TIMEOUT_MS: Final = 1_000
"""The feed of changes takes milliseconds; a ZooKeeper that does not answer, or a controller in the middle of
thousands of elections, takes this long, and then the answer is what this broker knows."""


@dataclass(slots=True)
class BrokerContext:
    """The running broker, as far as APIs need it. `config` is replaced when dynamic settings change."""

    broker_id: int
    config: BrokerConfig
    member: ClusterMember
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    quotas: ClientQuotas
    verifier: TransactionVerifier
    authorizer: Authorizer | None = None
    """None where every client may do everything."""
    follower_sessions: FollowerSessions = field(default_factory=FollowerSessions)
    opening: ReplicasBeingOpened = field(default_factory=ReplicasBeingOpened)
    decoding: FairWorker = field(default_factory=lambda: FairWorker("decoding"))
    """Decodes batches for clients, where that takes more time than the event loop has."""
    disk: DiskReads = field(default_factory=DiskReads)

    audit: AuditLog = field(init=False)
    consumer_sessions: ConsumerSessions = field(init=False)
    topic_configs: TopicConfigs = field(init=False)

    def __post_init__(self) -> None:
        self.topic_configs = TopicConfigs(lambda: self.config, _log_invalid_settings)
        self.consumer_sessions = ConsumerSessions(
            self.config.integer("max.incremental.fetch.session.cache.slots")
        )
        self.audit = AuditLog(lambda: self.config.string("audit.log.categories").split(","))

    @property
    def view(self) -> ClusterView:
        return self.member.view

    def find_replica(self, topic: str, partition: int) -> Partition:
        """The local replica of a partition.

        Raises:
            StorageError: its disk failed.
            NotLeaderOrFollower: the cluster has the partition, but this broker does not, or not yet.
            UnknownTopicOrPartition: the cluster does not have it.
        """
        replica = self.replicas.find(topic, partition)
        if replica is not None:
            return replica
        cluster_topic = self.view.topics.get(topic)
        offline_id = self.replicas.offline.get((topic, partition))
        if cluster_topic is not None and offline_id == cluster_topic.topic_id:
            raise StorageError(f"{topic}-{partition} is offline here: its data directory failed.")
        if cluster_topic is not None and partition in cluster_topic.assignment.replicas:
            raise NotLeaderOrFollower(f"{topic}-{partition} is not on this broker.")
        raise UnknownTopicOrPartition(f"There is no {topic}-{partition}.")

    def require_topic(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        topic = self.view.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'.")
        return topic

    def group_config(self, group_id: str) -> GroupConfig:
        """The settings of a group: its own over the broker's."""
        overrides = self.view.entity_configs.get(group_path(group_id), {})
        try:
            return self.config.group(overrides)
        except InvalidSetting:
            return self.config.group({})  # written to ZooKeeper by hand: wrong settings do not count

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """What a login of this user is checked against; None if the user cannot log in by this mechanism."""
        return credential_of(self.view.entity_configs.get(user_path(user), {}), mechanism)

    def scram_login(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """As `scram_credential`; a decoy, by which nobody can log in, if that is None."""
        decoy = self.view.scram_decoys.credential(mechanism, user)  # in both cases: they take the same time
        return self.scram_credential(user, mechanism) or decoy

    def leads_all(self, partitions: Iterable[tuple[str, int]]) -> bool:
        """Whether this broker leads all of them, as far as it knows."""
        find = self.replicas.find
        for topic, index in partitions:
            partition = find(topic, index)
            if partition is None or not partition.is_leader:
                return False
        return True

    def close(self, *, wait: bool = False) -> None:
        """End the threads that work for clients; as `FairWorker.close`."""
        self.decoding.close(wait=wait)
        self.disk.close(wait=wait)

    async def catch_up(self) -> None:
        """Read the feed of changes before a client is refused because this broker may lag behind others."""
        await self.member.catch_up(CATCH_UP_TIMEOUT_MS)

    async def catch_up_with(self, partitions: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`catch_up`, and wait for those of the partitions whose logs are being created."""
        await self.catch_up()
        if self.opening:
            await self.opening.wait(partitions(), CATCH_UP_TIMEOUT_MS / 1000)

    def now_ms(self) -> int:
        return int(time.time() * 1000)


class RequestContext(NamedTuple):
    """`version` is the one the client spoke; the entity is of the API's model version. `principal` is the
    connection's when the request came, and `login` its login where the listener demands one. `begun_s` is set
    where a handler gets one of several slices of a request: the loop's time when the request began."""

    version: int
    client_id: str | None
    peer: str
    listener: str
    principal: Principal = ANONYMOUS
    login: Login | None = None
    begun_s: float | None = None

    def deadline_s(self, timeout_ms: int) -> float:
        """The loop's time at which the request's timeout is over, which all its slices share."""
        begun_s = asyncio.get_running_loop().time() if self.begun_s is None else self.begun_s
        return begun_s + timeout_ms / 1000

    def mutations(self, broker: BrokerContext, *, strict: bool) -> Mutations:
        """What the request takes of controller_mutation_rate; `strict`: its client knows that refusal."""
        return broker.quotas.mutations(
            self.principal.name,
            self.client_id or "",
            time.monotonic() * 1000,
            strict=strict,
        )

    @property
    def host(self) -> str:
        """The client's address."""
        return self.peer.rpartition(":")[0]


def _log_invalid_settings(topic: str, reason: str) -> None:
    logger.error("topic setting ignored", topic=topic, reason=reason)


Handler = Callable[[BrokerContext, Entity, RequestContext], Body | Awaitable[Body | None] | None]
"""Answers a body, or None for no response. Async only where something must be waited for."""


def milliseconds(duration: timedelta) -> int:
    """kio's durations of 32 bits are timedeltas. Their seconds are floats, which are off by one for some."""
    return duration // _MILLISECOND
