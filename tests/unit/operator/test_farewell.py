"""What the operator holds is let go before it is uninstalled (R23, R25)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator import names
from mainstem_operator.farewell import let_go
from mainstem_operator.kube import Kube


def topic(name: str, namespace: str, *finalizers: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Topic",
        "metadata": {"name": name, "namespace": namespace, "finalizers": list(finalizers)},
        "spec": {},
    }


@pytest.mark.parametrize(("namespaces", "released"), [((), ["a/held", "b/held"]), (("b",), ["b/held"])])
def test_topics_are_let_go_and_other_holds_stay(
    namespaces: tuple[str, ...], released: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with Kubernetes().serve() as kubernetes:
            (tmp_path / "kubeconfig").write_text(kubernetes.kubeconfig())
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
            kubernetes.apply(topic("held", "a", "someone.else/holds", names.FINALIZER))
            kubernetes.apply(topic("held", "b", names.FINALIZER))
            kubernetes.apply(topic("free", "b"))
            kube = await Kube.connect()
            try:
                assert sorted(await let_go(kube, namespaces)) == released
                assert await let_go(kube, namespaces) == []
            finally:
                await kube.close()
            if not namespaces:
                held = kubernetes.objects["topics", "a", "held"]
                assert held["metadata"]["finalizers"] == ["someone.else/holds"]

    asyncio.run(test())
