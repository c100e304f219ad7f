"""Moves within a limit by the whole operator; what it asks of brokers is all that is played (R25)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.played_cluster import CLICKS, VIEWS, PlayedCluster

from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.cluster.throttles.plan import ALL_BROKERS, RATES
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.reconcile import _Batch

NO_THROTTLES: dict[str, dict[str, str]] = {ALL_BROKERS: {}, "clicks": {}, "views": {}}
PAUSE = "mainstem.dev/pause-reconciliation"


def cluster(spec: dict[str, Any]) -> Manifest:
    return resource("BrokerCluster", "events", spec)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    """Of four brokers, where number 3 holds two replicas."""
    result = PlayedCluster()
    result.replicas = {CLICKS: (0, 3), VIEWS: (3, 1)}
    monkeypatch.setattr("mainstem_operator.runtime.context.Brokers", lambda _servers: result)
    yield result
    assert result.not_limited == []


async def begin_drain(operator: RunningOperator) -> dict[str, Any]:
    """Three brokers are asked for in the place of four; the spec."""
    spec: dict[str, Any] = {"brokers": {"replicas": 4}}
    operator.kubernetes.apply(cluster(spec))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    spec["brokers"]["replicas"], spec["rolling"] = 3, {"moveBytesPerSecond": 5000}
    operator.kubernetes.apply(cluster(spec))
    return spec


@with_operator
async def test_a_drain_keeps_to_its_limit_from_its_first_move_to_its_end(
    operator: RunningOperator, brokers: PlayedCluster
) -> None:
    kubernetes = operator.kubernetes
    brokers.limit = 5000
    spec = await begin_drain(operator)
    await operator.until(lambda: brokers.under_way.keys() == {CLICKS, VIEWS}, "both move")
    assert kubernetes.get("configmaps", "events-throttles")
    spec["rolling"] = {"moveBytesPerSecond": 9000}
    kubernetes.apply(cluster(spec))
    rates = dict.fromkeys(RATES, "9000")
    await operator.until(lambda: brokers.settings[ALL_BROKERS] == rates, "another limit")
    brokers.end(CLICKS)
    brokers.end(VIEWS)
    operator.health.changes[3] = {"replicas": 0, "leaders": 0}
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert kubernetes.get("statefulsets", "events-broker")["spec"]["replicas"] == 3
    assert ("configmaps", "default", "events-throttles") not in kubernetes.objects
    assert brokers.settings == NO_THROTTLES


@pytest.mark.parametrize("annotation", [PAUSE, "mainstem.dev/plan-only"])
@with_operator
async def test_a_cluster_that_is_left_alone_loses_the_throttles_of_moves_that_end(
    operator: RunningOperator, brokers: PlayedCluster, annotation: str
) -> None:
    kubernetes = operator.kubernetes
    await begin_drain(operator)
    await operator.until(lambda: brokers.under_way.keys() == {CLICKS, VIEWS}, "both move")
    kubernetes.annotate("brokerclusters", "events", {annotation: "true"})
    if annotation == PAUSE:
        await operator.condition("brokerclusters", "events", "Paused", "True")
    brokers.end(CLICKS)
    brokers.end(VIEWS)
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: brokers.settings == NO_THROTTLES, "no throttles")
    await operator.until(
        lambda: ("configmaps", "default", "events-throttles") not in kubernetes.objects, "no note"
    )


@with_operator
async def test_a_drain_whose_limit_is_refused_says_so_and_tells_of_no_move(
    operator: RunningOperator, brokers: PlayedCluster
) -> None:
    kubernetes = operator.kubernetes
    brokers.replicas["clicks", 1] = (1, 3)
    brokers.refused_settings = {"clicks"}
    await begin_drain(operator)
    reason = "clicks-0 is not moved: Its move can't be limited: clicks: It is full. And 1 more."

    def told() -> bool:
        lines = kubernetes.get("brokerclusters", "events")["status"].get("plan") or [{}]
        return bool(lines[0].get("waitingFor") == f"3 replicas are being moved away. {reason}")

    await operator.until(told, "the reason")
    assert brokers.under_way.keys() == {VIEWS}
    requested = brokers.questions
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: brokers.questions > requested + 8, "another look")
    said = {(item["reason"], item["message"]) for item in kubernetes.find("events")}
    assert {("Draining", "1 partitions move off brokers 3."), ("MoveRefused", reason)} <= said
    assert sum(event == "MoveRefused" for event, _ in said) == 1


@with_operator
async def test_a_pod_that_is_to_be_restarted_does_not_wait_for_throttles(
    operator: RunningOperator, brokers: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted was seen fresh: nothing that may take long lies between (R21)."""

    requests = []

    def noting(owner: object, name: str) -> None:
        call = getattr(owner, name)

        async def noted(*args: Any) -> Any:
            requests.append(name)
            return await call(*args)

        monkeypatch.setattr(owner, name, noted)

    noting(brokers, "topic_names")  # the plan begins with it
    noting(brokers, "throttles")
    noting(Kube, "delete_pod")
    spec = await begin_drain(operator)
    await operator.until(lambda: brokers.under_way.keys() == {CLICKS, VIEWS}, "both move")
    spec["brokers"]["config"] = {"log.retention.hours": 7}
    operator.kubernetes.apply(cluster(spec))
    await operator.until(lambda: "delete_pod" in requests, "a restart")
    assert requests[requests.index("delete_pod") - 1] == "topic_names"


@with_operator
async def test_a_rate_of_others_that_counts_instead_of_the_limit_is_reported_in_a_condition(
    operator: RunningOperator, brokers: PlayedCluster
) -> None:
    brokers.settings[ALL_BROKERS] = {RATES[0]: "7"}
    await begin_drain(operator)
    reported = await operator.condition("brokerclusters", "events", "MoveLimitOverridden", "True")
    assert f"set by others, to {RATES[0]} 7." in reported["message"]


@pytest.mark.parametrize(("rolling", "moves"), [({"maxSkew": "?"}, True), ({"moveBytesPerSecond": 1}, False)])
def test_topics_of_a_cluster_that_makes_no_sense_move_unless_it_names_a_limit(
    rolling: dict[str, Any], moves: bool, brokers: PlayedCluster
) -> None:
    broken = cluster({"brokers": {"replicas": 3, "config": {"broker.id": 7}}, "rolling": rolling})
    context = SimpleNamespace(moves=lambda *_: None)
    look = _Batch(cast(Context, context), cast(Brokers, brokers), [], broken, [])
    refused = asyncio.run(look._move({CLICKS: (0, 1)}, ()))  # the rest needs an API server
    assert (CLICKS in brokers.under_way, bool(refused)) == (moves, not moves)


async def test_a_note_that_has_changed_since_it_was_read_is_neither_written_over_nor_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(text: str) -> Manifest:
        metadata = {"name": "events-throttles", "namespace": "default"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"noted": text}}

    async with connected(tmp_path, monkeypatch) as (_, kube):
        read = await kube.apply(note("a"), None)
        written = await kube.apply(note("b"), read, unchanged=True)
        with pytest.raises(Refused) as refused:
            await kube.apply(note("c"), read, unchanged=True)
        assert refused.value.conflict
        with pytest.raises(Refused) as refused:
            await kube.delete_owned({**note(""), **read}, unchanged=True)
        assert refused.value.conflict
        await kube.delete_owned({**note(""), **written}, unchanged=True)
        assert await kube.get("v1", "ConfigMap", "default", "events-throttles") is None
