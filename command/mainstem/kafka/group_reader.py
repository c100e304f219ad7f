"""Reads topics as a member of a consumer group, and commits the records that were written out.

Delivery is at least once: an offset is committed only after its record was written, so the next owner of a
partition may read some records a second time and misses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from mainstem.errors import ClusterRefused
from mainstem.kafka.client import PARTITION_EOF, Cluster, sentence_of
from mainstem.kafka.reassignment_plan import TopicPartition

_RECORDS_PER_CALL: Final = 500
_WAIT_SECONDS: Final = 0.1
_COMMIT_INTERVAL_MS: Final = 1000
_NOTHING_TO_COMMIT: Final = KafkaError._NO_OFFSET  # noqa: SLF001  # librdkafka's own codes: see client.py
_NOT_ASSIGNED: Final = KafkaError._STATE  # noqa: SLF001
_POLLED_TOO_LATE: Final = KafkaError._MAX_POLL_EXCEEDED  # noqa: SLF001


class GroupReader:
    """A member of `group` that reads `topics`; it leaves the group when the `with` block ends.

    `start` is where to begin in partitions for which the group has committed nothing: earliest or latest.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        start: str,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._cluster, self._group, self._topics = cluster, group, list(topics)
        self._assigned: set[TopicPartition] | None = None
        self._consumer: Consumer = cluster.consumer(
            {
                "group.id": group,
                "auto.offset.reset": start,
                # Commits what `mark_written` stored, periodically and when partitions are revoked.
                "enable.auto.commit": True,
                "auto.commit.interval.ms": _COMMIT_INTERVAL_MS,
                "enable.partition.eof": True,
            },
            on_trouble,
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._commit()
        finally:
            self._consumer.close()

    @property
    def has_joined(self) -> bool:
        """Whether the group has assigned partitions to this member; there may be none for it."""
        return self._assigned is not None

    def records(self) -> Iterator[list[Message]]:
        """The records, forever; an empty list from time to time while none arrive."""
        while True:
            yield from self._read(lambda message: not _is_end(message))

    def records_until(self, ends: Mapping[TopicPartition, int]) -> Iterator[list[Message]]:
        """The records before `ends`, in the partitions that this member is assigned."""
        finished: set[TopicPartition] = set()

        def is_before_end(message: Message) -> bool:
            key = (message.topic(), message.partition())
            end = ends.get(key, 0)
            if _is_end(message) or message.offset() >= end - 1:
                finished.add(key)
            return not _is_end(message) and message.offset() < end

        while self._assigned is None or not self._assigned <= finished:
            yield from self._read(is_before_end)

    def _read(self, accepts: Callable[[Message], bool]) -> Iterator[list[Message]]:
        """The accepted records of one call; records before an error are yielded before it is raised."""
        records: list[Message] = []
        for message in self._consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS):
            error = message.error()
            if error is not None and error.code() == _POLLED_TOO_LATE:
                continue  # the reader of our output was slow; the group accepts us again
            if error is not None and error.code() != PARTITION_EOF:
                yield records
                raise ClusterRefused(
                    f"Reading {', '.join(self._topics)} in group {self._group} failed: {sentence_of(error)}"
                )
            if accepts(message):
                records.append(message)
        yield records

    def mark_written(self, records: Sequence[Message]) -> None:
        """Let the offsets behind these records be committed, within a second."""
        ends = {(message.topic(), message.partition()): message.offset() + 1 for message in records}
        for (topic, number), offset in ends.items():
            try:
                self._consumer.store_offsets(offsets=[Position(topic, number, offset)])
            except KafkaException as exception:
                if exception.args[0].code() != _NOT_ASSIGNED:  # then the next owner reads them again
                    raise self._cluster.refusal(
                        exception, "The offsets of written records were not stored"
                    ) from exception

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as exception:
            if exception.args[0].code() != _NOTHING_TO_COMMIT:
                raise self._cluster.refusal(
                    exception, f"The offsets of group {self._group} were not committed"
                ) from exception

    def _on_assign(self, _consumer: Any, partitions: list[Position]) -> None:
        self._assigned = {(partition.topic, partition.partition) for partition in partitions}

    def _on_revoke(self, _consumer: Any, _partitions: list[Position]) -> None:
        self._assigned = None


def _is_end(message: Message) -> bool:
    return message.error() is not None
