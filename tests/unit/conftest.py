"""What holds for every unit test without the marker `processes`: it stays in its process."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.confinement import CONFINEMENT

CONFINEMENT.install()

UNIT_TESTS = Path(__file__).parent
ERRORS = (
    "error:coroutine .* was never awaited:RuntimeWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
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


@pytest.hookimpl(wrapper=True, tryfirst=True)  # until the last fixture has ended
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        refused = CONFINEMENT.end()
    if refused:  # said again here: code under test may have taken the error for one of the network
        pytest.fail("\n".join(refused), pytrace=False)
