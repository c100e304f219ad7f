"""What each service account of the chart and of the operator may do, all of it, and that it suffices (R24).

The roles are those that the chart renders, in a namespace of their own; the API server answers in the place
of each account. What an account may do is read as a whole: a right too many fails here as one too few does.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest
from tests.e2e.api_server import ApiServer, path_of
from tests.e2e.chart import rendered_chart
from tests.e2e.definitions import create_missing_definitions, definition_of
from tests.e2e.whole_manifests import WHOLE
from tests.support.waiting import let_pass

from mainstem_loader.spark.executor_pods import ExecutorPods, pod_template, spark_settings
from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.names import BROKER, COMPONENT_LABEL, ZOOKEEPER, pod_labels
from mainstem_operator.api.topics import topic_of
from mainstem_operator.cluster.broker_manifests import Placement, broker_manifests, broker_services
from mainstem_operator.cluster.load_policies import load_policies
from mainstem_operator.cluster.zookeeper_manifests import zookeeper_manifests
from mainstem_operator.kubernetes.manifests import manifest
from mainstem_operator.topics.loads.plan import load_manifest, loader_rights

Manifest = dict[str, Any]
Rights = dict[str, set[str]]
"""Verbs by resource: `apps/statefulsets`, `v1/pods`, `apps/deployments/scale:name` where only `name`."""

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS: Final = "/apis/authorization.k8s.io/v1"
POLICIES: Final = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
KINDS_OF_RIGHTS: Final = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
_SEEN_SECONDS: Final = 60.0

DRIVER: Final = "a.b-load-29384756-x7f2q"  # the pod of a run of the CronJob a.b-load

_LOADS: Final[Rights] = {
    "v1/pods": {"get", "list", "watch", "create", "delete", "deletecollection"},
    "mainstem.dev/executors": {"create"},
    "mainstem.dev/executorsecrets:lake": {"use"},
}
_EVERYWHERE: Final[Rights] = {
    "apiextensions.k8s.io/customresourcedefinitions": {"get", "list", "watch"},
    "v1/namespaces": {"get", "list", "watch"},
    "v1/nodes": {"list"},
    "v1/persistentvolumes": {"get"},
    # To let Topics and Users go with a namespace whose Roles went first.
    "mainstem.dev/brokerclusters": {"get"},
    "mainstem.dev/topics": {"get", "list", "patch"},
    "mainstem.dev/users": {"get", "list", "patch"},
}
_OURS: Final = ("brokerclusters", "topics", "consumergroups", "users")


def _watched() -> Rights:
    """What the operator may do in a namespace that it watches, which is also its own."""
    return {
        **_EVERYWHERE,
        "v1/pods": _LOADS["v1/pods"],
        "mainstem.dev/executors": {"create"},
        "mainstem.dev/executorsecrets": {"use"},
        "v1/configmaps": {"get", "list", "create", "patch", "delete"},
        "v1/services": {"get", "list", "create", "patch", "delete"},
        "v1/persistentvolumeclaims": {"list", "patch", "delete"},
        **{f"mainstem.dev/{plural}": {"get", "list", "watch", "patch"} for plural in _OURS},
        **{f"mainstem.dev/{plural}/status": {"patch"} for plural in _OURS},
        "mainstem.dev/brokerclusters/finalizers": {"update"},
        "mainstem.dev/users/finalizers": {"update"},
        "v1/secrets": {"get", "create", "patch"},
        "apps/statefulsets": {"get", "list", "watch", "create", "patch"},
        "apps/statefulsets/scale": {"get", "patch"},
        "policy/poddisruptionbudgets": {"get", "list", "create", "patch"},
        "networking.k8s.io/networkpolicies": {"get", "list", "create", "patch", "delete"},
        "batch/cronjobs": {"get", "list", "create", "patch", "delete"},
        "batch/jobs": {"list", "delete"},
        "v1/serviceaccounts": {"get", "create", "patch"},
        "rbac.authorization.k8s.io/roles": {"get", "create", "patch"},
        "rbac.authorization.k8s.io/rolebindings": {"get", "create", "patch"},
        "v1/events": {"create"},
        "coordination.k8s.io/leases": {"get", "create", "update"},
    }


_DEFINITIONS: Final[Rights] = {
    "apiextensions.k8s.io/customresourcedefinitions": {"create"},
    **{
        f"apiextensions.k8s.io/customresourcedefinitions:{plural}.mainstem.dev": {"get", "patch"}
        for plural in _OURS
    },
}

_UNINSTALL: Final[Rights] = {
    "mainstem.dev/topics": {"list", "patch"},
    "mainstem.dev/users": {"list", "patch"},
    "v1/events": {"create"},
}


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
        whole = WHOLE["BrokerCluster"]
        metadata = {"name": "events", "namespace": self.namespace, "uid": str(uuid4())}
        return cluster_of({**whole, "metadata": metadata})

    def rights(self, account: str, namespace: str) -> Rights:
        """All that an account of the release may do in a namespace, but for what any account may."""
        return _beyond(
            self._all_rights((self.namespace, account), namespace),
            self._all_rights((self.other, "nobody"), namespace),
        )

    def _all_rights(self, account: tuple[str, str], namespace: str) -> Rights:
        requested = ApiServer(account)
        try:
            review = {"spec": {"namespace": namespace}}
            status = requested.create(f"{REVIEWS}/selfsubjectrulesreviews", review).accepted()["status"]
        finally:
            requested.close()
        results: Rights = {}
        for rule in status["resourceRules"]:
            for group in rule.get("apiGroups", ()):
                for resource in rule.get("resources", ()):
                    for name in rule.get("resourceNames") or ("",):
                        key = f"{group or 'v1'}/{resource}" + (f":{name}" if name else "")
                        results.setdefault(key, set()).update(rule["verbs"])
        return results

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
    manifests = rendered("mainstem", namespace, KINDS_OF_RIGHTS | POLICIES, fullnameOverride=name)
    result = Release(server, name, namespace, other, tuple(manifests))
    try:
        create_missing_definitions(server)
        for one in (namespace, other):
            server.create("/api/v1/namespaces", {"metadata": {"name": one}}).accepted()
        for manifest in manifests:
            server.apply(path_of(manifest), manifest).accepted()
        _until_in_force(result)
        yield result
    finally:
        for manifest in manifests:
            if "namespace" not in manifest["metadata"]:
                server.delete(path_of(manifest))
        for one in (namespace, other):
            server.delete(f"/api/v1/namespaces/{one}")
        server.close()


def _until_in_force(release: Release) -> None:
    """Roles and policies are read from watches, so a moment after they were made."""
    watched = set(_watched())
    _until(lambda: set(release.rights(release.name, release.namespace)) == watched)
    _until(lambda: _may_make_no_pods(release, release.name))


def _may_make_no_pods(release: Release, account: str) -> bool:
    """Whether the account, whose role lets it create pods, is refused by a policy."""
    server = ApiServer((release.namespace, account))
    try:
        path = f"/api/v1/namespaces/{release.namespace}/pods"
        return server.create(path, executor_of(release, "any"), dry=True).status == 403
    finally:
        server.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SEEN_SECONDS
    while not condition() and time.monotonic() < deadline:
        let_pass(0.1, "between two looks")


@pytest.fixture(scope="module")
def loads(release: Release) -> Release:
    """The release with the service account of loads, made by the operator's own account."""
    operator = ApiServer((release.namespace, release.name))
    try:
        for manifest in loader_rights(release.cluster):
            del manifest["metadata"]["ownerReferences"]  # there is no BrokerCluster here
            operator.apply(path_of(manifest), manifest).accepted()
    finally:
        operator.close()
    _until(lambda: bool(release.rights(release.loader, release.namespace)))
    _until(lambda: _may_make_no_pods(release, release.loader))
    return release


