"""How `mainstem consume --group` reads: as a member of a group, that commits what has been written.

At least once: an offset is committed only after its record is out of our hands, so whoever takes over
may see some records a second time, and misses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mainstem.client import PARTITION_EOF, Cluster, sentence_of
from mainstem.errors import ClusterRefused

_RECORDS_PER_CALL: Final = 500
_WAIT_SECONDS: Final = 0.1
_COMMIT_INTERVAL_MS: Final = 1000
_NOTHING_TO_COMMIT: Final = KafkaError._NO_OFFSET  # noqa: SLF001  # librdkafka's own codes: see client.py
_NO_LONGER_OURS: Final = KafkaError._STATE  # noqa: SLF001
_POLLED_TOO_LATE: Final = KafkaError._MAX_POLL_EXCEEDED  # noqa: SLF001


class GroupReader:
    """A member of `group` that reads one topic; leaves the group when the `with` block ends.

    `start` is where to begin in partitions that the group has committed nothing of: earliest or latest.
    """

    def __init__(
        self, cluster: Cluster, group: str, topic: str, start: str, on_trouble: Callable[[str], None]
    ) -> None:
        self._cluster, self._group, self._topic = cluster, group, topic
        self._assigned: set[int] | None = None
        self._consumer: Consumer = cluster.consumer(
            {
                "group.id": group,
                "auto.offset.reset": start,
                "enable.auto.commit": True,  # of what `written` has stored, and when partitions are given up
                "auto.commit.interval.ms": _COMMIT_INTERVAL_MS,
                "enable.partition.eof": True,
            },
            on_trouble,
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe(
            [self._topic], on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose
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
        """Whether the group has given this member its part, which may be nothing."""
        return self._assigned is not None

    def records(self) -> Iterator[list[Message]]:
        """What comes, for ever; an empty list now and then while nothing comes."""
        while True:
            yield from self._split(lambda message: not _is_end(message))

    def records_until(self, latest: dict[int, int]) -> Iterator[list[Message]]:
        """What lies before these ends in the partitions that this member has."""
        read: set[int] = set()

        def wanted(message: Message) -> bool:
            number, end = message.partition(), latest.get(message.partition(), 0)
            if _is_end(message) or message.offset() >= end - 1:
                read.add(number)
            return not _is_end(message) and message.offset() < end

        while self._assigned is None or not self._assigned <= read:
            yield from self._split(wanted)

    def _split(self, wanted: Callable[[Message], bool]) -> Iterator[list[Message]]:
        """One call's records; what came before an error is yielded before it is raised."""
        records: list[Message] = []
        for message in self._consumer.consume(_RECORDS_PER_CALL, _WAIT_SECONDS):
            error = message.error()
            if error is not None and error.code() == _POLLED_TOO_LATE:
                continue  # whoever reads our output was slow; the group takes us back
            if error is not None and error.code() != PARTITION_EOF:
                yield records
                raise ClusterRefused(
                    f"Reading {self._topic} in group {self._group} failed: {sentence_of(error)}"
                )
            if wanted(message):
                records.append(message)
        yield records

    def written(self, records: Sequence[Message]) -> None:
        """Note that these have been written: they are committed within a second."""
        ends = {message.partition(): message.offset() + 1 for message in records}
        positions = [TopicPartition(self._topic, number, offset) for number, offset in ends.items()]
        for position in positions:
            try:
                self._consumer.store_offsets(offsets=[position])
            except KafkaException as exception:
                if exception.args[0].code() != _NO_LONGER_OURS:  # then its next owner reads them again
                    raise self._cluster.refusal(exception, "Noting what was read failed") from exception

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as exception:
            if exception.args[0].code() != _NOTHING_TO_COMMIT:
                raise self._cluster.refusal(
                    exception, f"What group {self._group} read was not committed"
                ) from exception

    def _gain(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._assigned = {partition.partition for partition in partitions}

    def _lose(self, _consumer: Any, _partitions: list[TopicPartition]) -> None:
        self._assigned = None


def _is_end(message: Message) -> bool:
    return message.error() is not None
