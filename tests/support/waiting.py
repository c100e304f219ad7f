"""Waiting for what another process does: bounded, and with words when it does not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str, seconds: float = 10.0, step_seconds: float = 0.02
) -> Found:
    """Ask `condition` until its answer is true, and return that answer.

    Raises:
        AssertionError: it never was within `seconds`; the message is `what`.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"Within {seconds} s it never came true that {what}.")
        time.sleep(step_seconds)
