"""Reading the topic: nothing is answered from a part of it (R31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError
from structlog.testing import capture_logs
from tests.unit.registry.fake_topic import FakeTopic

from mainstem_registry import operations, store
from mainstem_registry.client_security import Brokers
from mainstem_registry.election import Election
from mainstem_registry.errors import RegistryError, StartupError
from mainstem_registry.records import (
    WRITER,
    ConfigKey,
    ConfigValue,
    NoopKey,
    NoopValue,
    Record,
    VersionKey,
    VersionValue,
    decode,
    encode,
)
from mainstem_registry.registry import Registry
from mainstem_registry.requests import SchemaRequest
from mainstem_registry.schemas.schema import SchemaText
from mainstem_registry.state import RegistryState
from mainstem_registry.store import Store

BROKERS = Brokers("127.0.0.1:1")
NUMBER, TEXT, BYTES = (SchemaText("AVRO", f'"{name}"') for name in ("int", "string", "bytes"))


def versions(count: int) -> list[Record]:
    return [
        Record(VersionKey(f"subject-{number}", 1), VersionValue(number, NUMBER))
        for number in range(1, count + 1)
    ]


@asynccontextmanager
async def reading(topic: FakeTopic, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    """An instance that reads `topic`, whether or not it is at the end yet."""

    async def prepared(_: Store) -> None: ...

    monkeypatch.setattr(store, "AIOKafkaConsumer", topic.consumer)
    monkeypatch.setattr(store, "AIOKafkaProducer", topic.producer)
    monkeypatch.setattr(Store, "_prepare_topic", prepared)
    reader = Store(BROKERS, "_schemas")
    starting = asyncio.create_task(reader.start())
    try:
        yield Registry(reader, Election(BROKERS, "_schemas", "group", "http://127.0.0.1:1", 1000))
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await reader.stop()


QUERIES: dict[str, Callable[[RegistryState], object]] = {
    "the list of subjects": lambda state: state.subjects(),
    "a compatibility level": lambda state: state.compatibility("subject-3"),
    "a check of compatibility": lambda state: operations.check_compatibility(
        state, "subject-3", TEXT, state.versions("subject-3")
    ),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
async def test_nothing_is_answered_before_the_end_of_a_topic_that_is_read_slowly(
    monkeypatch: pytest.MonkeyPatch, query: Callable[[RegistryState], object]
) -> None:
    topic = FakeTopic([*versions(3), Record(ConfigKey("subject-3"), ConfigValue("FULL"))], readable=1)
    async with reading(topic, monkeypatch) as registry:
        await topic.wait_for_empty_polls(50)
        assert not registry.store.loaded.is_set()  # what /readyz reports
        with pytest.raises(RegistryError, match="still being read"):
            await registry.read(query)
        topic.readable = 4
        await registry.store.loaded.wait()
        state = registry.store.state
        assert state.subjects() == ["subject-1", "subject-2", "subject-3"]
        assert state.compatibility("subject-3").name == "FULL"
        assert operations.check_compatibility(state, "subject-3", TEXT, state.versions("subject-3"))


async def test_an_end_that_moved_back_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unclean election truncates a log: records up to the former end never come (R31)."""
    topic = FakeTopic(versions(3), readable=2)
    async with reading(topic, monkeypatch) as registry:
        await topic.wait_for_empty_polls(2)
        assert not registry.store.loaded.is_set()
        del topic.messages[2:]
        await registry.store.loaded.wait()
        assert registry.store.state.subjects() == ["subject-1", "subject-2"]


async def test_a_topic_that_lost_what_was_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = FakeTopic(versions(3))
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        del topic.messages[1:]
        topic.readable = 0
        await topic.wait_for_empty_polls(2)
        assert not registry.store.loaded.is_set(), "some of what is known is no longer true"
        topic.readable = 1
        await registry.store.loaded.wait()
        assert registry.store.state.subjects() == ["subject-1"]