# --- All that they may ---


def test_the_operator_may_do_this_in_its_namespaces_and_nothing_else(release: Release) -> None:
    assert release.rights(release.name, release.namespace) == _watched()


def test_elsewhere_the_operator_may_read_a_little_and_let_topics_go(release: Release) -> None:
    assert release.rights(release.name, release.other) == _EVERYWHERE
    assert release.rights(release.name, "kube-system") == _EVERYWHERE


def test_the_job_that_brings_definitions_may_bring_those_and_nothing_else(release: Release) -> None:
    account = f"{release.name}-definitions"
    assert release.rights(account, release.namespace) == _DEFINITIONS
    assert release.rights(account, release.other) == _DEFINITIONS


def test_the_job_that_ends_the_operator_may_do_that_and_let_topics_and_users_go(release: Release) -> None:
    account = f"{release.name}-uninstall"
    its_own = {
        f"apps/deployments:{release.name}": {"get"},
        f"apps/deployments/scale:{release.name}": {"patch"},
        "v1/pods": {"list"},
    }
    assert release.rights(account, release.namespace) == {**_UNINSTALL, **its_own}
    assert release.rights(account, release.other) == _UNINSTALL


def test_loads_may_make_executors_in_their_namespace_and_nothing_else(loads: Release) -> None:
    assert loads.rights(loads.loader, loads.namespace) == _LOADS
    assert loads.rights(loads.loader, loads.other) == {}


