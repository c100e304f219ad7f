"""What the record says about a worker of xdist that died."""

from __future__ import annotations

import signal

import pytest
from scripts.testing.pytest_record import describe_death


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (-signal.SIGKILL, "lack of memory"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (1, "hung for longer than faulthandler_timeout"),
        (3, "exit status 3"),
        (None, "died"),
    ],
)
def test_how_a_worker_ended_tells_why(status: int | None, cause: str) -> None:
    assert cause in describe_death(status)
