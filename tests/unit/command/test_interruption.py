"""Which signals interrupt a command, and when."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from mainstem.interruption import Interruption


class Interrupted(Exception):
    """Raised by the handler that the entry point has installed."""


@pytest.fixture(autouse=True)
def _entry_point() -> Iterator[None]:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number))

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_was_held_back_reaches_the_entry_point_with_its_number(number: signal.Signals) -> None:
    """R36. The exit code contains it."""
    interruption = Interruption()
    interruption.install()
    interruption.defer()
    signal.raise_signal(number)
    with pytest.raises(Interrupted) as error:
        interruption.allow()
    assert error.value.args == (number,)


def test_a_second_signal_is_not_held_back() -> None:
    """R36. What is done meanwhile may not end."""
    interruption = Interruption()
    interruption.install()
    with pytest.raises(Interrupted) as error, interruption.deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert error.value.args == (signal.SIGTERM,)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interruption = Interruption()
    interruption.install()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)
