"""What the operator holds is let go before it is uninstalled (R23, R25)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.connected_kube import connected

from mainstem_operator import names
from mainstem_operator.farewell import end_operator, let_go, let_go_with


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
        async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
            kubernetes.apply(topic("held", "a", "someone.else/holds", names.FINALIZER))
            kubernetes.apply(topic("held", "b", names.FINALIZER))
            kubernetes.apply(topic("free", "b"))
            assert sorted(await let_go(kube, namespaces)) == released
            assert await let_go(kube, namespaces) == []
            if not namespaces:
                held = kubernetes.objects["topics", "a", "held"]
                assert held["metadata"]["finalizers"] == ["someone.else/holds"]

    asyncio.run(test())


def test_an_operator_that_ends_lets_go_only_with_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that is merely replaced holds on; whoever follows takes over."""

    async def test() -> None:
        async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
            place: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
            kubernetes.objects["namespaces", "", "a"] = place
            kubernetes.apply(topic("held", "a", names.FINALIZER))
            assert await let_go_with(kube, "a") == []
            place["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
            assert await let_go_with(kube, "a") == ["a/held"]
            assert await let_go_with(kube, "nowhere") == []

    asyncio.run(test())


def test_the_operator_is_ended_before_its_topics_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold them again at once: so the farewell waits until its pods are gone."""

    async def test() -> None:
        async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
            labels = {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": "mainstem"}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "a", "labels": labels},
            }
            kubernetes.objects["pods", "a", "p"] = pod
            stopped: list[tuple[str, str]] = []

            async def stop(namespace: str, name: str) -> None:
                stopped.append((namespace, name))

            monkeypatch.setattr(kube, "stop_deployment", stop)
            ending = asyncio.create_task(end_operator(kube, "a", "mainstem-operator", "mainstem"))
            await asyncio.sleep(0.2)
            assert stopped == [("a", "mainstem-operator")]
            assert not ending.done()
            del kubernetes.objects["pods", "a", "p"]
            await asyncio.wait_for(ending, 5)

    asyncio.run(test())
