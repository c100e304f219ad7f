"""The topic `_schemas` without a broker: a producer, and a consumer that reads when a test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from mainstem_registry.records import WRITER, Record, decode, encode


@dataclass(frozen=True, slots=True)
class FakeMessage:
    offset: int
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class FakeTopic:
    """The log, of which consumers see the first `readable` records."""

    def __init__(self, records: list[Record], readable: int | None = None) -> None:
        self.messages: list[FakeMessage] = []
        for record in records:
            self.append(record)
        self.readable = len(records) if readable is None else readable
        self.before_write: Callable[[Record], None] | None = None
        """Called with each record that a producer sends, before it is in the log."""
        self.empty_polls = 0
        self.polled = asyncio.Condition()

    def append(self, record: Record) -> None:
        """Append a record of an instance."""
        self.append_message(*encode(record), headers=[WRITER])

    def append_message(
        self, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Append what another registry wrote, or an instance as the headers say."""
        self.messages.append(FakeMessage(len(self.messages), key, value, headers))
        self.readable = len(self.messages)

    def compacted(self) -> FakeTopic:
        """The topic after a compaction that removes everything it may: tombstones included."""
        last = {message.key: message for message in self.messages}
        topic = FakeTopic([])
        for message in self.messages:
            if last[message.key] is message and message.value is not None:
                topic.append_message(message.key, message.value, message.headers)
        return topic

    async def wait_for_empty_polls(self, count: int) -> None:
        """Wait until `count` more polls found nothing."""
        goal = self.empty_polls + count
        async with self.polled:
            await self.polled.wait_for(lambda: self.empty_polls >= goal)

    def consumer(self, **_: Any) -> FakeConsumer:
        return FakeConsumer(self)

    def producer(self, **_: Any) -> FakeProducer:
        return FakeProducer(self)


class FakeConsumer:
    """What the store uses of aiokafka's consumer. Polls return at once."""

    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic
        self._position = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, _partitions: list[TopicPartition]) -> None: ...

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self._position = offset

    async def position(self, _partition: TopicPartition) -> int:
        return self._position

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self._topic.messages))

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[FakeMessage]]:
        del timeout_ms
        await asyncio.sleep(0)
        if self._position > len(self._topic.messages):
            raise OffsetOutOfRangeError
        messages = self._topic.messages[self._position : self._topic.readable]
        self._position += len(messages)
        if messages:
            return {TopicPartition("_schemas", 0): messages}
        async with self._topic.polled:
            self._topic.empty_polls += 1
            self._topic.polled.notify_all()
        return {}


class FakeProducer:
    """What the store uses of aiokafka's producer."""

    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send_and_wait(
        self,
        _topic: str,
        value: bytes | None,
        key: bytes,
        partition: int,
        headers: Sequence[tuple[str, bytes]],
    ) -> FakeMessage:
        del partition
        record = decode(key, value)
        assert record is not None
        if self._topic.before_write is not None:
            self._topic.before_write(record)
        self._topic.append_message(key, value, headers)
        return self._topic.messages[-1]
