"""A secured BrokerCluster, and a producer in another namespace that connects with a User's Secret (R38)."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.e2e.installation import (
    IMAGE_TAG,
    NEXT_OPERATOR_IMAGE,
    OPERATOR,
    Installation,
    cluster_spec,
    wait_until,
)
from tests.e2e.kubectl import Namespace
from tests.e2e.machine.settings import CLUSTER_GOES
from tests.e2e.test_loads import store_manifests

CLUSTER: Final = "secured"
STARTED_SECONDS_MAX: Final = 240.0
LOADED_SECONDS_MAX: Final = 300.0
LOADED_TOPIC: Final = "secured-loads"
_POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": 10_001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SEND: Final = """
import sys
from pathlib import Path
from confluent_kafka import Producer
lines = Path("/etc/mainstem-user/librdkafka.properties").read_text().splitlines()
failed = []
producer = Producer(dict(line.split("=", 1) for line in lines))
producer.produce(sys.argv[1], b"hello", on_delivery=lambda error, _: failed.append(error) if error else None)
sys.exit(producer.flush(30) or bool(failed))
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def secured(cluster: None) -> Iterator[Installation]:
    """A release of its own: one broker with a listener inside and one outside, both with TLS and passwords,
    authorization, and a warehouse on an S3 server.
    """
    release = Installation(Namespace("e2e-secured"))
    release.remove()  # what a run that failed has left
    release.namespace.create()
    release.install()
    release.namespace.apply(*store_manifests())
    spec: dict[str, Any] = cluster_spec(brokers=1, servers=1)
    for part in (spec["brokers"], spec["zookeeper"]):
        part["storage"] = {"type": "ephemeral"}
    spec["listeners"] = {
        "clients": [{"name": "tls", "port": 9093}, {"name": "outside", "port": 9094, "type": "nodeport"}]
    }
    spec["warehouse"] = {
        "location": "s3://warehouse/secured",
        "endpoint": "http://s3:7070",
        "credentialsSecret": "s3-keys",
    }
    release.apply("BrokerCluster", CLUSTER, spec={**spec, "authorization": {"type": "acl"}})
    for type_ in ("Ready", "Stable"):
        release.until("brokercluster", CLUSTER, type_, seconds=STARTED_SECONDS_MAX)
    release.apply("Topic", "secured-clicks", spec={"clusterRef": {"name": CLUSTER}, "partitions": 1})
    release.until("topic", "secured-clicks", "Ready")
    yield release
    if CLUSTER_GOES not in os.environ:
        release.remove()


def secret_of(release: Installation, name: str) -> dict[str, bytes]:
    data = release.namespace.get("secret", name)["data"]
    return {key: base64.b64decode(text) for key, text in data.items()}


def importer(release: Installation) -> dict[str, bytes]:
    """A User that may write the topics of these tests, and what its Secret has."""
    acls = [{"resource": "topic", "name": "secured-", "patternType": "prefix", "operations": ["write"]}]
    release.apply("User", "importer", spec={"clusterRef": {"name": CLUSTER}, "acls": acls})
    release.until("user", "importer", "Ready")
    return secret_of(release, f"{CLUSTER}-user-importer")


def test_a_producer_in_another_namespace_connects_with_the_secret_of_a_user(secured: Installation) -> None:
    importer(secured)
    elsewhere = Namespace("e2e-secured-client")
    elsewhere.delete()  # what a run that failed has left
    elsewhere.create()
    try:
        secret = secured.namespace.get("secret", f"{CLUSTER}-user-importer")
        elsewhere.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "importer"},
                "type": "Opaque",
                "data": secret["data"],
            }
        )
        elsewhere.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "producer"},
                "spec": {
                    "restartPolicy": "Never",
                    "securityContext": {**_POD_SECURITY, "fsGroup": 10_001},
                    "containers": [
                        {
                            "name": "producer",
                            "image": f"mainstem/e2e-client:{IMAGE_TAG}",
                            "command": ["python3", "-c", _SEND, "secured-clicks"],
                            "securityContext": _CONTAINER_SECURITY,
                            "volumeMounts": [
                                {"name": "user", "mountPath": "/etc/mainstem-user", "readOnly": True}
                            ],
                        }
                    ],
                    "volumes": [{"name": "user", "secret": {"secretName": "importer"}}],
                },
            }
        )
        ended = ("Succeeded", "Failed")
        wait_until(lambda: elsewhere.get("pod", "producer")["status"].get("phase") in ended, "the producer")
        assert elsewhere.get("pod", "producer")["status"]["phase"] == "Succeeded", elsewhere.kubectl(
            "logs", "producer"
        )
    finally:
        elsewhere.delete()


