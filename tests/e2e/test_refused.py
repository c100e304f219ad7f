"""A running BrokerCluster whose manifest Kubernetes refuses says so and keeps serving (R24, R25)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e.installation import BROKERS, CLUSTER, Installation


def made(mainstem: Installation) -> dict[str, Any]:
    """What was made for the brokers, without what others write of it."""
    result = mainstem.namespace.list("statefulsets,configmaps,services,poddisruptionbudgets", BROKERS)
    return {
        f"{item['kind']}/{item['metadata']['name']}": (item.get("spec"), item.get("data")) for item in result
    }


@pytest.mark.long
def test_a_refusal_of_kubernetes_is_reported_and_nothing_is_done(mainstem: Installation) -> None:
    before, pods = made(mainstem), mainstem.uids()
    assert any(name.startswith("ConfigMap/") for name in before)
    wrong = {"config": {"num.partitions": 7}, "pod": {"tolerations": [{"operator": "Perhaps"}]}}
    mainstem.patch_cluster({"brokers": wrong})
    reported = mainstem.until("brokercluster", CLUSTER, "Stable", "False", "Refused")
    assert "nothing was changed" in reported["message"]
    assert "tolerations[0].operator" in reported["message"]
    assert mainstem.until("brokercluster", CLUSTER, "Ready")["reason"] == "Serving"
    assert (made(mainstem), mainstem.uids()) == (before, pods)
    mainstem.patch_cluster({"brokers": {"config": {"num.partitions": None}, "pod": None}})
    mainstem.settled()
    assert (made(mainstem), mainstem.uids()) == (before, pods)
