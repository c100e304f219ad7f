"""A running Cluster whose manifest Kubernetes does not take says so, and serves on as it was (R24, R25)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e.installation import BROKERS, CLUSTER, Installation


def made(mainstem: Installation) -> dict[str, Any]:
    """What was made for the brokers, without what others write of it."""
    found = mainstem.namespace.list("statefulsets,configmaps,services,poddisruptionbudgets", BROKERS)
    return {
        f"{item['kind']}/{item['metadata']['name']}": (item.get("spec"), item.get("data")) for item in found
    }


@pytest.mark.long
def test_what_kubernetes_refuses_is_told_and_nothing_of_the_manifest_is_done(mainstem: Installation) -> None:
    before, pods = made(mainstem), mainstem.uids()
    assert any(name.startswith("ConfigMap/") for name in before)
    wrong = {"config": {"num.partitions": 7}, "pod": {"tolerations": [{"operator": "Perhaps"}]}}
    mainstem.patch_cluster({"brokers": wrong})
    told = mainstem.until("cluster", CLUSTER, "Stable", "False", "Refused")
    assert "none of it was done" in told["message"]
    assert "tolerations[0].operator" in told["message"]
    assert mainstem.until("cluster", CLUSTER, "Ready")["reason"] == "Serving"
    assert (made(mainstem), mainstem.uids()) == (before, pods)
    mainstem.patch_cluster({"brokers": {"config": {"num.partitions": None}, "pod": None}})
    mainstem.settled()
    assert (made(mainstem), mainstem.uids()) == (before, pods)
