"""The classes that PySpark calls to write DataFrames to topics, through confluent-kafka's idempotent
producer.

Each task writes its rows with a producer of its own and waits until brokers have acknowledged all of them
with
`acks=all`. Within a task nothing is lost, doubled or reordered. A task that Spark runs again, or a
micro-batch that is repeated after a crash, writes its rows again: writes are at least once, as those of
Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mainstem_loader.errors import SettingsError, WriteError
from mainstem_loader.spark.source.options import WriteOptions
from mainstem_loader.spark.source.write_rows import Row, check_write_schema, rows_of

# librdkafka refuses rows beyond its queue until some are acknowledged.
_QUEUE_PAUSE_S: Final = 0.05
_FLUSH_S: Final = 1.0


@dataclass
class WrittenRows(WriterCommitMessage):
    """How many rows a task has written."""

    count: int


class _TopicWriter:
    """What batches and streams share. PySpark pickles it for each task."""

    def __init__(self, options: WriteOptions, schema: pa.Schema, overwrite: bool) -> None:
        if overwrite:
            raise SettingsError("A topic cannot be overwritten; write with .mode('append').")
        check_write_schema(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, and wait until they are stored."""
        return WrittenRows(write_rows(self._options, iterator))


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a batch."""


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Nothing is left to do: tasks have waited for brokers."""

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Rows cannot be taken back; the micro-batch is written again."""


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Send rows to their topics.

    Returns:
        How many rows there were; all of them are stored by all in-sync replicas.

    Raises:
        WriteError: brokers refused a row, or were out of reach for `message.timeout.ms`.
        SettingsError: the producer refuses its settings, or a row has no topic.
    """
    from confluent_kafka import KafkaException, Producer

    settings: Mapping[str, Any] = {
        "log_level": 0,
        **options.client,
        # Not to be weakened: a row that is sent again is stored once, and none is lost.
        "enable.idempotence": True,
        "acks": "all",
    }
    try:
        producer: Any = Producer(settings)
    except KafkaException as error:
        raise SettingsError(f"The producer refuses its settings: {error.args[0].str()}.") from error
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(f"a row for topic {message.topic()} was not written: {error.str()}")

    count = 0
    for batch in batches:
        for row in rows_of(batch, options.topic):
            _send(producer, row, delivered)
            count += 1
        producer.poll(0)
        _raise_failure(failures)
    while producer.flush(_FLUSH_S):
        _raise_failure(failures)
    _raise_failure(failures)
    return count


def _send(producer: Any, row: Row, delivered: Any) -> None:
    arguments = {} if row.partition is None else {"partition": row.partition}
    if row.timestamp_ms is not None:
        arguments["timestamp"] = row.timestamp_ms
    while True:
        try:
            producer.produce(
                row.topic, row.value, row.key, headers=row.headers, on_delivery=delivered, **arguments
            )
            return
        except BufferError:
            producer.poll(_QUEUE_PAUSE_S)


def _raise_failure(failures: list[str]) -> None:
    if failures:
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise WriteError(f"{failures[0]}{more}; check the topic and the brokers, then write again.")
