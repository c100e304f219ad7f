"""What others have made under a name that the operator uses is neither changed nor deleted (R23)."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, running_operator, with_operator
from tests.unit.operator.snapshots import cluster as cluster_spec

from mainstem_operator.api.clusters import Images
from mainstem_operator.api.topics import topic_of
from mainstem_operator.cluster.broker_manifests import broker_services
from mainstem_operator.kubernetes.client import ForeignObject, Kube, Refused, covers, ordered_as
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.loads.apply import bring_about_loads


def foreign(api_version: str, kind: str, name: str, **body: Any) -> Manifest:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        **body,
    }


@pytest.mark.parametrize(
    ("kind", "name", "body"),
    [
        ("ConfigMap", "events-broker", {"data": {"server.conf": "of others"}}),
        ("Service", "events-bootstrap", {"spec": {"selector": {"app": "others"}, "ports": []}}),
    ],
)
@with_operator
async def test_a_cluster_leaves_an_object_of_others_alone_and_names_it(
    operator: RunningOperator, kind: str, name: str, body: dict[str, Any]
) -> None:
    plural = f"{kind.lower()}s"
    kubernetes = operator.kubernetes
    before = copy.deepcopy(kubernetes.apply(foreign("v1", kind, name, **body)))
    kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert f"The {kind} {name} exists and belongs to others" in condition["message"]
    assert "delete or rename one of the two" in condition["message"]
    kubernetes.delete("brokerclusters", "events")
    assert kubernetes.get(plural, name) == before


@with_operator
async def test_a_cluster_comes_up_once_the_object_of_others_is_gone(operator: RunningOperator) -> None:
    kubernetes = operator.kubernetes
    kubernetes.apply(foreign("v1", "ConfigMap", "events-broker", data={}))
    kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
    await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    kubernetes.delete("configmaps", "events-broker")
    kubernetes.apply(
        resource("BrokerCluster", "events", {"brokers": {"replicas": 1, "config": {"num.partitions": 2}}})
    )
    await operator.condition("brokerclusters", "events", "Stable", "True")


async def test_what_a_cluster_of_the_same_name_has_left_is_waited_for(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """To rename a BrokerCluster that was only created again would be bad advice."""
    service = broker_services(cluster_spec(), 1)[0]
    await kube.apply(service, None)
    (stored,) = kubernetes.find("services")
    stored["metadata"]["ownerReferences"][0]["uid"] = "uid of before"
    with pytest.raises(ForeignObject) as refused:
        await kube.apply(service, stored)
    assert str(refused.value) == (
        "The Service events-broker-headless still belongs to the BrokerCluster events of before, which is"
        " gone: Kubernetes deletes it soon. If it stays, delete it."
    )


async def test_what_belongs_to_another_cluster_is_refused_and_an_orphan_is_taken_over(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    service = broker_services(cluster_spec(), 1)[0]
    await kube.apply(service, None)
    (stored,) = kubernetes.find("services")
    stored["metadata"]["ownerReferences"][0]["uid"] = "uid of another"
    with pytest.raises(ForeignObject):
        await kube.apply(service, None)
    with pytest.raises(ForeignObject):
        await kube.apply(service, stored)
    stored["metadata"]["ownerReferences"] = []  # as `kubectl delete --cascade=orphan` leaves it
    await kube.apply(service, stored)
    assert kubernetes.find("services")[0]["metadata"]["ownerReferences"][0]["uid"] == "u-1"


@pytest.mark.parametrize(
    ("api_version", "kind", "name", "body"),
    [
        ("batch/v1", "CronJob", "orders-load", {"spec": {"schedule": "0 2 * * *"}}),
        ("rbac.authorization.k8s.io/v1", "Role", "events-loader", {"rules": []}),
    ],
)
async def test_a_load_leaves_an_object_of_others_alone_and_names_it(
    kubernetes: Kubernetes, kube: Kube, api_version: str, kind: str, name: str, body: dict[str, Any]
) -> None:
    spec = {"brokers": {"replicas": 3}, "warehouse": {"location": "s3://lake/events"}}
    there = copy.deepcopy(kubernetes.apply(resource("BrokerCluster", "events", spec)))
    before = copy.deepcopy(kubernetes.apply(foreign(api_version, kind, name, **body)))

    async def may_act() -> bool:
        return True

    context = cast(Any, Context)(kube, None, None, Images(), None, may_act, "ops")
    topic = topic_of(
        resource("Topic", "orders", {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "@hourly"}})
    )
    found = await bring_about_loads(context, there, [(topic, {})], [], Alone())
    condition = found["default", "orders"].conditions[0]
    assert (condition.type, condition.holds) == ("Loaded", False)
    assert condition.message.startswith(f"The {kind} {name} exists and belongs to others")
    assert kubernetes.get(f"{kind.lower()}s", name) == before


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [
        (
            {"ownerReferences": [{"kind": "CronTask", "name": "nightly", "uid": "u-7", "controller": True}]},
            "belongs to the CronTask nightly, so",
        ),
        ({"annotations": {"meta.helm.sh/release-name": "shop"}}, "belongs to the Helm release shop, so"),
        (
            {
                "managedFields": [
                    {"manager": "kubectl-create", "operation": "Update"},
                    {"manager": "kubelet", "operation": "Update", "subresource": "status"},
                ]
            },
            "belongs to others, who wrote it with kubectl-create, so",
        ),
        ({}, "belongs to others, so"),
    ],
    ids=["controller", "helm", "writers", "nobody"],
)
async def test_a_refusal_names_whose_the_object_is(
    kubernetes: Kubernetes, kube: Kube, metadata: Manifest, whose: str
) -> None:
    service = broker_services(cluster_spec(), 1)[0]
    other = foreign("v1", "Service", service["metadata"]["name"])
    other["metadata"].update(metadata, namespace=service["metadata"]["namespace"])
    with pytest.raises(ForeignObject, match=whose):
        await kube.apply(service, other)


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m", "memory": "1024Mi"}, True),
        ({"cpu": "1"}, {"cpu": "1001m"}, False),
        ({"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}, False),
        ({"cpu": "some"}, {"cpu": "1"}, False),
    ],
)
def test_quantities_are_compared_as_values(live: Manifest, wanted: Manifest, same: bool) -> None:
    """The API server writes them in its own way, and an idle operator writes nothing."""
    container: Manifest = {"resources": {"limits": live}, "env": [{"name": "cores", "value": "1"}]}
    assert covers(container, {"resources": {"limits": wanted}}) == same
    assert not covers(container, {"env": [{"name": "cores", "value": "1000m"}]})


async def test_the_status_of_a_deleted_object_is_not_written_to_a_new_one_of_its_name(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """As when one is deleted and created again while a look at it is under way (R25)."""
    topic = resource("Topic", "events", {"clusterRef": {"name": "events"}})
    old = copy.deepcopy(kubernetes.apply(topic))
    kubernetes.delete("topics", "events")
    kubernetes.apply(topic)
    with pytest.raises(Refused) as refused:
        await kube.apply_status(old, {"partitions": 7})
    assert refused.value.conflict
    assert "status" not in kubernetes.get("topics", "events")
    await kube.apply_status(kubernetes.get("topics", "events"), {"partitions": 1})
    assert kubernetes.get("topics", "events")["status"] == {"partitions": 1}


def test_the_operator_may_read_by_name_whatever_it_applies() -> None:
    """It reads an object without its labels to see whose it is; without the right nothing is applied."""
    roles = (Path(__file__).parents[4] / "helm/mainstem/templates/roles.yaml").read_text()
    rules = re.search(r'define "mainstem.watchedRules" -}}\n(.*?){{- end -}}', roles, re.DOTALL)
    assert rules
    for rule in yaml.safe_load(rules[1]):
        applied = [name for name in rule["resources"] if "/" not in name and name != "persistentvolumeclaims"]
        if applied and {"create", "patch"} <= set(rule["verbs"]):
            assert "get" in rule["verbs"], applied


@with_operator
async def test_what_others_have_given_to_a_cluster_is_not_deleted_as_left_over(
    operator: RunningOperator,
) -> None:
    """A copy has our labels and our owner, and a person may let an object go with the BrokerCluster."""
    kubernetes = operator.kubernetes
    kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    kept = []
    for plural, name in (("services", "events-bootstrap"), ("networkpolicies", "events-broker")):
        copied = copy.deepcopy(kubernetes.get(plural, name))
        copied["metadata"]["name"] = "events-clients-external"
        kept.append((plural, kubernetes.apply(copied)))
    kubernetes.apply(
        resource("BrokerCluster", "events", {"brokers": {"replicas": 1}, "networkPolicy": {"enabled": False}})
    )
    await operator.until(
        lambda: ("networkpolicies", "default", "events-broker") not in kubernetes.objects,
        "the policy is gone",
    )
    await operator.condition("brokerclusters", "events", "Stable", "True")
    for plural, item in kept:
        assert kubernetes.get(plural, "events-clients-external")["metadata"]["uid"] == item["metadata"]["uid"]


@with_operator
async def test_a_claim_of_others_is_not_used_and_is_named(operator: RunningOperator) -> None:
    """Kubernetes gives a pod of a StatefulSet whatever claim has its name, and may delete it with it."""
    kubernetes = operator.kubernetes
    claim = foreign("v1", "PersistentVolumeClaim", "data-events-broker-0", spec={"volumeName": "theirs"})
    before = copy.deepcopy(kubernetes.apply(claim))
    kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert (
        "The PersistentVolumeClaim data-events-broker-0 exists and belongs to others" in condition["message"]
    )
    assert kubernetes.find("statefulsets") == []
    assert kubernetes.get("persistentvolumeclaims", "data-events-broker-0") == before
    labels = {"mainstem.dev/cluster": "events"}
    kubernetes.apply({**claim, "metadata": {**claim["metadata"], "labels": labels}})
    kubernetes.annotate("brokerclusters", "events", {"example.com/look": "again"})
    await operator.condition("brokerclusters", "events", "Stable", "True")


async def test_a_service_that_may_not_be_deleted_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = {"listeners": {"external": {"type": "NodePort", "host": "kafka.example.org"}}}
    async with running_operator(tmp_path, monkeypatch) as operator:
        kubernetes = operator.kubernetes
        kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}, **outside}))
        await operator.until(
            lambda: bool(kubernetes.get("services", "events-broker-0-external")), "the Service is there"
        )
        kubernetes.fails = lambda method, key, _: 403 if (method, key[0]) == ("DELETE", "services") else 0
        kubernetes.apply(resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
        condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Waiting")
        assert "refuses to delete the Service events-broker-0-external" in condition["message"]
        await operator.condition("brokerclusters", "events", "Ready", "True")


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({}, {"resources": {"requests": {}}}, True),
        ({"resources": {}}, {"resources": {"limits": {}, "requests": {"cpu": None}}}, True),
        ({"resources": {}}, {"resources": {"limits": {"cpu": "1"}}}, False),
        ({"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1"}]}, True),
        ({"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "1"}]}, False),
        ({"env": [{"name": "B"}]}, {"env": [{"name": "A"}]}, False),
        ({"tolerations": [{"key": "a"}, {"key": "b"}]}, {"tolerations": [{"key": "a"}]}, False),
        ({"ports": [{"port": 1}, {"port": 2}]}, {"ports": [{"port": 1}]}, False),
    ],
)
def test_what_is_empty_or_added_by_others_is_not_applied_again_and_again(
    live: Manifest, wanted: Manifest, same: bool
) -> None:
    """The API server leaves empty maps out, and what others add to a list by key stays when it is applied."""
    assert covers(live, wanted) == same


def test_the_order_of_lists_that_are_sets_restarts_no_pod() -> None:
    def workload(tolerations: list[str], ports: list[int]) -> Manifest:
        container = {"name": "broker", "ports": [{"containerPort": port} for port in ports]}
        pod = {"containers": [container], "tolerations": [{"key": key} for key in tolerations]}
        return {"kind": "StatefulSet", "metadata": {}, "spec": {"template": {"spec": pod}}}

    live = workload(["a", "b"], [9091, 9092])
    for port in live["spec"]["template"]["spec"]["containers"][0]["ports"]:
        port["protocol"] = "TCP"  # as the API server fills in
    assert ordered_as(workload(["b", "a"], [9092, 9091]), live) == workload(["a", "b"], [9091, 9092])
    for other in (workload(["b", "c"], [9092]), workload(["b"], [9091, 9093])):
        assert ordered_as(other, live) == other
