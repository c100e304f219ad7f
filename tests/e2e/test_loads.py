"""A Topic's loads: Spark's driver and its executors as pods, into tables on a real S3 server (R28)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.e2e import nodes
from tests.e2e.installation import Installation, wait_until

S3_IMAGE: Final = "mainstem/e2e-s3:dev"
RECORDS: Final = 150_000  # from 100,000 on a second executor is worth its start
KEYS: Final = {"AWS_ACCESS_KEY_ID": "mainstem", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
LOAD_SECONDS_MAX: Final = 300.0


@pytest.fixture
def store(mainstem: Installation) -> Iterator[dict[str, str]]:
    """An S3 server in the cluster with a bucket `warehouse`; what its clients outside need."""
    mainstem.namespace.apply(*store_manifests())
    mainstem.namespace.wait_ready("deployment/s3")
    port = mainstem.namespace.get("service", "s3")["spec"]["ports"][0]["nodePort"]
    mainstem.patch_cluster(
        {
            "warehouse": {
                "location": "s3://warehouse/tables",
                "endpoint": "http://s3:7070",
                "credentialsSecret": "s3-keys",
            }
        }
    )
    yield {
        **KEYS,
        "AWS_ENDPOINT_URL": f"http://{nodes.address_of(nodes.workers()[0])}:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    mainstem.patch_cluster({"warehouse": None})
    mainstem.namespace.kubectl("delete", "deployment/s3", "service/s3", "secret/s3-keys")


def test_e43_a_scheduled_load_brings_every_record_to_the_table(
    mainstem: Installation, store: dict[str, str], name: str
) -> None:
    warehouse = {"schedule": "* * * * *", "format": "json", "executors": 2, "freshWithinSeconds": 3600}
    warehouse["suspend"] = True  # until all is sent, so that one load is large enough for two executors
    mainstem.apply("Topic", name, partitions=4, replicas=3, deletionPolicy="Delete", warehouse=warehouse)
    mainstem.until("topic", name, "Ready")
    producer = Producer(
        {
            "bootstrap.servers": mainstem.outside,
            "acks": "all",
            "queue.buffering.max.messages": 2 * RECORDS,
        }
    )
    for number in range(RECORDS):
        producer.produce(name, json.dumps({"number": number}).encode())
        producer.poll(0)
    assert producer.flush(60) == 0
    mainstem.patch("topic", name, {"spec": {"warehouse": {"suspend": False}}})
    executors: set[str] = set()

    def loaded() -> bool:
        executors.update(mainstem.pods("spark-role=executor"))
        return any(
            item["type"] == "Loaded" and item["status"] == "True"
            for item in mainstem.status("topic", name)["conditions"]
        )

    wait_until(loaded, "a load", LOAD_SECONDS_MAX)
    mainstem.until("topic", name, "Fresh")
    assert len(executors) >= 2, executors
    table = f"s3://warehouse/tables/{name}"
    found = numbers(table, store)
    assert mainstem.status("topic", name)["lastLoad"]["rows"] == RECORDS
    assert len(found) == RECORDS
    assert set(found) == set(range(RECORDS))
    mainstem.delete("topic", name)
    wait_until(lambda: not mainstem.namespace.list("cronjobs"), "the schedule goes with its Topic")
    assert len(numbers(table, store)) == RECORDS


def numbers(table: str, store: dict[str, str]) -> list[int]:
    """The rows there are; none before the first commit."""
    if not DeltaTable.is_deltatable(table, storage_options=store):
        return []
    found: list[Any] = DeltaTable(table, storage_options=store).to_pyarrow_table()["number"].to_pylist()
    return found


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
