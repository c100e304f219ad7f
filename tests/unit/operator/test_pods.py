"""Every pod that the operator and the chart make has what the main ones have, or a reason why not (R23, R25).

A field that is added for one kind of pod is easily forgotten for another: on tainted nodes, under a quota or
with a registry that needs a login, that one does not start.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from mainstem_loader.spark.executor_pods import pod_template, pods_from_environment, spark_settings
from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.cluster.broker_manifests import Placement, broker_manifests
from mainstem_operator.cluster.zookeeper_manifests import zookeeper_manifests
from mainstem_operator.kubernetes.manifests import Manifest
from mainstem_operator.topics.loads.maintenance import maintenance_manifest
from mainstem_operator.topics.loads.plan import load_manifest
from mainstem_operator.topics.loads.requests import request_manifest
from mainstem_operator.topics.loads.resident import resident_manifests

REPOSITORY: Final = Path(__file__).parents[3]
TEMPLATES: Final = REPOSITORY / "helm/mainstem/templates"
IMAGES: Final = Images(pull_secrets=("registry",), pull_policy="Always")
RESOURCES: Final = {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}}
TOLERATIONS: Final = [{"key": "dedicated", "operator": "Exists"}]
TO_NODES: Final = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}]
    }
}
POD: Final = {
    "labels": {"team": "a", "app": "servers"},
    "annotations": {"mesh": "off", "scrape": "9404"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": TOLERATIONS,
    "affinity": {"nodeAffinity": TO_NODES, "podAntiAffinity": {}},
    "priorityClassName": "high",
    "serviceAccountName": "servers",
    "imagePullSecrets": [{"name": "own"}],
}
LOAD_POD: Final = {"labels": {"team": "a"}, "annotations": {"mesh": "off", f"{names.GROUP}/restart": "true"}}


def cluster(**location: Any) -> ClusterSpec:
    metadata = {"name": "events", "namespace": "prod", "uid": "u-1"}
    part = {"pod": POD, "resources": RESOURCES, "replicas": 3}
    warehouse = {"location": "s3://lake", "credentialsSecret": "lake", **location}
    resident = {"residentLoader": {"resources": RESOURCES}, "pod": LOAD_POD}
    spec = {
        "brokers": {**part, "rack": {"nodeLabel": "zone"}},
        "zookeeper": part,
        "warehouse": {**warehouse, **resident},
    }
    return cluster_of({"metadata": metadata, "spec": spec})


def topic(**warehouse: Any) -> TopicSpec:
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"resources": RESOURCES, **warehouse}}
    return topic_of({"metadata": {"name": "clicks", "namespace": "prod"}, "spec": spec})


def template_of(manifests: Any) -> Manifest:
    """The pod template of the only workload among these manifests."""
    (workload,) = (
        item["spec"].get("jobTemplate", item)["spec"]["template"]
        for item in manifests
        if item["kind"] in ("StatefulSet", "CronJob")
    )
    template: Manifest = workload
    return template


def executor() -> Manifest:
    """The template of the executors of a load, and what Spark adds to it as its settings say."""
    (container,) = template_of([load_manifest(topic(schedule="@hourly"), cluster(), IMAGES)])["spec"][
        "containers"
    ]
    environment = {item["name"]: item.get("value", "x") for item in container["env"]}
    pods = pods_from_environment(environment, 2)
    settings = spark_settings(pods, 2)
    template = pod_template(pods)
    prefix = "spark.kubernetes.container.image"
    made = template["spec"]["containers"][0]
    made["imagePullPolicy"] = settings.get(f"{prefix}.pullPolicy")
    made["resources"] = {
        "requests": {"cpu": settings["spark.executor.cores"]},
        "limits": {
            "cpu": settings["spark.kubernetes.executor.limit.cores"],
            "memory": settings["spark.executor.memoryOverhead"],
        },
    }
    named = settings.get(f"{prefix}.pullSecrets", "").split(",")
    template["spec"]["imagePullSecrets"] = [{"name": name} for name in named]
    return template


def request() -> Any:
    asking = topic(schedule="@hourly", rewind={"requestId": "r", "to": "earliest"})
    assert asking.warehouse is not None
    return request_manifest(asking.warehouse.requests[0], asking, cluster(), IMAGES)


def resident(credentials: Mapping[str, str] | None = None) -> Manifest:
    """The template of the resident loader."""
    return template_of(resident_manifests([topic(freshness="60s")], cluster(), IMAGES, credentials or {}))


PODS: Final[Mapping[str, Callable[[], Manifest]]] = {
    "broker": lambda: template_of(broker_manifests(cluster(), IMAGES, 3, Placement({}), None, 1)),
    "zookeeper": lambda: template_of(zookeeper_manifests(cluster(), IMAGES, None, "ops")),
    "load": lambda: template_of([load_manifest(topic(schedule="@hourly"), cluster(), IMAGES)]),
    "request": lambda: template_of([request()]),
    "maintenance": lambda: template_of(
        [
            maintenance_manifest(
                topic(schedule="@hourly", maintenance={"schedule": "@daily"}), cluster(), IMAGES
            )
        ]
    ),
    "resident loader": resident,
    "executor": executor,
}
SERVERS: Final = ("broker", "zookeeper")


def guard(of: Manifest) -> Manifest:
    """The security context of a pod's `spec` or of a container."""
    context: Manifest = of["securityContext"]
    return context


