"""FindCoordinator (key 10, versions 0 to 6): which broker coordinates a group or a transactional id.

- It is the leader of the key's partition of `__consumer_offsets` (key type 0) or `__transaction_state` (1).
  The topic is created at the first request, unless fewer brokers are up than it has replicas (KIP-115).
- v1 key types; v3 flexible; v4 several keys at once; v6 the type of share groups, which are not served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mainstem_broker.api.authorization import require
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.topics import create_topic
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.coordinator.key_placement import partition_of_key
from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InvalidReplicationFactor,
    InvalidRequest,
    ProtocolError,
    RequestTimedOut,
    TopicAlreadyExists,
    TransactionalIdAuthorizationFailed,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import Operation, ResourceType
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1

TOPIC_TIMEOUT_MS: Final = 5_000
"""How long a request waits for the topic to be created; the client retries after that."""


@dataclass(frozen=True, slots=True)
class CoordinatorTopic:
    """The topic in which a kind of coordinators keeps its state, and the prefix of the settings for it."""

    name: str
    settings: str
    resource: ResourceType

    def replication_factor(self, config: BrokerConfig) -> int:
        return config.integer(f"{self.settings}.replication.factor")

    def partition_count(self, config: BrokerConfig) -> int:
        return config.integer(f"{self.settings}.num.partitions")

    def overrides(self, config: BrokerConfig) -> dict[str, str]:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.integer(f"{self.settings}.segment.bytes")),
        }
        if self.name == TRANSACTIONS_TOPIC:
            # A record of a transaction that gets lost would tear it, so no unclean leader may be elected.
            settings |= {
                "min.insync.replicas": str(config.integer(f"{self.settings}.min.isr")),
                "unclean.leader.election.enable": "false",
            }
        return settings


_TOPICS: Final[Mapping[int, CoordinatorTopic]] = {
    GROUP_KEY: CoordinatorTopic(OFFSETS_TOPIC, "offsets.topic", ResourceType.GROUP),
    TRANSACTION_KEY: CoordinatorTopic(
        TRANSACTIONS_TOPIC, "transaction.state.log", ResourceType.TRANSACTIONAL_ID
    ),
}

COORDINATOR_TOPICS: Final[Mapping[str, CoordinatorTopic]] = {topic.name: topic for topic in _TOPICS.values()}
"""By name."""

_FINAL: Final = (0, GroupAuthorizationFailed.code, TransactionalIdAuthorizationFailed.code)
"""Codes that the latest news do not change."""


def handle(
    broker: BrokerContext, request: FindCoordinatorRequest, context: RequestContext
) -> Body | Awaitable[Body]:
    keys = request.coordinator_keys if context.version >= 4 else (request.key,)
    topic = _TOPICS.get(request.key_type)
    coordinators = [_coordinator(broker, topic, key, context) for key in keys]
    if topic is not None and any(one["error_code"] not in _FINAL for one in coordinators):
        return _find_after_news(broker, topic, keys, context)
    return _body(coordinators, context)


async def _find_after_news(
    broker: BrokerContext, topic: CoordinatorTopic, keys: Iterable[str], context: RequestContext
) -> Body:
    """Answer after hearing the latest news, and after creating the topic if there is none."""
    await broker.catch_up()
    if topic.name not in broker.view.topics:
        await _create(broker, topic)
    return _body([_coordinator(broker, topic, key, context) for key in keys], context)


async def _create(broker: BrokerContext, topic: CoordinatorTopic) -> None:
    try:
        await create_topic(
            broker,
            topic.name,
            partition_count=topic.partition_count(broker.config),
            replication_factor=topic.replication_factor(broker.config),
            overrides=topic.overrides(broker.config),
            timeout_ms=TOPIC_TIMEOUT_MS,
        )
    except TopicAlreadyExists:
        await broker.catch_up()  # another broker had the same request at the same time
    except InvalidReplicationFactor:
        pass  # fewer brokers are up than the topic needs: clients retry until there are enough (KIP-115)
    except RequestTimedOut:
        pass  # the client retries


def _coordinator(
    broker: BrokerContext, topic: CoordinatorTopic | None, key: str, context: RequestContext
) -> Body:
    try:
        if topic is None:
            raise InvalidRequest("There are only coordinators of groups (key type 0) and transactions (1).")
        require(broker, context, Operation.DESCRIBE, topic.resource, key)
        cluster_topic = broker.view.topics.get(topic.name)
        if cluster_topic is None:
            raise CoordinatorNotAvailable(_why_missing(broker, topic))
        state = cluster_topic.states.get(partition_of_key(key, len(cluster_topic.assignment.replicas)))
        leader = -1 if state is None else state.leader
        registration = broker.view.brokers.get(leader)
        endpoint = None if registration is None else registration.endpoint(context.listener)
        if endpoint is None:
            raise CoordinatorNotAvailable("The coordinator is being elected.")
    except ProtocolError as error:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error.code,
            "error_message": error.message,
        }
    return {
        "key": key,
        "node_id": leader,
        "host": endpoint.host,
        "port": endpoint.port,
        "error_code": 0,
        "error_message": None,
    }


def _why_missing(broker: BrokerContext, topic: CoordinatorTopic) -> str:
    brokers_needed = topic.replication_factor(broker.config)
    brokers_up = len(broker.view.brokers)
    if brokers_up < brokers_needed:
        return (
            f"{topic.name} cannot be created: {topic.settings}.replication.factor is {brokers_needed}, and"
            f" the number of brokers that are up is {brokers_up}."
        )
    return f"{topic.name} is being created."


def _body(coordinators: list[Body], context: RequestContext) -> Body:
    if context.version >= 4:
        return {"throttle_time": 0, "coordinators": coordinators}
    (one,) = coordinators
    return {"throttle_time": 0, **{name: value for name, value in one.items() if name != "key"}}
