"""BrokerClusters of one broker beside the release's own: they come later, and grow (R24, R25)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.e2e.installation import Installation, cluster_spec, wait_until
from tests.e2e.kubectl import apply, kubectl

GROWING_CLASS: Final = "mainstem-e2e-growing"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
STARTED_SECONDS_MAX: Final = 240.0

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def small(release: Installation) -> Iterator[str]:
    """A BrokerCluster of one broker, on volumes that may grow as far as Kubernetes is concerned."""
    apply(growing_class())
    spec = cluster_spec(brokers=1, servers=1)
    for part in (spec["brokers"], spec["zookeeper"]):
        part["storage"] = {"type": "persistent", "size": "1Gi", "storageClassName": GROWING_CLASS}
    release.apply("BrokerCluster", "small", spec=spec)
    settled(release, "small")
    yield "small"
    remove(release, "small")
    kubectl("delete", "storageclass", GROWING_CLASS)


def test_e18_a_topic_that_came_before_its_cluster_is_made_once_that_serves(
    mainstem: Installation, name: str
) -> None:
    """And when the BrokerCluster goes, E17: though it is paused, the Topic says so, and can go too."""
    spec = {"clusterRef": {"name": "later"}, "partitions": 2, "deletionPolicy": "Delete"}
    try:
        mainstem.apply("Topic", name, spec=spec)
        mainstem.until("topic", name, "Ready", "False", "ClusterNotFound")
        mainstem.apply("BrokerCluster", "later", spec=cluster_spec(brokers=1, servers=1))
        mainstem.until("topic", name, "Ready", seconds=STARTED_SECONDS_MAX)
        mainstem.annotate("brokercluster", "later", "pause-reconciliation", "true")
        mainstem.until("brokercluster", "later", "Paused")
    finally:
        remove(mainstem, "later")
    mainstem.until("topic", name, "Ready", "False", "ClusterNotFound")


def test_e37_volumes_grow_where_their_class_allows_it(mainstem: Installation, small: str) -> None:
    """The request is all that the operator can do: how a volume grows is its driver's business."""
    before = pods(mainstem, small)
    for part in ("brokers", "zookeeper"):
        mainstem.patch("brokercluster", small, {"spec": {part: {"storage": {"size": "2Gi"}}}})
    wait_until(lambda: sizes(mainstem, small) == {"2Gi"}, "the claims ask for more")
    settled(mainstem, small)
    mainstem.patch("brokercluster", small, {"spec": {"brokers": {"storage": {"size": "1500Mi"}}}})
    reported = mainstem.until("brokercluster", small, "StorageUnresizable", "True", "Refused")
    assert reported["message"] == "data-small-broker-0 has 2Gi, and volumes don't shrink."
    mainstem.patch("brokercluster", small, {"spec": {"brokers": {"storage": {"size": "2Gi"}}}})
    kubectl("patch", "storageclass", GROWING_CLASS, '--patch={"allowVolumeExpansion": false}')
    mainstem.patch("brokercluster", small, {"spec": {"zookeeper": {"storage": {"size": "3Gi"}}}})
    reported = mainstem.until("brokercluster", small, "StorageUnresizable", "True", "Refused")
    assert "data-small-zookeeper-0 can't grow to 3Gi" in reported["message"]
    assert "storageclass" in reported["message"]
    mainstem.patch("brokercluster", small, {"spec": {"zookeeper": {"storage": {"size": "2Gi"}}}})
    wait_until(lambda: not has_condition(mainstem, small, "StorageUnresizable"), "all is as it should be")
    assert pods(mainstem, small) == before


def growing_class() -> dict[str, Any]:
    """The cluster's default class, but that claims of it may ask for more."""
    classes = json.loads(kubectl("get", "storageclasses", "--output=json"))["items"]
    default = next(
        result
        for result in classes
        if (result["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    )
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": GROWING_CLASS},
        "provisioner": default["provisioner"],
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


def settled(mainstem: Installation, cluster: str) -> None:
    for type_ in ("Stable", "Ready", "Healthy", "Stable"):
        mainstem.until("brokercluster", cluster, type_, seconds=STARTED_SECONDS_MAX)


def remove(mainstem: Installation, cluster: str) -> None:
    """Delete a BrokerCluster and its volumes, which would be kept."""
    mainstem.delete("brokercluster.mainstem.dev", cluster)
    wait_until(lambda: not pods(mainstem, cluster), f"no pod of {cluster} is left", 120)
    mainstem.namespace.kubectl(
        "delete", "persistentvolumeclaims", f"--selector=mainstem.dev/cluster={cluster}"
    )


def pods(mainstem: Installation, cluster: str) -> dict[str, str]:
    return mainstem.uids(f"mainstem.dev/cluster={cluster}")


def sizes(mainstem: Installation, cluster: str) -> set[str]:
    """What the claims of a BrokerCluster ask for."""
    claims = mainstem.namespace.list("persistentvolumeclaims", f"mainstem.dev/cluster={cluster}")
    return {claim["spec"]["resources"]["requests"]["storage"] for claim in claims}


def has_condition(mainstem: Installation, cluster: str, type_: str) -> bool:
    return any(item["type"] == type_ for item in mainstem.status("brokercluster", cluster)["conditions"])
