from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient
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
async def session(servers: str, states: list[str] | None = None) -> AsyncIterator[ZooKeeper]:
    zookeeper = ZooKeeper(servers, 2000, (states if states is not None else []).append)
    await zookeeper.start(10_000)
    try:
        yield zookeeper
    finally:
        await zookeeper.stop()


# --- Life ---


def test_nobody_there_is_told_with_what_to_do() -> None:
    async def test() -> None:
        zookeeper = ZooKeeper("127.0.0.1:1", 2000, lambda _: None)
        with pytest.raises(
            StartupError,
            match=r"did not answer at 127\.0\.0\.1:1 within 300 ms: start it, or correct zookeeper",
        ):
            await zookeeper.start(300)
        await zookeeper.stop()

    run(test())


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
                await ZooKeeper(address, int(session_s * 1000), lambda _: None).start(int(session_s * 1000))
            assert await tried < session_s / 2

        run(test())


@pytest.mark.parametrize("servers", ["", "host:port", ":2181", "host:99999"])
def test_servers_that_cannot_be_read_are_told(servers: str) -> None:
    async def test() -> None:
        with pytest.raises(
            StartupError, match=r"zookeeper\.connect is .*: write it as host:port,host:port/chroot"
        ):
            await ZooKeeper(servers, 2000, lambda _: None).start(300)

    run(test())


@pytest.mark.filterwarnings("ignore:No chroot path exists")
def test_a_chroot_that_is_missing_is_made(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with session(servers + "/below/that") as zookeeper:
            assert await zookeeper.create("/a", b"1")
        assert shell.get("/below/that/a")[0] == b"1"

    run(test())


def test_the_listener_hears_of_the_sessions_state(servers: str) -> None:
    states: list[str] = []

    async def test() -> None:
        async with session(servers, states) as zookeeper:
            await until(lambda: states == ["connected"])
            assert zookeeper.session_id != 0
        assert zookeeper.session_id == 0
        await until(lambda: states[-1] == "lost")

    run(test())


def test_a_session_that_ended_answers_with_an_error_that_clients_retry(servers: str) -> None:
    async def test() -> None:
        async with session(servers) as zookeeper:
            client = zookeeper._client
            client.stop()
            with pytest.raises(ZooKeeperUnavailable, match="ZooKeeper gave no answer"):
                await zookeeper.get("/")
        assert issubclass(ZooKeeperUnavailable, RequestTimedOut)

    run(test())


# --- Reading ---


def test_nodes_are_read_with_their_version_and_owner(servers: str, shell: KazooClient) -> None:
    shell.create("/a", b"1")
    shell.set("/a", b"2")
    shell.create("/mine", b"", ephemeral=True)

    async def test() -> None:
        async with session(servers) as zookeeper:
            node = await zookeeper.get("/a")
            assert node is not None
            assert (node.data, node.version, node.ephemeral_owner) == (b"2", 1, 0)
            assert node.czxid == shell.get("/a")[1].czxid
            mine = await zookeeper.get("/mine")
            assert mine is not None
            assert mine.ephemeral_owner == shell.client_id[0]
            assert await zookeeper.get("/b") is None

    run(test())


def test_many_nodes_are_read_in_their_order_with_gaps(servers: str, shell: KazooClient) -> None:
    for number in range(0, 1200, 100):
        shell.create(f"/n{number}", str(number).encode())

    async def test() -> None:
        async with session(servers) as zookeeper:
            nodes = await zookeeper.get_many([f"/n{number}" for number in range(1200)])
            assert [None if node is None else int(node.data) for node in nodes] == [
                number if number % 100 == 0 else None for number in range(1200)
            ]
            assert await zookeeper.get_many([]) == []

    run(test())


def test_children_are_sorted_and_a_missing_node_has_none(servers: str, shell: KazooClient) -> None:
    for name in ("b", "c", "a"):
        shell.create(f"/p/{name}", makepath=True)

    async def test() -> None:
        async with session(servers) as zookeeper:
            assert await zookeeper.children("/p") == ["a", "b", "c"]
            assert await zookeeper.children("/q") == []

    run(test())


def test_a_watch_tells_once_of_a_change_of_data_of_children_and_of_a_node_that_appears(
    servers: str, shell: KazooClient
) -> None:
    shell.create("/a")
    told: list[str] = []

    async def test() -> None:
        async with session(servers) as zookeeper:
            await zookeeper.get("/a", lambda: told.append("data"))
            await zookeeper.children("/a", lambda: told.append("children"))
            await zookeeper.get("/b", lambda: told.append("appeared"))
            assert told == []
            shell.set("/a", b"1")
            shell.create("/a/x")
            shell.create("/b")
            await until(lambda: len(told) >= 3)
            shell.set("/a", b"2")
            shell.create("/a/y")
            shell.set("/b", b"2")
            await zookeeper.sync()
            assert sorted(told) == ["appeared", "children", "data"]

    run(test())


def test_watching_again_and_again_keeps_one_watch(servers: str, shell: KazooClient) -> None:
    class Owner:
        def __init__(self) -> None:
            self.told = 0

        def tell(self) -> None:
            self.told += 1

    async def test() -> None:
        owner = Owner()
        async with session(servers) as zookeeper:
            for _ in range(10):
                await zookeeper.children("/", owner.tell)
            shell.create("/new")
            await until(lambda: owner.told)
            await zookeeper.sync()
            await asyncio.sleep(0.01)
            assert owner.told == 1

    run(test())


# --- Writing ---


def test_a_node_is_created_once(servers: str) -> None:
    async def test() -> None:
        async with session(servers) as zookeeper:
            assert await zookeeper.create("/a", b"1")
            assert not await zookeeper.create("/a", b"2")
            await zookeeper.ensure_paths(["/x/y/z", "/x/y", "/x/w"])
            assert await zookeeper.children("/x") == ["w", "y"]

    run(test())


def test_all_of_a_multi_is_done(servers: str, shell: KazooClient) -> None:
    for path in ("/set", "/delete", "/check"):
        shell.create(path)

    async def test() -> None:
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

    run(test())


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
def test_if_one_operation_is_refused_none_is_done_and_the_one_is_named(
    servers: str, shell: KazooClient, refused: Check | Create | SetData | Delete, reason: str
) -> None:
    shell.create("/a")

    async def test() -> None:
        async with session(servers) as zookeeper:
            with pytest.raises(Conflict) as raised:
                await zookeeper.multi([Create("/before", b""), refused, Create("/after", b"")])
            assert str(raised.value) == reason
            assert await zookeeper.children("/") == ["a"]

    run(test())


def test_numbers_stay_dense_when_entries_are_removed_and_when_a_multi_is_refused(servers: str) -> None:
    """The feed of changes tells a gap by that."""

    async def test() -> None:
        async with session(servers) as zookeeper:
            await zookeeper.ensure_paths(["/feed"])
            for number in range(4):
                ((path),) = await zookeeper.multi([Create("/feed/c_", b"", sequential=True)])
                assert path == f"/feed/c_{number:010d}"
                if number:
                    await zookeeper.multi([Delete(f"/feed/c_{number - 1:010d}")])
                with pytest.raises(Conflict):
                    await zookeeper.multi([Create("/feed/c_", b"", sequential=True), Check("/none", 0)])

    run(test())
