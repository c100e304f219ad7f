"""What the operator holds is let go before it is uninstalled (R23, R25)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.uninstall import end_operator, let_go, let_go_with


def topic(name: str, namespace: str, *finalizers: str) -> dict[str, Any]:
    return resource("Topic", name, {}, namespace=namespace, finalizers=list(finalizers))


@pytest.mark.parametrize(("namespaces", "released"), [((), ["a/held", "b/held"]), (("b",), ["b/held"])])
async def test_topics_are_let_go_and_other_holds_stay(
    namespaces: tuple[str, ...], released: list[str], kubernetes: Kubernetes, kube: Kube
) -> None:
    kubernetes.apply(topic("held", "a", "someone.else/holds", names.FINALIZER))
    kubernetes.apply(topic("held", "b", names.FINALIZER))
    kubernetes.apply(topic("free", "b"))
    assert sorted(await let_go(kube, namespaces)) == released
    assert await let_go(kube, namespaces) == []
    if not namespaces:
        held = kubernetes.objects["topics", "a", "held"]
        assert held["metadata"]["finalizers"] == ["someone.else/holds"]


async def test_a_refusal_holds_up_no_other_one_and_is_named(kubernetes: Kubernetes, kube: Kube) -> None:
    for name in ("first", "second"):
        kubernetes.apply(topic(name, "a", names.FINALIZER))
    kubernetes.apply(resource("User", "third", {}, namespace="a", finalizers=[names.USER_FINALIZER]))
    kubernetes.fails = lambda method, key, _: 403 if (method, key[2]) == ("PATCH", "first") else 0
    with pytest.raises(Refused, match="Topic a/first: PATCH of first fails"):
        await let_go(kube, ["a"])
    held = [
        item["metadata"]["name"]
        for plural in ("topics", "users")
        for item in kubernetes.find(plural)
        if item["metadata"].get("finalizers")
    ]
    assert held == ["first"]


async def test_what_is_kept_of_deletions_that_were_not_carried_out_is_reported(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    kubernetes.apply(topic("stays", "a", names.FINALIZER))
    kubernetes.apply(topic("going", "a", names.FINALIZER))
    kubernetes.apply(resource("User", "anna", {}, namespace="a", finalizers=[names.USER_FINALIZER]))
    kubernetes.delete("topics", "going", "a")
    kubernetes.delete("users", "anna", "a")
    await let_go(kube, ["a"])
    events = {
        (item["involvedObject"]["name"], item["reason"], item["type"]) for item in kubernetes.find("events")
    }
    assert events == {("going", "TopicKept", "Warning"), ("anna", "UserKept", "Warning")}
    assert [item["metadata"]["name"] for item in kubernetes.find("topics")] == ["stays"]


async def test_without_definitions_there_is_nothing_to_let_go(kubernetes: Kubernetes, kube: Kube) -> None:
    """As after an install that failed, or when somebody has deleted them."""
    kubernetes.fails = lambda method, key, _: 404 if method == "GET" and key[0] in ("topics", "users") else 0
    assert await let_go(kube, ()) == []


async def test_an_operator_that_ends_lets_go_only_with_its_namespace(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """An operator that is merely replaced holds on; whoever follows takes over."""
    place: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    kubernetes.objects["namespaces", "", "a"] = place
    kubernetes.apply(topic("held", "a", names.FINALIZER))
    assert await let_go_with(kube, "a") == []
    place["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    kubernetes.delete("topics", "held", "a")
    assert await let_go_with(kube, "a") == ["a/held"]
    assert kubernetes.find("events") == [], "the topic goes with its brokers"
    assert await let_go_with(kube, "nowhere") == []


def deployment(labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "mainstem-operator", "namespace": "a", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": "other"},
        {names.COMPONENT_LABEL: "web", "app.kubernetes.io/instance": "mainstem"},
    ],
)
async def test_a_deployment_of_others_that_has_the_name_is_not_stopped(
    labels: dict[str, str], kubernetes: Kubernetes, kube: Kube
) -> None:
    """As where ours is gone, and an uninstall is made up for."""
    kubernetes.apply(deployment(labels))
    await end_operator(kube, "a", "mainstem-operator", "mainstem")
    assert kubernetes.get("deployments", "mainstem-operator", "a")["spec"]["replicas"] == 1


def operator_pod(name: str, owners: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    labels = {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": "mainstem"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "labels": labels, "ownerReferences": owners},
        "status": {"phase": phase},
    }


OWNERS = [{"kind": "ReplicaSet", "name": "mainstem-operator-5d8f", "controller": True}]


@pytest.mark.parametrize(
    ("refused", "phase", "ends"),
    [
        ({("GET", "deployments")}, "Running", False),
        ({("PATCH", "deployments")}, "Running", False),
        ({("GET", "deployments")}, "Succeeded", True),
        ({("GET", "deployments"), ("GET", "pods")}, "Succeeded", False),
        ({("GET", "pods")}, "Succeeded", False),
    ],
)
async def test_an_account_that_may_not_end_the_operator_lets_nothing_go_while_it_runs(
    refused: set[tuple[str, str]], phase: str, ends: bool, kubernetes: Kubernetes, kube: Kube
) -> None:
    """As one that the chart did not make (`rbac.create: false`). An operator that runs would hold again what
    is let go.
    """
    kubernetes.objects["pods", "a", "p"] = operator_pod("p", OWNERS, phase)
    kubernetes.apply(
        deployment({names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": "mainstem"})
    )
    kubernetes.fails = lambda method, key, _: 403 if (method, key[0]) in refused else 0
    if ends:
        await end_operator(kube, "a", "mainstem-operator", "mainstem")
    else:
        with pytest.raises(Refused, match=r"fails.*templates/uninstall\.yaml, or stop the operator"):
            await end_operator(kube, "a", "mainstem-operator", "mainstem")


async def test_the_operator_is_ended_before_its_topics_are_let_go(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, kube: Kube
) -> None:
    """It would hold them again at once: so the farewell waits until its pods are gone."""
    labels = {names.COMPONENT_LABEL: "operator", "app.kubernetes.io/instance": "mainstem"}
    others = [{"kind": "ReplicaSet", "name": "mainstem-operator-copy-77b9", "controller": True}]
    for name, owned_by, phase in (
        ("p", OWNERS, "Running"),
        ("evicted", OWNERS, "Failed"),
        ("copy", [], "Running"),
        ("other", others, "Running"),
    ):
        kubernetes.objects["pods", "a", name] = operator_pod(name, owned_by, phase)
    kubernetes.apply(deployment(labels))
    looked = asyncio.Event()
    find = kube.find

    async def noting_find(version: str, kind: str, *where: Any) -> Any:
        found = await find(version, kind, *where)
        looked.set()
        return found

    monkeypatch.setattr(kube, "find", noting_find)
    ending = asyncio.create_task(end_operator(kube, "a", "mainstem-operator", "mainstem"))
    await looked.wait()
    assert kubernetes.get("deployments", "mainstem-operator", "a")["spec"]["replicas"] == 0
    assert not ending.done()
    del kubernetes.objects["pods", "a", "p"]
    await ending
