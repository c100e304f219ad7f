"""The chart brings a BrokerCluster that serves stock clients inside and outside (R23, R25)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.installation import CLUSTER, OPERATOR, SERVERS, Installation, cluster_spec
from tests.e2e.kubectl import kubectl
from tests.e2e.traffic import Traffic

CLIENT_IMAGE: Final = "mainstem/e2e-client:dev"
RECORDS: Final = 2000
_ROUND_TRIP: Final = Path(__file__).parent / "client-image" / "round_trip.py"


def test_e1_the_chart_brings_a_ready_cluster_and_its_own_test_passes(mainstem: Installation) -> None:
    status = mainstem.status("brokercluster", CLUSTER)
    assert status["brokersReady"] == 3
    assert status["zookeeper"]["serving"] == "3/3"
    for broker in status["brokers"]:
        node = json.loads(kubectl("get", "node", broker["node"], "--output=json"))
        assert broker["rack"] == node["metadata"]["labels"]["topology.kubernetes.io/zone"]
    assert mainstem.restarts_at_first == [], "brokers know their racks when they start"
    reported = mainstem.helm("test", "mainstem", "--timeout=2m")
    assert "Succeeded" in reported


def test_e2_stock_clients_inside_and_outside_share_a_topic(mainstem: Installation, topic: str) -> None:
    """Each reads all that both have written, so counts and contents are equal."""
    inside = mainstem.status("brokercluster", CLUSTER)["bootstrapServers"]
    arguments = [inside, topic, "0", str(RECORDS)]
    output = json.loads(mainstem.namespace.run_pod("client-inside", CLIENT_IMAGE, arguments))
    assert output == {"acknowledged": RECORDS, "read": RECORDS}
    assert outside_round_trip(mainstem.outside, topic, RECORDS, 2 * RECORDS) == {
        "acknowledged": RECORDS,
        "read": 2 * RECORDS,
    }


@pytest.mark.long
def test_e41_the_cluster_serves_under_restricted_pods_and_a_policy_that_denies_the_rest(
    mainstem: Installation, topic: str
) -> None:
    """Whatever the network enforces: what clients need is let through by policies of the operator's own."""
    namespace = mainstem.namespace
    pods = [*mainstem.pods().values(), *mainstem.pods(SERVERS).values(), *mainstem.pods(OPERATOR).values()]
    for pod in pods:
        for container in pod["spec"]["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], pod["metadata"]["name"]
            assert security["capabilities"] == {"drop": ["ALL"]}
    deny = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }
    namespace.apply(deny)
    try:
        inside = mainstem.status("brokercluster", CLUSTER)["bootstrapServers"]
        output = json.loads(namespace.run_pod("client-inside", CLIENT_IMAGE, [inside, topic, "0", "100"]))
        assert output == {"acknowledged": 100, "read": 100}
        mainstem.annotate("brokercluster", CLUSTER, "restart", "for the policy")
        mainstem.until("brokercluster", CLUSTER, "Progressing", "True", "Rolling")
        mainstem.settled()
    finally:
        namespace.kubectl("delete", "networkpolicy", "deny")


def outside_round_trip(bootstrap: str, topic: str, first: int, end: int) -> dict[str, int]:
    """What the client's program says when it runs on this machine, outside the cluster."""
    finished = subprocess.run(
        [sys.executable, str(_ROUND_TRIP), bootstrap, topic, str(first), str(end)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    output: dict[str, int] = json.loads(finished.stdout)
    return output


@pytest.mark.long
def test_e36_a_cluster_made_again_on_its_volumes_has_its_records(mainstem: Installation, topic: str) -> None:
    with Traffic(mainstem, topic) as before:
        pass
    old, old_topic = mainstem.status("brokercluster", CLUSTER)["clusterId"], mainstem.status("topic", topic)
    mainstem.namespace.kubectl("delete", "brokercluster.mainstem.dev", CLUSTER, "--timeout=60s")
    mainstem.wait_for_no_brokers()
    mainstem.until("topic", topic, "Ready", "False", "ClusterNotFound")
    mainstem.install(cluster_spec())
    mainstem.settled(300)
    mainstem.until("topic", topic, "Ready")
    assert mainstem.status("brokercluster", CLUSTER)["clusterId"] == old
    assert mainstem.status("topic", topic)["topicId"] == old_topic["topicId"]
    with Traffic(mainstem, topic, first=1_000_000) as after:
        pass
    assert before.acknowledged <= after.consumed
