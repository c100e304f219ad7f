"""What each service account of the chart and of the operator may do, all of it, and that it suffices (R24).

The roles are those that the chart renders, in a namespace of their own; the API server is asked in the place
of each account. What an account may do is read as a whole: a right too many fails here as one too few does.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest
from tests.e2e.api_server import ApiServer, path_of
from tests.e2e.chart import rendered_chart
from tests.e2e.definitions import definition_of
from tests.e2e.whole_manifests import WHOLE

from mainstem_loader.executor_pods import ExecutorPods, pod_template, spark_settings
from mainstem_operator.plan_brokers import Placement, broker_manifests, broker_services
from mainstem_operator.plan_loads import load_manifest, loader_rights
from mainstem_operator.plan_zookeeper import zookeeper_manifests
from mainstem_operator.resources import ClusterSpec, Images, cluster_of, topic_of

Manifest = dict[str, Any]
Rights = dict[str, set[str]]
"""Verbs by resource: `apps/statefulsets`, `v1/pods`, `apps/deployments/scale:name` where only that one."""

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS: Final = "/apis/authorization.k8s.io/v1"
KINDS_OF_RIGHTS: Final = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
_SEEN_SECONDS: Final = 15.0

_LOADS: Final[Rights] = {
    f"v1/{plural}": {"get", "list", "watch", "create", "patch", "delete", "deletecollection"}
    for plural in ("pods", "configmaps", "services", "persistentvolumeclaims")
}
_EVERYWHERE: Final[Rights] = {
    "apiextensions.k8s.io/customresourcedefinitions": {"get", "list", "watch"},
    "v1/namespaces": {"get", "list", "watch"},
    "v1/nodes": {"list"},
    "v1/persistentvolumes": {"get"},
    "mainstem.dev/topics": {"list", "patch"},  # to let them go with a namespace whose Roles went first
}
_OURS: Final = ("clusters", "topics", "consumergroups")


def _watched(release: str) -> Rights:
    """What the operator may do in a namespace that it watches, which is also its own."""
    return {
        **_LOADS,
        **_EVERYWHERE,
        **{f"mainstem.dev/{plural}": {"get", "list", "watch", "patch"} for plural in _OURS},
        **{f"mainstem.dev/{plural}/status": {"patch"} for plural in _OURS},
        "mainstem.dev/clusters/finalizers": {"update"},
        "mainstem.dev/topics/finalizers": {"update"},
        "apps/statefulsets": {"get", "list", "watch", "create", "patch"},
        "apps/statefulsets/scale": {"get", "patch"},
        "policy/poddisruptionbudgets": {"list", "create", "patch"},
        "networking.k8s.io/networkpolicies": {"list", "create", "patch", "delete"},
        "batch/cronjobs": {"list", "create", "patch", "delete"},
        "batch/jobs": {"list"},
        "v1/serviceaccounts": {"get", "create", "patch"},
        "rbac.authorization.k8s.io/roles": {"get", "create", "patch"},
        "rbac.authorization.k8s.io/rolebindings": {"get", "create", "patch"},
        "v1/events": {"create"},
        "coordination.k8s.io/leases": {"get", "create", "update"},
        f"apps/deployments/scale:{release}": {"patch"},
    }


_DEFINITIONS: Final[Rights] = {
    "apiextensions.k8s.io/customresourcedefinitions": {"create"},
    **{
        f"apiextensions.k8s.io/customresourcedefinitions:{plural}.mainstem.dev": {"get", "patch"}
        for plural in _OURS
    },
}

NOBODYS: Final = (
    # group, resource, verbs: what no account of ours may do anywhere
    ("", "secrets", ("get", "list", "watch", "create", "update", "patch", "delete")),
    ("", "nodes", ("get", "create", "update", "patch", "delete")),
    ("", "nodes/proxy", ("get", "create")),
    ("", "pods/exec", ("get", "create")),
    ("", "pods/attach", ("get", "create")),
    ("", "pods/portforward", ("get", "create")),
    ("", "pods/ephemeralcontainers", ("patch", "update")),
    ("", "persistentvolumes", ("create", "patch", "update", "delete")),
    ("", "namespaces", ("create", "patch", "update", "delete")),
    ("", "serviceaccounts/token", ("create",)),
    ("", "users", ("impersonate",)),
    ("", "groups", ("impersonate",)),
    ("", "serviceaccounts", ("impersonate", "delete")),
    ("apps", "statefulsets", ("delete", "deletecollection", "update")),
    ("apps", "deployments", ("create", "patch", "delete")),
    ("apps", "daemonsets", ("create", "patch", "delete")),
    ("apiextensions.k8s.io", "customresourcedefinitions", ("delete", "update", "deletecollection")),
    ("rbac.authorization.k8s.io", "roles", ("escalate", "bind", "delete")),
    (
        "rbac.authorization.k8s.io",
        "clusterroles",
        ("escalate", "bind", "create", "patch", "update", "delete"),
    ),
    ("rbac.authorization.k8s.io", "clusterrolebindings", ("create", "patch", "update", "delete")),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", ("create", "patch", "delete")),
    ("certificates.k8s.io", "certificatesigningrequests", ("create", "approve")),
    ("mainstem.dev", "clusters", ("create", "delete", "deletecollection")),
    ("mainstem.dev", "topics", ("create", "delete", "deletecollection")),
    ("mainstem.dev", "consumergroups", ("create", "delete", "deletecollection")),
    ("*", "*", ("*",)),
)


@dataclass(frozen=True, slots=True)
class Release:
    """The roles of a release, in force; `other` is a namespace that it has nothing to do with."""

    server: ApiServer
    name: str
    namespace: str
    other: str
    manifests: tuple[Manifest, ...]

    @property
    def loader(self) -> str:
        return str(loader_rights(self.cluster)[0]["metadata"]["name"])

    @property
    def cluster(self) -> ClusterSpec:
        whole = WHOLE["Cluster"]
        metadata = {"name": "events", "namespace": self.namespace, "uid": str(uuid4())}
        return cluster_of({**whole, "metadata": metadata})

    def rights(self, account: str, namespace: str) -> Rights:
        """All that an account of the release may do in a namespace, but for what any account may."""
        return _beyond(
            self._all_rights((self.namespace, account), namespace),
            self._all_rights((self.other, "nobody"), namespace),
        )

    def _all_rights(self, account: tuple[str, str], namespace: str) -> Rights:
        asked = ApiServer(account)
        try:
            review = {"spec": {"namespace": namespace}}
            status = asked.create(f"{REVIEWS}/selfsubjectrulesreviews", review).accepted()["status"]
        finally:
            asked.close()
        found: Rights = {}
        for rule in status["resourceRules"]:
            for group in rule.get("apiGroups", ()):
                for resource in rule.get("resources", ()):
                    for name in rule.get("resourceNames") or ("",):
                        key = f"{group or 'v1'}/{resource}" + (f":{name}" if name else "")
                        found.setdefault(key, set()).update(rule["verbs"])
        return found

    def may(self, account: str, namespace: str, group: str, resource: str, verb: str) -> bool:
        """Whether the account may do that in the namespace; empty means in all of them, or outside of any."""
        resource, _, part = resource.partition("/")
        attributes = {"group": group, "resource": resource, "verb": verb, "namespace": namespace}
        review = {
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:{account}",
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{self.namespace}",
                    "system:authenticated",
                ],
                "resourceAttributes": {**attributes, "subresource": part},
            }
        }
        answer = self.server.create(f"{REVIEWS}/subjectaccessreviews", review).accepted()
        return bool(answer["status"]["allowed"])


def _beyond(mine: Rights, common: Rights) -> Rights:
    left = {key: verbs - common.get(key, set()) for key, verbs in mine.items()}
    return {key: verbs for key, verbs in left.items() if verbs}


def rendered(
    release: str, namespace: str, kinds: Collection[str] = KINDS_OF_RIGHTS, **values: str
) -> list[Manifest]:
    """What of the chart is of those kinds, hooks included; by default all that gives rights."""
    return [item for item in rendered_chart(release, namespace, **values) if item["kind"] in kinds]


@pytest.fixture(scope="module")
def release(cluster: None) -> Iterator[Release]:
    server = ApiServer()
    suffix = uuid4().hex[:8]
    name, namespace, other = f"rights-{suffix}", f"e2e-rights-{suffix}", f"e2e-other-{suffix}"
    manifests = rendered("mainstem", namespace, fullnameOverride=name)
    found = Release(server, name, namespace, other, tuple(manifests))
    try:
        for one in (namespace, other):
            server.create("/api/v1/namespaces", {"metadata": {"name": one}}).accepted()
        for manifest in manifests:
            server.apply(path_of(manifest), manifest).accepted()
        _until_in_force(found)
        yield found
    finally:
        for manifest in manifests:
            if manifest["kind"].startswith("Cluster"):
                server.delete(path_of(manifest))
        for one in (namespace, other):
            server.delete(f"/api/v1/namespaces/{one}")
        server.close()


def _until_in_force(release: Release) -> None:
    """Roles are read from a watch, so a moment after they were made."""
    deadline = time.monotonic() + _SEEN_SECONDS
    watched = set(_watched(release.name))
    while set(release.rights(release.name, release.namespace)) != watched and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.fixture(scope="module")
def loads(release: Release) -> Release:
    """The release with the service account of loads, made by the operator's own account."""
    operator = ApiServer((release.namespace, release.name))
    try:
        for manifest in loader_rights(release.cluster):
            del manifest["metadata"]["ownerReferences"]  # there is no Cluster here
            operator.apply(path_of(manifest), manifest).accepted()
    finally:
        operator.close()
    deadline = time.monotonic() + _SEEN_SECONDS
    while not release.rights(release.loader, release.namespace) and time.monotonic() < deadline:
        time.sleep(0.1)
    return release


