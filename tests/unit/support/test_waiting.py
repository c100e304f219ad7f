"""Waiting for events, and the rule that tests wait in no other way."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support import waiting
from tests.support.documentation import FILES, REPOSITORY
from tests.support.waiting import settle, wait_until, wait_until_async

TESTS: Final = [path for path in FILES if path.startswith("tests/") and path.endswith(".py")]
MAY_SLEEP: Final = (
    "tests/cluster/",  # virtual time
    "tests/support/waiting.py",
    # Programs that run by themselves.
    "tests/e2e/machine/",
    "tests/support/enricher/",
    "tests/support/machine_pauses.py",
)
VIRTUAL_TIME: Final = "tests.cluster.virtual_time"


class Clock:
    """In the place of `time`: sleeping takes no time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    played = Clock()
    monkeypatch.setattr(waiting, "time", played)
    return played


def test_what_never_comes_is_said_with_what_was_seen_last(clock: Clock) -> None:
    with pytest.raises(AssertionError, match=r"Within 2 s .* that all are read. Last seen: \[3, 4\]"):
        wait_until(lambda: False, "all are read", 2, seen=lambda: [3, 4])
    assert 2 < clock.now_s < 2.1


def test_the_time_begins_anew_while_something_changes(clock: Clock) -> None:
    assert wait_until(lambda: clock.now_s > 30, "it is late", 2, seen=lambda: int(clock.now_s))
    with pytest.raises(AssertionError, match="Last seen: 50"):
        wait_until(lambda: False, "it is later", 2, seen=lambda: min(int(clock.now_s), 50))
    assert 52 < clock.now_s < 52.1


async def test_events_of_the_loop_are_awaited_and_nothing_is_due_after_it_has_settled() -> None:
    loop = asyncio.get_running_loop()
    happened: list[str] = []
    loop.call_soon(lambda: loop.call_soon(happened.append, "first"))
    await settle()
    assert happened == ["first"]
    loop.call_later(0.001, happened.append, "second")
    assert await wait_until_async(lambda: happened[1:]) == ["second"]


def sleeps_of(source: str) -> Iterator[int]:
    """The lines that sleep. `asyncio.sleep(0)` is one turn of the event loop, and takes no time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            if any(name.name == "sleep" for name in node.names):
                yield node.lineno
        elif (isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep") or (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "asyncio.sleep"
            and ast.unparse(node) != "asyncio.sleep(0)"
        ):
            yield node.lineno


def test_sleeps_are_found() -> None:
    source = "time.sleep(1)\nasyncio.sleep(0)\nasyncio.sleep(x)\nfrom time import sleep\nrun(time.sleep)"
    assert sorted(sleeps_of(source)) == [1, 3, 4, 5]


def test_tests_wait_for_events_instead_of_sleeping() -> None:
    found = []
    for path in TESTS:
        source = Path(REPOSITORY / path).read_text()
        if "sleep" in source and not path.startswith(MAY_SLEEP) and VIRTUAL_TIME not in source:
            found += [f"{path}:{line}" for line in sleeps_of(source)]
    assert not found, (
        f"{', '.join(found)}: await the event with wait_until or settle of tests.support.waiting. Where time"
        " itself has to pass, let_pass takes the reason."
    )
