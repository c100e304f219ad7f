"""The broker as a whole, in this process, over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from joserfc.jwk import ECKey
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from tests.support.ports import own_ports
from tests.support.waiting import let_pass_async
from tests.unit.broker.api.brokers import make
from tests.unit.broker.protocol.schema_strategies import encode_request, request_schema
from tests.unit.broker.server.peers import frame_of, until

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import StartupError, StorageError
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.lease import NO_INCARNATION
from mainstem_broker.replica.partition import Partition
from mainstem_broker.server.broker import Broker

pytestmark = pytest.mark.processes

CLEAN = ".kafka_cleanshutdown"


def config(
    directory: Path, servers: str, broker_id: int = 1, settings: Mapping[str, str] | None = None
) -> BrokerConfig:
    return BrokerConfig(
        {
            "broker.id": str(broker_id),
            "zookeeper.connect": servers,
            "zookeeper.session.timeout.ms": "4000",
            "listeners": f"PLAINTEXT://127.0.0.1:{own_ports()}",
            "log.dirs": str(directory / str(broker_id)),
            "log.segment.delete.delay.ms": "0",
            **(settings or {}),
        }
    )


@asynccontextmanager
async def running(
    directory: Path, servers: str, broker_id: int = 1, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Broker]:
    broker = Broker(config(directory, servers, broker_id, settings))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def create(broker: Broker, topic: str, leader: int = 1) -> UUID:
    assignment = TopicAssignment(topic, uuid4(), {0: (leader,)})
    await broker._member.administration.create_topic(assignment, {})
    await broker._member.wait_until(
        lambda: topic in broker.context.view.topics and broker.context.view.topics[topic].all_led([0]), 8000
    )
    return assignment.topic_id


def replica(broker: Broker, topic: str) -> Partition | None:
    return broker._replicas.find(topic, 0)


async def test_the_keys_of_tokens_have_been_read_when_clients_are_served(
    tmp_path: Path, servers: str
) -> None:
    """A client whose token is refused takes that for the end, as after a restart of a broker (R38)."""
    keys = tmp_path / "keys.json"
    key = ECKey.generate_key("P-256", {"kid": "1"}, auto_kid=False)
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    port = own_ports(2)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{port + 1}",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
    }
    async with running(tmp_path, servers, settings=settings) as broker:
        (tokens,) = (it.tokens for it in broker._listeners if it.tokens is not None)
        assert [key.kid for key in tokens.keys_for("").keys] == ["1"]


async def test_a_broker_serves_from_its_start_to_its_stop(
    tmp_path: Path, servers: str, shell: KazooClient
) -> None:
    async with running(tmp_path, servers) as broker:
        assert not (tmp_path / "1" / CLEAN).exists()
        await create(broker, "t")
        await until(lambda: replica(broker, "t"))
        address = broker._listeners[0]._socket.getsockname()
        reader, writer = await asyncio.open_connection(*address)
        request = make(request_schema(3, 9), {"topics": None})
        writer.write(frame_of(encode_request(request, 1, "client")))
        size = int.from_bytes(await reader.readexactly(4))
        assert b"t" in await reader.readexactly(size)
    assert await reader.read() == b"", "hung up"
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    assert shell.get_children("/brokers/ids") == []
    assert (tmp_path / "1" / CLEAN).exists()
    async with running(tmp_path, servers) as broker:
        kept = replica(broker, "t")
        assert kept is not None
        assert kept.is_leader


async def test_a_broker_that_starts_rests_for_what_its_former_process_has_granted(
    tmp_path: Path, servers: str
) -> None:
    """R41: while its address refused connections, leaders took that for grants."""
    async with running(tmp_path, servers) as broker:
        assert math.isfinite(broker._lease.rest_until_s(NO_INCARNATION))


async def test_a_topic_deleted_while_its_holder_was_down_goes_when_it_starts(
    tmp_path: Path, servers: str
) -> None:
    async with running(tmp_path, servers, 1) as one:
        async with running(tmp_path, servers, 2) as two:
            topic_id = await create(two, "t", leader=2)
            await until(lambda: replica(two, "t"))
        assert (tmp_path / "2" / "t-0").is_dir()
        await one._member.wait_until(lambda: "t" in one.context.view.topics, 8000)
        await one._member.administration.delete_topic("t", topic_id)
        await one._member.wait_until(lambda: "t" not in one.context.view.topics, 8000)
        async with running(tmp_path, servers, 2) as two:
            assert replica(two, "t") is None
            await until(lambda: not (tmp_path / "2" / "t-0").exists())
        assert await one._member.administration.deleted_topics() == {}


async def test_a_deleted_topic_is_forgotten_by_a_holder_that_never_opened_it(
    tmp_path: Path, servers: str
) -> None:
    """Or whoever deleted it would wait for its files until the request's end."""

    async with running(tmp_path, servers) as broker:
        (tmp_path / "1" / "t-0").write_text("a file where a directory should be")
        with capture_logs():
            topic_id = await create(broker, "t")
            assert replica(broker, "t") is None
        await broker._member.administration.delete_topic("t", topic_id)
        await broker._member.wait_until(lambda: "t" not in broker.context.view.topics, 8000)
        await broker._member.administration.wait_removed(topic_id, lambda: {1}, 8000)
        assert await broker._member.administration.deleted_topics() == {}