def metadata_of(pod: Manifest, kind: str) -> Manifest:
    """The `labels` or `annotations` of a pod."""
    found: Manifest = pod.get("metadata", {}).get(kind, {})
    return found


ALL: Final = dict.fromkeys(PODS, "")
BESIDE: Final = {name: "" if name in SERVERS else "Runs beside servers, not as one." for name in PODS}
FRESH: Final = "Each run is a new pod, which reads all of them anew."
TABLE: Final[Mapping[str, tuple[Callable[[Manifest, Manifest], bool], Mapping[str, str]]]] = {
    "requests": (lambda pod, box: bool(box["resources"]["requests"]["cpu"]), ALL),
    "limits": (lambda pod, box: set(box["resources"]["limits"]) == {"cpu", "memory"}, ALL),
    "tolerations": (lambda pod, box: pod["spec"].get("tolerations") == TOLERATIONS, ALL),
    "nodeSelector": (lambda pod, box: pod["spec"].get("nodeSelector") == POD["nodeSelector"], ALL),
    "nodeAffinity": (lambda pod, box: pod["spec"].get("affinity", {}).get("nodeAffinity") == TO_NODES, ALL),
    "affinity to pods": (lambda pod, box: "podAntiAffinity" in pod["spec"].get("affinity", {}), BESIDE),
    "spread over racks": (lambda pod, box: "topologySpreadConstraints" in pod["spec"], {
        **BESIDE, "zookeeper": "The label is that of the brokers' racks.",
    }),
    "priorityClassName": (lambda pod, box: pod["spec"].get("priorityClassName") == "high", ALL),
    "imagePullSecrets": (
        lambda pod, box: pod["spec"].get("imagePullSecrets") == [{"name": "own"}, {"name": "registry"}],
        ALL,
    ),
    "imagePullPolicy": (lambda pod, box: box.get("imagePullPolicy") == "Always", ALL),
    "account of the manifest": (lambda pod, box: pod["spec"].get("serviceAccountName") == "servers", {
        **BESIDE, **dict.fromkeys(("load", "request", "maintenance"), "It has the account of loads."),
    }),
    "no needless token": (lambda pod, box: pod["spec"].get("automountServiceAccountToken") is False, {
        **ALL, **dict.fromkeys(("load", "request", "maintenance"), "It creates executors."),
    }),
    "runAsNonRoot": (lambda pod, box: guard(pod["spec"])["runAsNonRoot"] is True, ALL),
    "seccompProfile": (
        lambda pod, box: guard(pod["spec"])["seccompProfile"] == {"type": "RuntimeDefault"},
        ALL,
    ),
    "fsGroup": (lambda pod, box: guard(pod["spec"])["fsGroup"] == 10_001, ALL),
    "readOnlyRootFilesystem": (lambda pod, box: guard(box)["readOnlyRootFilesystem"] is True, ALL),
    "no privileges": (lambda pod, box: guard(box)["allowPrivilegeEscalation"] is False, ALL),
    "no capabilities": (lambda pod, box: guard(box)["capabilities"] == {"drop": ["ALL"]}, ALL),
    "labels of the manifest": (lambda pod, box: metadata_of(pod, "labels").get("team") == "a", {
        **ALL, "executor": "The chart's admission policy allows those that Spark sets."
    }),
    "annotations of the manifest": (
        lambda pod, box: metadata_of(pod, "annotations").get("mesh") == "off",
        ALL,
    ),
    "labels of servers": (lambda pod, box: metadata_of(pod, "labels").get("app") == "servers", {
        name: "" if name in SERVERS else "A Service of others that selects servers by them would lead to it."
        for name in PODS
    }),
    "annotations of servers": (
        lambda pod, box: metadata_of(pod, "annotations").get("scrape") == "9404",
        {name: "" if name in SERVERS else "They describe servers, as ports to scrape." for name in PODS},
    ),
    "restart of one pod": (
        lambda pod, box: f"{names.GROUP}/restart" in metadata_of(pod, "annotations"),
        dict.fromkeys(PODS, "Each new pod would have it again."),
    ),
    "time to stop": (lambda pod, box: "terminationGracePeriodSeconds" in pod["spec"], {
        name: "" if name in (*SERVERS, "resident loader") else "It may be killed any time." for name in PODS
    }),
    "revision of what it reads once": (
        lambda pod, box: bool(
            {names.CONFIG_HASH, names.CREDENTIALS_HASH} & metadata_of(pod, "annotations").keys()
        ),
        {name: "" if name in (*SERVERS, "resident loader") else FRESH for name in PODS},
    ),
}  # fmt: skip
"""By field: whether a pod (its container is the second argument) has it, and for each pod why not."""


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_each_field_or_a_reason_why_not(name: str, field: str) -> None:
    has, reasons = TABLE[field]
    pod = PODS[name]()
    (container,) = pod["spec"]["containers"]
    assert has(pod, container) is not bool(reasons[name])


