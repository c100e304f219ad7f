"""The event loop of asynchronous tests, and the one ZooKeeper that they share, each below its own node."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
import uvloop
from kazoo.client import KazooClient
from tests.unit.broker.at_end import close_all

from mainstem.local.zookeeper_process import ZooKeeperProcess

ASYNC_TIMEOUT_S: Final = 60
"""A scenario that waits for an event that never comes ends after this time."""
_FOLDER: Final = Path(__file__).parent


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Asynchronous tests run on the loop that the broker uses."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FOLDER not in item.path.parents or item.get_closest_marker("timeout") is not None:
            continue
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.timeout(ASYNC_TIMEOUT_S))


@pytest.fixture(autouse=True)
def closed_at_end() -> Iterator[None]:
    """Set up before a test's own fixtures, so it closes what they may still need when they end."""
    yield
    close_all()


@pytest.fixture(scope="session")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start(timeout_seconds=60)
        yield f"127.0.0.1:{server.port}"
    finally:
        if server.process is not None:
            server.process.kill()


@pytest.fixture(scope="session")
def zookeeper_root(zookeeper_address: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_address, timeout=60)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def servers(zookeeper_address: str, zookeeper_root: KazooClient) -> str:
    """What `zookeeper.connect` would say: a tree of this test's own."""
    name = uuid4().hex
    zookeeper_root.create(f"/{name}")
    return f"{zookeeper_address}/{name}"


@pytest.fixture
def shell(servers: str) -> Iterator[KazooClient]:
    """Another session, as of a person at a `zookeeper-shell`, below the same node."""
    client = KazooClient(servers, timeout=30)
    client.start()
    yield client
    client.stop()
    client.close()