# --- A stop while logs are recovered ---


@pytest.mark.parametrize(("crashed", "fails"), [(False, False), (False, True), (True, False)])
async def test_a_stop_during_recovery_waits_for_it_and_is_clean_only_if_it_succeeds_after_a_clean_one(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch, crashed: bool, fails: bool
) -> None:
    """Or the next start would take logs for whole that nobody has looked at, or that have lost their ends of
    which the cluster does not know yet (R6, R19)."""
    begun, may_end = threading.Event(), threading.Event()
    load_all = LogManager.load_all

    def slow(self: LogManager, *arguments: object) -> None:
        begun.set()
        assert may_end.wait(60)
        load_all(self, *arguments)  # type: ignore[arg-type]  # passed on
        if fails:
            raise StorageError("The disk is gone.")

    async with running(tmp_path, servers) as broker:
        await create(broker, "t")
        await until(lambda: replica(broker, "t"))
    if crashed:
        (tmp_path / "1" / CLEAN).unlink()
    monkeypatch.setattr(LogManager, "load_all", slow)
    broker = Broker(config(tmp_path, servers))
    starting = asyncio.create_task(broker.start())
    await until(begun.is_set)
    starting.cancel()
    stopping = asyncio.create_task(broker.stop())
    await let_pass_async(0.05, "it would have stopped by then")
    assert not stopping.done()
    may_end.set()
    await stopping
    assert (tmp_path / "1" / CLEAN).exists() != (crashed or fails)
    assert broker._logs._locks == []


async def test_logs_are_opened_by_as_many_threads_as_are_set_for_all_brokers(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ZooKeeper says of `num.recovery.threads.per.data.dir` counts from the next start on (KIP-226)."""
    threads = []
    load_all = LogManager.load_all

    def noting(self: LogManager, *arguments: object) -> None:
        threads.append(self._recovery_threads())
        load_all(self, *arguments)  # type: ignore[arg-type]  # passed on

    async with running(tmp_path, servers) as broker:
        for_all = {"num.recovery.threads.per.data.dir": "5"}
        await broker.context.member.administration.change_config("brokers/<default>", lambda _: for_all)
    monkeypatch.setattr(LogManager, "load_all", noting)
    async with running(tmp_path, servers):
        assert threads == [5]


async def test_a_start_that_fails_before_the_logs_are_touched_leaves_the_clean_mark(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, servers):
        pass
    assert (tmp_path / "1" / CLEAN).exists()
    broker = Broker(config(tmp_path, servers))

    async def failing() -> None:
        raise StorageError("ZooKeeper is gone.")

    monkeypatch.setattr(broker._member, "load", failing)
    with pytest.raises(StorageError):
        await broker.start()
    await broker.stop()
    assert (tmp_path / "1" / CLEAN).exists()


# --- What cannot start ---


async def test_a_broker_without_zookeeper_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    settings = {"zookeeper.connection.timeout.ms": "200"}
    with pytest.raises(StartupError, match="ZooKeeper did not answer"):
        async with running(tmp_path, "127.0.0.1:1", settings=settings):
            raise AssertionError("it must not start")
