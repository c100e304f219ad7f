"""Clusters for the fault matrix, and the table of what was measured at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from tests.faults.fault_cluster import DEFAULT_TIMEOUTS, SHORT_TIMEOUTS, FaultCluster
from tests.faults.results import Figures, Result, table
from tests.support.running import RUNNING

RESULTS: Final = pytest.StashKey[list[Result]]()
FIGURES: Final = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = []
    config.stash[FIGURES] = Figures()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"plain_cluster", "wired_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash.get(RESULTS, [])
    if results:
        terminalreporter.section("faults: seconds without acknowledgement (acks=all, worst partition)")
        for line in table(results):
            terminalreporter.line(line)
    if config.stash[FIGURES].lines:
        terminalreporter.section("faults: figures")
        for line in config.stash[FIGURES].lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> list[Result]:
    """What tests measured; shown at the end of the run."""
    return request.config.stash[RESULTS]


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """What tests counted, as lines; shown at the end of the run."""
    return request.config.stash[FIGURES]


@pytest.fixture(scope="session")
def ours_only(reference: bool) -> None:
    if reference:
        pytest.skip("the Apache Kafka to compare with is one broker, which nobody can replace")


@contextmanager
def _cluster(
    factory: pytest.TempPathFactory, settings: dict[str, str], *, wires: bool
) -> Iterator[FaultCluster]:
    cluster = FaultCluster(factory.mktemp("cluster"), settings, wires=wires)
    RUNNING.append(cluster)
    try:
        yield cluster
    finally:
        RUNNING.remove(cluster)
        cluster.stop()


@pytest.fixture(scope="module")
def plain_cluster(ours_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """Three brokers with the default timeouts; each test leaves it whole."""
    with _cluster(tmp_path_factory, DEFAULT_TIMEOUTS, wires=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wired_cluster(ours_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """Three brokers whose wires can be cut, with short timeouts; each test leaves it whole."""
    with _cluster(tmp_path_factory, SHORT_TIMEOUTS, wires=True) as cluster:
        yield cluster
