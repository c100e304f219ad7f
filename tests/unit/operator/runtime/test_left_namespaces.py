"""What the operator holds in a namespace that it does not watch any more is let go (R23, R25)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.runtime import left_namespaces
from mainstem_operator.runtime.lease import Lease
from mainstem_operator.runtime.left_namespaces import leave


async def started(kube: Kube, *watched: str) -> None:
    """The operator starts and leads."""
    await leave(kube, Lease(kube, "default", "office", "first"), watched, retry_seconds=0)


def held(kubernetes: Kubernetes) -> list[str]:
    """The namespaces of the Topics and Users that have a finalizer of ours."""
    return [
        item["metadata"]["namespace"]
        for plural, finalizer in (("topics", names.FINALIZER), ("users", names.USER_FINALIZER))
        for item in kubernetes.find(plural)
        if finalizer in item["metadata"].get("finalizers", ())
    ]


@pytest.fixture(autouse=True)
def objects(kubernetes: Kubernetes) -> None:
    for place in ("a", "b", "c"):
        topic = resource("Topic", "clicks", {}, namespace=place, finalizers=[names.FINALIZER])
        kubernetes.apply(topic)
    kubernetes.apply(resource("User", "anna", {}, namespace="b", finalizers=[names.USER_FINALIZER]))


@pytest.mark.parametrize(
    ("before", "now", "still_held"),
    [
        (("a", "b"), ("a",), ["a", "c"]),
        (("a",), ("a", "b"), ["a", "b", "c", "b"]),
        (("a", "b"), (), ["a", "b", "c", "b"]),
        ((), ("a",), ["a"]),
        (("b",), ("c",), ["a", "c"]),
    ],
    ids=["fewer", "more", "all instead", "not all any more", "another one"],
)
async def test_a_namespace_that_is_no_longer_watched_is_let_go(
    before: tuple[str, ...],
    now: tuple[str, ...],
    still_held: list[str],
    kubernetes: Kubernetes,
    kube: Kube,
) -> None:
    """`c` may be another release's: it is not touched by one that never watched it."""
    await started(kube, *before)
    assert held(kubernetes) == ["a", "b", "c", "b"]
    await started(kube, *now)
    assert held(kubernetes) == still_held
    kubernetes.requests.clear()
    await started(kube, *now)
    assert kubernetes.writes == [], "an idle operator writes nothing"


async def test_finalizers_of_others_stay_and_what_is_kept_is_reported(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    await started(kube, "a", "b")
    topic = kubernetes.objects["topics", "b", "clicks"]
    topic["metadata"]["finalizers"] = ["someone.else/holds", names.FINALIZER]
    kubernetes.delete("topics", "clicks", "b")
    await started(kube, "a")
    assert kubernetes.objects["topics", "b", "clicks"]["metadata"]["finalizers"] == ["someone.else/holds"]
    (event,) = kubernetes.find("events")
    assert event["reason"] == "TopicKept"
    assert event["message"].startswith("The operator does not watch this namespace any more before")


async def test_what_is_refused_stays_noted_and_is_tried_again(kubernetes: Kubernetes, kube: Kube) -> None:
    await started(kube, "a", "b")
    refusals = [403]

    def fails(method: str, key: Any, _: str) -> int:
        return refusals.pop() if refusals and (method, key[:2]) == ("PATCH", ("topics", "b")) else 0

    kubernetes.fails = fails
    await started(kube, "a")
    assert not refusals
    assert held(kubernetes) == ["a", "c"]


async def test_the_note_leaves_the_lease_to_its_holder(kubernetes: Kubernetes, kube: Kube) -> None:
    """A renewal between reading and noting is no loss of either."""
    spec = {"holderIdentity": "first", "renewTime": "now"}
    await kube.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "office", "namespace": "default"},
            "spec": spec,
        }
    )
    refusals = [409]
    kubernetes.fails = lambda method, *_: refusals.pop() if refusals and method == "PUT" else 0
    await started(kube, "a")
    lease = kubernetes.get("leases", "office")
    assert lease["spec"] == spec
    assert lease["metadata"]["annotations"] == {names.WATCHED: "a"}


async def test_a_renewal_and_a_release_keep_the_note(kubernetes: Kubernetes, kube: Kube) -> None:
    """The next operator reads it, of whatever version it is."""
    await started(kube, "a")
    lease = Lease(kube, "default", "office", "second")
    assert await lease._try()
    await started(kube, "a", "b")
    await lease.release()
    there = kubernetes.get("leases", "office")
    assert there["metadata"]["annotations"] == {names.WATCHED: "a,b"}
    assert there["spec"]["holderIdentity"] == ""
    assert there["spec"]["renewTime"]


def test_one_module_writes_leases() -> None:
    sources = Path(left_namespaces.__file__).parents[1]
    naming = [path.name for path in sources.rglob("*.py") if '"Lease"' in path.read_text()]
    assert sorted(naming) == ["client.py", "lease.py"]
