"""A Topic's loads: Spark's driver and its executors as pods, into tables on a real S3 server (R28)."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.e2e import nodes
from tests.e2e.installation import Installation, cluster_spec, wait_until

S3_IMAGE: Final = "mainstem/e2e-s3:dev"
RECORDS: Final = 150_000  # from 100,000 on a second executor is worth its start
KEYS: Final = {"AWS_ACCESS_KEY_ID": "mainstem", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
LOAD_SECONDS_MAX: Final = 300.0


@pytest.fixture
def store(own_place: Installation) -> dict[str, str]:
    """A BrokerCluster whose warehouse is an S3 server beside it; what the server's clients outside need."""
    own_place.namespace.apply(*store_manifests())
    warehouse = {
        "location": "s3://warehouse/tables",
        "endpoint": "http://s3:7070",
        "credentialsSecret": "s3-keys",
    }
    spec = cluster_spec(brokers=1, servers=1, warehouse=warehouse)
    # Loads run where brokers may. In the gate only this node has their image.
    spec["brokers"]["pod"] = {"nodeSelector": {"kubernetes.io/hostname": nodes.workers()[0]}}
    own_place.install(spec)
    own_place.namespace.wait_ready("deployment/s3")
    own_place.settled(240)
    port = own_place.namespace.get("service", "s3")["spec"]["ports"][0]["nodePort"]
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": f"http://{nodes.address_of(nodes.workers()[0])}:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def test_e43_a_scheduled_load_brings_every_record_to_the_table(
    own_place: Installation, store: dict[str, str]
) -> None:
    began = dt.datetime.now(dt.UTC)
    name = "measurements"
    warehouse = {"schedule": "* * * * *", "format": "json", "executors": 2, "freshWithinSeconds": 3600}
    warehouse["suspend"] = True  # until all is sent, so that one load is large enough for two executors
    own_place.apply("Topic", name, partitions=4, deletionPolicy="Delete", warehouse=warehouse)
    own_place.until("topic", name, "Ready")
    producer = Producer(
        {"bootstrap.servers": own_place.outside, "acks": "all", "queue.buffering.max.messages": 2 * RECORDS}
    )
    for number in range(RECORDS):
        producer.produce(name, json.dumps({"number": number}).encode())
        producer.poll(0)
    assert producer.flush(60) == 0
    own_place.patch("topic", name, {"spec": {"warehouse": {"suspend": False}}})
    executors: set[str] = set()
    rows_by_job: dict[str, int] = {}

    def loaded() -> bool:
        """The next load ends a minute later at the earliest, and has nothing to load."""
        executors.update(own_place.pods("spark-role=executor"))
        status = own_place.status("topic", name)
        if "lastLoad" in status:
            rows_by_job[status["lastLoad"]["job"]] = status["lastLoad"].get("rows", 0)
        return any(item["type"] == "Loaded" and item["status"] == "True" for item in status["conditions"])

    wait_until(loaded, "a load", LOAD_SECONDS_MAX)
    own_place.until("topic", name, "Fresh")
    assert len(executors) >= 2, executors
    table = f"s3://warehouse/tables/{name}"
    result = numbers(table, store)
    assert sum(rows_by_job.values()) == RECORDS
    assert len(result) == RECORDS
    assert set(result) == set(range(RECORDS))
    own_place.delete("topic", name)
    wait_until(lambda: not own_place.namespace.list("cronjobs"), "the schedule goes with its Topic")
    assert len(numbers(table, store)) == RECORDS
    own_place.check(began)


def numbers(table: str, store: dict[str, str]) -> list[int]:
    """The rows there are; none before the first commit."""
    if not DeltaTable.is_deltatable(table, storage_options=store):
        return []
    results: list[Any] = DeltaTable(table, storage_options=store).to_pyarrow_table()["number"].to_pylist()
    return results


def store_manifests() -> list[dict[str, Any]]:
    labels = {"app": "s3"}
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    data = {"name": "data", "mountPath": "/data"}
    pod = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [
            {
                "name": "bucket",
                "image": "mainstem/e2e-client:dev",
                "command": ["python3", "-c", "import os; os.makedirs('/data/warehouse', exist_ok=True)"],
                "securityContext": security,
                "volumeMounts": [data],
            }
        ],
        "containers": [
            {
                "name": "s3",
                "image": S3_IMAGE,
                "env": [
                    {"name": "ROOT_ACCESS_KEY", "value": KEYS["AWS_ACCESS_KEY_ID"]},
                    {"name": "ROOT_SECRET_KEY", "value": KEYS["AWS_SECRET_ACCESS_KEY"]},
                ],
                "securityContext": security,
                "readinessProbe": {"tcpSocket": {"port": 7070}, "periodSeconds": 1},
                "volumeMounts": [data],
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-keys"},
            "stringData": {**KEYS, "AWS_ALLOW_HTTP": "true"},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3"},
            "spec": {"type": "NodePort", "selector": labels, "ports": [{"port": 7070}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "s3"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
