"""Sends many records through the stock client and keeps account of every one.

Used by `produce` and by the demo. Cost is per record here (the client's interface is), so the loop is bare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from mainstem.client import Cluster, sentence_of
from mainstem.errors import ClusterRefused, CommandError
from mainstem.lines import Record

ANY_PARTITION: Final = -1
# Long enough for a broker to be restarted, short enough for a person to wait.
DELIVERY_TIMEOUT_MS: Final = 60_000
_RECORDS_BETWEEN_POLLS: Final = 1000
_BATCH_BYTES_MAX: Final = 1_000_000
_BATCH_OVERHEAD_BYTES: Final = 1024  # header, and what records of a batch cost beside their own bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the records: `failed` counts those not acknowledged, by the reason given."""

    records: int
    acknowledged: int
    failed: dict[str, int]

    def check(self, topic: str) -> None:
        """Raise unless every record was acknowledged.

        Raises:
            ClusterRefused: with how many were not, and why.
        """
        lost = self.records - self.acknowledged
        if lost:
            reasons = "; ".join(f"{reason.rstrip('.')} ({count:,})" for reason, count in self.failed.items())
            raise ClusterRefused(
                f"{lost:,} of {_counted(self.records)} not acknowledged by topic {topic}: {reasons}."
            )


class Sender:
    """A producer for one topic; `acks` and `compression` as in Kafka's producer settings."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        on_trouble: Callable[[str], None],
        acks: str = "all",
        compression: str = "none",
    ) -> None:
        limit = (cluster.topic_settings(topic) or {}).get("max.message.bytes")
        batch_bytes = int(limit.value) - _BATCH_OVERHEAD_BYTES if limit is not None else _BATCH_BYTES_MAX
        self._topic = topic
        self._records = 0
        self._failed: Counter[str] = Counter()
        self._producer = cluster.producer(
            {
                "acks": acks,
                # As the Java client does: a batch whose answer was lost is sent again, and stored once (R11).
                "enable.idempotence": acks == "all",
                "compression.type": compression,
                "partitioner": "murmur2_random",  # as the Java client's: same key, same partition (R10)
                "linger.ms": 10,
                # librdkafka never cuts a batch that the topic finds too large, so it must not build one.
                "batch.size": max(1, min(_BATCH_BYTES_MAX, batch_bytes)),
                "message.max.bytes": 1_000_000_000,  # the topic's limit decides, and its answer is shown
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": 500_000,
                "delivery.report.only.error": True,
                "on_delivery": self._count_failure,
            },
            on_trouble,
        )

    def send(
        self,
        records: Iterable[Record],
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Queue records for sending; blocks while the queue is full."""
        topic, produce, poll = self._topic, self._producer.produce, self._producer.poll
        headers = list(headers)
        for value, key, timestamp_ms in records:
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=timestamp_ms, headers=headers)
                except BufferError:
                    poll(0.1)
                except KafkaException as exception:  # found too large before it was queued, for one
                    self._failed[sentence_of(exception.args[0])] += 1
                    break
                else:
                    break
            self._records += 1
            if self._records % _RECORDS_BETWEEN_POLLS == 0:
                poll(0)

    def finish(self) -> Sent:
        """Wait until each record is acknowledged or has failed."""
        while self._producer.flush(1.0):
            pass
        return Sent(self._records, self._records - self._failed.total(), dict(self._failed))

    def give_up(self) -> Sent:
        """Wait a little, then give up what is not acknowledged."""
        if self._producer.flush(3.0):
            self._producer.purge()
            self._producer.flush(1.0)
        return Sent(self._records, self._records - self._failed.total(), dict(self._failed))

    def _count_failure(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed[sentence_of(error)] += 1


def tell_sent(error: CommandError, sent: Sent) -> CommandError:
    """The same error, saying what had been sent before it."""
    return type(error)(f"{error} ({_counted(sent.acknowledged)} sent and acknowledged before it.)")


def _counted(records: int) -> str:
    return "1 record was" if records == 1 else f"{records:,} records were"
