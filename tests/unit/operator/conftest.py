"""The operator's calls to Kubernetes, and the option that writes golden files anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator.kubernetes.client import Kube


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite the golden files")


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