def test_the_pods_of_the_data_have_no_rights(release: Release) -> None:
    """Brokers, ZooKeeper and executors run as the default account, which has none, and without its token."""
    assert release.rights("default", release.namespace) == {}
    workloads = [item for item in _of_a_cluster(release) if item["kind"] == "StatefulSet"]
    executors = ExecutorPods(2, "mainstem/spark", release.namespace, "driver", "10.0.0.1")
    pods = [*(item["spec"]["template"]["spec"] for item in workloads), pod_template(executors)["spec"]]
    assert not any(pod["automountServiceAccountToken"] for pod in pods)
    assert "serviceAccountName" not in pods[-1]
    assert not [setting for setting in spark_settings(executors, 2) if "serviceAccount" in setting]


def test_each_pod_of_the_chart_has_the_account_that_is_meant_for_it(release: Release) -> None:
    results = {}
    for item in rendered("mainstem", release.namespace, kinds={"Deployment", "Job"}, fullnameOverride="m"):
        pod = item["spec"]["template"]["spec"]
        results[item["metadata"]["name"]] = pod["serviceAccountName"]
    assert results == {"m": "m", "m-uninstall": "m-uninstall", "m-definitions": "m-definitions"}


def test_the_operator_can_not_give_away_more_than_it_has(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    try:
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "greedy", "namespace": loads.namespace},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
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
    """Every object that a BrokerCluster and a Topic can have."""
    cluster, images = release.cluster, Images()
    whole = {**WHOLE["BrokerCluster"]["spec"], "networkPolicy": {"enabled": True}}
    metadata = {"name": cluster.name, "namespace": release.namespace, "uid": cluster.identity.uid}
    cluster = cluster_of({"metadata": metadata, "spec": whole})
    listeners = {
        "clients": [{"name": "tls", "port": 9093}, {"name": "out", "port": 9094, "type": "nodeport"}]
    }
    secured = cluster_of(
        {
            "metadata": {**metadata, "name": "secured"},
            "spec": {
                "brokers": {"replicas": 2},
                "listeners": listeners,
                "authorization": {"type": "acl"},
                "warehouse": whole["warehouse"],
            },
        }
    )
    topic = topic_of({"metadata": {**metadata, "name": "clicks"}, "spec": WHOLE["Topic"]["spec"]})
    load, secured_load = load_manifest(topic, cluster, images), load_manifest(topic, secured, images)
    assert isinstance(load, dict)
    assert isinstance(secured_load, dict)
    return [
        *broker_services(cluster, 2),
        *zookeeper_manifests(cluster, images, None, release.namespace),
        *broker_manifests(cluster, images, 2, Placement({0: 31_000, 1: 31_001}, {"node-1": "a"}), None, 1),
        *load_policies(cluster, release.namespace),
        *broker_services(secured, 2),
        *broker_manifests(secured, images, 2, Placement({0: 31_000, 1: 31_001}), None, 1),
        *loader_rights(cluster),
        load,
        secured_load,
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


# --- What an account of loads tries ---


SPARK_LABELS: Final = {
    "spark-app-name": "load-clicks",
    "spark-app-selector": "spark-8f3b6c",
    "spark-exec-id": "1",
    "spark-exec-resourceprofile-id": "0",
    "spark-role": "executor",
    "spark-version": "4.3.0",
}


def executor_of(loads: Release, driver_uid: str, **spec: Any) -> Manifest:
    """An executor as Spark makes it of our template."""
    pods = ExecutorPods(2, "mainstem/spark", loads.namespace, "driver", "10.0.0.1", secret="lake")
    result: Manifest = copy.deepcopy(pod_template(pods))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": DRIVER, "uid": driver_uid, "controller": True}
    result["metadata"] = {"name": "executor", "labels": dict(SPARK_LABELS), "ownerReferences": [owner]}
    result["spec"] |= spec
    result["spec"]["containers"][0] |= {
        "image": "mainstem/spark",
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    return result


def within_container(**fields: Any) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["containers"][0].update(fields)


def within_spec(**fields: Any) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"].update(fields)


def with_volume(**source: Any) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **source})


