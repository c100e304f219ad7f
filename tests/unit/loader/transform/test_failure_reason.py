"""What people read of a transform's failure: the cause and the line, no traces (R34)."""

from __future__ import annotations

import pytest

from mainstem_loader.transform.failure_reason import failure_reason, syntax_refusal

FILE = "/opt/source/jobs.py"
PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/source/jobs.py", line 3, in <lambda>
  File "/usr/lib/python3/json/__init__.py", line 346, in loads
jobs.NoLicence: please pay

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala)
"""
OWN = """Job aborted due to stage failure: Task 0 failed: Traceback (most recent call last):
  File "views.py", line 3, in batches
mainstem_loader.errors.WarehouseError: The bucket is gone; create it.
"""
COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amount` cannot be found. SQLSTATE: 42703;
'Project ['amount]
"""
SYNTAX = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL =="
)
WORKER_ENDED = """An error occurred while calling o52.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.io.EOFException
"""
JAVA = """An error occurred while calling o52.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
\tat org.apache.spark.Task
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java)
"""


def of_spark(message: str) -> Exception:
    """An error as PySpark and py4j raise it."""
    kind: type[Exception] = type("PySparkException", (Exception,), {"__module__": "pyspark.errors"})
    return kind(message)


def raised_by(source: str) -> BaseException:
    """The error of a function that stands in the file."""
    found: dict[str, object] = {}
    exec(compile(f"def function():\n  {source}", FILE, "exec"), found)
    with pytest.raises(BaseException) as caught:
        found["function"]()  # type: ignore[operator]
    return caught.value


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (PYTHON, "jobs.NoLicence: please pay (jobs.py, line 3)"),
        (OWN, "The bucket is gone; create it."),
        (SYNTAX, "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'."),
        (JAVA, "java.lang.OutOfMemoryError: Java heap space"),
        ("An error occurred while calling o5.table.\n: java.net.X: gone\n\tat a.b", "java.net.X: gone"),
        ("\n\nSomething else\nat length", "Something else"),
    ],
)
def test_the_sentence_that_counts_is_found(message: str, reason: str) -> None:
    assert failure_reason(of_spark(message), FILE) == reason


def test_a_trace_that_was_cut_is_read_once() -> None:
    cut = (
        "Traceback (most recent call last):\n"
        + '  File "/opt/source/jobs.py", line 3, in deep\n    deep()\n' * 50
    )
    assert failure_reason(of_spark(f"Job aborted.\n{cut}")) == "Job aborted."


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{}['amount']", "KeyError: 'amount' (jobs.py, line 2)"),
        ("raise NotImplementedError", "NotImplementedError (jobs.py, line 2)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (jobs.py, line 2)"),
        (
            "raise SystemExit(0)",
            "SystemExit: 0 (jobs.py, line 2). A function ends with return;"
            " raise an error to make the load fail.",
        ),
    ],
)
def test_an_error_of_the_function_has_its_class_and_its_line(source: str, reason: str) -> None:
    assert failure_reason(raised_by(source), FILE) == reason


def test_a_worker_that_ended_may_have_been_ended_by_the_function() -> None:
    reason = failure_reason(of_spark(WORKER_ENDED))
    assert "os._exit" in reason
    assert "memory" in reason


def test_a_column_that_is_not_there_may_have_to_be_declared() -> None:
    reason = failure_reason(of_spark(COLUMN))
    assert reason.startswith("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amount` cannot be")
    assert "declared" in reason
    assert "SQLSTATE" not in reason


def test_what_follows_a_semicolon_is_another_statement() -> None:
    message = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELECT'. SQLSTATE: 42601 (line 2, pos 2)\n"
    assert "several statements" in syntax_refusal("SELECT 1\n; SELECT 2", message)
    assert "several" not in syntax_refusal("SELECT 1\nx SELECT 2", message)