def test_outside_a_user_connects_by_the_node_port_and_may_do_only_what_its_acls_allow(
    secured: Installation, tmp_path: Path
) -> None:
    settings = outside(secured, tmp_path)
    send(settings, "secured-clicks", b"hello")
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED"):
        send(settings, "__consumer_offsets", b"hello")


def outside(secured: Installation, folder: Path) -> dict[str, Any]:
    """The settings of the User outside of Kubernetes."""
    data = importer(secured)
    (folder / "ca.crt").write_bytes(data["ca.crt"])
    servers = secured.status("brokercluster", CLUSTER)["externalBootstrapServers"]
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "importer",
        "sasl.password": data["password"].decode(),
        "ssl.ca.location": str(folder / "ca.crt"),
        "message.timeout.ms": 20_000,
    }


def send(settings: dict[str, Any], topic: str, value: bytes) -> None:
    """Send one record.

    Raises:
        KafkaException: it was refused.
    """
    failed: list[KafkaError] = []
    producer = Producer(settings)
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush(30)
    if failed:
        raise KafkaException(failed[0])


def test_a_load_and_its_executor_log_in_with_the_key_of_the_load(
    secured: Installation, tmp_path: Path
) -> None:
    """R28: the executor is a pod of its own, which the admission policy lets mount this one Secret."""
    spec: dict[str, Any] = {"clusterRef": {"name": CLUSTER}, "partitions": 1, "deletionPolicy": "Delete"}
    secured.apply("Topic", LOADED_TOPIC, spec=spec)
    secured.until("topic", LOADED_TOPIC, "Ready")
    settings = outside(secured, tmp_path)
    send(settings, LOADED_TOPIC, json.dumps({"number": 1}).encode())
    warehouse = {"schedule": "* * * * *", "executors": 1}
    secured.apply("Topic", LOADED_TOPIC, spec={**spec, "warehouse": warehouse})
    executors: set[str] = set()

    def loaded() -> bool:
        executors.update(secured.pods("spark-role=executor"))
        conditions = secured.status("topic", LOADED_TOPIC)["conditions"]
        (condition,) = [item for item in conditions if item["type"] == "Loaded"] or [{"status": "Unknown"}]
        assert condition["status"] != "False", condition
        return bool(condition["status"] == "True")

    wait_until(loaded, "a load", LOADED_SECONDS_MAX)
    assert executors
    assert secured.status("topic", LOADED_TOPIC)["lastLoad"]["rows"] == 1
    secret = f"{LOADED_TOPIC}-load-identity"
    assert secret_of(secured, secret).keys() == {"ca.crt", "client.properties", "load.pem"}
    secured.delete("topic", LOADED_TOPIC)
    wait_until(
        lambda: secret not in secured.namespace.kubectl("get", "secrets", "--output=name"), "no Secret"
    )


def test_a_user_that_is_deleted_goes_with_its_secret(secured: Installation) -> None:
    importer(secured)
    secured.delete("user", "importer")
    secret = f"{CLUSTER}-user-importer"
    wait_until(
        lambda: secret not in secured.namespace.kubectl("get", "secrets", "--output=name"), "no Secret"
    )


def test_e39_an_upgraded_operator_restarts_no_broker(secured: Installation) -> None:
    """Though it is of another image, set otherwise, and applies every object anew, as a new version would."""
    members = f"mainstem.dev/cluster={CLUSTER},app.kubernetes.io/component in (broker,zookeeper)"
    before, operator = secured.uids(members), secured.uids(OPERATOR)
    for kind in ("statefulset", "service", "configmap", "poddisruptionbudget", "networkpolicy"):
        secured.namespace.kubectl(
            "annotate", kind, f"--selector=mainstem.dev/cluster={CLUSTER}", "mainstem.dev/applied-hash=old",
            "--overwrite",
        )  # fmt: skip
    image = {"tag": IMAGE_TAG, "operator": NEXT_OPERATOR_IMAGE}
    secured.install(image=image, resyncSeconds=10, podLabels={"version": "next"})
    wait_until(lambda: not operator.keys() & secured.uids(OPERATOR).keys(), "another operator")
    wait_until(lambda: secured.looks() >= 3, "it has looked at all there is")
    for type_ in ("Ready", "Stable"):
        secured.until("brokercluster", CLUSTER, type_)
    sets = secured.namespace.list("statefulsets")
    assert {item["metadata"]["annotations"]["mainstem.dev/applied-hash"] for item in sets}.isdisjoint({"old"})
    assert len(before) == 2
    assert secured.uids(members) == before
