"""What the end-to-end tests share: the cluster that KUBECONFIG names, a release of the chart, checks."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.installation import Installation, cluster_spec
from tests.e2e.kubectl import Namespace, kubectl
from tests.e2e.machine.settings import CLUSTER_GOES
from xdist.scheduler import LoadScopeScheduling

KEEP = "E2E_KEEP"
"""Set while writing tests: the release stays for the next run, which takes it up."""


BESIDE = frozenset(
    f"test_{name}.py" for name in ("bad_manifests", "judged_live", "loads", "rights", "secured", "uninstall")
)
"""Modules whose tests leave the release alone: with `-n 3` they run beside all others."""

APART = frozenset({"test_secured.py"})
"""Of these, those that install a release for the whole module: the third process takes them."""


class _Places(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Three scopes for three processes, so that each release is one process's."""

    def _split_scope(self, nodeid: str) -> str:
        name = Path(nodeid.partition("::")[0]).name
        return "apart" if name in APART else "beside" if name in BESIDE else "release"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Places:
    return _Places(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in BESIDE and "mainstem" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} uses the release: it can't be in {item.path.name}.")


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """The cluster must be named: without a kubeconfig kubectl would ask whatever answers on this machine."""
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not kubeconfig or not Path(kubeconfig).exists():
        pytest.exit("KUBECONFIG names no file: run `make e2e`, which makes a cluster.", returncode=2)
    for program in ("kubectl", "helm"):
        if shutil.which(program) is None:
            pytest.exit(f"{program} is not on the PATH: run `make e2e`, which brings one.", returncode=2)


@pytest.fixture(scope="session")
def release(cluster: None) -> Iterator[Installation]:
    """The chart and its BrokerCluster of three brokers, ready, in a restricted namespace."""
    result = Installation(Namespace(os.environ.get("E2E_NAMESPACE", "e2e-mainstem")))
    if KEEP not in os.environ:
        result.remove()  # what a run that failed has left
    result.namespace.create()
    result.install(cluster_spec())
    result.settled(300)
    if KEEP not in os.environ:  # else there may have been others before
        result.restarts_at_first = result.events("RestartingPod")
    yield result
    if KEEP not in os.environ and CLUSTER_GOES not in os.environ:
        result.remove()


@pytest.fixture
def mainstem(release: Installation) -> Iterator[Installation]:
    """The release, settled before the test; after it what must hold after every test is checked."""
    release.settled()
    release.expected_log.clear()
    began = dt.datetime.now(dt.UTC)
    yield release
    release.check(began)


@pytest.fixture
def topic(mainstem: Installation) -> Iterator[str]:
    """A topic of six partitions and three replicas of this test's own; it goes with its Topic."""
    name = f"topic-{uuid4().hex[:8]}"
    mainstem.apply("Topic", name, partitions=6, replicas=3, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    yield name
    mainstem.delete("topic", name)


@pytest.fixture
def name(mainstem: Installation) -> Iterator[str]:
    """A name of this test's own; a Topic that has it is gone after the test."""
    new_name = f"topic-{uuid4().hex[:8]}"
    yield new_name
    mainstem.delete("topic", new_name)


@pytest.fixture
def own_place(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """A namespace of the test's own, restricted, for a release that it installs itself."""
    words = request.node.name.split("_")
    result = Installation(Namespace(f"e2e-{words[1]}"))
    result.remove()  # what a run that failed has left
    result.namespace.create()
    yield result
    result.remove()
    if left := result.cluster_wide():  # of a release whose namespace was deleted under it
        kubectl("delete", *left)
