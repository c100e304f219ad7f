"""One run of a transform in a session of Spark: views, the statement or function, and the files of its rows.

Only `run_transform` is called, by the executor, in a thread with a session of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa

from mainstem_loader.columns import Columns
from mainstem_loader.errors import LoaderError, TransformError
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import WrittenFile
from mainstem_loader.transform.definition import RECORDS_VIEW, Transform, function_of
from mainstem_loader.transform.failure_reason import (
    COMMAND_NODES,
    COMMANDS,
    command_refusal,
    failure_reason,
    syntax_refusal,
)
from mainstem_loader.transform.result_columns import result_columns
from mainstem_loader.transform.result_rows import RowStamp
from mainstem_loader.transform.views import View

_exit_process: Final = os._exit
# The process and the thread of functions that are being called.
_calls: Final[set[tuple[int, int]]] = set()


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
    except BaseException as error:
        # Signals interrupt the main thread only, so also KeyboardInterrupt is the function's.
        raise TransformError(
            f"The transform failed, and nothing was loaded: {failure_reason(error, _file_of(job.transform))}"
        ) from error


def _result(session: Any, transform: Transform, frame_of: Mapping[str, Any]) -> Any:
    """The DataFrame that the transform returns."""
    from pyspark import cloudpickle
    from pyspark.sql import DataFrame

    if transform.sql is not None:
        _check_query(session, transform.sql)
        return session.sql(transform.sql)
    assert transform.function is not None
    function = function_of(transform.function)
    # Functions of columns travel with their code: executors may not have the module.
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    inputs = {name: frame for name, frame in frame_of.items() if name != RECORDS_VIEW}
    with _ending_without_the_process():
        result = function(frame_of[RECORDS_VIEW], **inputs)
    if not isinstance(result, DataFrame):
        kind = type(result)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise TransformError(
            f"The transform {transform.function} returned {name}; return a DataFrame of Spark, derived from"
            " its argument."
        )
    if result.sparkSession._jsparkSession != session._jsparkSession:  # noqa: SLF001  # no other way
        raise TransformError(
            f"The transform {transform.function} returned a DataFrame of another session, which does not have"
            " the views; derive it from its argument, or from the session records.sparkSession."
        )
    if result.isStreaming:
        raise TransformError(
            f"The transform {transform.function} returned a stream, whose checkpoint could not be committed"
            " together with the rows; derive the DataFrame from its argument, which is a batch."
        )
    return result


def _check_query(session: Any, statement: str) -> None:
    """Refuse commands before Spark sees them: it carries them out when it is given them.

    Raises:
        TransformError: the statement is not one query.
    """
    from pyspark.errors import ParseException

    try:
        parsed = session._jsparkSession.sessionState().sqlParser().parsePlan(statement)  # noqa: SLF001  # no other way
    except ParseException as error:
        raise TransformError(syntax_refusal(statement, str(error))) from error
    class_named = session.sparkContext._jvm.java.lang.Class.forName  # noqa: SLF001
    commands = [class_named(name) for name in COMMANDS]
    # A command may be below: `WITH ... INSERT`.
    plans = [parsed]
    while plans:
        plan = plans.pop()
        name = plan.nodeName()
        if name in COMMAND_NODES or any(command.isInstance(plan) for command in commands):
            raise TransformError(command_refusal(name))
        plans += [plan.children().apply(index) for index in range(plan.children().size())]


@contextmanager
def _ending_without_the_process() -> Iterator[None]:
    """In the block, `os._exit` ends the call and not the process: exit code 0 would be a load that went well.

    Processes that the function forks have another id, and end as ever.
    """
    call = os.getpid(), threading.get_ident()
    os._exit = _exit
    _calls.add(call)
    try:
        yield
    finally:
        _calls.remove(call)


def _exit(status: int) -> NoReturn:
    if (os.getpid(), threading.get_ident()) in _calls:
        raise SystemExit(status)
    _exit_process(status)


def _file_of(transform: Transform) -> str | None:
    if transform.function is None:
        return None
    module = sys.modules.get(transform.function.partition(":")[0])
    return getattr(module, "__file__", None)