def with_labels(labels: Mapping[str, str]) -> Callable[[Manifest], None]:
    return lambda pod: pod["metadata"]["labels"].update(labels)


SECRET_KEY: Final = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}
REFUSED_EXECUTORS: Final[dict[str, Callable[[Manifest], None]]] = {
    "that nobody owns": lambda pod: pod["metadata"].pop("ownerReferences"),
    "of another load": lambda pod: pod["metadata"]["ownerReferences"][0].update(uid="another"),
    "that is no executor": lambda pod: pod["metadata"].pop("labels"),
    "with a broker's labels": with_labels(pod_labels("events", BROKER)),
    "with ZooKeeper's labels": with_labels(pod_labels("events", ZOOKEEPER)),
    "with the operator's label": with_labels({COMPONENT_LABEL: "operator"}),
    "with a label of its own": with_labels({"app": "another"}),
    "with the rights of loads": within_spec(serviceAccountName="events-loader"),
    "with a token": within_spec(automountServiceAccountToken=True),
    "with a volume of a Secret": with_volume(secret={"secretName": "other"}),
    "with the key of another load": with_volume(secret={"secretName": "b-load-identity"}),
    "with the key of a load whose name begins like its own": with_volume(
        secret={"secretName": "a-load-identity"}
    ),
    "with the key of a load whose name is alike": with_volume(secret={"secretName": "axb-load-identity"}),
    "with a volume of several sources": with_volume(projected={"sources": [{"secret": {"name": "other"}}]}),
    "with a broker's disk": with_volume(persistentVolumeClaim={"claimName": "data-events-broker-0"}),
    "with the node's disk": with_volume(hostPath={"path": "/"}),
    "with a key of a Secret": within_container(env=[SECRET_KEY]),
    "with another Secret": within_container(envFrom=[{"secretRef": {"name": "other"}}]),
    "with one more Secret": within_container(
        envFrom=[{"secretRef": {"name": "lake"}}, {"secretRef": {"name": "other"}}]
    ),
    "with a second container": lambda pod: pod["spec"]["containers"].append(
        {**pod["spec"]["containers"][0], "name": "second"}
    ),
    "on a chosen node": within_spec(nodeName="control-plane"),
    "on the node's network": within_spec(hostNetwork=True),
    "as root": within_spec(securityContext={}),
    "with a capability": within_container(
        securityContext={"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"]}}
    ),
}


@pytest.fixture(scope="module")
def driver(loads: Release) -> Iterator[tuple[ApiServer, str]]:
    """The account of loads with the token of a driver's pod, and the pod's uid."""
    path = f"/api/v1/namespaces/{loads.namespace}"
    loads.server.create(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})  # no controller may
    # A pod that owns nothing and starts nowhere.
    pods = ExecutorPods(1, "mainstem/spark", loads.namespace, "driver", "10.0.0.1")
    pod = copy.deepcopy(pod_template(pods))
    pod["metadata"] = {"name": DRIVER, "labels": {"spark-role": "executor"}}
    pod["spec"]["containers"][0]["image"] = "mainstem/spark"
    pod["spec"]["schedulerName"] = "nobody"
    uid = loads.server.create(f"{path}/pods", pod).accepted()["metadata"]["uid"]
    account = ApiServer((loads.namespace, loads.loader), uid, DRIVER)
    yield account, uid
    account.close()


def test_loads_make_find_and_delete_their_own_executors(
    loads: Release, driver: tuple[ApiServer, str]
) -> None:
    account, uid = driver
    path = f"/api/v1/namespaces/{loads.namespace}/pods"
    executor = executor_of(loads, uid, schedulerName="nobody")
    with_volume(secret={"secretName": "a.b-load-identity"})(executor)
    account.create(path, executor).accepted()
    account.get(path).accepted()
    account.delete(f"{path}/executor", dry=True).accepted()
    another = ApiServer((loads.namespace, loads.loader), "another")
    try:
        assert another.delete(f"{path}/executor", dry=True).status == 403
    finally:
        another.close()
    account.delete(f"{path}/executor").accepted()


@pytest.mark.parametrize("change", REFUSED_EXECUTORS.values(), ids=REFUSED_EXECUTORS)
def test_loads_make_no_pod(
    loads: Release, driver: tuple[ApiServer, str], change: Callable[[Manifest], None]
) -> None:
    account, uid = driver
    pod = executor_of(loads, uid)
    change(pod)
    path = f"/api/v1/namespaces/{loads.namespace}/pods"
    assert account.create(path, pod, dry=True).status == 403