async def test_a_new_leader_ends_what_was_written_before_and_repairs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction keeps the last record of a key, also if the state has rejected it (R31)."""
    of_a_former_leader = Record(VersionKey("subject-1", 1), VersionValue(7, TEXT))
    topic = FakeTopic([*versions(1), of_a_former_leader])
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        await registry.store.prepare_writes()
        written = [decode(message.key, message.value) for message in topic.messages[2:]]
        assert written == [Record(NoopKey(), NoopValue(7)), *versions(1)]
        await registry.store.prepare_writes()
        assert len(topic.messages) == 5, "what is repaired is not repaired again"


async def test_a_leader_changes_nothing_that_another_registry_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contexts have ids of their own, and versions may be overwritten in mode IMPORT (R31)."""
    topic = FakeTopic([])
    written = [
        Record(VersionKey(":.prod:orders", 1), VersionValue(1, TEXT)),
        Record(VersionKey("clicks", 1), VersionValue(1, NUMBER)),
        Record(VersionKey("users", 1), VersionValue(2, TEXT)),
        Record(VersionKey("users", 1), VersionValue(3, BYTES)),
    ]
    for record in written:
        topic.append_message(*encode(record))
    with capture_logs() as lines:
        async with reading(topic, monkeypatch) as registry:
            await registry.store.loaded.wait()
            await registry.store.prepare_writes()
            state = registry.store.state
            assert (state.subjects(), state.schema(1), state.schema(3)) == (
                ["clicks", "users"],
                NUMBER,
                BYTES,
            )
    (noop,) = topic.messages[len(written) :]
    assert decode(noop.key, noop.value) == Record(NoopKey(), NoopValue(3))
    assert noop.headers == [WRITER]
    assert [line["ignored_records"] for line in lines if line["event"] == "state loaded"] == [1]


