"""The one ZooKeeper that the tests of the cluster share; each works below a node of its own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from mainstem.zookeeper_process import ZooKeeperProcess


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
