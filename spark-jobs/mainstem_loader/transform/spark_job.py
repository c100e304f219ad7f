"""One run of a transform in a session of Spark: views, the statement or function, and the files of its rows.

Only `run_transform` is called, by the executor, in a thread with a session of its own.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mainstem_loader.columns import Columns
from mainstem_loader.errors import LoaderError, TransformError
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import WrittenFile
from mainstem_loader.transform.definition import RECORDS_VIEW, Transform, function_of
from mainstem_loader.transform.result_columns import result_columns
from mainstem_loader.transform.result_rows import RowStamp
from mainstem_loader.transform.views import View

_REASON_CHARACTERS_MAX: Final = 1000
_OWN_ERROR: Final = re.compile(r"mainstem_loader\.errors\.\w+: (.+)")
_PYTHON_ERROR: Final = re.compile(r"(?m)^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*$")
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE:.*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TransformJob:
    """All that a run needs.

    Attributes:
        transform: see there.
        views: by name; `records` among them.
        folder: of the table.
        table_columns: those that the table has beyond those of every table.
        stamp: see there.
    """

    transform: Transform
    views: Mapping[str, View]
    folder: Folder
    table_columns: Columns
    stamp: RowStamp


@dataclass(frozen=True, slots=True)
class TransformedRows:
    """Files that no table names yet, and the columns that they have beyond the record's own."""

    files: tuple[WrittenFile, ...]
    columns: dict[str, pa.DataType]


def run_transform(session: Any, job: TransformJob) -> TransformedRows:
    """Run a transform, and write its rows.

    Args:
        session: of Spark; nothing else uses it.
        job: see there.

    Raises:
        TransformError: it failed, or its result cannot be rows of the table.
        LoaderError: a view cannot be read, or a file not written.
    """
    from mainstem_loader.transform import frames

    # PySpark logs each error that it raises, and this one is reported in a sentence.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    # Days and times are UTC everywhere in the warehouse.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    session.dataSource.register(frames.ViewSource)
    session.dataSource.register(frames.ResultSource)
    frame_of = {}
    for name, view in job.views.items():
        frame_of[name] = (
            session.read.format(frames.ViewSource.name())
            .schema(frames.spark_schema_of(view.schema))
            .options(**frames.option_of(view))
            .load()
        )
        frame_of[name].createOrReplaceTempView(name)
    try:
        result = _result(session, job.transform, frame_of)
        schema = frames.arrow_schema_of(result.schema)
        columns = result_columns(schema, job.table_columns)
        with tempfile.TemporaryDirectory(prefix="mainstem-transform-") as folder:
            report = Path(folder) / "written"
            sink = frames.Sink(job.folder, columns, job.stamp, str(report))
            (
                result.write.format(frames.ResultSource.name())
                .options(**frames.option_of(sink))
                .mode("append")
                .save()
            )
            return TransformedRows(frames.written_files(report), columns.of_files)
    except LoaderError:
        raise
    except Exception as error:
        raise TransformError(
            f"The transform failed, and nothing was loaded: {failure_reason(str(error) or repr(error))}"
        ) from error


def _result(session: Any, transform: Transform, frame_of: Mapping[str, Any]) -> Any:
    """The DataFrame that the transform returns."""
    from pyspark import cloudpickle
    from pyspark.sql import DataFrame

    if transform.sql is not None:
        return session.sql(transform.sql.rstrip(" \t\r\n;"))
    assert transform.function is not None
    function = function_of(transform.function)
    # Functions of columns travel with their code: executors may not have the module.
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    inputs = {name: frame for name, frame in frame_of.items() if name != RECORDS_VIEW}
    result = function(frame_of[RECORDS_VIEW], **inputs)
    if not isinstance(result, DataFrame):
        raise TransformError(
            f"The transform {transform.function} returned {type(result).__name__}, and no DataFrame."
        )
    if result.isStreaming:
        raise TransformError(
            f"The transform {transform.function} returned a stream, whose checkpoint could not be committed"
            " together with the rows; derive the DataFrame from its argument, which is a batch."
        )
    return result


def failure_reason(message: str) -> str:
    """What went wrong, out of an error of Spark: the sentence without the traces of Python and Java."""
    if (own := _OWN_ERROR.search(message)) is not None:
        return own.group(1)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # What comes last is the cause of what comes before.
    errors, conditions = _PYTHON_ERROR.findall(message), _CONDITION.findall(message)
    if "Traceback (most recent call last)" in message and errors:
        reason: str = errors[-1]
    elif conditions:
        reason = _SQL_STATE.sub("", conditions[-1])
    else:
        reason = lines[0]
    if "UNRESOLVED_COLUMN" in message:
        reason += (
            " A field that no record of this load has is a column only if its type is declared"
            " (--column FIELD=TYPE, or warehouse.columns of the Topic)."
        )
    return reason[:_REASON_CHARACTERS_MAX]