def test_loads_touch_nothing_else(loads: Release, driver: tuple[ApiServer, str]) -> None:
    account, uid = driver
    path = f"/api/v1/namespaces/{loads.namespace}"
    assert account.delete(f"{path}/pods/{DRIVER}", dry=True).status == 403
    assert account.delete(f"{path}/pods", dry=True).status == 403
    assert account.merge(f"{path}/pods/{DRIVER}", {"metadata": {"labels": {"a": "b"}}}).status == 403
    for plural in ("secrets", "configmaps", "services", "persistentvolumeclaims"):
        assert account.get(f"{path}/{plural}").status == 403
        assert account.delete(f"{path}/{plural}", dry=True).status == 403
    elsewhere = f"/api/v1/namespaces/{loads.other}/pods"
    assert account.create(elsewhere, executor_of(loads, uid), dry=True).status == 403


# --- What the operator's account tries ---


def test_the_operator_makes_no_pods_and_no_workloads_with_more_than_they_need(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    workload = next(item for item in _of_a_cluster(loads) if item["kind"] == "StatefulSet")
    refused: list[Callable[[Manifest], None]] = [
        within_spec(hostNetwork=True),
        within_spec(hostPID=True),
        within_spec(automountServiceAccountToken=True),
        with_volume(hostPath={"path": "/"}),
        with_volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}),
        within_container(securityContext={"allowPrivilegeEscalation": True}),
    ]
    try:
        path = f"/api/v1/namespaces/{loads.namespace}/pods"
        assert operator.create(path, executor_of(loads, "any"), dry=True).status == 403
        for change in refused:
            changed = copy.deepcopy(workload)
            template = changed["spec"]["template"]
            template["spec"].setdefault("volumes", [])
            change(template)
            assert operator.apply(path_of(changed), changed, dry=True).status == 403
    finally:
        operator.close()


def test_the_operator_gives_rights_to_accounts_of_loads_only(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    try:
        _, role, binding = copy.deepcopy(loader_rights(loads.cluster))
        binding["subjects"].append({**binding["subjects"][0], "name": "somebody"})
        role["metadata"]["name"] = "another"
        for manifest in (role, binding):
            assert operator.apply(path_of(manifest), manifest, dry=True).status == 403
    finally:
        operator.close()


def test_the_operator_writes_only_secrets_of_its_own_objects(loads: Release) -> None:
    operator = ApiServer((loads.namespace, loads.name))
    ours = manifest("v1", "Secret", loads.cluster, "broker", "events-ca", type="Opaque")
    theirs = copy.deepcopy(ours)
    del theirs["metadata"]["ownerReferences"]
    taken = {**ours, "metadata": {**ours["metadata"], "name": "taken"}}
    key = copy.deepcopy(ours)
    cron_job = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "clicks-load", "uid": "any"}
    key["metadata"] |= {"name": "clicks-load-identity", "ownerReferences": [cron_job]}
    other_key = {**key, "metadata": {**key["metadata"], "name": "views-load-identity"}}
    resident_key, brokers_key = copy.deepcopy(ours), copy.deepcopy(ours)
    for secret, name in ((resident_key, "events-resident-loader"), (brokers_key, "events-broker")):
        workload = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": "any"}
        secret["metadata"] |= {"name": f"{name}-identity", "ownerReferences": [workload]}
    try:
        for accepted in (ours, key, resident_key):
            operator.apply(path_of(accepted), accepted, dry=True).accepted()
        for refused in (theirs, other_key, brokers_key):
            assert operator.apply(path_of(refused), refused, dry=True).status == 403
        place = path_of(taken).removesuffix("/taken")
        loads.server.create(place, {**theirs, "metadata": {"name": "taken"}}).accepted()
        assert operator.apply(path_of(taken), taken, dry=True).status == 403
    finally:
        operator.close()