# --- All that they may ---


def test_the_operator_may_do_this_in_its_namespaces_and_nothing_else(release: Release) -> None:
    assert release.rights(release.name, release.namespace) == _watched(release.name)


def test_elsewhere_the_operator_may_read_a_little_and_let_topics_go(release: Release) -> None:
    assert release.rights(release.name, release.other) == _EVERYWHERE
    assert release.rights(release.name, "kube-system") == _EVERYWHERE


def test_the_job_that_brings_definitions_may_bring_those_and_nothing_else(release: Release) -> None:
    account = f"{release.name}-definitions"
    assert release.rights(account, release.namespace) == _DEFINITIONS
    assert release.rights(account, release.other) == _DEFINITIONS


def test_loads_may_make_executors_in_their_namespace_and_nothing_else(loads: Release) -> None:
    assert loads.rights(loads.loader, loads.namespace) == _LOADS
    assert loads.rights(loads.loader, loads.other) == {}


def test_the_pods_of_the_data_have_no_rights(release: Release) -> None:
    """Brokers, ZooKeeper and executors run as the default account, which has none, and without its token."""
    assert release.rights("default", release.namespace) == {}
    workloads = [item for item in _of_a_cluster(release) if item["kind"] == "StatefulSet"]
    executors = ExecutorPods(2, "mainstem/spark", release.namespace, "driver", "10.0.0.1")
    pods = [*(item["spec"]["template"]["spec"] for item in workloads), pod_template(executors)["spec"]]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [False] * 3
    assert "serviceAccountName" not in pods[-1]
    assert not [setting for setting in spark_settings(executors, 2) if "serviceAccount" in setting]


