"""What the end-to-end tests share: the cluster that KUBECONFIG names, and a namespace for each module."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.kubectl import Namespace


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """The cluster must be named: without a kubeconfig kubectl would ask whatever answers on this machine."""
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not kubeconfig or not Path(kubeconfig).exists():
        pytest.exit("KUBECONFIG names no file: run `make e2e`, which makes a cluster.", returncode=2)
    if shutil.which("kubectl") is None:
        pytest.exit("kubectl is not on the PATH: run `make e2e`, which brings one.", returncode=2)


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the module's own with restricted pod security; it goes when the module is over."""
    place = Namespace("e2e-" + request.path.stem.removeprefix("test_").replace("_", "-"))
    place.delete()
    place.create()
    yield place
    place.delete()
