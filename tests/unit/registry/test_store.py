"""Reading the topic: nothing is answered from a part of it (R31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.unit.registry.fake_topic import FakeTopic

from mainstem_registry import operations, store
from mainstem_registry.client_security import Brokers
from mainstem_registry.election import Election
from mainstem_registry.errors import RegistryError
from mainstem_registry.records import ConfigKey, ConfigValue, Record, VersionKey, VersionValue
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
