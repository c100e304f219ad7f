"""One reset is carried out by one operator (R26)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource

from mainstem_operator.api.resources import Images
from mainstem_operator.brokers.errors import BrokersUnreachable
from mainstem_operator.brokers.topic_state import GroupState, PartitionState, TopicPartition, TopicState
from mainstem_operator.groups.reconcile import reconcile_groups
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.observe import Observer, ServiceAddresses
from mainstem_operator.proofs import OffsetMove
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.metrics import Metrics

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


class PlayedBrokers:
    """A group without members that has consumed ten records, and consumes them again after each reset."""

    def __init__(self, operators: int) -> None:
        self._both = asyncio.Barrier(operators)
        self._read: set[asyncio.Task[Any] | None] = set()
        self.put: list[dict[TopicPartition, int]] = []
        self.is_reachable = True
        self.without_coordinator = ""

    async def groups(self, group_names: Iterable[str]) -> dict[str, GroupState | str]:
        if not self.is_reachable:
            raise BrokersUnreachable("No broker of events:9092 answered.")
        return {name: GroupState(name, "EMPTY", 0, {("clicks", 0): 10}) for name in group_names}

    async def topics(self, topic_names: Iterable[str]) -> dict[str, TopicState]:
        if (task := asyncio.current_task()) not in self._read:  # before any operator notes what it will do
            self._read.add(task)
            await self._both.wait()
        partitions = {0: PartitionState(0, (0,), frozenset({0}))}
        return {name: TopicState(name, "id", partitions) for name in topic_names}

    async def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    async def put_offsets(self, proof: OffsetMove) -> dict[TopicPartition, str]:
        if proof.group == self.without_coordinator:
            raise BrokersUnreachable(f"The coordinator of group {proof.group} does not answer.")
        self.put.append(dict(proof.offsets))
        return {}


async def _always() -> bool:
    return True


def operator(kube: Kube, brokers: PlayedBrokers) -> Context:
    """One without a Lease, so that it acts whatever others do."""
    observer = cast(Observer, SimpleNamespace())
    context = Context(kube, observer, ServiceAddresses(), Images(), Metrics(), _always, "ops")
    context.brokers = lambda *_: brokers  # type: ignore[method-assign,assignment]
    return context


@pytest.mark.parametrize("status", [{}, STARTED], ids=["begin", "resume"])
async def test_of_two_operators_that_find_a_reset_due_one_carries_it_out(
    status: Manifest, kubernetes: Kubernetes, kube: Kube
) -> None:
    """Else the second one sets the offsets back again after the group has gone on."""
    group = kubernetes.apply({**resource("ConsumerGroup", "readers", RESET), "status": status})
    brokers = PlayedBrokers(operators=2)
    pauses = await asyncio.gather(
        *(
            reconcile_groups(operator(kube, brokers), "default", "events", [copy.deepcopy(group)], CLUSTER)
            for _ in range(2)
        )
    )
    assert brokers.put == [{("clicks", 0): 0}]
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
    brokers = PlayedBrokers(operators=1)
    brokers.is_reachable = False
    with pytest.raises(BrokersUnreachable):
        await reconcile_groups(operator(kube, brokers), "default", "events", [group], CLUSTER)
    group = kubernetes.get("consumergroups", "readers")
    assert condition(group, "Ready") == ("Unknown", "Unreachable", "No broker of events:9092 answered.")
    assert group["status"]["lastReset"] == STARTED["lastReset"]


async def test_a_coordinator_that_is_away_holds_up_the_reset_of_its_group_only(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    groups = [
        kubernetes.apply(resource("ConsumerGroup", name, RESET | {"groupId": name})) for name in ("a", "b")
    ]
    brokers = PlayedBrokers(operators=1)
    brokers.without_coordinator = "a"
    pause = await reconcile_groups(operator(kube, brokers), "default", "events", groups, CLUSTER)
    waiting, done = (kubernetes.get("consumergroups", name) for name in ("a", "b"))
    assert condition(waiting, "ResetPending")[2] == "The coordinator of group a does not answer."
    assert waiting["status"]["lastReset"]["state"] == "Started"
    assert done["status"]["lastReset"]["state"] == "Done"
    assert pause == 5.0
