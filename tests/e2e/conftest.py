"""What the end-to-end tests share: the cluster that KUBECONFIG names, a release of the chart, checks."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.e2e.installation import Installation, cluster_spec
from tests.e2e.kubectl import Namespace, kubectl

KEEP = "E2E_KEEP"
"""Set while writing tests: the release stays for the next run, which takes it up."""


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
    """The chart and its Cluster of three brokers, ready, in a restricted namespace."""
    found = Installation(Namespace(os.environ.get("E2E_NAMESPACE", "e2e-mainstem")))
    if KEEP not in os.environ:
        found.namespace.delete()
    found.namespace.create()
    found.install(cluster_spec())
    found.settled(300)
    yield found
    if KEEP not in os.environ:
        found.uninstall()
        found.wait_for_no_brokers()  # with them the namespace would take minutes
        found.namespace.delete()


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
    found = f"topic-{uuid4().hex[:8]}"
    yield found
    mainstem.delete("topic", found)


@pytest.fixture
def own_place(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """A namespace of the test's own, restricted, for a release that it installs itself."""
    words = request.node.name.split("_")
    found = Installation(Namespace(f"e2e-{words[1]}"))
    found.namespace.delete()
    found.namespace.create()
    yield found
    found.namespace.delete()
    if left := found.cluster_wide():  # of a release whose namespace was deleted under it
        kubectl("delete", *left)
