"""What goes and what stays: a release that is uninstalled, a namespace that is deleted (R23, R25)."""

from __future__ import annotations

import time
from typing import Final

import pytest
from tests.e2e.installation import CLUSTER, Installation, cluster_spec, wait_until
from tests.e2e.kubectl import kubectl

GONE_SECONDS_MAX: Final = 60.0
WITH_PODS_SECONDS_MAX: Final = 200.0
"""Kubernetes deletes the pods of a namespace first, looks again after half of their grace period, which is
five minutes for brokers, and then deletes the rest."""


def test_e42_uninstalling_leaves_definitions_and_volumes_and_nothing_else(own_place: Installation) -> None:
    before = own_place.cluster_wide()
    tables = {"location": "/tables", "volumeClaim": "tables"}
    own_place.install(cluster_spec(brokers=1, servers=1, warehouse=tables))
    own_place.settled(240)
    # Nobody makes the claim, so the load is under way, and cannot start, when its BrokerCluster goes.
    own_place.apply("Topic", "kept", partitions=1, warehouse={"schedule": "* * * * *"})
    own_place.until("topic", "kept", "Ready")
    namespace = own_place.namespace
    wait_until(lambda: bool(namespace.list("jobs")), "a load", 90)
    own_place.uninstall()
    wait_until(lambda: not namespace.list("cronjobs"), "the loads go with their BrokerCluster")
    wait_until(lambda: not namespace.list("pods"), "no pod is left")
    kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies"
    left = {
        f"{item['kind']}/{item['metadata']['name']}"
        for item in namespace.list(kinds)
        if item["metadata"]["name"] not in ("default", "kube-root-ca.crt")
    }
    assert left == set()
    assert own_place.cluster_wide() == before
    claims = {item["metadata"]["name"] for item in namespace.list("persistentvolumeclaims")}
    assert claims == {f"data-{CLUSTER}-broker-0", f"data-{CLUSTER}-zookeeper-0"}
    assert {item["metadata"]["name"] for item in namespace.list("topics")} == {"kept"}
    assert "topics.mainstem.dev" in kubectl("get", "customresourcedefinitions", "--output=name")


@pytest.mark.long
@pytest.mark.parametrize("first", ["nothing", "the operator", "the cluster"])
def test_e16_a_namespace_can_be_deleted_whatever_went_first(own_place: Installation, first: str) -> None:
    own_place.install(cluster_spec(brokers=1, servers=1))
    own_place.settled(240)
    own_place.apply("Topic", "doomed", partitions=1, deletionPolicy="Delete")
    own_place.until("topic", "doomed", "Ready")
    if first == "the operator":
        own_place.uninstall()
        own_place.wait_for_no_brokers()
    elif first == "the cluster":
        own_place.namespace.kubectl("delete", "brokercluster.mainstem.dev", CLUSTER, "--timeout=60s")
        own_place.wait_for_no_brokers()
    began = time.monotonic()
    own_place.namespace.delete()
    took = time.monotonic() - began
    print(f"the namespace went within {took:.0f} s")  # noqa: T201  # pytest shows it with -s
    assert took < (WITH_PODS_SECONDS_MAX if first == "nothing" else GONE_SECONDS_MAX)
