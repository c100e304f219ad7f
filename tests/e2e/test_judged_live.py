"""What Kubernetes refuses of what the operator makes is known to be the manifest's fault (R24).

What is refused at once: `test_bad_manifests.py`; by which condition the rest is told: the operator's unit
tests, `cluster/test_judged_live.py`.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.api_server import ApiServer, path_of

from mainstem_operator.api.clusters import Images, cluster_of
from mainstem_operator.cluster.broker_manifests import Placement, broker_manifests, broker_services
from mainstem_operator.kubernetes.client import Refused


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"tolerations": [{"operator": "Perhaps"}]}, "tolerations[0].operator"),
        ({"tolerations": [{"kye": "dedicated"}]}, "kye"),
        ({"affinity": {"nodeAfinity": {}}}, "nodeAfinity"),
        ({"annotations": {f"{'a' * 254}/team": "a"}}, "annotations"),
        ({"labels": {"-.example.com/team": "a"}}, "labels"),
    ],
    ids=["choice", "name-in-a-list", "name", "annotation", "label"],
)
def test_what_kubernetes_refuses_of_a_cluster_is_known_to_be_the_manifests_fault(
    pod: dict[str, Any], words: str
) -> None:
    """The operator tells that from what passes by itself, such as an API server that is starting."""
    spec = {"brokers": {"replicas": 1, "pod": pod}}
    cluster = cluster_of({"metadata": {"name": "events", "namespace": "default", "uid": "1"}, "spec": spec})
    expected = broker_manifests(cluster, Images(), 1, Placement({}), None, 1)
    server = ApiServer()
    try:
        answers = [server.apply(path_of(item), item, dry=True) for item in expected]
    finally:
        server.close()
    (refused,) = [Refused(answer.status, answer.message) for answer in answers if answer.refused]
    assert refused.by_content
    assert words in str(refused)


def test_a_node_port_out_of_range_is_known_to_be_the_manifests_fault() -> None:
    spec = {
        "brokers": {"replicas": 1},
        "listeners": {"external": {"type": "NodePort", "nodePortFirst": 1024}},
    }
    metadata = {"name": f"refused-{uuid4().hex[:8]}", "namespace": "default", "uid": "1"}
    *_, outside = broker_services(cluster_of({"metadata": metadata, "spec": spec}), 1)
    server = ApiServer()
    try:
        answer = server.apply(path_of(outside), outside)  # in earnest: a dry run gives out no ports
        if not answer.refused:
            server.delete(path_of(outside))
    finally:
        server.close()
    assert Refused(answer.status, answer.message).by_content
    assert "nodePort" in answer.message
