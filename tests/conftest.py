"""Fixtures that start real processes, and what a failure tells about them.

`local_stack` is one cluster for the whole run: tests share it, so they make topics of their own and leave
its brokers alone. `own_stack` starts a cluster that the test may break.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.clusters import (
    Cluster,
    MainstemCluster,
    ReferenceCluster,
    RunCluster,
    SharedCluster,
    StartCluster,
)
from tests.support.examples import use_the_same_constants
from tests.support.folders import temporary_files_in
from tests.support.isolation import ProcessState
from tests.support.ports import held_port
from tests.support.running import RUNNING
from tests.support.topics import TopicFactory

PROCESS_FIXTURES = ("local_stack", "own_stack", "run_cluster", "zookeeper_address")
GATE_FILE = Path(__file__).with_name("gate.txt")
GATE_TESTS = {
    line: number
    for number, line in enumerate(GATE_FILE.read_text(encoding="utf-8").splitlines())
    if line and not line.startswith("#")
}
"""Tests with the marker `gate`, and their order; without parameters in brackets, all of them."""
SHARED = pytest.StashKey[Cluster]()  # what `local_stack` is, once it runs

# A shell that starts the tests in its background has them ignore Ctrl-C, which what they start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine and its load. Tests that bound a time measure it. How much
# of what is generated is thrown away depends on the seed: the gate, where it is always the same, checks that.
settings.register_profile(
    "trials",
    derandomize=False,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.large_base_example,
    ],
    print_blob=True,
)
# Hypothesis loads a profile of its own where the environment has CI. This one is loaded everywhere, so all
# runs test the same examples; `--hypothesis-profile=trials` searches for others.
settings.register_profile(
    "gate",
    settings.get_profile("trials"),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gate")
use_the_same_constants()


@pytest.fixture(scope="session", autouse=True)
def temporary_files_lie_in_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Also those of the processes that tests start."""
    with temporary_files_in(tmp_path_factory.mktemp("t", numbered=False)):
        yield


@pytest.fixture(autouse=True)
def process_is_as_before() -> Iterator[None]:
    """What all tests of a process share is put back after each of them."""
    before = ProcessState.now()
    yield
    before.put_back()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens. The test may; nobody else can until it has ended."""
    with held_port() as port:
        yield port


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference",
        action="store_true",
        help="run the tests that need a cluster against Apache Kafka (one broker) instead of Mainstem",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:  # the process that reports, not a worker of xdist's
        config.pluginmanager.register(_FailuresAtOnce(terminal))


class _FailuresAtOnce:
    """Tells a failure when it happens, too: who reads a run that was cut off misses its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line(f"\nFailed in its {report.when}: {report.nodeid}", red=True)
            self._terminal.write_line(report.longreprtext)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unused = set(GATE_TESTS)
    for item in items:
        if any(name in PROCESS_FIXTURES for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)
        for name in {item.nodeid, item.nodeid.partition("[")[0]} & GATE_TESTS.keys():
            item.add_marker(pytest.mark.gate)
            unused.discard(name)
    if config.option.markexpr == "gate":
        folders = tuple(argument.rstrip("/") + "/" for argument in config.args)
        if missing := sorted(name for name in unused if name.startswith(folders)):
            raise pytest.UsageError(f"{GATE_FILE.name} names tests that do not exist: {', '.join(missing)}")
        items.sort(key=_place_in_gate)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: no garbage collection looks at it again."""
    gc.collect()
    gc.freeze()


def _place_in_gate(item: pytest.Item) -> int:
    name = item.nodeid if item.nodeid in GATE_TESTS else item.nodeid.partition("[")[0]
    return GATE_TESTS.get(name, len(GATE_TESTS))  # the marker chooses later


def _uses_shared(item: pytest.Item) -> bool:
    return "local_stack" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test's report ends with the last words of the brokers it used."""
    report = yield
    if report.failed:
        for cluster in RUNNING:
            if cluster is item.config.stash.get(SHARED, None) and not _uses_shared(item):
                continue
            report.sections += [
                (f"{process} in {cluster.data_directory}", tail)
                for process, tail in cluster.log_tail().items()
            ]
    return report


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> bool:
    """Whether the clusters are Apache Kafka's."""
    return bool(request.config.getoption("--reference"))


@pytest.fixture(scope="session")
def run_cluster(reference: bool, tmp_path_factory: pytest.TempPathFactory) -> RunCluster:
    """For fixtures of other scopes than `local_stack` and `own_stack`: `with run_cluster() as cluster`."""
    kind = ReferenceCluster if reference else MainstemCluster

    @contextmanager
    def run(brokers: int = 1, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
        cluster = kind(tmp_path_factory.mktemp("cluster"), brokers, settings)
        RUNNING.append(cluster)
        try:
            yield cluster
        finally:
            RUNNING.remove(cluster)
            cluster.stop()

    return run


@pytest.fixture(scope="session")
def local_stack(run_cluster: RunCluster, request: pytest.FixtureRequest) -> Iterator[SharedCluster]:
    """Three brokers for the whole run."""
    with run_cluster(3) as cluster:
        request.config.stash[SHARED] = cluster
        yield SharedCluster(cluster)


@pytest.fixture
def own_stack(run_cluster: RunCluster) -> Iterator[StartCluster]:
    """Starts clusters that this test may break; they are stopped when it ends."""
    with ExitStack() as started:
        yield lambda brokers=1, settings=None: started.enter_context(run_cluster(brokers, settings))


@pytest.fixture
def own_cluster(own_stack: StartCluster) -> Cluster:
    """Three brokers of this test alone, whose settings it may change."""
    return own_stack(3)


@pytest.fixture
def new_topic(local_stack: SharedCluster) -> Iterator[TopicFactory]:
    """Makes topics on `local_stack` that are gone after the test."""
    with TopicFactory(local_stack) as factory:
        yield factory