def test_the_table_has_every_pod_that_is_made() -> None:
    made: dict[str, int] = {}
    for folder in ("operator/mainstem_operator", "spark-jobs/mainstem_loader"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            keys = [key for node in ast.walk(ast.parse(path.read_text())) for key in keys_of(node)]
            if count := keys.count("containers"):
                made[path.relative_to(REPOSITORY).as_posix()] = count
    assert made == {
        "operator/mainstem_operator/kubernetes/manifests.py": 1,  # of brokers and ZooKeeper
        "operator/mainstem_operator/topics/loads/plan.py": 1,  # of loads, requests and maintenance
        "operator/mainstem_operator/topics/loads/resident.py": 1,
        "spark-jobs/mainstem_loader/spark/executor_pods.py": 1,
    }


def keys_of(node: ast.AST) -> list[Any]:
    if not isinstance(node, ast.Dict):
        return []
    return [key.value for key in node.keys if isinstance(key, ast.Constant)]


def test_other_credentials_of_the_store_replace_the_pod_that_has_them_in_its_environment() -> None:
    old = resident({"AWS_SECRET_ACCESS_KEY": "b2xk"})
    assert resident({"AWS_SECRET_ACCESS_KEY": "b2xk"}) == old
    assert resident({"AWS_SECRET_ACCESS_KEY": "bmV3"}) != old
    assert "b2xk" not in str(old)


# --- The chart ---

CHART_PODS: Final = ("operator.yaml", "definitions-upgrade.yaml", "uninstall.yaml", "tests/round-trip.yaml")
ONE_POD: Final = "There is one such pod, which ends."
CHART_TABLE: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    **{
        f"values {name}": (rf"\.Values\.{re.escape(name)}\b", {})
        for name in (
            "resources",
            "tolerations",
            "nodeSelector",
            "priorityClassName",
            "image.pullSecrets",
            "image.pullPolicy",
            "podSecurityContext",
            "securityContext",
            "podAnnotations",
            "podLabels",
            "commonLabels",
        )
    },
    "affinity to nodes": (r"\.Values\.affinity\b", {}),
    "affinity to pods": (r"with \.Values\.affinity }}", dict.fromkeys(CHART_PODS[1:], ONE_POD)),
    "spread": (r"\.Values\.topologySpreadConstraints", dict.fromkeys(CHART_PODS[1:], ONE_POD)),
    "time to stop": (r"\.Values\.terminationGracePeriodSeconds", dict.fromkeys(CHART_PODS[1:], ONE_POD)),
    "account": (r"\n\s+serviceAccountName: ", {"tests/round-trip.yaml": "It asks Kubernetes nothing."}),
}


def expanded(text: str) -> str:
    """A template from its pod on, with the text of those that it includes behind what they are given."""
    helpers = (TEMPLATES / "_names.tpl").read_text()
    defined = dict(re.findall(r'define "([\w.]+)" -}}\n(.*?){{- end -}}\n', helpers, re.DOTALL))
    start = min(text.find(kind) % len(text) for kind in ("kind: Deployment", "kind: Job", "kind: Pod\n"))
    return re.sub(
        r'{{-? include "([\w.]+)"[^}]*}}', lambda found: found[0] + defined.get(found[1], ""), text[start:]
    )


@pytest.mark.parametrize("field", CHART_TABLE)
@pytest.mark.parametrize("name", CHART_PODS)
def test_a_pod_of_the_chart_has_each_field_or_a_reason_why_not(name: str, field: str) -> None:
    pattern, reasons = CHART_TABLE[field]
    found = re.search(pattern, expanded((TEMPLATES / name).read_text()))
    assert (found is None) is bool(reasons.get(name))


def test_the_table_has_every_pod_of_the_chart() -> None:
    made = {
        path.relative_to(TEMPLATES).as_posix(): path.read_text().count("\n      containers:")
        + path.read_text().count("\n  containers:")
        for path in TEMPLATES.rglob("*.yaml")
    }
    assert {name: count for name, count in made.items() if count} == dict.fromkeys(CHART_PODS, 1)
