"""The classes that PySpark calls to read topics. They hold what PySpark sends between processes, and decide
nothing.

PySpark makes a reader in a process that only plans, in another one for each streaming query, and pickles it
for each task, so a reader holds options and a schema, and no connection (Python Data Source API of Spark 4.2
and later).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from mainstem_loader.errors import OffsetsLostError
from mainstem_loader.kafka.fetch import EpochEnd, TopicReader
from mainstem_loader.kafka.range_reader import read_range
from mainstem_loader.spark.source.filters import Pruning, pruning_of
from mainstem_loader.spark.source.offsets import (
    Split,
    StreamOffset,
    at_end_of,
    batch_splits,
    divide_splits,
    stream_end,
    stream_splits,
    stream_start,
    up_to,
)
from mainstem_loader.spark.source.options import ReadOptions, read_options, write_options
from mainstem_loader.spark.source.rows import RowBuilder, check_schema, default_schema
from mainstem_loader.spark.source.topics import topics_now
from mainstem_loader.spark.source.write import BatchWriter, StreamWriter

FORMAT: Final = "mainstem"


class MainstemDataSource(DataSource):
    """`spark.read.format("mainstem")` and its like for streams and writes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        # Whether it is a batch or a stream is not known yet, and does not matter to the columns.
        options = read_options(
            {name: text for name, text in self.options.items() if not _is_position(name)}, is_stream=True
        )
        return default_schema(options.include_headers, options.payload, options.payload_schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchReader(read_options(self.options, is_stream=False), _arrow_schema(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # PySpark's name
        return StreamReader(read_options(self.options, is_stream=True), _arrow_schema(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(write_options(self.options), _arrow_schema(schema), overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(write_options(self.options), _arrow_schema(schema), overwrite)


class SplitPartition(InputPartition):
    """A split, as PySpark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)


class _SplitReader:
    """What batches and streams share: options, a schema, and the tasks' reads."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        check_schema(schema, options.payload)
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        # PySpark runs one task without a split when there are none.
        if isinstance(partition.value, Split):
            yield from read_split(partition.value, self._options, self._schema)

    def _divided(self, splits: Sequence[Split]) -> list[InputPartition]:
        options = self._options
        return [
            SplitPartition(split)
            for split in divide_splits(splits, options.splits_min, options.split_records_max)
        ]


class _PushFilters:
    """`pushFilters` of a reader. PySpark refuses every read by a class that overrides the method while
    `spark.sql.python.filterPushdown.enabled` is false, its default. It compares `__func__`, so this one looks
    like the base's method, and is called only where the setting is true.
    """

    __func__: Final = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Pruning], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._take(pruning_of(filters))
        # Offsets only narrow what is read, so Spark applies all filters to the rows.
        return filters


class BatchReader(_SplitReader, DataSourceReader):
    """Reads a batch: all offsets are fixed when it is planned."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._pruning = Pruning()

    @property
    def pushFilters(self) -> Any:  # noqa: N802  # PySpark's name
        return _PushFilters(self._prune)

    def _prune(self, pruning: Pruning) -> None:
        self._pruning = pruning

    def partitions(self) -> list[InputPartition]:
        options = self._options
        since = self._pruning.timestamp_ms_min
        now = topics_now(options, [options.starting, options.ending, self._pruning.since()])
        splits = batch_splits(now, options.starting, options.ending, options.fail_on_data_loss)
        return self._divided(self._pruning.prune(splits, now if since is not None else {}))


class StreamReader(_SplitReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        # Set by a trigger that ends: where the stream was when it began.
        self._last: StreamOffset | None = None
        self._reported: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        starting = self._options.starting
        return stream_start(topics_now(self._options, [starting]), starting).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        limit = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        offsets_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        fails = self._options.fail_on_data_loss
        now = topics_now(self._options, missing_is_loss=fails)
        begin = StreamOffset.from_json(start)
        self._reported = at_end_of(now).to_json()
        if self._last is not None:
            now = up_to(now, self._last)
        return stream_end(begin, now, offsets_max, fails).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        now = topics_now(self._options, missing_is_loss=self._options.fail_on_data_loss)
        self._last = at_end_of(now)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        fails = self._options.fail_on_data_loss
        now = topics_now(self._options, missing_is_loss=fails)
        splits = stream_splits(StreamOffset.from_json(start), StreamOffset.from_json(end), now, fails)
        return self._divided(splits)


def read_split(split: Split, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Fetch and decode the rows of a split.

    Raises:
        LoaderError: also when the topic was deleted or truncated while it was read; with `fail_on_data_loss`
            false, the records that are still there are read.
    """
    builder = RowBuilder(schema)
    position = split.start
    with TopicReader(options.brokers, split.topic, options.isolation, split.topic_id) as reader:
        while position < split.end:
            epochs: dict[int, int] = {}
            parts = read_range(
                reader,
                split.partition,
                position,
                split.end,
                options.fetch_bytes,
                builder.with_headers,
                builder.with_timestamp_type,
            )
            try:
                for part in parts:
                    for block in part.records.blocks:
                        yield builder.rows(block, split.topic, split.partition)
                    epochs |= {ended.epoch: ended.end_offset for ended in part.records.epochs}
                    position = part.records.next_offset
            except OffsetsLostError:
                if options.fail_on_data_loss:
                    raise
                earliest, _ = reader.offsets()[split.partition]
                if earliest <= position:
                    return
                position = earliest
                continue
            if options.fail_on_data_loss:
                ends = tuple(EpochEnd(epoch, end_offset) for epoch, end_offset in epochs.items())
                reader.check_unchanged({split.partition: ends})


def _is_position(name: str) -> bool:
    return re.match("(starting|ending)", name, re.IGNORECASE) is not None


def _arrow_schema(schema: Any) -> pa.Schema:
    arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow_schema
