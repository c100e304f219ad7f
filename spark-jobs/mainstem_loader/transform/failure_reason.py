"""Which sentence describes the failure of a transform: the cause, and the line of the author's code. Pure.

Errors of Spark contain the traces of Java and of Python workers as text, so text is what is searched.
"""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath
from typing import Final

COMMANDS: Final = tuple(
    f"org.apache.spark.sql.catalyst.plans.logical.{name}"
    for name in (
        "Command",
        "ParsedStatement",
        "InsertIntoDir",
        "CompoundPlanStatement",
        "ExecutableDuringAnalysis",
    )
)
"""Classes of Spark's parsed plans that are no queries: commands, what analysis makes a command, and what
analysis carries out itself."""
COMMAND_NODES: Final = frozenset(("UnresolvedExecuteImmediate", "ExecuteImmediateQuery"))
"""Names of more nodes that are no queries; not all versions of Spark have their classes."""

_REASON_CHARACTERS_MAX: Final = 1000
_SPARK: Final = ("pyspark", "py4j")
_ONE_QUERY: Final = "it must be one query, such as SELECT n FROM records"
_OWN_ERROR: Final = re.compile(r"mainstem_loader\.errors\.\w+: (.+)")
_WORKER_ENDED: Final = re.compile(r"Python worker exited unexpectedly|PYTHON_WORKER_EXITED")
# What follows the frames of a trace: the error's class and message.
_PYTHON_ERROR: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")
_FRAME: Final = re.compile(r'File "([^"]+)", line ([0-9]+)')
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE:.*$", re.DOTALL)
_JAVA_ERROR: Final = re.compile(r"(?m)^(?:: |Caused by: )(.+)$")
_POSITION: Final = re.compile(r"\(line ([0-9]+), pos ([0-9]+)\)")


def failure_reason(error: BaseException, file: str | None = None) -> str:
    """What went wrong, without traces.

    Args:
        error: raised by Spark or by the function.
        file: the source of the function; None for SQL.
    """
    is_of_spark = type(error).__module__.partition(".")[0] in _SPARK
    message = str(error) if is_of_spark else "".join(traceback.format_exception_only(error)).strip()
    reason = _cause(message or repr(error))[:_REASON_CHARACTERS_MAX]
    lines = [
        number
        for path, number in _FRAME.findall("".join(traceback.format_exception(error)))
        if file is not None and path == file
    ]
    if lines:
        assert file is not None
        # The innermost call comes last; workers of Spark come after the call that started them.
        reason = f"{reason.removesuffix('.')} ({PurePath(file).name}, line {lines[-1]})"
    advice = _advice(message)
    return f"{reason.removesuffix('.')}. {advice}" if advice else reason


def command_refusal(name: str) -> str:
    """Why a statement is refused that Spark would carry out; `name`: of its plan's class."""
    return f"The transform's SQL is a command ({name}); {_ONE_QUERY}. The load writes its rows to the table."


def syntax_refusal(statement: str, message: str) -> str:
    """Why a statement is refused that Spark's parser refuses with a message."""
    if (position := _POSITION.search(message)) is not None:
        line, column = map(int, position.groups())
        lines = statement.split("\n")
        before = "\n".join([*lines[: line - 1], "".join(lines[line - 1 : line])[:column]])
        if before.rstrip().endswith(";"):
            return f"The transform's SQL has several statements; {_ONE_QUERY}. Join them by WITH."
    return f"The transform's SQL is no query: {_cause(message)[:_REASON_CHARACTERS_MAX]}"


def _cause(message: str) -> str:
    if (own := _OWN_ERROR.search(message)) is not None:
        return own.group(1)
    if _WORKER_ENDED.search(message):
        return (
            "A Python worker of Spark ended. Either a function of the transform ends its process (os._exit),"
            " or there was not enough memory."
        )
    # What comes last is the cause of what comes before.
    if errors := _PYTHON_ERROR.findall(message):
        return str(errors[-1])
    if conditions := _CONDITION.findall(message):
        return _SQL_STATE.sub("", conditions[-1])
    if causes := _JAVA_ERROR.findall(message):
        return str(causes[-1])
    return next(line.strip() for line in message.splitlines() if line.strip())


def _advice(message: str) -> str:
    if "UNRESOLVED_COLUMN" in message:
        return (
            "A field that no record of this load has is a column only if its type is declared"
            " (--column FIELD=TYPE, or warehouse.columns of the Topic)."
        )
    if re.search(r"(?m)^SystemExit\b", message):
        return "A function ends with return; raise an error to make the load fail."
    return ""