def test_the_operator_takes_over_secrets_that_were_left_behind_and_no_others(loads: Release) -> None:
    """As `kubectl delete --cascade=orphan` leaves them: with our labels, and without the owner that has gone
    (R38). The labels alone make no Secret ours while another object controls it.
    """
    operator = ApiServer((loads.namespace, loads.name))
    # A real one: Kubernetes deletes what only an object owns that does not exist.
    place = f"/api/v1/namespaces/{loads.namespace}"
    other = loads.server.create(f"{place}/configmaps", {"metadata": {"name": "an-owner"}}).accepted()
    other_owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "an-owner",
        "uid": other["metadata"]["uid"],
    }
    of_cluster = manifest("v1", "Secret", loads.cluster, "broker", "left", type="Opaque")
    (cluster_owner,) = of_cluster["metadata"]["ownerReferences"]
    user_owner = {**cluster_owner, "kind": "User", "name": "alice"}

    def secret(name: str, *owners: Manifest) -> Manifest:
        return {
            **of_cluster,
            "metadata": {**of_cluster["metadata"], "name": name, "ownerReferences": [*owners]},
        }

    try:
        for left in (
            secret("left"),
            secret("left-beside", other_owner),  # it owns the Secret, too, and does not control it
            secret("controlled", {**other_owner, "controller": True}),
        ):
            loads.server.create(f"{place}/secrets", left).accepted()
        for accepted in (
            secret("left", cluster_owner),
            secret("left", user_owner),
            secret("left-beside", cluster_owner),
        ):
            operator.apply(path_of(accepted), accepted, dry=True).accepted()
        # Kubernetes itself would refuse a second controller.
        for refused in (secret("left"), secret("controlled", {**cluster_owner, "controller": False})):
            assert operator.apply(path_of(refused), refused, dry=True).status == 403
    finally:
        operator.close()


def test_the_operator_changes_topics_elsewhere_only_where_the_namespace_goes(loads: Release) -> None:
    """Where it stays, they can only lose finalizers of the operator's, as after it was watched."""
    operator = ApiServer((loads.namespace, loads.name))
    topic = {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": "Topic",
        "metadata": {"name": "held", "finalizers": ["others.example/holds", "mainstem.dev/topic"]},
        "spec": {"clusterRef": {"name": "events"}},
    }
    path = f"/apis/mainstem.dev/v1beta1/namespaces/{loads.other}/topics"
    release_it = {"metadata": {"finalizers": None}}
    try:
        loads.server.create(path, topic).accepted()
        for change in (
            release_it,  # of others, too
            {"metadata": {"finalizers": ["others.example/holds", "mainstem.dev/topic", "mainstem.dev/user"]}},
            {"metadata": {"finalizers": ["others.example/holds"], "labels": {"team": "a"}}},
            {"metadata": {"finalizers": ["others.example/holds"]}, "spec": {"partitions": 9}},
        ):
            assert operator.merge(f"{path}/held", change).status == 403
        let_go = {"metadata": {"finalizers": ["others.example/holds"]}}
        assert operator.merge(f"{path}/held", let_go).status == 200
        loads.server.delete(f"/api/v1/namespaces/{loads.other}").accepted()
        deadline = time.monotonic() + _SEEN_SECONDS
        while (status := operator.merge(f"{path}/held", release_it).status) == 403:
            assert time.monotonic() < deadline
            let_pass(0.1, "between two looks")
        assert status == 200
    finally:
        operator.close()


# --- Other values of the chart ---


def test_who_watches_all_namespaces_has_the_same_rights_in_each() -> None:
    of_one = rendered("mainstem", "one", fullnameOverride="m")
    of_all = rendered("mainstem", "one", fullnameOverride="m", watchAnyNamespace="true")
    assert _rules(of_one, "Role", "m-watched") == _rules(of_all, "ClusterRole", "one-m-watched")
    several = rendered("mainstem", "one", fullnameOverride="m", watchNamespaces="{two,three}")
    places = {item["metadata"]["namespace"] for item in several if item["metadata"]["name"] == "m-watched"}
    assert places == {"two", "three"}


def test_no_right_is_given_where_the_chart_is_set_to_give_none() -> None:
    result = rendered("mainstem", "one", **{"rbac.create": "false", "crds.upgrade": "false"})
    assert {item["kind"] for item in result} == {"ServiceAccount"}


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

    _until(lambda: may("viewer", "list") and may("editor", "delete"))
    assert all(may("viewer", verb) for verb in ("get", "list", "watch"))
    assert not any(may("viewer", verb) for verb in ("create", "patch", "update", "delete"))
    assert all(may("editor", verb) for verb in ("get", "create", "patch", "update", "delete"))
    assert may("editor", "patch", "brokerclusters/scale")  # kubectl scale
    assert not may("viewer", "patch", "brokerclusters/scale")
    assert not may("editor", "patch", "brokerclusters/status")


def _rules(manifests: list[Manifest], kind: str, name: str) -> Any:
    (result,) = [item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return result["rules"]
