"""Hundreds of objects at once, and what the operator does when nothing is left to do (R25)."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from tests.e2e.installation import CLUSTER, RESYNC_SECONDS, Installation, wait_until
from tests.e2e.kubectl import apply
from tests.support.waiting import let_pass

TOPICS: Final = 300
GROUPS: Final = 100
READY_SECONDS_MAX: Final = 120.0
LOOKS: Final = 2
LABEL: Final = "mainstem.dev/e2e=many"
MANY: Final = "topics.mainstem.dev,consumergroups.mainstem.dev"
CPU: Final = "process_cpu_seconds_total"


@pytest.mark.long
def test_e19_hundreds_of_objects_are_ready_in_two_minutes_and_then_nothing_is_written(
    mainstem: Installation,
) -> None:
    topics = [many("Topic", number, partitions=1, deletionPolicy="Delete") for number in range(TOPICS)]
    groups = [many("ConsumerGroup", number, maxLag=10) for number in range(GROUPS)]
    try:
        began = time.monotonic()
        apply(*topics, *groups, namespace=mainstem.namespace.name)
        applied = time.monotonic() - began
        wait_until(lambda: ready(mainstem) == TOPICS + GROUPS, "all are ready", READY_SECONDS_MAX - applied)
        took = time.monotonic() - began
        print(f"{TOPICS} Topics and {GROUPS} groups: applied in {applied:.0f} s, ready in {took:.0f} s")  # noqa: T201
        wait_until(
            lambda: replicas_told(mainstem) >= 3 * TOPICS, "the BrokerCluster has been looked at since"
        )
        mainstem.settled()
        versions, before = resource_versions(mainstem), mainstem.operator_metrics()
        let_pass(LOOKS * RESYNC_SECONDS, "nothing must happen in this time")
        after = mainstem.operator_metrics()
        cpu = (after[CPU] - before[CPU]) / (LOOKS * RESYNC_SECONDS)
        requested = requests(after, "GET") - requests(before, "GET")
        print(f"idle: {cpu:.3f} CPU, {requested / LOOKS:.0f} requests to the API server a resync")  # noqa: T201
        assert resource_versions(mainstem) == versions
        assert requests(after) - requests(before) == requested, "every request only reads"
    finally:
        mainstem.namespace.kubectl("delete", MANY, f"--selector={LABEL}", "--wait=false")
        wait_until(lambda: not mainstem.namespace.list(MANY, LABEL), "all are gone", READY_SECONDS_MAX)


def many(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    key, value = LABEL.split("=")
    return {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": kind,
        "metadata": {"name": f"many-{number}", "labels": {key: value}},
        "spec": {"clusterRef": {"name": CLUSTER}, **fields},
    }


def ready(mainstem: Installation) -> int:
    path = '--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    return mainstem.namespace.kubectl("get", MANY, f"--selector={LABEL}", path).count("True")


def replicas_told(mainstem: Installation) -> int:
    """How many replicas the brokers have, as the BrokerCluster's status says."""
    return sum(broker.get("replicas", 0) for broker in mainstem.status("brokercluster", CLUSTER)["brokers"])


def resource_versions(mainstem: Installation) -> str:
    """The resource version of every object that the operator writes."""
    kinds = f"{MANY},brokerclusters.mainstem.dev,statefulsets,services,configmaps,poddisruptionbudgets"
    return mainstem.namespace.kubectl(
        "get", kinds, "--output=jsonpath={range .items[*]}{.metadata.name}={.metadata.resourceVersion} {end}"
    )


def requests(metrics: dict[str, float], method: str = "") -> float:
    """How many requests the operator has sent to the API server, besides its watches."""
    prefix = "mainstem_operator_kubernetes_requests_total{" + (f'method="{method}"' if method else "")
    return sum(count for name, count in metrics.items() if name.startswith(prefix))
