"""Loads in a namespace that lets nothing in by default (R28, R30)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.played_context import brought_up
from tests.unit.operator.snapshots import cluster

from mainstem_loader.spark import executors
from mainstem_operator.api import names
from mainstem_operator.cluster.load_policies import EXECUTORS, load_policies

Pod = tuple[str, Mapping[str, str]]
"""Its namespace and labels."""

WAREHOUSE = {"location": "s3://lake/tables"}
OPERATOR: Pod = ("ops", {names.COMPONENT_LABEL: "operator"})
RESIDENT: Pod = ("prod", names.labels("events", names.RESIDENT_LOADER))
DRIVER: Pod = ("prod", names.labels("events", names.LOADER))
NEIGHBOUR: Pod = ("prod", names.labels("others", names.LOADER))
EXECUTOR: Pod = ("prod", {**EXECUTORS, "spark-exec-id": "1"})
STRANGER: Pod = ("prod", {"app": "curl"})
OF_ANOTHER_APPLICATION: Pod = ("prod", {"spark-role": "executor", "spark-app-name": "etl"})


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def reaches(source: Pod, target: Pod, port: int) -> bool:
    """As Kubernetes decides it in the namespace `prod`, where another policy lets nothing in."""
    for policy in load_policies(cluster(warehouse=WAREHOUSE), "ops"):
        assert policy["metadata"]["namespace"] == target[0]
        if not selects(policy["spec"]["podSelector"], target[1]):
            continue
        for rule in policy["spec"]["ingress"]:
            ports = {item["port"] for item in rule.get("ports", ())}
            for peer in rule["from"]:
                namespace = {"kubernetes.io/metadata.name": source[0]}
                is_there = (
                    selects(peer["namespaceSelector"], namespace)
                    if "namespaceSelector" in peer
                    else source[0] == target[0]
                )
                if is_there and selects(peer["podSelector"], source[1]) and (not ports or port in ports):
                    return True
    return False


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        (OPERATOR, RESIDENT, 9404),
        (EXECUTOR, DRIVER, 40_123),  # at random ports, as Spark chooses them
        (DRIVER, EXECUTOR, 40_123),
        (EXECUTOR, EXECUTOR, 40_123),
        (NEIGHBOUR, EXECUTOR, 40_123),  # nothing tells the executors of two BrokerClusters apart
    ],
)
def test_what_loads_need_is_let_through(source: Pod, target: Pod, port: int) -> None:
    assert reaches(source, target, port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        (STRANGER, RESIDENT, 9404),
        (EXECUTOR, RESIDENT, 9404),
        (("elsewhere", OPERATOR[1]), RESIDENT, 9404),
        (OPERATOR, RESIDENT, 4040),
        (STRANGER, DRIVER, 40_123),
        (OF_ANOTHER_APPLICATION, DRIVER, 40_123),
        (("elsewhere", EXECUTOR[1]), DRIVER, 40_123),
        (STRANGER, EXECUTOR, 40_123),
    ],
)
def test_nothing_else_reaches_loads(source: Pod, target: Pod, port: int) -> None:
    assert not reaches(source, target, port)


def test_executors_of_other_applications_are_left_alone() -> None:
    """A policy that selected them would cut them off from their own drivers."""
    policies = load_policies(cluster(warehouse=WAREHOUSE), "ops")
    assert not any(selects(item["spec"]["podSelector"], OF_ANOTHER_APPLICATION[1]) for item in policies)
    assert '"spark.app.name": "mainstem-loader"' in inspect.getsource(executors)


@with_operator
async def test_policies_come_and_go_with_the_warehouse_and_with_the_setting(
    operator: RunningOperator,
) -> None:
    brokers = {"brokers": {"replicas": 1}}
    with_loads = {**brokers, "warehouse": WAREHOUSE}
    of_loads = {"events-resident-loader", "events-driver", "events-executor"}
    of_servers = {"events-broker", "events-zookeeper"}
    kubernetes = await brought_up(operator, resource("BrokerCluster", "events", with_loads))

    def policies() -> set[str]:
        return {item["metadata"]["name"] for item in kubernetes.find("networkpolicies")}

    assert policies() == of_servers | of_loads
    kubernetes.apply(resource("BrokerCluster", "events", brokers))
    await operator.until(lambda: policies() == of_servers, "the policies of loads are gone")
    without = {**with_loads, "networkPolicy": {"enabled": False}}
    kubernetes.apply(resource("BrokerCluster", "events", with_loads))
    await operator.until(lambda: policies() == of_servers | of_loads, "they are back")
    kubernetes.apply(resource("BrokerCluster", "events", without))
    await operator.until(lambda: policies() == set(), "all are gone")
