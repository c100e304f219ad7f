from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from tests.support.waiting import let_pass_async
from tests.unit.broker.server.peers import run, until

from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    SetData,
    ZooKeeper,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import RequestTimedOut, StartupError

pytestmark = pytest.mark.processes


@asynccontextmanager
async def session(
    servers: str, states: list[str] | None = None, session_ms: int = 30_000
) -> AsyncIterator[ZooKeeper]:
    zookeeper = ZooKeeper(servers, session_ms, (states if states is not None else []).append)
    await zookeeper.start(10)
    try:
        yield zookeeper
    finally:
        await zookeeper.stop()


# --- Life ---


async def test_nobody_there_is_reported_with_what_to_do() -> None:
    zookeeper = ZooKeeper("127.0.0.1:1", 2000, lambda _: None)
    with pytest.raises(
        StartupError, match=r"did not answer at 127\.0\.0\.1:1 within 0\.3 s: start it, or correct zookeeper"
    ):
        await zookeeper.start(0.3)
    await zookeeper.stop()


@pytest.mark.trial
async def test_a_start_waits_for_a_server_says_so_and_can_be_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for one that takes connections and answers nothing, which kazoo by itself waits for."""
    monkeypatch.setattr("mainstem_broker.cluster.zookeeper.WAIT_REPORT_INTERVAL_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute, capture_logs() as lines:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        zookeeper = ZooKeeper(address, 60_000, lambda _: None)
        starting = asyncio.ensure_future(zookeeper.start(None))
        await until(lambda: len(lines) >= 2)
        assert not starting.done()
        starting.cancel()
        begun_s = time.monotonic()
        await zookeeper.stop()
        assert time.monotonic() - begun_s < 10  # the session that it would wait for lasts a minute
    assert lines[0]["event"] == "waiting for ZooKeeper: start it, or correct zookeeper.connect"
    assert lines[0]["servers"] == address


@pytest.mark.trial
def test_a_server_that_takes_a_connection_and_says_nothing_is_asked_again_within_the_session() -> None:
    """Of one that is killed or starts: kazoo by itself waits until the session is over (R20)."""
    session_s = 1.8
    with socket.create_server(("127.0.0.1", 0)) as mute, ThreadPoolExecutor(1) as beside:
        mute.settimeout(session_s)
        address = f"127.0.0.1:{mute.getsockname()[1]}"

        def second_try_s() -> float:
            with mute.accept()[0]:
                first_s = time.monotonic()
                with mute.accept()[0]:
                    return time.monotonic() - first_s

        async def test() -> None:
            tried = asyncio.get_running_loop().run_in_executor(beside, second_try_s)
            with pytest.raises(StartupError, match="did not answer"):
                await ZooKeeper(address, int(session_s * 1000), lambda _: None).start(session_s)
            assert await tried < session_s / 2

        run(test())


@pytest.mark.parametrize("servers", ["", "host:port", ":2181", "host:99999"])
async def test_servers_that_cannot_be_read_are_reported(servers: str) -> None:
    with pytest.raises(
        StartupError, match=r"zookeeper\.connect is .*: write it as host:port,host:port/chroot"
    ):
        await ZooKeeper(servers, 2000, lambda _: None).start(0.3)


@pytest.mark.filterwarnings("ignore:No chroot path exists")
async def test_a_chroot_that_is_missing_is_made(servers: str, shell: KazooClient) -> None:
    async with session(servers + "/below/that") as zookeeper:
        assert await zookeeper.create("/a", b"1")
    assert shell.get("/below/that/a")[0] == b"1"


async def test_the_listener_hears_of_the_sessions_state(servers: str) -> None:
    states: list[str] = []

    async with session(servers, states) as zookeeper:
        await until(lambda: states == ["connected"])
        assert zookeeper.session_id != 0
    assert zookeeper.session_id == 0
    await until(lambda: states[-1] == "lost")


async def test_a_session_that_ended_answers_with_an_error_that_clients_retry(servers: str) -> None:
    async with session(servers) as zookeeper:
        client = zookeeper._client
        client.stop()
        with pytest.raises(ZooKeeperUnavailable, match="The connection to ZooKeeper broke"):
            await zookeeper.get("/")
    assert issubclass(ZooKeeperUnavailable, RequestTimedOut)


# --- Reading ---


async def test_nodes_are_read_with_their_version_and_owner(servers: str, shell: KazooClient) -> None:
    shell.create("/a", b"1")
    shell.set("/a", b"2")
    shell.create("/mine", b"", ephemeral=True)

    async with session(servers) as zookeeper:
        node = await zookeeper.get("/a")
        assert node is not None
        assert (node.data, node.version, node.ephemeral_owner) == (b"2", 1, 0)
        assert node.czxid == shell.get("/a")[1].czxid
        mine = await zookeeper.get("/mine")
        assert mine is not None
        assert mine.ephemeral_owner == shell.client_id[0]
        assert await zookeeper.get("/b") is None


async def test_many_nodes_are_read_in_their_order_with_gaps(servers: str, shell: KazooClient) -> None:
    for number in range(0, 1200, 100):
        shell.create(f"/n{number}", str(number).encode())

    async with session(servers) as zookeeper:
        nodes = await zookeeper.get_many([f"/n{number}" for number in range(1200)])
        assert [None if node is None else int(node.data) for node in nodes] == [
            number if number % 100 == 0 else None for number in range(1200)
        ]
        assert await zookeeper.get_many([]) == []


async def test_children_are_sorted_and_a_missing_node_has_none(servers: str, shell: KazooClient) -> None:
    for name in ("b", "c", "a"):
        shell.create(f"/p/{name}", makepath=True)

    async with session(servers) as zookeeper:
        assert await zookeeper.children("/p") == ["a", "b", "c"]
        assert await zookeeper.children("/q") == []
        assert await zookeeper.children_of_many(["/p", "/q", "/p/a"]) == [["a", "b", "c"], [], []]
        assert await zookeeper.children_of_many([]) == []


async def test_the_end_of_a_sequence_counts_children_that_are_gone(servers: str, shell: KazooClient) -> None:
    """R43: how far a tree has come can be seen though its feed was emptied."""
    shell.create("/s")
    names = [shell.create("/s/n-", sequence=True) for _ in range(3)]
    for name in names[1:]:
        shell.delete(name)
    async with session(servers) as zookeeper:
        assert await zookeeper.sequence_end("/none") == 0
        told: list[None] = []
        assert await zookeeper.sequence_end("/s", lambda: told.append(None)) == 3
        assert shell.create("/s/n-", sequence=True) == "/s/n-0000000003"
        await until(lambda: told)
        assert await zookeeper.sequence_end("/s") == 4


async def test_a_watch_tells_once_of_a_change_of_data_of_children_and_of_a_node_that_appears(
    servers: str, shell: KazooClient
) -> None:
    shell.create("/a")
    reports: list[str] = []

    async with session(servers) as zookeeper:
        await zookeeper.get("/a", lambda: reports.append("data"))
        await zookeeper.children("/a", lambda: reports.append("children"))
        await zookeeper.get("/b", lambda: reports.append("appeared"))
        assert reports == []
        shell.set("/a", b"1")
        shell.create("/a/x")
        shell.create("/b")
        await until(lambda: len(reports) >= 3)
        shell.set("/a", b"2")
        shell.create("/a/y")
        shell.set("/b", b"2")
        await zookeeper.sync()
        assert sorted(reports) == ["appeared", "children", "data"]


async def test_watching_again_and_again_keeps_one_watch(servers: str, shell: KazooClient) -> None:
    class Owner:
        def __init__(self) -> None:
            self.told = 0

        def tell(self) -> None:
            self.told += 1

    owner = Owner()
    async with session(servers) as zookeeper:
        for _ in range(10):
            await zookeeper.children("/", owner.tell)
        shell.create("/new")
        await until(lambda: owner.told)
        await zookeeper.sync()
        await let_pass_async(0.01, "it would have been told again")
        assert owner.told == 1


# --- Writing ---


@pytest.fixture
async def zookeeper(servers: str) -> AsyncIterator[ZooKeeper]:
    async with session(servers) as opened:
        yield opened


async def test_a_node_is_created_once(zookeeper: ZooKeeper) -> None:
    assert await zookeeper.create("/a", b"1")
    assert not await zookeeper.create("/a", b"2")
    await zookeeper.ensure_paths(["/x/y/z", "/x/y", "/x/w"])
    assert await zookeeper.children("/x") == ["w", "y"]


async def test_all_of_a_multi_is_done(servers: str, shell: KazooClient) -> None:
    for path in ("/set", "/delete", "/check"):
        shell.create(path)

    async with session(servers) as zookeeper:
        results = await zookeeper.multi(
            [
                Check("/check", 0),
                Create("/new", b"1"),
                Create("/mine", b"2", ephemeral=True),
                Create("/seq_", b"3", sequential=True),
                SetData("/set", b"4", 0),
                Delete("/delete", 0),
            ]
        )
        assert results[3] == "/seq_0000000005", "numbers count the children ever made below a node"
        mine = await zookeeper.get("/mine")
        assert mine is not None
        assert mine.ephemeral_owner == zookeeper.session_id
        assert shell.get("/set")[0] == b"4"
        assert shell.exists("/delete") is None


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (Check("/a", 7), "Check /a: BadVersionError"),
        (Check("/none", -1), "Check /none: NoNodeError"),
        (Create("/a", b""), "Create /a: NodeExistsError"),
        (Create("/none/x", b""), "Create /none/x: NoNodeError"),
        (SetData("/a", b"", 7), "SetData /a: BadVersionError"),
        (Delete("/none"), "Delete /none: NoNodeError"),
    ],
)
async def test_if_one_operation_is_refused_none_is_done_and_the_one_is_named(
    servers: str, shell: KazooClient, refused: Check | Create | SetData | Delete, reason: str
) -> None:
    shell.create("/a")

    async with session(servers) as zookeeper:
        with pytest.raises(Conflict) as raised:
            await zookeeper.multi([Create("/before", b""), refused, Create("/after", b"")])
        assert str(raised.value) == reason
        assert await zookeeper.children("/") == ["a"]


# --- Outages (R41) ---


async def test_what_is_asked_during_an_outage_is_refused_and_not_done_later(servers: str) -> None:
    async with session(servers, session_ms=2_000) as zookeeper:
        zookeeper._take_state("suspended")
        with pytest.raises(ZooKeeperUnavailable, match=r"has not answered for .* s, so nothing was changed"):
            await zookeeper.create("/late", b"")
        zookeeper._take_state("connected")
        assert await zookeeper.get("/late") is None


async def test_a_call_that_waited_for_another_while_the_connection_broke_is_refused_at_once(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo would keep it until the connection is back, and every heartbeat behind it."""
    may_end = threading.Event()
    first = zookeeper._submit(may_end.wait)
    second = asyncio.ensure_future(zookeeper.create("/late", b""))
    await asyncio.sleep(0)  # it is in the thread's queue now
    with monkeypatch.context() as broken:
        broken.setattr(KazooClient, "connected", False)
        may_end.set()
        await first
        with pytest.raises(ZooKeeperUnavailable, match="The connection to ZooKeeper broke"):
            await second
    assert await zookeeper.get("/late") is None


async def test_what_is_asked_while_the_connection_is_made_again_waits_for_it(zookeeper: ZooKeeper) -> None:
    zookeeper._take_state("suspended")
    asyncio.get_running_loop().call_later(0.1, zookeeper._take_state, "connected")
    assert await zookeeper.create("/soon", b"")