async def test_what_was_deleted_stays_so_if_another_registry_wrote_its_key_in_another_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction keeps the last record of each form of a key (R31)."""
    topic = FakeTopic([])
    (version, value), (_, level) = (
        encode(record) for record in (*versions(1), Record(ConfigKey("subject-1"), ConfigValue("FULL")))
    )
    for key, content in (
        (version.replace(b'"magic":1', b'"magic":0'), value),
        (b'{"subject":"subject-1","version":1,"magic":1,"keytype":"SCHEMA"}', value),
        (b'{"subject":"subject-1","magic":0,"keytype":"CONFIG"}', level),
    ):
        topic.append_message(key, content)
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        for permanent in (False, True):
            _, records = operations.delete_subject(registry.store.state, "subject-1", permanent=permanent)
            await registry.store.append(records)
            assert any(message.value is None for message in topic.messages) == permanent
    (left,) = topic.compacted().messages
    assert decode(left.key, left.value) == Record(NoopKey(), NoopValue(1))
    del topic.messages[-1]  # the leader stopped before it wrote the last tombstone
    assert len(topic.compacted().messages) == 2
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        await registry.store.prepare_writes()
    assert len(topic.compacted().messages) == 1


@pytest.mark.parametrize("schema_id", [10, 11])
async def test_no_late_record_of_an_earlier_release_is_left_by_compaction(
    monkeypatch: pytest.MonkeyPatch, schema_id: int
) -> None:
    """Records of earlier releases have no header (R31)."""
    topic = FakeTopic([Record(VersionKey("s", 3), VersionValue(10, NUMBER))])
    topic.append_message(*encode(Record(VersionKey("s", 3), VersionValue(schema_id, TEXT))))
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        await registry.store.repair()
    async with reading(topic.compacted(), monkeypatch) as registry:
        await registry.store.loaded.wait()
        state = registry.store.state
        assert (state.schema(10), state.schema(11)) == (NUMBER, None)


@pytest.mark.parametrize("is_written_again", [False, True])
async def test_a_deletion_by_an_earlier_release_is_completed(
    monkeypatch: pytest.MonkeyPatch, is_written_again: bool
) -> None:
    """It wrote no tombstone for the form in which Karapace wrote the key (R31)."""
    (record,) = versions(1)
    key, value = encode(record)
    topic = FakeTopic([])
    topic.append_message(b'{"subject":"subject-1","version":1,"magic":1,"keytype":"SCHEMA"}', value)
    topic.append_message(key, None)
    again = Record(record.key, VersionValue(2, TEXT))
    if is_written_again:
        topic.append_message(*encode(again))
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        await registry.store.prepare_writes()
    async with reading(topic.compacted(), monkeypatch) as registry:
        await registry.store.loaded.wait()
        assert registry.store.state.value_of(VersionKey("subject-1", 1)) == (
            again.value if is_written_again else None
        )


class PlayedAdmin:
    """An admin client of a cluster, which has the topic if it has settings.

    Args:
        code: the answer to a request to create a topic that does not exist.
    """

    def __init__(self, brokers: int, partitions: int, policy: str | None, code: int = 0) -> None:
        self._brokers, self._partitions, self._policy, self._code = brokers, partitions, policy, code
        self.created: list[NewTopic] = []
        self.is_open = False

    async def start(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def describe_cluster(self) -> Any:
        return {"brokers": [{}] * self._brokers}

    async def create_topics(self, topics: list[NewTopic], timeout_ms: int) -> Any:
        del timeout_ms
        code = self._code if self._policy is None else TopicAlreadyExistsError.errno
        if code == 0:
            self.created += topics
        return SimpleNamespace(topic_errors=[(topics[0].name, code, None)])

    async def describe_topics(self, _names: list[str]) -> Any:
        return [{"partitions": [{}] * self._partitions}]

    async def describe_configs(self, _resources: object) -> Any:
        entries = [("retention.ms", "1"), ("cleanup.policy", self._policy)]
        return [SimpleNamespace(resources=[(0, None, 2, "_schemas", entries)])]


async def prepare(monkeypatch: pytest.MonkeyPatch, admin: PlayedAdmin) -> None:
    monkeypatch.setattr(store, "AIOKafkaAdminClient", lambda **_: admin)
    try:
        await Store(BROKERS, "_schemas")._prepare_topic()
    finally:
        assert not admin.is_open


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (5, 3, "2")]
)
async def test_a_new_topic_is_compacted_and_outlives_the_loss_of_a_broker(
    monkeypatch: pytest.MonkeyPatch, brokers: int, replicas: int, in_sync: str
) -> None:
    admin = PlayedAdmin(brokers, 0, None)
    await prepare(monkeypatch, admin)
    (topic,) = admin.created
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("_schemas", 1, replicas)
    assert topic.topic_configs["cleanup.policy"] == "compact"
    assert topic.topic_configs["min.insync.replicas"] == in_sync


async def test_a_topic_that_exists_is_used_if_it_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = PlayedAdmin(3, 1, "compact")
    await prepare(monkeypatch, admin)
    assert admin.created == []


@pytest.mark.parametrize(
    ("admin", "words"),
    [
        (PlayedAdmin(3, 1, "delete"), "cleanup.policy=delete, under which schemas would be deleted"),
        (PlayedAdmin(3, 1, "compact,delete"), "cleanup.policy=compact,delete"),
        (PlayedAdmin(3, 2, "compact"), "has 2 partitions"),
        (PlayedAdmin(3, 0, None, 29), "cannot be created: TopicAuthorizationFailedError"),
    ],
)
async def test_a_topic_that_would_lose_schemas_or_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, admin: PlayedAdmin, words: str
) -> None:
    with pytest.raises(StartupError, match=words):
        await prepare(monkeypatch, admin)


async def test_a_check_of_compatibility_reads_what_was_written_just_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version of which this instance does not know yet would be missing in the comparison (R31)."""
    topic = FakeTopic(versions(1))
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        topic.append(Record(VersionKey("other", 1), VersionValue(2, NUMBER)))

        def check(state: RegistryState) -> list[str]:
            return operations.check_compatibility(state, "other", TEXT, state.versions("other"))

        assert await registry.read(check, newest=True)


async def test_a_registration_counts_once_it_was_read_back_and_no_former_leader_was_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a client would write records with an id that is another schema's (R31)."""
    topic = FakeTopic(versions(1))
    async with reading(topic, monkeypatch) as registry:
        await registry.store.loaded.wait()
        registry.election.leader_url = "http://127.0.0.1:1"

        def decide(state: RegistryState) -> tuple[operations.Registration, tuple[Record, ...]]:
            registration = operations.register(state, "new", SchemaRequest(BYTES), normalize=False)
            return registration, registration.records

        def interject(record: Record) -> None:
            if isinstance(record.key, VersionKey):
                topic.before_write = None
                topic.append(Record(VersionKey("other", 1), VersionValue(2, TEXT)))

        topic.before_write = interject
        registration = await registry.write(decide)
        state = registry.store.state
        assert state.schema(2) == TEXT, "the former leader's record came first"
        assert registration.version.id == 3
        assert state.versions("new") == [registration.version]
