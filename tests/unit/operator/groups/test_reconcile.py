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

    async def groups(self, group_names: Iterable[str]) -> dict[str, GroupState | str]:
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
