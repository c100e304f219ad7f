"""Views and results of transforms, as data sources of PySpark: the classes that it calls.

PySpark calls them in processes that only plan, and in those of tasks. What they need to know is a value,
which travels as an option.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from mainstem_loader.errors import LoaderError
from mainstem_loader.table.day_files import DayFiles
from mainstem_loader.table.folder import Folder, explaining_file_errors
from mainstem_loader.table.parquet_files import WrittenFile, file_name
from mainstem_loader.transform.result_columns import ResultColumns
from mainstem_loader.transform.result_rows import RowStamp, rows_of_batch
from mainstem_loader.transform.views import View

_VALUE = "value"
_TIME_ZONE = "UTC"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the rows of a result go.

    Attributes:
        folder: of the table.
        columns, stamp: see there.
        report: a file on the driver's machine, for what the tasks have written.
    """

    folder: Folder
    columns: ResultColumns
    stamp: RowStamp
    report: str


@dataclass(frozen=True)
class _Written(WriterCommitMessage):
    """What a task has left behind: files that are whole, or why there are none."""

    files: tuple[WrittenFile, ...]
    error: LoaderError | None = None


class ViewSource(DataSource):
    """Reads a view."""

    @classmethod
    def name(cls) -> str:
        return "mainstem_view"

    def reader(self, schema: Any) -> DataSourceReader:
        return _ViewReader(_value_of(self.options), arrow_schema_of(schema))


class _ViewReader(DataSourceReader):
    def __init__(self, view: View, schema: pa.Schema) -> None:
        self._view = view
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._view.part_count())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._view.batches(partition.value):
            # Spark compares types to the names of a list's items.
            columns = [batch.column(column.name).cast(column.type) for column in self._schema]
            yield pa.record_batch(columns, schema=self._schema)


class ResultSource(DataSource):
    """Writes a result to files that no table names yet."""

    @classmethod
    def name(cls) -> str:
        return "mainstem_result"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002  # PySpark's
        return _ResultWriter(_value_of(self.options))


class _ResultWriter(DataSourceArrowWriter):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sink, context = self._sink, TaskContext.get()
        assert context is not None
        # A task that Spark repeats has another attempt's number, and so other files.
        name = file_name(sink.stamp.run_id, context.partitionId(), context.taskAttemptId())
        files = DayFiles(sink.folder, name)
        try:
            with explaining_file_errors(sink.folder):
                try:
                    for batch in iterator:
                        files.append(*rows_of_batch(batch, sink.columns, sink.stamp))
                    return _Written(tuple(files.close()))
                except BaseException:
                    files.abandon()
                    raise
        except LoaderError as error:
            # As a value: Spark would bury it in the trace of a task that it tries again.
            return _Written((), error)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called once, when all tasks have ended well, in a process of the driver's machine."""
        Path(self._sink.report).write_bytes(pickle.dumps(list(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver deletes all files of the run."""


def written_files(report: Path) -> tuple[WrittenFile, ...]:
    """What the tasks of a result have written.

    Raises:
        LoaderError: one of them could not.
    """
    messages: list[_Written | None] = pickle.loads(report.read_bytes())
    written = [message for message in messages if message is not None]
    for message in written:
        if message.error is not None:
            raise message.error
    return tuple(file for message in written for file in message.files)


def option_of(value: View | Sink) -> dict[str, str]:
    """The option by which a value reaches the classes."""
    return {_VALUE: base64.b64encode(pickle.dumps(value)).decode()}


def _value_of(options: Any) -> Any:
    return pickle.loads(base64.b64decode(options[_VALUE]))


def arrow_schema_of(schema: Any) -> pa.Schema:
    """A schema of Spark as Arrow's."""
    arrow_schema: pa.Schema = to_arrow_schema(schema, timezone=_TIME_ZONE)
    return arrow_schema


def spark_schema_of(schema: pa.Schema) -> Any:
    """A schema of Arrow as Spark's."""
    return from_arrow_schema(schema)
