"""What people read of a transform's failure: no traces (R34)."""

from __future__ import annotations

import pytest

from mainstem_loader.transform.spark_job import failure_reason

PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "jobs.py", line 3, in <lambda>
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala)
"""
OWN = """Job aborted due to stage failure: Task 0 failed: Traceback (most recent call last):
  File "views.py", line 3, in batches
mainstem_loader.errors.WarehouseError: The bucket is gone; create it.
"""
SQL = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amount` cannot be resolved. SQLSTATE: 42703;
'Project ['amount]
"""
SYNTAX = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'. SQLSTATE: 42601 (line 1)\n\n== SQL ==\nSELEKT 1"
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (PYTHON, "ZeroDivisionError: division by zero"),
        (OWN, "The bucket is gone; create it."),
        (SYNTAX, "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'."),
        ("ValueError()", "ValueError()"),
        ("\n\nSomething else\nat length", "Something else"),
    ],
)
def test_the_sentence_that_counts_is_found(message: str, reason: str) -> None:
    assert failure_reason(message) == reason


def test_a_column_that_is_not_there_may_have_to_be_declared() -> None:
    reason = failure_reason(SQL)
    assert reason.startswith("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amount` cannot be")
    assert "declared" in reason
    assert "SQLSTATE" not in reason
