"""A stream of messages that never ends (§3.1): what it delivers, and how far its user has come.

A stock Kafka client fetches in the background from whichever brokers lead (§3.2 "a pull model"). Two threads
meet here: the user's, which iterates, and the consumer's, which hands over partitions and takes them away;
never while the first is inside the client, so that no message of a partition that was taken away comes after.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from mainstem.paper_client.messages import ReceivedMessage
from mainstem.paper_client.settings import ConsumerSettings

logger = logging.getLogger(__name__)

# How long an idle stream may keep a rebalance waiting.
_POLL_SECONDS: Final = 0.1
_END_SECONDS: Final = 1.0  # for a leader to tell where its partition ends


class MessageStream:
    """One of a consumer's streams. `for message in stream` blocks while there is none; for one thread.

    Iteration ends when the consumer is closed, and raises what made the consumer give up.

    At least once (§3.2): a message counts as consumed when its user comes back for the next one. So what was
    in work when a process died is delivered again, to the partition's next owner.
    """

    def __init__(self, topic: str, group_id: str, settings: ConsumerSettings) -> None:
        self._topic = topic
        self._group_id = group_id
        self._settings = settings
        self._client: Any = None
        self._news = threading.Condition()
        self._held: set[int] = set()
        self._positions: dict[int, int] = {}
        """Where each partition would be read on, of those of which a message was consumed here."""
        self._taken: tuple[int, int] | None = None
        """Partition and offset of the message that the user has in work."""
        self._kept: Any = None
        """What the client gave when nothing might be delivered."""
        self._deliver_until = 0.0
        """Until when, by the steady clock, no other member can own what is held; see `Membership`."""
        self._polling = False
        self._changing = False
        self._ended = False
        self._failure: Exception | None = None

    # For the user

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        with self._news:
            self._note_consumed()
            while True:
                self._news.wait_for(self._may_go_on)
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    raise StopIteration
                self._poll()
                if self._kept is not None and self._may_deliver() and not self._ended:
                    return self._deliver()

    def _note_consumed(self) -> None:
        if self._taken is not None:
            partition, offset = self._taken
            self._positions[partition] = offset + 1
            self._taken = None

    def _may_go_on(self) -> bool:
        return self._ended or (self._client is not None and not self._changing and self._may_deliver())

    def _may_deliver(self) -> bool:
        return time.monotonic() < self._deliver_until

    def _poll(self) -> None:
        """Ask the client for a message, without the lock; what comes is kept."""
        if self._kept is not None:
            return
        self._polling = True
        self._news.release()
        try:
            message = self._client.poll(_POLL_SECONDS)
        finally:
            self._news.acquire()
            self._polling = False
            if self._changing or self._ended:
                self._news.notify_all()
        if message is not None and message.error() is None:
            self._kept = message
        elif message is not None:
            # The client goes on by itself: it looks for the new leader, or waits until there is one.
            logger.info("%s: %s", self._topic, message.error())

    def _deliver(self) -> ReceivedMessage:
        message, self._kept = self._kept, None
        partition, offset = message.partition(), message.offset()
        self._taken = (partition, offset)
        return ReceivedMessage(message.value() or b"", message.key(), self._topic, partition, offset)

    # For the consumer

    def hold(self, starts: Mapping[int, int | None], brokers: Iterable[str]) -> None:
        """Deliver these partitions too, each from its offset; None: as `auto_offset_reset` says."""
        with self._while_nobody_polls():
            if self._client is None:
                self._client = Consumer(self._client_settings(brokers))
            offsets = {
                partition: self._first_offset(partition) if offset is None else offset
                for partition, offset in starts.items()
            }
            self._client.incremental_assign(
                [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
            )
            self._held |= starts.keys()

    def _first_offset(self, partition: int) -> int:
        """Where a group begins that has no offset yet. The end counts as its position from now on: if it were
        not committed, the next owner would begin at a later end."""
        if self._settings.auto_offset_reset == "smallest":
            return int(OFFSET_BEGINNING)
        partition_offset = TopicPartition(self._topic, partition)
        try:
            _, end = self._client.get_watermark_offsets(partition_offset, timeout=_END_SECONDS)
        except KafkaException as exception:
            logger.info("%s-%d: its end is not known: %s", self._topic, partition, exception)
            return int(OFFSET_END)
        self._positions[partition] = end
        return int(end)

    def give_up(self, partitions: Collection[int]) -> dict[int, int]:
        """Deliver nothing more of those that are held here; the positions of those that were consumed of."""
        with self._while_nobody_polls():
            leaving = self._held.intersection(partitions)
            if not leaving:
                return {}
            self._client.incremental_unassign([TopicPartition(self._topic, number) for number in leaving])
            self._held -= leaving
            if self._taken is not None and self._taken[0] in leaving:
                self._taken = None
            if self._kept is not None and self._kept.partition() in leaving:
                self._kept = None
            return {number: self._positions.pop(number) for number in leaving if number in self._positions}

    def positions(self) -> dict[int, int]:
        """The offset after the last message consumed, by partition."""
        with self._news:
            return dict(self._positions)

    def deliver_until(self, seconds: float) -> None:
        """Deliver until then, by the steady clock, unless called again."""
        with self._news:
            self._deliver_until = seconds
            self._news.notify_all()

    def end(self, failure: Exception | None) -> None:
        """Let iteration end, or raise `failure`."""
        with self._news:
            self._ended, self._failure = True, failure
            self._news.notify_all()

    def close(self) -> None:
        """Let go of the client, after `end`."""
        with self._while_nobody_polls():
            if self._client is not None:
                self._client.close()
                self._client = None

    @contextmanager
    def _while_nobody_polls(self) -> Iterator[None]:
        with self._news:
            self._changing = True
            self._news.wait_for(lambda: not self._polling)
            try:
                yield
            finally:
                self._changing = False
                self._news.notify_all()

    def _client_settings(self, brokers: Iterable[str]) -> dict[str, object]:
        return {
            "bootstrap.servers": ",".join(brokers),
            "group.id": self._group_id,  # librdkafka wants one; it never joins
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # For offsets that retention has taken.
            "auto.offset.reset": self._settings.auto_offset_reset,
            "check.crcs": True,
            "max.poll.interval.ms": 86_400_000,  # a message may take its user long
            "reconnect.backoff.max.ms": 1_000,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
