"""One reset is carried out by one operator (R26)."""

from __future__ import annotations

import asyncio
import copy

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.unit.operator.played_context import context_with
from tests.unit.operator.played_groups import PlayedGroups

from mainstem_operator.brokers.errors import BrokersUnreachable
from mainstem_operator.groups.reconcile import reconcile_groups
from mainstem_operator.kubernetes.client import Kube

CLUSTER: Manifest = {
    **resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}),
    "status": {"brokersReady": 1},
}
RESET = {"clusterRef": {"name": "events"}, "reset": {"requestId": "r1", "to": "earliest"}}
SINCE = {"lastTransitionTime": "2026-11-21T11:00:00Z", "observedGeneration": 1}
STARTED = {
    "lastReset": {
        "requestId": "r1",
        "to": "earliest",
        "state": "Started",
        "at": "2026-11-21T11:00:00Z",
        "offsets": [{"topic": "clicks", "partition": 0, "before": 10, "after": 0}],
    }
}


@pytest.mark.parametrize("status", [{}, STARTED], ids=["begin", "resume"])
async def test_of_two_operators_that_find_a_reset_due_one_carries_it_out(
    status: Manifest, kubernetes: Kubernetes, kube: Kube
) -> None:
    """Else the second one sets the offsets back again after the group has gone on."""
    group = kubernetes.apply({**resource("ConsumerGroup", "readers", RESET), "status": status})
    brokers = PlayedGroups(operators=2)
    pauses = await asyncio.gather(
        *(
            reconcile_groups(
                context_with(kube, brokers), "default", "events", [copy.deepcopy(group)], CLUSTER
            )
            for _ in range(2)
        )
    )
    assert brokers.put == [("readers", {("clicks", 0): 0})]
    assert kubernetes.get("consumergroups", "readers")["status"]["lastReset"]["state"] == "Done"
    assert sorted(pauses, key=str) == [5.0, None], "the one that came too late looks again"
    events = [item["reason"] for item in kubernetes.find("events")]
    assert events == ["ResetDone"]


def condition(group: Manifest, kind: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    (found,) = (item for item in group["status"]["conditions"] if item["type"] == kind)
    return found["status"], found["reason"], found["message"]


async def test_while_no_broker_answers_no_group_stays_ready(kubernetes: Kubernetes, kube: Kube) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Observed", "message": "", **SINCE}
    group = kubernetes.apply(
        {
            **resource("ConsumerGroup", "readers", {"clusterRef": {"name": "events"}}),
            "status": {**STARTED, "conditions": [ready]},
        }
    )
    brokers = PlayedGroups()
    brokers.is_reachable = False
    with pytest.raises(BrokersUnreachable):
        await reconcile_groups(context_with(kube, brokers), "default", "events", [group], CLUSTER)
    group = kubernetes.get("consumergroups", "readers")
    assert condition(group, "Ready") == ("Unknown", "Unreachable", "No broker of events:9092 answered.")
    assert group["status"]["lastReset"] == STARTED["lastReset"]


async def test_a_coordinator_that_is_away_holds_up_the_reset_of_its_group_only(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    groups = [
        kubernetes.apply(resource("ConsumerGroup", name, RESET | {"groupId": name})) for name in ("a", "b")
    ]
    brokers = PlayedGroups()
    brokers.without_coordinator = "a"
    pause = await reconcile_groups(context_with(kube, brokers), "default", "events", groups, CLUSTER)
    waiting, done = (kubernetes.get("consumergroups", name) for name in ("a", "b"))
    assert condition(waiting, "ResetPending")[2] == "The coordinator of group a does not answer."
    assert waiting["status"]["lastReset"]["state"] == "Started"
    assert done["status"]["lastReset"]["state"] == "Done"
    assert pause == 5.0


async def test_an_older_group_whose_manifest_is_not_valid_keeps_its_claim(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """Else a younger one would move the offsets of its group meanwhile (R26)."""
    groups = []
    for second, name in enumerate(("first", "second")):
        group = kubernetes.apply(resource("ConsumerGroup", name, {**RESET, "groupId": "readers"}))
        group["metadata"]["creationTimestamp"] = f"2026-11-21T11:00:0{second}Z"
        within = {"type": "WithinSLO", "status": "True", "reason": "WithinLimits", "message": "", **SINCE}
        group["status"] = {"conditions": [within]}
        groups.append(group)
    groups[0]["spec"]["maxLag"] = "many"
    brokers = PlayedGroups()
    await reconcile_groups(context_with(kube, brokers), "default", "events", groups, CLUSTER)
    assert brokers.put == []
    first, second_group = (kubernetes.get("consumergroups", name) for name in ("first", "second"))
    assert condition(first, "Ready")[1] == "InvalidSpec"
    assert condition(second_group, "Ready") == (
        "False",
        "ResourceConflict",
        "The ConsumerGroup first is older and claims the group readers too.",
    )
    for group in (first, second_group):
        assert condition(group, "WithinSLO")[0] == "Unknown", "nobody measures it"
