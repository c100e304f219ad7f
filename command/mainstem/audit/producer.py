"""A producer that counts what it sends, and posts the counts to the audit topic.

    producer = AuditedProducer({"bootstrap.servers": "127.0.0.1:9092"}, "web-1")
    producer.produce("clicks", value=b"...")
    producer.flush()

It has the methods of confluent-kafka's Producer that applications use to send. Counts are posted by a client
of their own, so that a queue that does not move does not hold them back: when a window gets its first record,
then at most every
`POST_INTERVAL_S` seconds from within `produce` and `poll`, and by `flush`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.audit.counts import AUDIT_TOPIC, CountKey, ProducerCounts, to_record, window_of

POST_INTERVAL_S: Final = 10.0
_POST_FLUSH_S: Final = 10.0
_CREATE_TOPIC_S: Final = 10.0
# Each producer and window is a key of its own, so compaction alone would keep all counts for ever.
_AUDIT_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(90 * 24 * 3600 * 1000),
}
# Settings of a client that say how brokers are reached, not how records are sent.
_CONNECTION_SETTINGS: Final = ("bootstrap.servers", "security.", "ssl.", "sasl.", "client.id", "log_level")

OnDelivery = Callable[[KafkaError | None, Message], None]


class AuditedProducer:
    """A producer whose records are audited. May be used by several threads.

    Args:
        settings: as for confluent-kafka's Producer.
        name: of the application, for people; each AuditedProducer counts under a name of its own that begins
            with it.
        producer: sends the records; one with `settings`, if None.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, producer: Any = None) -> None:
        connection = {key: value for key, value in settings.items() if key.startswith(_CONNECTION_SETTINGS)}
        self.name = f"{name}/{secrets.token_hex(4)}"
        self._producer: Any = Producer(dict(settings)) if producer is None else producer
        # Counts are small and rare, and must not wait behind records.
        self._poster: Any = Producer({**connection, "linger.ms": 0, "enable.idempotence": True})
        self._lock = threading.Lock()
        self._counts: dict[CountKey, ProducerCounts] = {}
        self._changed: set[CountKey] = set()
        self._posted_at_s = time.monotonic()
        _create_audit_topic(connection)

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        **more: Any,
    ) -> None:
        """Send a record, as Producer.produce does. Without a timestamp it gets the present time, so that the
        producer and the log count it in the same window.
        """
        timestamp = timestamp or int(time.time() * 1000)
        name = CountKey(self.name, topic, window_of(timestamp))

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._add(name, delivered=1)
            else:
                self._add(name, failed=1)
            if on_delivery is not None:
                on_delivery(error, message)

        self._producer.produce(
            topic, value, key, partition, on_delivery=delivered, timestamp=timestamp, **more
        )
        if self._add(name, produced=1):
            self.post()
        self._post_sometimes()

    def poll(self, timeout: float = 0.0) -> int:
        """Call the callbacks of delivered records."""
        count: int = self._producer.poll(timeout)
        self._post_sometimes()
        return count

    def flush(self, timeout: float = -1.0) -> int:
        """Wait until all records are delivered or have failed, then post the counts.

        Returns:
            How many records are still under way.
        """
        left: int = self._producer.flush(timeout)
        if not left:
            # Without reports of success, all that has not failed was delivered.
            with self._lock:
                for key, counts in self._counts.items():
                    if counts.unconfirmed:
                        self._counts[key] = replace(counts, delivered=counts.expected)
                        self._changed.add(key)
        self.post()
        self._poster.flush(_POST_FLUSH_S)
        return left

    def purge(self) -> None:
        """Drop the records that are not sent yet; they count as failed."""
        self._producer.purge()

    def __len__(self) -> int:
        return len(self._producer)

    def post(self) -> None:
        """Post the counts that have changed. Posting again does no harm, so nothing waits for an answer."""
        with self._lock:
            changed, self._changed = self._changed, set()
            self._posted_at_s = time.monotonic()
            posted_ms = int(time.time() * 1000)
            posts = [(key, replace(self._counts[key], posted_ms=posted_ms)) for key in changed]
        for name, counts in posts:
            key, value = to_record(name, counts)
            try:
                self._poster.produce(AUDIT_TOPIC, value, key, on_delivery=self._posted(name))
            except (BufferError, KafkaException):
                self._post_again(name)
        self._poster.poll(0)

    def _posted(self, name: CountKey) -> OnDelivery:
        def posted(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._post_again(name)

        return posted

    def _post_again(self, name: CountKey) -> None:
        with self._lock:
            self._changed.add(name)

    def _add(self, key: CountKey, produced: int = 0, delivered: int = 0, failed: int = 0) -> bool:
        """Count, and return whether the window is new."""
        with self._lock:
            before = self._counts.get(key, ProducerCounts())
            self._counts[key] = ProducerCounts(
                before.produced + produced, before.delivered + delivered, before.failed + failed
            )
            self._changed.add(key)
        return not before.produced and bool(produced)

    def _post_sometimes(self) -> None:
        if self._changed and time.monotonic() - self._posted_at_s >= POST_INTERVAL_S:
            self.post()


def _create_audit_topic(connection: Mapping[str, Any]) -> None:
    """Create the audit topic where there is none. A failure is left to the posts, whose errors change
    nothing."""
    topic = NewTopic(AUDIT_TOPIC, 1, config=_AUDIT_TOPIC_SETTINGS)
    admin: Any = AdminClient(dict(connection))
    with suppress(KafkaException):
        # Without a timeout of its own: librdkafka ends the request, and a client may not be destroyed before.
        admin.create_topics([topic], request_timeout=_CREATE_TOPIC_S)[AUDIT_TOPIC].result()
