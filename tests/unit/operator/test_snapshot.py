"""What belongs to a BrokerCluster is decided by owners and names, and not by labels (R25)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.snapshots import NOW, report, snapshot, with_pod, with_report, without_report

from mainstem_operator.api import names
from mainstem_operator.api.objects import Identity, identity_of
from mainstem_operator.snapshot import Component, Snapshot, component_of

OWNER: Identity = identity_of({"metadata": {"name": "events", "namespace": "prod", "uid": "cluster"}})


def item(name: str, uid: str, owner: str | None, **body: Any) -> dict[str, Any]:
    owners = [{"uid": owner, "controller": True}] if owner else []
    labels = names.labels("events", names.BROKER)
    return {"metadata": {"name": name, "uid": uid, "labels": labels, "ownerReferences": owners}, **body}


def workload(owner: str | None = "cluster", name: str = "events-broker", uid: str = "set") -> dict[str, Any]:
    return item(name, uid, owner, spec={"replicas": 2})


def pod(name: str, owner: str | None = "set") -> dict[str, Any]:
    return item(name, f"uid of {name}", owner)


OWN = [pod("events-broker-0"), pod("events-broker-1")]


def component(*pods: dict[str, Any], workloads: Any = (), claims: Any = ()) -> Component:
    return component_of(OWNER, names.BROKER, workloads or [workload()], pods, claims, {}, NOW)


@pytest.mark.parametrize(
    "foreign",
    [
        pod("events-broker-1-debug"),
        pod("debug-1", owner=None),
        pod("events-broker-01"),
        pod("events-broker-1", owner="another set"),
        pod("events-broker-7", owner=None),
        pod("toolbox", owner=None),
    ],
    ids=lambda it: it["metadata"]["name"],
)
def test_a_pod_that_only_carries_the_labels_counts_for_nothing(foreign: dict[str, Any]) -> None:
    for pods in ([*OWN, foreign], [foreign, *OWN]):
        result = component(*pods)
        assert {index: it.uid for index, it in result.pods.items()} == {
            0: "uid of events-broker-0",
            1: "uid of events-broker-1",
        }


def test_a_claim_that_only_carries_the_labels_counts_for_nothing() -> None:
    claims = [
        item(name, name, None)
        for name in ("data-events-broker-0", "backup", "backup-1", "data-events-broker-x")
    ]
    assert {claim.name for claim in component(*OWN, claims=claims).claims.values()} == {
        "data-events-broker-0"
    }


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21", ""])
def test_a_claim_whose_note_of_loss_was_damaged_counts_as_one_without(text: str) -> None:
    """The operator notes the loss anew, and waits again before it gives the claim up."""
    claim = item("data-events-broker-0", "c", None)
    claim["metadata"]["annotations"] = {names.LOST_SINCE: text}
    assert component(*OWN, claims=[claim]).claims[0].lost_since is None


def test_a_stateful_set_of_another_owner_or_name_is_not_ours() -> None:
    foreign = [workload("another cluster"), workload("cluster", "events-broker-copy")]
    assert component(*OWN, workloads=foreign) == Component(None, {}, {})
    result = component(*OWN, workloads=[*foreign, workload()])
    assert result.workload is not None
    assert result.workload.name == "events-broker"


def test_a_stateful_set_that_nobody_owns_is_adopted() -> None:
    """As after its BrokerCluster was deleted with --cascade=orphan and created again."""
    assert len(component(*OWN, workloads=[workload(None)]).pods) == 2


def test_a_cluster_is_whole_only_if_every_broker_says_so() -> None:
    """Else a drain of nodes could take a broker while nobody knows how the others are."""
    assert snapshot().is_whole
    assert not replace(snapshot(), reports={}).is_whole
    assert not without_report(snapshot(), 1).is_whole
    assert not with_report(snapshot(), 1, under_replicated=1).is_whole
    assert not with_report(snapshot(), 1, offline=1).is_whole


def of_three_live(**changes: Any) -> Snapshot:
    """Four brokers, of which the last one is not live according to the others, and does not answer."""
    seen = snapshot(4)
    reports = {index: report(index, range(3), **changes) for index in range(3)}
    return replace(seen, reports=reports, brokers=with_pod(seen.brokers, 3, ready=False))


def test_a_broker_that_holds_nothing_is_not_needed_for_a_cluster_to_be_whole() -> None:
    """As one that has never started. A replica of it would not be in sync, and so be counted (R25)."""
    seen = of_three_live()
    assert (seen.is_whole, seen.without_replicas) == (True, {3})
    for other in (
        of_three_live(under_replicated=1),
        of_three_live(offline=1),
        with_report(seen, 1, live_brokers=frozenset(range(4))),
        replace(seen, brokers=with_pod(seen.brokers, 3, ready=True)),
        replace(seen, reports={}),
    ):
        assert (other.is_whole, other.without_replicas) == (False, set())
