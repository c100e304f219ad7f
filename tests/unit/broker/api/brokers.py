"""A broker for tests of handlers: real view, replicas and logs; the cluster around it is played.

Requests go through the codec both ways, as from a client: the request is written by kio and lifted, the
answer is written by our writer and read by kio, and may hold only fields that the schemas know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import UUID, uuid4

import uvloop
from kio.serial import entity_reader
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.protocol.schemas import (
    Shape,
    default_of,
    encode_request,
    request_schema,
    response_schema,
    unknown_fields,
)
from tests.unit.broker.replica.replicas import LIFE, PlayedCoordination, replica_manager

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.table import APIS
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import DEFAULT_ENTITY, BrokerRegistration, Endpoint, TopicAssignment
from mainstem_broker.config import BrokerConfig
from mainstem_broker.errors import RequestTimedOut, TopicAlreadyExists
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.codec import decode_header, decode_request, encode_response
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.state import PartitionState

BROKER_ID: Final = 1
NOW_MS: Final = 1_750_000_000_000
LISTENER: Final = "PLAINTEXT"

Result = TypeVar("Result")


def run(test: Coroutine[Any, Any, Result]) -> Result:
    """Run an asynchronous test on the loop that the broker uses, and not for ever."""

    async def bounded() -> Result:
        async with asyncio.timeout(10):
            return await test

    return uvloop.run(bounded())


class PlayedCluster:
    """Member and administration in one: wishes come true at once, unless `controller_is_down`."""

    def __init__(self, broker: LocalBroker) -> None:
        self.view = ClusterView(cluster_id="the-cluster", controller_id=2)
        self.administration = self
        self.producer_ids = self
        self.controller_is_down = False
        self.failure: Exception | None = None
        self.on_catch_up: Callable[[], None] | None = None
        self.times_caught_up = 0
        self._broker = broker

    async def wait_until(self, reached: Callable[[], bool], timeout_ms: float) -> None:
        if not reached():
            await asyncio.sleep(timeout_ms / 1000)
            if not reached():
                raise RequestTimedOut("It was not carried out.")

    async def catch_up(self, timeout_ms: float) -> None:
        self.times_caught_up += 1
        if self.on_catch_up is not None:
            self.on_catch_up()

    def _may_fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def create_topic(self, assignment: TopicAssignment, config: Mapping[str, str]) -> None:
        self._may_fail()
        if assignment.topic in self.view.topics:
            raise TopicAlreadyExists("It was faster.")
        self.view.set_topic(assignment, config)
        if not self.controller_is_down:
            self._broker.elect(assignment.topic)

    async def grow_topic(self, topic: str, added: Mapping[int, tuple[int, ...]]) -> None:
        self._may_fail()
        known = self.view.topics[topic].assignment
        grown = TopicAssignment(topic, known.topic_id, {**known.replicas, **added}, version=known.version + 1)
        self.view.set_topic(grown, self.view.topics[topic].config)
        if not self.controller_is_down:
            self._broker.elect(topic)

    async def delete_topic(self, topic: str, topic_id: UUID) -> None:
        self._may_fail()
        if self.controller_is_down:
            self.view.pending_deletions.add(topic)
        else:
            self._broker.delete(topic)

    async def wait_removed(
        self, topic_id: UUID, live: Callable[[], Collection[int]], timeout_ms: float
    ) -> None:
        assert BROKER_ID in live()

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

    async def take(self) -> int:
        """An id for a producer."""
        self._may_fail()
        return 1000


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
        self.context = BrokerContext(BROKER_ID, config, cast(ClusterMember, self.cluster), self.replicas)
        self.context.member.administration = cast(Administration, self.cluster)
        self.client_id = "client"
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
            config = self.context.config.topic(topic.config)
            self.replicas.update(name, index, topic.topic_id, state, replicas, config)

    def delete(self, name: str) -> None:
        topic_id = self.view.topics[name].topic_id
        self.view.remove_topic(name, topic_id)
        self.replicas.drop(name, topic_id)

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.replicas.find(topic, index)
        assert found is not None
        return found

    def append(self, topic: str, values: Iterable[bytes], index: int = 0, timestamp_ms: int = NOW_MS) -> int:
        """Append one batch; answers its first offset."""
        return (
            self.partition(topic, index)
            .append(batch(values, timestamp_ms), acks=1, produce_version=9, now_ms=NOW_MS)
            .first_offset
        )

    async def answer(self, name: str, version: int, request: Mapping[str, Any]) -> Body:
        """The body that the API called `name` answers, after a way through the codec."""
        body = await self.answer_or_none(name, version, request)
        assert body is not None
        return body

    async def answer_or_none(self, name: str, version: int, request: Mapping[str, Any]) -> Body | None:
        (api,) = (api for api in APIS.values() if api.name == name)
        frame = memoryview(encode_request(make(request_schema(api.key, version), request), 1, self.client_id))
        header, position = decode_header(frame)
        entity = decode_request(header, frame, position, api.model_for(version))
        context = RequestContext(version, header.client_id, "127.0.0.1:1", LISTENER)
        answer = api.handler(self.context, entity, context)
        # As a task of its own, as a connection does: what comes between must not be missed.
        body = await asyncio.ensure_future(answer) if isinstance(answer, Awaitable) else answer
        if body is not None:
            assert unknown_fields(api.key, body) == []
            read_by_client(api.key, version, body)
        return body


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
    return _typed(shape, timedelta(milliseconds=value) if shape.kafka_type == "timedelta_i32" else value)


def _typed(shape: Shape, value: Any) -> Any:
    return shape.inner.parse(value) if shape.kafka_type == "timedelta_i32" else value


def batch(values: Iterable[bytes], timestamp_ms: int = NOW_MS) -> bytes:
    """A record batch of these values, a millisecond apart."""
    return encode_batch(
        [Message(value, None, (), timestamp_ms + number) for number, value in enumerate(values)]
    )
