"""What a test's helpers have made and that must be closed when the test has ended, as threads."""

from __future__ import annotations

from collections.abc import Callable

_calls: list[Callable[[], object]] = []


def at_end(close: Callable[[], object]) -> None:
    """Have `close` called after the present test and its own fixtures, outside of any event loop."""
    _calls.append(close)


def close_all() -> None:
    while _calls:
        _calls.pop()()
