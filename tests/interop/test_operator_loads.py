"""A Topic's loads by the whole operator: the CronJob, and what its runs say (R28)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.clusters import SharedCluster
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.support.waiting import let_pass_async


@pytest.fixture
def name(local_stack: SharedCluster) -> Iterator[str]:
    new_name = f"loaded-{uuid4().hex[:8]}"
    yield new_name
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    for future in admin.delete_topics([new_name]).values():
        future.exception()


def cluster(**spec: Any) -> Manifest:
    return resource("BrokerCluster", "events", {"brokers": {"replicas": 3}, **spec})


def topic(name: str, warehouse: dict[str, Any] | None) -> Manifest:
    spec: dict[str, Any] = {"clusterRef": {"name": "events"}, "partitions": 1}
    if warehouse is not None:
        spec["warehouse"] = warehouse
    return resource("Topic", name, spec)


def owned_by(owner: Manifest) -> Manifest:
    metadata = owner["metadata"]
    return {"kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def run_a_load(operator: RunningOperator, name: str, message: dict[str, Any]) -> None:
    """What Kubernetes makes of the CronJob when its time has come: a Job, and a pod that ends."""
    cron_job = operator.kubernetes.get("cronjobs", name)
    labels = cron_job["spec"]["jobTemplate"]["metadata"]["labels"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{name}-1",
            "namespace": "default",
            "labels": labels,
            "ownerReferences": [owned_by(cron_job)],
        },
        "status": {
            "startTime": "2026-11-21T11:00:00Z",
            "completionTime": "2026-11-21T11:01:00Z",
            "conditions": [
                {"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-21T11:01:00Z"}
            ],
        },
    }
    made = operator.kubernetes.apply(job)
    operator.kubernetes.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-1-x",
                "namespace": "default",
                "labels": labels,
                "ownerReferences": [owned_by(made)],
            },
            "status": {
                "containerStatuses": [
                    {"name": "loader", "state": {"terminated": {"message": json.dumps(message)}}}
                ]
            },
        }
    )


@with_operator
async def test_a_topic_with_a_warehouse_is_loaded_and_tells_what_came_of_it(
    operator: RunningOperator, local_stack: SharedCluster, name: str
) -> None:
    kubernetes, load = operator.kubernetes, f"{name}-load"
    kubernetes.apply(cluster(warehouse={"location": "/tables", "volumeClaim": "tables"}))
    kubernetes.apply(topic(name, {"schedule": "*/5 * * * *"}))
    await operator.condition("topics", name, "Loaded", "Unknown", "NoLoadYet")
    assert kubernetes.get("cronjobs", load)["spec"]["schedule"] == "*/5 * * * *"
    assert kubernetes.get("roles", "events-loader")["rules"]
    run_a_load(operator, load, {"runId": "r", "loaded": 7, "deadLettered": 1})
    loaded = await operator.condition("topics", name, "Loaded", "True", "LoadSucceeded")
    assert loaded["message"] == "7 rows loaded, 1 to the dead letters."
    status = kubernetes.get("topics", name)["status"]
    assert (status["lastLoad"]["rows"], status["lastLoad"]["rejected"]) == (7, 1)
    assert status["lastGoodLoad"] == "2026-11-21T11:01:00Z"
    writes = len([method for method, _ in kubernetes.requests if method != "GET"])
    kubernetes.apply(topic(name, {"schedule": "*/5 * * * *"}))  # as it is
    await let_pass_async(0.5, "it would have written by then")
    assert len([method for method, _ in kubernetes.requests if method != "GET"]) == writes, "it rests"
    # Without a warehouse, nothing is loaded any more, and nothing said of loads.
    kubernetes.apply(topic(name, None))
    await operator.until(
        lambda: ("cronjobs", "default", load) not in kubernetes.objects, "the CronJob is gone"
    )
    await operator.until(
        lambda: "lastLoad" not in kubernetes.get("topics", name)["status"], "no word of loads"
    )
