"""Waiting for what another process does: bounded, and with words when it does not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

Found = TypeVar("Found")

PATIENCE_SECONDS: Final = 60.0
"""How long tests wait for what has to happen. It ends tests that hang, and promises nothing: what has to be
fast has a bound of its own. Four tests side by side, with Spark and Java, make two cores late by seconds."""


def wait_until(
    condition: Callable[[], Found], what: str, seconds: float = PATIENCE_SECONDS, step_seconds: float = 0.02
) -> Found:
    """Ask `condition` until its answer is true, and return that answer.

    Raises:
        AssertionError: it never was within `seconds`; the message is `what`.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"Within {seconds} s it never came true that {what}.")
        time.sleep(step_seconds)
