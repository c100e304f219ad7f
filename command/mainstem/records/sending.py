"""Sends many records through the stock client and accounts for every one.

`produce` and the demo use it. The client's interface costs time per record, so the loop does little else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from mainstem.audit.producer import AuditedProducer
from mainstem.errors import ClusterRefused, CommandError
from mainstem.interruption import Interruption
from mainstem.kafka.client import MESSAGE_TIMED_OUT, Cluster, sentence_of
from mainstem.records.lines import Record, RecordWithHeaders


class Compression(StrEnum):
    """The compression of batches, as in the producer setting compression.type."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Who must have a record before it is acknowledged, as in the producer setting acks."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


ANY_PARTITION: Final = -1
# Long enough for a broker to restart, short enough for a person to wait.
DELIVERY_TIMEOUT_MS: Final = 60_000
# A wait of this length without progress is explained, long before records time out.
_EXPLAIN_AFTER_SECONDS: Final = 5.0
_RECORDS_BETWEEN_POLLS: Final = 1000
_BATCH_BYTES_MAX: Final = 1_000_000
_BATCH_OVERHEAD_BYTES: Final = 1024  # the header, and what each record of a batch adds to its own bytes
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


@dataclass(frozen=True, slots=True)
class Sent:
    """The account of the records: `failed` counts those not acknowledged, by the reason given.

    Every record before number `resume_at` was acknowledged, counted from 0 in the order of sending; of the
    later ones some may have been.
    """

    records: int
    acknowledged: int
    failed: dict[str, int]
    resume_at: int

    def check(self, topic: str) -> None:
        """Raise unless every record was acknowledged.

        Raises:
            ClusterRefused: with the number of the others, and the reasons.
        """
        lost = self.records - self.acknowledged
        if lost:
            reasons = "; ".join(f"{reason.rstrip('.')} ({count:,})" for reason, count in self.failed.items())
            raise ClusterRefused(
                f"{lost:,} of {_counted(self.records)} not acknowledged by topic {topic}: {reasons}."
            )