def test_each_pod_of_the_chart_has_the_account_that_is_meant_for_it(release: Release) -> None:
    found = {}
    for item in rendered("mainstem", release.namespace, kinds={"Deployment", "Job"}, fullnameOverride="m"):
        pod = item["spec"]["template"]["spec"]
        found[item["metadata"]["name"]] = pod["serviceAccountName"]
    assert found == {"m": "m", "m-farewell": "m", "m-definitions": "m-definitions"}


def test_nobody_may_read_secrets_touch_nodes_or_give_himself_rights(loads: Release) -> None:
    accounts = (loads.name, f"{loads.name}-definitions", loads.loader, "default")
    places = (loads.namespace, loads.other, "kube-system", "")
    allowed = [
        (account, place, group, resource, verb)
        for account in accounts
        for group, resource, verbs in NOBODYS
        for verb in verbs
        for place in places
        if loads.may(account, place, group, resource, verb)
    ]
    assert not allowed


def test_the_operator_can_not_give_away_more_than_it_has(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    try:
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "greedy", "namespace": loads.namespace},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
        }
        refusal = operator.apply(path_of(role), role, dry=True)
        assert refusal.status == 403
        assert "is attempting to grant RBAC permissions not currently held" in refusal.message
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "greedy", "namespace": loads.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"kind": "ServiceAccount", "name": loads.name, "namespace": loads.namespace}],
        }
        refusal = operator.apply(path_of(binding), binding, dry=True)
        assert refusal.status == 403
    finally:
        operator.close()


# --- It suffices ---


