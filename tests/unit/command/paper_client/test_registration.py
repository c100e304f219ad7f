"""A consumer's entry in the consumer registry, where ZooKeeper's answers are lost (paper §3.2)."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from mainstem.paper_client import zookeeper
from mainstem.paper_client.znodes import GroupPaths
from mainstem.paper_client.zookeeper import GroupSession


class OneNodeAtATime:
    """As much of ZooKeeper as registering needs; loses the answer to the first entry that is made."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.lost_answers = 1

    def add_listener(self, _listener: Any) -> None: ...

    def ensure_path(self, _path: str) -> None: ...

    def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        assert ephemeral
        self.nodes[path] = value
        if self.lost_answers:
            self.lost_answers -= 1
            raise ConnectionLoss

    def delete(self, path: str) -> None:
        if path not in self.nodes:
            raise NoNodeError
        del self.nodes[path]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> OneNodeAtATime:
    server = OneNodeAtATime()
    monkeypatch.setattr(zookeeper, "_client", lambda *_: server)
    return server


def session() -> GroupSession:
    paths = GroupPaths("counters", "clicks")
    return GroupSession("127.0.0.1:1", paths, "host", 6_000, on_change=lambda: None, on_lost=lambda: None)


def test_an_entry_whose_answer_was_lost_does_not_stay_beside_the_next(server: OneNodeAtATime) -> None:
    """It would be given partitions for as long as the session lasts, and nobody would read them."""
    consumer = session()
    with pytest.raises(ConnectionLoss):
        consumer.register(1)
    consumer.register(1)
    assert list(server.nodes) == [f"/consumers/counters/ids/{consumer.consumer_id}"]


def test_a_consumer_whose_entry_is_gone_registers_under_another_id(server: OneNodeAtATime) -> None:
    server.lost_answers = 0
    consumer = session()
    consumer.register(1)
    before = consumer.consumer_id
    server.nodes.clear()
    consumer.register(1)
    assert consumer.consumer_id != before
    assert list(server.nodes) == [f"/consumers/counters/ids/{consumer.consumer_id}"]
