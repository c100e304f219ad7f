"""The whole operator for a scenario, and the option that writes golden files anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.running_operator import RunningOperator, running_operator

Scenario = Callable[[RunningOperator], Awaitable[None]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write tests/unit/operator/golden anew")


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Runs a scenario with an operator of its own."""

    def run(scenario: Scenario) -> None:
        async def within() -> None:
            async with running_operator(tmp_path, monkeypatch) as operator:
                await scenario(operator)

        asyncio.run(within())

    return run