def _of_a_cluster(release: Release) -> list[Manifest]:
    """Every object that a Cluster and a Topic can have."""
    cluster, images = release.cluster, Images()
    whole = {**WHOLE["Cluster"]["spec"], "networkPolicy": {"enabled": True}}
    metadata = {"name": cluster.name, "namespace": release.namespace, "uid": cluster.identity.uid}
    cluster = cluster_of({"metadata": metadata, "spec": whole})
    topic = topic_of({"metadata": {**metadata, "name": "clicks"}, "spec": WHOLE["Topic"]["spec"]})
    load = load_manifest(topic, cluster, images)
    assert isinstance(load, dict)
    return [
        *broker_services(cluster, 2),
        *zookeeper_manifests(cluster, images, None),
        *broker_manifests(cluster, images, 2, Placement({0: 31_000, 1: 31_001}, {"node-1": "a"}), None, 1),
        *loader_rights(cluster),
        load,
    ]


def test_the_operator_can_make_every_object_of_a_cluster_and_kubernetes_takes_it(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    try:
        manifests = _of_a_cluster(loads)
        assert {item["kind"] for item in manifests} >= {"StatefulSet", "CronJob", "NetworkPolicy", "Role"}
        for manifest in manifests:
            operator.apply(path_of(manifest), manifest, dry=True).accepted()
    finally:
        operator.close()


def test_the_definitions_job_can_bring_the_definitions(release: Release) -> None:
    account = ApiServer((release.namespace, f"{release.name}-definitions"))
    try:
        for kind in WHOLE:
            definition = definition_of(kind)
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
            account.apply(path, definition, dry=True).accepted()
            assert account.get(path).status in (200, 404)  # and not 403
    finally:
        account.close()


def test_loads_find_and_make_what_executors_need(loads: Release) -> None:
    account = ApiServer((loads.namespace, loads.loader))
    pod = {
        "metadata": {"name": "executor", "labels": {"spark-role": "executor"}},
        "spec": {"containers": [{"name": "executor", "image": "mainstem/spark"}]},
    }
    try:
        path = f"/api/v1/namespaces/{loads.namespace}/pods"
        account.create(path, pod, dry=True).accepted()
        account.get(path).accepted()
        assert account.get(f"/api/v1/namespaces/{loads.namespace}/secrets").status == 403
        assert account.create(f"/api/v1/namespaces/{loads.other}/pods", pod, dry=True).status == 403
    finally:
        account.close()


# --- Other values of the chart ---


def test_who_watches_all_namespaces_has_the_same_rights_in_each() -> None:
    of_one = rendered("mainstem", "one", fullnameOverride="m")
    of_all = rendered("mainstem", "one", fullnameOverride="m", watchAnyNamespace="true")
    assert _rules(of_one, "Role", "m-watched") == _rules(of_all, "ClusterRole", "one-m-watched")
    several = rendered("mainstem", "one", fullnameOverride="m", watchNamespaces="{two,three}")
    places = {item["metadata"]["namespace"] for item in several if item["metadata"]["name"] == "m-watched"}
    assert places == {"two", "three"}


def test_no_right_is_given_where_the_chart_is_told_to_give_none() -> None:
    found = rendered("mainstem", "one", **{"rbac.create": "false", "crds.upgrade": "false"})
    assert {item["kind"] for item in found} == {"ServiceAccount"}


def test_who_may_view_or_edit_a_namespace_may_do_so_with_our_kinds(release: Release) -> None:
    subjects = {"view": "viewer", "edit": "editor"}
    for role, account in subjects.items():
        release.server.create(
            f"{RBAC}/namespaces/{release.namespace}/rolebindings",
            {
                "metadata": {"name": account},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": release.namespace}],
            },
        ).accepted()

    def may(account: str, verb: str, resource: str = "topics") -> bool:
        return release.may(account, release.namespace, "mainstem.dev", resource, verb)

    deadline = time.monotonic() + _SEEN_SECONDS
    while not (may("viewer", "list") and may("editor", "delete")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(may("viewer", verb) for verb in ("get", "list", "watch"))
    assert not any(may("viewer", verb) for verb in ("create", "patch", "update", "delete"))
    assert all(may("editor", verb) for verb in ("get", "create", "patch", "update", "delete"))
    assert may("editor", "patch", "clusters/scale")  # kubectl scale
    assert not may("viewer", "patch", "clusters/scale")
    assert not may("editor", "patch", "clusters/status")


def _rules(manifests: list[Manifest], kind: str, name: str) -> Any:
    (found,) = [item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found["rules"]
