"""Two operators at once, as when the machine of one is cut off, never delete two pods for one plan (R25)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource
from tests.unit.operator.played_context import context_with

from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.api.objects import identity_of
from mainstem_operator.cluster.broker_manifests import Placement, broker_manifests
from mainstem_operator.cluster.disks import LostVolume
from mainstem_operator.cluster.irreversible_steps import IrreversibleSteps
from mainstem_operator.cluster.rolling_restart import Restart, Roll
from mainstem_operator.cluster.status import Work
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.proofs import ClaimDeletion, PodDeletion
from mainstem_operator.snapshot import Component, Snapshot, component_of

NOW = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)


class Scene:
    """A BrokerCluster of three brokers, and operators that look at it."""

    def __init__(self, kubernetes: Kubernetes, kube: Kube) -> None:
        self.kubernetes = kubernetes
        self._kube = kube
        self.manifest = kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 3}}))
        context = context_with(kube)
        for item in broker_manifests(self.cluster, context.images, 3, Placement({}), None, 1):
            if item["kind"] == "StatefulSet":
                kubernetes.apply(item)

    @property
    def cluster(self) -> ClusterSpec:
        return cluster_of(self.manifest)

    def look(self, after: dt.timedelta = dt.timedelta()) -> Snapshot:
        find = self.kubernetes.find
        brokers = component_of(
            identity_of(self.manifest),
            "broker",
            find("statefulsets"),
            find("pods"),
            find("persistentvolumeclaims"),
            {},
            NOW + after,
        )
        return Snapshot(NOW + after, Component(None, {}, {}), brokers, {}, {}, None, {})

    def operator(self, snapshot: Snapshot) -> IrreversibleSteps:
        """One that has seen this."""
        context = context_with(self._kube)
        other: Any = None
        return IrreversibleSteps(context, self.manifest, self.cluster, other, other, snapshot)

    async def restart(self, broker: int, snapshot: Snapshot) -> None:
        pod = snapshot.brokers.pods[broker]
        proof = PodDeletion("default", pod.name, pod.uid, "a restart was requested")
        roll = Roll((Restart(pod, "a restart was requested"),), proof)
        await self.operator(snapshot).take(Work(brokers=roll))

    async def replace_volume(self, broker: int, snapshot: Snapshot) -> None:
        claim = snapshot.brokers.claims[broker]
        proof = ClaimDeletion("default", claim.name, claim.uid, "its node is gone")
        await self.operator(snapshot).take(Work(lost=(LostVolume(claim, proof),)))

    def uids(self, plural: str) -> set[str]:
        return {item["metadata"]["uid"] for item in self.kubernetes.find(plural)}


@pytest.fixture
def scene(kubernetes: Kubernetes, kube: Kube) -> Scene:
    return Scene(kubernetes, kube)


async def test_of_two_restarts_that_rest_on_one_view_only_one_happens(scene: Scene) -> None:
    """The controller may have changed between two plans, so they may name different brokers."""
    before, seen = scene.uids("pods"), scene.look()
    await scene.restart(0, seen)
    await scene.restart(1, seen)
    assert len(before - scene.uids("pods")) == 1
    told = [item["message"] for item in scene.kubernetes.find("events")]
    assert told == ["a restart was requested"]


async def test_what_one_has_begun_to_delete_is_waited_for_by_the_other(scene: Scene) -> None:
    seen, before = scene.look(), scene.uids("pods")
    scene.kubernetes.fails = lambda method, key, _: 500 if (method, key[0]) == ("DELETE", "pods") else 0
    with pytest.raises(Refused):
        await scene.restart(0, seen)
    scene.kubernetes.fails = lambda *_: 0
    await scene.restart(1, scene.look())
    assert scene.uids("pods") == before
    await scene.restart(0, scene.look())
    assert len(before - scene.uids("pods")) == 1
    await scene.restart(1, scene.look())
    assert len(before - scene.uids("pods")) == 2, "the first is over"


async def test_a_deletion_that_was_begun_and_never_ended_is_not_waited_for_longer_than_it_may_take(
    scene: Scene,
) -> None:
    scene.kubernetes.fails = lambda method, key, _: 500 if (method, key[0]) == ("DELETE", "pods") else 0
    with pytest.raises(Refused):
        await scene.restart(0, scene.look())
    scene.kubernetes.fails = lambda *_: 0
    before = scene.uids("pods")
    await scene.restart(1, scene.look(dt.timedelta(seconds=60)))
    assert scene.uids("pods") == before
    await scene.restart(1, scene.look(dt.timedelta(seconds=150)))
    assert len(before - scene.uids("pods")) == 1


async def test_of_two_volumes_only_one_is_replaced_at_a_time(scene: Scene) -> None:
    before, seen = scene.uids("persistentvolumeclaims"), scene.look()
    await scene.replace_volume(0, seen)
    await scene.replace_volume(1, seen)
    assert len(before - scene.uids("persistentvolumeclaims")) == 1


async def test_a_deletion_that_a_policy_refuses_is_reported_and_raises_nothing(scene: Scene) -> None:
    """So that the pass goes on, and writes the status."""
    seen, before = scene.look(), scene.uids("pods")
    scene.kubernetes.fails = lambda method, key, _: 403 if (method, key[0]) == ("DELETE", "pods") else 0
    steps = scene.operator(seen)
    pod = seen.brokers.pods[0]
    roll = Roll((Restart(pod, "it is new"),), PodDeletion("default", pod.name, pod.uid, "it is new"))
    assert await steps.take(Work(brokers=roll)) == ""
    assert steps.refused == (
        "Kubernetes refuses a step of the plan, and it is tried again: DELETE of events-broker-0 fails."
    )
    assert scene.uids("pods") == before
