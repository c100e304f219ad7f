"""A broker for tests of handlers: real view, replicas and logs; the cluster around it is played.

Requests go through the codec both ways, as from a client: the request is written by kio and lifted, the
answer is written by our writer and read by kio, and may hold only fields that the schemas know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import UUID, uuid4

import uvloop
from kio.serial import entity_reader
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.waiting import let_pass_async
from tests.unit.broker.at_end import at_end
from tests.unit.broker.protocol.schema_strategies import (
    Shape,
    default_of,
    encode_request,
    request_schema,
    response_schema,
    unknown_fields,
)
from tests.unit.broker.replica.replicas import LIFE, PlayedCoordination, delete_logs, replica_manager
from tests.unit.broker.txn.local_transactions import PlayedMarkers

from mainstem_broker.api.api_table import APIS
from mainstem_broker.api.authorization import refusal
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.administration import Administration, NewTopic
from mainstem_broker.cluster.config_entities import DEFAULT_ENTITY
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.elections import ElectionType, elect_on_request
from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import ProtocolError, RequestTimedOut, TopicAlreadyExists
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.codec import decode_header, decode_request, encode_response
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import ClientQuotas
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.security.acl import ResourcePattern, Rule
from mainstem_broker.security.principals import ANONYMOUS
from mainstem_broker.server.authorization import authorizer_of
from mainstem_broker.server.groups import group_coordinator
from mainstem_broker.server.transactions import transaction_coordinator

BROKER_ID: Final = 1
NOW_MS: Final = 1_750_000_000_000
LISTENER: Final = "PLAINTEXT"

Result = TypeVar("Result")


def run(test: Coroutine[Any, Any, Result]) -> Result:
    """Run an asynchronous test on the loop that the broker uses, and not for ever."""

    async def bounded() -> Result:
        async with asyncio.timeout(60):
            return await test

    return uvloop.run(bounded())


class PlayedCluster:
    """Member and administration in one: wishes come true at once, unless `controller_is_down`."""

    def __init__(self, broker: LocalBroker) -> None:
        self.view = ClusterView(cluster_id="the-cluster", controller_id=2)
        self.administration = self
        self.producer_ids = self
        self.tree_position: TreePosition | None = None
        self.outage: str | None = None
        self.controller_is_down = False
        self.failure: Exception | None = None
        self.on_catch_up: Callable[[], object] | None = None
        self.times_caught_up = 0
        self.topics_per_call: list[int] = []
        self.removal_failure: ProtocolError | None = None
        self.awaited_brokers: set[int] = set()
        """Those that the last deletion waited for."""
        self.elections: list[tuple[UUID, int, int]] = []
        self._broker = broker

    async def wait_until(self, reached: Callable[[], bool], timeout_ms: float) -> None:
        if not reached():
            await let_pass_async(timeout_ms / 1000, "a cluster that carries nothing out takes all the time")
            if not reached():
                raise RequestTimedOut("It was not carried out.")

    async def with_patience(self, step: Callable[[], Awaitable[Result]]) -> Result:
        return await step()

    async def catch_up(self, timeout_ms: float) -> bool:
        self.times_caught_up += 1
        if self.on_catch_up is not None:
            self.on_catch_up()
        return True

    def _may_fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, ProtocolError]:
        errors: dict[str, ProtocolError] = {}
        self.topics_per_call.append(len(list(topics)))
        for assignment, config in topics:
            try:
                self._may_fail()
                if assignment.topic in self.view.topics:
                    raise TopicAlreadyExists("It was faster.")
            except ProtocolError as error:
                errors[assignment.topic] = error
                continue
            self.view.set_topic(assignment, config)
            if not self.controller_is_down:
                self._broker.elect(assignment.topic)
        return errors

    async def grow_topics(
        self, added: Mapping[str, Mapping[int, tuple[int, ...]]]
    ) -> dict[str, ProtocolError]:
        self.topics_per_call.append(len(added))
        try:
            for topic, partitions in added.items():
                self._grow(topic, partitions)
        except ProtocolError as error:
            return dict.fromkeys(added, error)
        return {}

    def _grow(self, topic: str, added: Mapping[int, tuple[int, ...]]) -> None:
        self._may_fail()
        current = self.view.topics[topic].assignment
        grown = TopicAssignment(
            topic, current.topic_id, {**current.replicas, **added}, version=current.version + 1
        )
        self.view.set_topic(grown, self.view.topics[topic].config)
        if not self.controller_is_down:
            self._broker.elect(topic)

    async def change_assignment(
        self, topic: str, topic_id: UUID, change: Callable[[TopicAssignment], TopicAssignment]
    ) -> int:
        self._may_fail()
        current = self.view.topics[topic].assignment
        assert current.topic_id == topic_id
        changed = replace(change(current), version=current.version + 1)
        self.view.set_topic(changed, self.view.topics[topic].config)
        return changed.version

    async def ask_for_elections(self, elections: Iterable[tuple[UUID, int, int]]) -> None:
        for topic_id, index, kind in elections:
            self.elections.append((topic_id, index, kind))
            if not self.controller_is_down:
                topic = self.view.topics[self.view.topic_names[topic_id]]
                state, replicas = topic.states[index], topic.assignment.replicas[index]
                brokers, policy = self.view.brokers, ElectionPolicy()
                elected = elect_on_request(ElectionType(kind), state, replicas, brokers, policy, {})
                self._broker.set_state(topic.name, index, elected)

    async def delete_topics(self, topics: Mapping[str, UUID]) -> dict[str, ProtocolError]:
        self.topics_per_call.append(len(topics))
        for topic in topics:
            try:
                self._may_fail()
            except ProtocolError as error:
                return dict.fromkeys(topics, error)
            if self.controller_is_down:
                self.view.pending_deletions.add(topic)
            else:
                self._broker.delete(topic)
        return {}

    async def wait_removed(
        self, topic_id: UUID, live: Callable[[], Collection[int]], timeout_ms: float
    ) -> None:
        self.awaited_brokers = set(live())
        if self.removal_failure is not None:
            raise self.removal_failure

    async def change_config(
        self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        self._may_fail()
        kind, _, name = entity.partition("/")
        if kind == "topics":
            topic = self.view.topics[name]
            topic.config = dict(change(topic.config))
        elif kind != "brokers":
            self.view.set_config(entity, change(self.view.entity_configs.get(entity, {})))
        else:
            self.view.set_config(entity, change(self.view.broker_configs.get(name, {})))
            self._broker.context.config = self._broker.context.config.with_dynamic(
                self.view.broker_configs.get(str(BROKER_ID), {}),
                self.view.broker_configs.get(DEFAULT_ENTITY, {}),
            )

    async def change_rules(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Rule]], frozenset[Rule]]
    ) -> None:
        self._may_fail()
        self._broker.set_rules(pattern, change(self.view.acls.get(pattern, frozenset())))

    async def take(self) -> int:
        """An id for a producer."""
        self._may_fail()
        return 1000


class PlayedVerifier:
    """A coordinator that knows every partition as part of its transaction, or answers `codes`."""

    def __init__(self) -> None:
        self.requested: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.codes: dict[TopicPartition, int] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, int]:
        self.requested.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        await asyncio.sleep(0)
        self.meanwhile()
        return {partition: self.codes.get(partition, 0) for partition in partitions}


def context_of(config: BrokerConfig, member: ClusterMember, replicas: ReplicaManager) -> BrokerContext:
    """What handlers of broker `BROKER_ID` are given, with groups and quotas of its settings."""
    groups = group_coordinator(
        config,
        member.view,
        replicas.find,
        lambda group_id: context.group_config(group_id).session_timeout_ms,
        lambda: int(time.time() * 1000),
    )
    quotas = ClientQuotas(
        config.integer("quota.window.num"), 1000 * config.integer("quota.window.size.seconds")
    )
    transactions = transaction_coordinator(
        config,
        member.view,
        replicas.find,
        lambda: member.producer_ids.take(),  # noqa: PLW0108  # members that some tests play have none
        PlayedMarkers(),
        lambda: int(time.time() * 1000),
    )
    verifier = PlayedVerifier()
    context = BrokerContext(
        BROKER_ID, config, member, replicas, groups, transactions, quotas, verifier, authorizer_of(config)
    )
    at_end(partial(context.close, wait=True))
    return context


class LocalBroker:
    """Broker 1 of a cluster of brokers 1 to 3, whose logs lie in `directory`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        config = BrokerConfig({"broker.id": "1", "zookeeper.connect": "z:2181", **(settings or {})})
        logs = LogManager(
            [directory],
            broker_id=BROKER_ID,
            recovery_threads_per_directory=lambda: 1,
            schedule_unlink=lambda paths, _delay_ms: unlink_all(paths),
            on_failure=lambda directory: None,
        )
        self.coordination = PlayedCoordination()
        self.replicas = replica_manager(logs, self.coordination, broker_id=BROKER_ID, now_ms=lambda: NOW_MS)
        self.cluster = PlayedCluster(self)
        self.context = context_of(config, cast(ClusterMember, self.cluster), self.replicas)
        self.context.member.administration = cast(Administration, self.cluster)
        self.client_id = "client"
        self.principal = ANONYMOUS
        self.set_live(1, 2, 3)

    @property
    def view(self) -> ClusterView:
        return self.cluster.view

    def set_live(self, *brokers: int) -> None:
        self.view.set_brokers(
            BrokerRegistration(
                broker, (Endpoint(LISTENER, "PLAINTEXT", f"host{broker}", 9090 + broker),), f"rack{broker}"
            )
            for broker in brokers
        )

    def set_rules(self, pattern: ResourcePattern, rules: Iterable[Rule]) -> None:
        """As the feed would bring them."""
        self.view.set_acls(pattern, frozenset(rules))
        if self.context.authorizer is not None:
            self.context.authorizer.set_rules(pattern, rules)

    def create(
        self,
        topic: str,
        leaders: Sequence[int] = (BROKER_ID,),
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> UUID:
        """A topic with a partition for each of `leaders`, its only replicas."""
        replicas = {index: (leader,) for index, leader in enumerate(leaders)}
        assignment = TopicAssignment(topic, topic_id or uuid4(), replicas)
        self.view.set_topic(assignment, config or {})
        self.elect(topic)
        return assignment.topic_id

    def elect(self, name: str) -> None:
        """What the controller does for partitions without a state, and each broker for those it holds."""
        topic = self.view.topics[name]
        for index, replicas in topic.assignment.replicas.items():
            if index not in topic.states:
                self.set_state(name, index, PartitionState(replicas[0], 0, replicas, 1))

    def set_state(self, name: str, index: int, state: PartitionState) -> None:
        """As the feed would bring it; a state that names no lives was written in those that are."""
        if not state.incarnations:
            state = replace(state, incarnations=dict.fromkeys((state.leader, *state.isr), LIFE))
        assert self.view.set_state(name, index, state)
        topic = self.view.topics[name]
        replicas = topic.assignment.replicas[index]
        if BROKER_ID in replicas:
            config, _ = self.context.config.stored_topic(topic.config)
            self.replicas.update(name, index, topic.topic_id, state, replicas, config)

    def delete(self, name: str) -> None:
        topic_id = self.view.topics[name].topic_id
        self.view.remove_topic(name, topic_id)
        self.replicas.drop(name, topic_id)
        delete_logs(self.replicas)

    def partition(self, topic: str, index: int = 0) -> Partition:
        position = self.replicas.find(topic, index)
        assert position is not None
        return position

    def append(self, topic: str, values: Iterable[bytes], index: int = 0, timestamp_ms: int = NOW_MS) -> int:
        """Append one batch; answers its first offset."""
        appended = append_batch(
            self.partition(topic, index),
            batch(values, timestamp_ms),
            acks=1,
            produce_version=9,
            now_ms=NOW_MS,
        )
        return appended.first_offset

    async def answer(self, name: str, version: int, request: Mapping[str, Any]) -> Body:
        """The body that the API called `name` answers, after a way through the codec."""
        body = await self.answer_or_none(name, version, request)
        assert body is not None
        return body

    async def answer_or_none(self, name: str, version: int, request: Mapping[str, Any]) -> Body | None:
        (api,) = (api for api in APIS.values() if api.name == name)
        return await self.answer_to(make(request_schema(api.key, version), request))

    async def answer_to(self, request: Entity) -> Body | None:
        api, version = APIS[int(request.__api_key__)], int(request.__version__)
        frame = memoryview(encode_request(request, 1, self.client_id))
        header, position = decode_header(frame)
        entity = decode_request(header, frame, position, api.model_for(version))
        context = RequestContext(version, header.client_id, "127.0.0.1:1", LISTENER, self.principal)
        refused = refusal(self.context, api.key, api.access, entity, context)
        answer = refused or api.handler(self.context, entity, context)
        # As a task of its own, as a connection does: what comes between must not be missed.
        body = await asyncio.ensure_future(answer) if isinstance(answer, Awaitable) else answer
        if body is not None:
            assert unknown_fields(api.key, body) == []
            read_by_client(api.key, version, body)
        return body


async def coordinating_broker(directory: Path) -> LocalBroker:
    """A broker that coordinates all groups, with the topic "t" of two partitions."""
    broker = LocalBroker(directory, {"group.initial.rebalance.delay.ms": "0"})
    broker.create("t", (BROKER_ID, BROKER_ID))
    broker.create(OFFSETS_TOPIC)
    shards = broker.context.groups.shards
    shards.follow(0)
    await shards.loading(0)
    return broker


def read_by_client(key: int, version: int, body: Body) -> Entity:
    """What a client of that version reads of an answer."""
    parts = encode_response(key, version, 1, body)
    frame = b"".join(part if isinstance(part, bytes) else cast(Any, part).read() for part in parts)
    schema = response_schema(key, version)
    _, header_bytes = entity_reader(schema.__header_schema__)(memoryview(frame), 4)
    entity, body_bytes = entity_reader(schema)(memoryview(frame), 4 + header_bytes)
    assert 4 + header_bytes + body_bytes == len(frame)
    return entity


def make(schema: Any, values: Mapping[str, Any]) -> Entity:
    """A kio entity from nested dicts and lists; what is not given has the schema's default.

    Durations are int milliseconds. A name that the schema does not have is a mistake of the test.
    """
    unknown = values.keys() - {field.name for field in fields(schema)}
    assert not unknown, f"{schema.__name__} {schema.__version__} has no {sorted(unknown)}"
    return schema(
        **{
            field.name: _made(Shape.of(field), values[field.name])
            if field.name in values
            else _typed(Shape.of(field), default_of(field))
            for field in fields(schema)
        }
    )


def _made(shape: Shape, value: Any) -> Any:
    if value is None:
        return None
    if shape.repeated:
        return tuple(make(shape.inner, item) if shape.is_struct else item for item in value)
    if shape.is_struct:
        return make(shape.inner, value)
    return _typed(shape, timedelta(milliseconds=value) if _is_duration(shape) else value)


def _typed(shape: Shape, value: Any) -> Any:
    return shape.inner.parse(value) if _is_duration(shape) else value


def _is_duration(shape: Shape) -> bool:
    return shape.kafka_type in ("timedelta_i32", "timedelta_i64")


def batch(values: Iterable[bytes], timestamp_ms: int = NOW_MS) -> bytes:
    """A record batch of these values, a millisecond apart."""
    return encode_batch(
        [Message(value, None, (), timestamp_ms + number) for number, value in enumerate(values)]
    )
