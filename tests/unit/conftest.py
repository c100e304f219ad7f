"""Unit tests without the marker `processes` stay in their process, and leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.confinement import CONFINEMENT
from tests.support.isolation import threads_left

CONFINEMENT.install()
THREADS_BEFORE = pytest.StashKey[frozenset[threading.Thread]]()

UNIT_TESTS = Path(__file__).parent
ERRORS = (
    "error:coroutine .* was never awaited:RuntimeWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
    "error::ResourceWarning",
)
"""Warnings of what a test leaves undone: the garbage collector may meet it in a later test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if UNIT_TESTS in item.path.parents:
            for error in ERRORS:
                item.add_marker(pytest.mark.filterwarnings(error))


@pytest.hookimpl(tryfirst=True)  # fixtures are confined, too
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("processes") is None:
        CONFINEMENT.begin()
        item.stash[THREADS_BEFORE] = frozenset(threading.enumerate())


@pytest.hookimpl(wrapper=True, tryfirst=True)  # until the last fixture has ended
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        refused = CONFINEMENT.end()
    if refused:  # said again here: code under test may have taken the error for one of the network
        pytest.fail("\n".join(refused), pytrace=False)
    before = item.stash.get(
        THREADS_BEFORE, None
    )  # the others share a ZooKeeper, and the threads of its clients
    if before is not None and (left := threads_left(before)):
        pytest.fail(
            f"Threads of the test go on: {', '.join(left)}. End and join them in the test.", pytrace=False
        )
