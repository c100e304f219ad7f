"""The pool of processes that lives through seeds."""

from __future__ import annotations

import threading

import pytest
from tests.cluster.soak import attempts_of, nothing


def return_or_wait_for_ever(seed: int) -> int:
    if seed:
        threading.Event().wait()
    return seed


@pytest.mark.timeout(120)
def test_what_processes_are_at_is_not_waited_for_once_nobody_wants_it() -> None:
    outcomes = attempts_of(return_or_wait_for_ever, [0, 1, 2], 2, nothing)
    assert next(outcomes) == 0
    outcomes.close()
