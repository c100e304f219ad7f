"""The operator's own client, connected to a fake API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator.kubernetes.client import Kube


@asynccontextmanager
async def connected(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Kubernetes, Kube]]:
    """The server and the client, by a kubeconfig in `directory`, until the block ends."""
    async with Kubernetes().serve() as kubernetes:
        path = directory / "kubeconfig"
        path.write_text(kubernetes.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(path))
        kube = await Kube.connect()
        try:
            yield kubernetes, kube
        finally:
            await kube.close()
