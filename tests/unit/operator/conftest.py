"""A whole operator for a scenario, its calls to Kubernetes, and the option that writes golden files anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes
from tests.support.running_operator import RunningOperator, running_operator

from mainstem_operator.kubernetes.client import Kube

Scenario = Callable[[RunningOperator], Awaitable[None]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Runs a scenario with an operator of its own.

    No fixture that gives the operator: as it ends, kopf cancels all tasks that began after it, and waits for
    them, so the task that ends a fixture would be among them.
    """

    def run(scenario: Scenario) -> None:
        async def within() -> None:
            async with running_operator(tmp_path, monkeypatch) as operator:
                await scenario(operator)

        asyncio.run(within())

    return run


@pytest.fixture
async def connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Kubernetes, Kube]]:
    async with connected(tmp_path, monkeypatch) as both:
        yield both


@pytest.fixture
def kubernetes(connection: tuple[Kubernetes, Kube]) -> Kubernetes:
    """An API server without an operator."""
    return connection[0]


@pytest.fixture
def kube(connection: tuple[Kubernetes, Kube]) -> Kube:
    """What the operator calls it with."""
    return connection[1]
