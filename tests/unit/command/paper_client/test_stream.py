"""A stream over a played client: what counts as consumed, and what is delivered when (R16, R17)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from mainstem.paper_client import stream as stream_module
from mainstem.paper_client.errors import RebalanceFailed
from mainstem.paper_client.settings import ConsumerSettings
from mainstem.paper_client.stream import MessageStream


@dataclass
class PlayedMessage:
    number: int
    at: int

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d/%d" % (self.number, self.at)


@dataclass
class PlayedClient:
    """Gives what `messages` holds, or nothing after an instant."""

    settings: dict[str, object]
    messages: deque[PlayedMessage] = field(default_factory=deque)
    assigned: dict[int, int] = field(default_factory=dict)
    polls: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closed: bool = False

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.assigned |= {one.partition: one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self.assigned[one.partition]
        self.messages = deque(one for one in self.messages if one.number in self.assigned)

    def poll(self, _seconds: float) -> PlayedMessage | None:
        self.polls.release()
        return self.messages.popleft() if self.messages else None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageStream]:
    monkeypatch.setattr(stream_module, "Consumer", PlayedClient)
    stream = MessageStream("topic1", "group", ConsumerSettings())
    stream.deliver_until(time.monotonic() + 3600)
    yield stream
    stream.end(None)


def client_of(stream: MessageStream) -> PlayedClient:
    client: PlayedClient = stream._client
    return client


def give(stream: MessageStream, partition: int, *offsets: int) -> None:
    client_of(stream).messages.extend(PlayedMessage(partition, offset) for offset in offsets)


def test_a_message_is_consumed_when_its_user_comes_back(stream: MessageStream) -> None:
    stream.hold({3: 7}, ["host:1"])
    assert client_of(stream).assigned == {3: 7}
    give(stream, 3, 7, 8)
    first = next(stream)
    assert (first.payload, first.topic, first.partition, first.offset) == (b"3/7", "topic1", 3, 7)
    assert stream.positions() == {}
    next(stream)
    assert stream.positions() == {3: 8}


def test_what_is_in_work_when_a_partition_leaves_is_left_to_its_next_owner(stream: MessageStream) -> None:
    stream.hold({0: 0, 1: 0}, ["host:1"])
    give(stream, 0, 0, 1)
    give(stream, 1, 0)
    next(stream)
    next(stream)
    assert stream.give_up({0}) == {0: 1}
    assert next(stream).partition == 1
    assert stream.positions() == {}
    assert stream.give_up({0}) == {}


def test_of_a_partition_that_has_left_nothing_comes_any_more(stream: MessageStream) -> None:
    stream.hold({0: 0, 1: 0}, ["host:1"])
    give(stream, 0, 0)
    stream.deliver_until(0)
    stream._kept = PlayedMessage(0, 0)
    stream.give_up({0})
    stream.deliver_until(time.monotonic() + 3600)
    give(stream, 1, 0)
    assert next(stream).partition == 1


def test_nothing_is_delivered_when_the_session_may_have_ended(stream: MessageStream) -> None:
    stream.hold({0: 0}, ["host:1"])
    give(stream, 0, 0)
    stream.deliver_until(time.monotonic())
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(next(stream).offset))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive() and got == []
    stream.deliver_until(time.monotonic() + 3600)
    reader.join(60)
    assert got == [0]


def test_a_stream_without_partitions_waits_until_it_gets_some(stream: MessageStream) -> None:
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(next(stream).offset))
    reader.start()
    stream.hold({0: None}, ["host:1"])
    give(stream, 0, 5)
    reader.join(60)
    assert got == [5]


def test_partitions_change_hands_only_between_two_polls(stream: MessageStream) -> None:
    stream.hold({0: 0}, ["host:1"])
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    for _ in range(100):
        client_of(stream).polls.acquire(timeout=60)
        stream.hold({1: 0}, ["host:1"])
        assert not stream._polling or not stream._changing
        stream.give_up({1})
    stream.end(None)
    reader.join(60)
    assert not reader.is_alive()


def test_iteration_ends_with_its_consumer(stream: MessageStream) -> None:
    stream.hold({0: 0}, ["host:1"])
    stream.end(None)
    assert list(stream) == []
    client = client_of(stream)
    stream.close()
    assert client.closed


def test_iteration_raises_what_made_the_consumer_give_up(stream: MessageStream) -> None:
    stream.end(RebalanceFailed("a sentence"))
    with pytest.raises(RebalanceFailed, match="a sentence"):
        next(stream)