class Sender:
    """A producer for one topic; `acks` and `compression` as in Kafka's producer settings.

    `audited` says whether the records are counted for an audit. `on_trouble` receives a sentence when no
    broker answers, and when the topic accepts no records for long. `interruption` is deferred while records
    and failures are counted, so that the account is right after a KeyboardInterrupt.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        on_trouble: Callable[[str], None],
        acks: str = "all",
        compression: str = "none",
        audited: bool = False,
        interruption: Interruption | None = None,
    ) -> None:
        limit = (cluster.topic_settings(topic) or {}).get("max.message.bytes")
        self._size_limit_bytes = None if limit is None else int(limit.value)
        batch_bytes = (self._size_limit_bytes or 2 * _BATCH_BYTES_MAX) - _BATCH_OVERHEAD_BYTES
        self._cluster, self._topic, self._on_trouble = cluster, topic, on_trouble
        self._interruption = interruption or Interruption()
        self._records = 0
        self._first_failed_block: int | None = None
        self._failed: Counter[str] = Counter()
        self._producer: Any = cluster.producer(
            {
                "acks": acks,
                # As in the Java client: a batch that is sent again after a lost answer is stored once (R11).
                "enable.idempotence": acks == "all",
                "compression.type": compression,
                "delivery.report.only.error": True,
            },
            on_trouble,
            {
                "partitioner": "murmur2_random",  # as in the Java client: same key, same partition (R10)
                "linger.ms": 10,
                # librdkafka never splits a batch that the topic finds too large, so it must not build one.
                "batch.size": max(1, min(_BATCH_BYTES_MAX, batch_bytes)),
                "message.max.bytes": 1_000_000_000,  # the topic's limit decides, and its answer is shown
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": 500_000,
            },
        )
        if audited:
            self._producer = AuditedProducer(cluster.client_settings(), "mainstem-produce", self._producer)

    def send(
        self,
        records: Iterable[Record | RecordWithHeaders],
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Queue records for sending; blocks while the queue is full. Only the reading of `records` and the
        wait for the queue are interrupted."""
        topic, produce, poll = self._topic, self._producer.produce, self._producer.poll
        defer, allow = self._interruption.defer, self._interruption.allow
        on_delivery = self._failure_counter(self._records)
        headers = list(headers)
        for value, key, timestamp_ms, *own_headers in records:
            defer()
            while True:
                try:
                    produce(
                        topic,
                        value,
                        key,
                        partition,
                        on_delivery,
                        timestamp=timestamp_ms,
                        headers=[*headers, *own_headers[0]] if own_headers else headers,
                    )
                except BufferError:
                    poll(0.1)
                    allow()  # this record is not queued
                    defer()
                except KafkaException as exception:  # for one, a record that is too large for the client
                    self._count_failure(exception.args[0], self._records)
                    break
                else:
                    break
            self._records += 1
            if self._records % _RECORDS_BETWEEN_POLLS == 0:
                poll(0)
                on_delivery = self._failure_counter(self._records)
            allow()

    def finish(self) -> Sent:
        """Wait until each record is acknowledged or has failed."""
        queued, progress_at, explained = -1, time.monotonic(), False
        while left := self._flush(1.0):
            now = time.monotonic()
            if left != queued:
                queued, progress_at = left, now
            elif not explained and now - progress_at > _EXPLAIN_AFTER_SECONDS:
                explained = True
                if (reason := self._cluster.why_not_writable(self._topic)) is not None:
                    self._on_trouble(
                        f"topic {self._topic} accepts no records, because {reason}. Trying again for up to "
                        f"{DELIVERY_TIMEOUT_MS // 1000} s."
                    )
        return self._sent()

    def give_up(self) -> Sent:
        """Wait a little, then drop the records that are not acknowledged."""
        if self._producer.flush(3.0):
            self._producer.purge()
            self._producer.flush(1.0)
        return self._sent()

    def _flush(self, timeout_s: float) -> int:
        """The number of records that are still under way. Failures are counted meanwhile."""
        with self._interruption.deferred():
            left: int = self._producer.flush(timeout_s)
        return left

    def _sent(self) -> Sent:
        failed = dict(self._failed)
        timed_out = f"{_TIMED_OUT}."
        if timed_out in failed and (reason := self._cluster.why_not_writable(self._topic)) is not None:
            failed[reason] = failed.pop(timed_out)
        resume_at = self._records if self._first_failed_block is None else self._first_failed_block
        return Sent(self._records, self._records - self._failed.total(), failed, resume_at)

    def _failure_counter(self, block: int) -> Callable[[KafkaError | None, Message], None]:
        """A delivery callback for the records from number `block` on: one per record would cost too much."""

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._count_failure(error, block)

        return on_delivery

    def _count_failure(self, error: KafkaError, block: int) -> None:
        if self._first_failed_block is None or block < self._first_failed_block:
            self._first_failed_block = block
        if error.code() == MESSAGE_TIMED_OUT:
            self._failed[f"{_TIMED_OUT}."] += 1
        elif error.code() in _TOO_LARGE and self._size_limit_bytes is not None:
            self._failed[
                f"a record is larger than max.message.bytes of the topic ({self._size_limit_bytes:,}): send "
                f"smaller records, or raise it with `mainstem config set --topic {self._topic} "
                "max.message.bytes=N`."
            ] += 1
        else:
            self._failed[sentence_of(error)] += 1


_TIMED_OUT: Final = (
    f"the partition's leader did not acknowledge it within {DELIVERY_TIMEOUT_MS // 1000} s: see "
    "`mainstem cluster status`"
)


def with_sent(error: CommandError, sent: Sent) -> CommandError:
    """The same error with the number of records sent before it."""
    return type(error)(f"{error} ({_counted(sent.acknowledged)} sent and acknowledged before it.)")


def _counted(records: int) -> str:
    return "1 record was" if records == 1 else f"{records:,} records were"
