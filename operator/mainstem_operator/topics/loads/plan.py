"""The loads of a Topic: a CronJob whose pod is the Spark driver, and what came of its runs. Pure.

A load is safe to kill, to repeat and to run twice (`mainstem_loader`), so the CronJob needs no care but
`Forbid`, which saves work. Executors are created by the driver itself, with the rights of the BrokerCluster's
service account for loads; a small load runs in the driver's pod alone.

A load needs its Topic and its BrokerCluster, and Kubernetes deletes an object with two owners only when both
are gone. So the BrokerCluster owns the CronJob, which then goes with it even where no operator is left, and
the operator deletes the CronJobs of Topics that are gone (`gone_loads`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, WarehouseLocation
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.listeners import LOADS
from mainstem_operator.api.topics import TopicSpec, TransformSpec, WarehouseSpec
from mainstem_operator.kubernetes.manifests import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    Manifest,
    digest,
    manifest,
    placement_beside,
    pull_secrets_of,
    pulled,
)
from mainstem_operator.proofs import Refusal
from mainstem_operator.topics.loads.identity import (
    IDENTITY_MOUNT,
    MOUNT_PATH,
    PROPERTIES_FILE,
    identity_volume,
)

EXECUTORS_MAX: Final = 4
"""Of a Topic that says `auto`."""
CORES: Final = 2
DEFAULT_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "250m", "memory": "1Gi"},
    # Two tasks at once; the heap of Java, and what the tasks keep of the days they write.
    "limits": {"cpu": "2", "memory": "3Gi"},
}
TRANSFORM_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "500m", "memory": "2Gi"},
    "limits": {"cpu": "2", "memory": "4Gi"},  # rows pass through Java, too
}
TRANSFORM_FOLDER: Final = "/etc/mainstem/transform"
TRANSFORM_FILE: Final = "statement.sql"
START_WITHIN_S: Final = 300
TRIES_MAX: Final = 2
RUN_SECONDS_MAX: Final = 6 * 3600
REJECTED_TOO_MANY: Final = 3
"""The loader's exit code when it committed what it read, but rejected too many records."""
HISTORY: Final = 3
_RBAC: Final = "rbac.authorization.k8s.io"
REQUEST_FIELDS: Final = ("backfill", "rewind", "replayDeadLetters")
_TOPIC_CHARACTERS: Final = 24
_CRON_JOB_NAME_MAX: Final = 52  # Kubernetes appends eleven characters to make the names of Jobs


def load_name(topic: str) -> str:
    """The CronJob of the Topic object of that name."""
    name = f"{topic}-load"
    return name if len(name) <= _CRON_JOB_NAME_MAX else f"{topic[:30].rstrip('-.')}-{digest(topic)}-load"


def maintenance_name(topic: str) -> str:
    """The CronJob that maintains the table of the Topic object of that name."""
    return f"{topic[:_TOPIC_CHARACTERS].rstrip('-.')}-maintain-{digest(topic)[:10]}"


def request_name(topic: str, field: str, request_id: str) -> str:
    """The CronJob of a request of the Topic object of that name; another for another id."""
    short = "replay" if field == "replayDeadLetters" else field
    return f"{topic[:_TOPIC_CHARACTERS].rstrip('-.')}-{short}-{digest([topic, field, request_id])[:10]}"


def request_names(topic: Object) -> set[str]:
    """The CronJobs of all requests that a Topic makes, whatever else is wrong with it."""
    warehouse = (topic.get("spec") or {}).get("warehouse")
    if not isinstance(warehouse, Mapping):
        return set()
    fields = {field: warehouse.get(field) for field in REQUEST_FIELDS}
    return {
        request_name(topic["metadata"]["name"], field, str(value.get("requestId")))
        for field, value in fields.items()
        if isinstance(value, Mapping)
    }


def loader_rights(cluster: ClusterSpec) -> list[Manifest]:
    """The service account of all loads of a BrokerCluster: it may make executors, and nothing else.

    Roles cannot say which pods, so the chart's admission policy does. The resources `executors` and
    `executorsecrets` exist only as rights: by the first the policy knows an account of loads, by the second
    the Secret that executors may have.
    """
    name = names.workload(cluster.name, names.LOADER)
    rules: list[Manifest] = [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
        },
        {"apiGroups": [names.GROUP], "resources": ["executors"], "verbs": ["create"]},
    ]
    if cluster.warehouse is not None and (secret := cluster.warehouse.credentials_secret):
        rules.append(
            {
                "apiGroups": [names.GROUP],
                "resources": ["executorsecrets"],
                "resourceNames": [secret],
                "verbs": ["use"],
            }
        )
    account = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}

    def made(api_version: str, kind: str, **body: Any) -> Manifest:
        return manifest(api_version, kind, cluster, names.LOADER, name, **body)

    return [
        made("v1", "ServiceAccount", automountServiceAccountToken=False),
        made(f"{_RBAC}/v1", "Role", rules=rules),
        made(
            f"{_RBAC}/v1",
            "RoleBinding",
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": name},
            subjects=[account],
        ),
    ]


def load_refusal(topic: TopicSpec, cluster: ClusterSpec) -> Refusal | None:
    """Why a Topic that has a warehouse cannot be loaded; None if it can."""
    warehouse, location = topic.warehouse, cluster.warehouse
    if location is None:
        return Refusal(
            f"BrokerCluster {cluster.name} has no spec.warehouse: name the tables' location there, or remove"
            " spec.warehouse from this Topic."
        )
    if warehouse is None:
        return None
    is_iceberg = warehouse.table_format == "iceberg"
    if is_iceberg and location.catalog is None and location.volume_claim is None:
        return Refusal(
            f"BrokerCluster {cluster.name} names no catalog: Iceberg tables in a bucket need one, as"
            " spec.warehouse.catalog.uri."
        )
    if is_iceberg and warehouse.transform is not None:
        return Refusal(
            "Transforms load into Delta tables: remove transform or tableFormat from spec.warehouse."
        )
    if warehouse.transform is not None and not location.allow_transforms:
        return Refusal(
            f"BrokerCluster {cluster.name} does not allow transforms, which run with the credentials of its"
            " loads: set spec.warehouse.allowTransforms there, or remove spec.warehouse.transform from"
            " this Topic."
        )
    return None


def load_manifest(topic: TopicSpec, cluster: ClusterSpec, images: Images) -> Manifest | Refusal | None:
    """The CronJob of a Topic; None if it has no warehouse or no schedule, or why there can be none."""
    warehouse = topic.warehouse
    if warehouse is None:
        return None
    if (refusal := load_refusal(topic, cluster)) is not None:
        return refusal
    if warehouse.schedule is None:
        return None
    suspend = warehouse.suspend or topic.paused
    cron_job = cron_job_of(
        load_name(topic.identity.name), topic, cluster, images, warehouse.schedule, (), suspend=suspend
    )
    if warehouse.time_zone is not None:
        cron_job["spec"]["timeZone"] = warehouse.time_zone
    return cron_job


def cron_job_of(
    name: str,
    topic: TopicSpec,
    cluster: ClusterSpec,
    images: Images,
    schedule: str,
    arguments: Sequence[str],
    *,
    suspend: bool,
) -> Manifest:
    """A CronJob that runs the loader for a Topic, one run at a time.

    Args:
        name: of the CronJob.
        topic, cluster: both with a warehouse.
        images: see there.
        schedule: when it runs.
        arguments: of the loader, beside those of any load of the Topic.
        suspend: whether no run begins.
    """
    warehouse, location = topic.warehouse, cluster.warehouse
    assert warehouse is not None and location is not None
    labels = {**names.labels(cluster.name, names.LOADER), names.TOPIC_LABEL: name}
    pod = _pod(name, topic, warehouse, location, cluster, images, arguments)
    spec: Manifest = {
        "schedule": schedule,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": START_WITHIN_S,
        "suspend": suspend,
        "successfulJobsHistoryLimit": HISTORY,
        "failedJobsHistoryLimit": HISTORY,
        "jobTemplate": {
            "metadata": {"labels": labels},
            "spec": {
                "backoffLimit": TRIES_MAX,
                "activeDeadlineSeconds": RUN_SECONDS_MAX,
                # A second try would find nothing left to load, and hide that too much was rejected.
                "podFailurePolicy": {
                    "rules": [
                        {
                            "action": "FailJob",
                            "onExitCodes": {
                                "containerName": names.LOADER,
                                "operator": "In",
                                "values": [REJECTED_TOO_MANY],
                            },
                        }
                    ]
                },
                "template": {"metadata": load_pod_metadata(location, labels), "spec": pod},
            },
        },
    }
    cron_job = manifest("batch/v1", "CronJob", cluster, names.LOADER, name, spec=spec)
    cron_job["metadata"]["labels"] = labels
    template = cron_job["spec"]["jobTemplate"]
    template["metadata"]["annotations"] = {names.TEMPLATE_HASH: digest(template["spec"])}
    return cron_job


def load_pod_metadata(location: WarehouseLocation, labels: Mapping[str, str]) -> Manifest:
    """The metadata of a pod that loads: what the manifest adds to our `labels`."""
    metadata: Manifest = {"labels": {**location.pod_labels, **labels}}
    if annotations := _annotations_of_others(location):
        metadata["annotations"] = annotations
    return metadata


def _annotations_of_others(location: WarehouseLocation) -> dict[str, str]:
    """The annotations of the manifest but for those that are requests to the operator."""
    ours = f"{names.GROUP}/"
    return {name: text for name, text in location.pod_annotations.items() if not name.startswith(ours)}


def names_freshness(topic: Object) -> bool:
    """Whether a Topic that is not being deleted is for the resident loader, whatever is wrong with it."""
    warehouse = (topic.get("spec") or {}).get("warehouse")
    return (
        not topic["metadata"].get("deletionTimestamp")
        and isinstance(warehouse, Mapping)
        and warehouse.get("freshness") is not None
    )


def logged_in_loads(topics: Iterable[Object]) -> set[str]:
    """The names by which loads log in that Topics ask for, whatever else is wrong with them."""
    loads: set[str] = set()
    for topic in topics:
        warehouse = (topic.get("spec") or {}).get("warehouse")
        if topic["metadata"].get("deletionTimestamp") or not isinstance(warehouse, Mapping):
            continue
        if is_resident := names_freshness(topic):
            loads.add(names.RESIDENT_LOADER)
        if not is_resident or request_names(topic) or warehouse.get("maintenance") is not None:
            loads.add(load_name(topic["metadata"]["name"]))
    return loads


def _pod(
    cron_job: str,
    topic: TopicSpec,
    warehouse: WarehouseSpec,
    location: WarehouseLocation,
    cluster: ClusterSpec,
    images: Images,
    arguments: Sequence[str],
) -> Manifest:
    # A volume is on one node; executors elsewhere could not write there.
    executors = 0 if location.volume_claim else _executors(warehouse)
    transform = warehouse.transform
    image = images.spark if transform is None or transform.image is None else transform.image
    container: Manifest = {
        "name": names.LOADER,
        **pulled(image, images),
        "args": ["load", *_arguments(topic, warehouse, location, cluster, executors, arguments)],
        "env": _environment(cron_job, location, cluster, images, image, executors),
        "resources": warehouse.resources or (DEFAULT_RESOURCES if transform is None else TRANSFORM_RESOURCES),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if location.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": location.credentials_secret}}]
    if location.volume_claim is not None:
        container["volumeMounts"].append({"name": "warehouse", "mountPath": location.location})
        volumes.append({"name": "warehouse", "persistentVolumeClaim": {"claimName": location.volume_claim}})
    if transform is not None and transform.config_map is not None:
        name, key = transform.config_map
        container["volumeMounts"].append(
            {"name": "transform", "mountPath": TRANSFORM_FOLDER, "readOnly": True}
        )
        config_map = {"name": name, "items": [{"key": key, "path": TRANSFORM_FILE}]}
        volumes.append({"name": "transform", "configMap": config_map})
    if cluster.security is not None:
        container["volumeMounts"].append(IDENTITY_MOUNT)
        volumes.append(identity_volume(cron_job))
    pod: Manifest = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "serviceAccountName": names.workload(cluster.name, names.LOADER),
        "automountServiceAccountToken": executors > 0,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
        **placement_beside(cluster.brokers.pod),
    }
    if pull_secrets := pull_secrets_of(cluster.brokers.pod, images):
        pod["imagePullSecrets"] = pull_secrets
    return pod


def _executors(warehouse: WarehouseSpec) -> int:
    return EXECUTORS_MAX if warehouse.executors is None else warehouse.executors


def _arguments(
    topic: TopicSpec,
    warehouse: WarehouseSpec,
    location: WarehouseLocation,
    cluster: ClusterSpec,
    executors: int,
    more: Sequence[str],
) -> list[str]:
    # Kubernetes replaces $(NAME) in arguments, and takes $$( for $(.
    found = [
        argument.replace("$(", "$$(")
        for argument in [*load_arguments(topic, warehouse, location, cluster), *more]
    ]
    if executors:
        found += ["--executors", str(executors)]
        if warehouse.executors is not None:
            found += ["--records-per-executor", "1"]  # a number is a wish, not a bound
    return [*found, "--summary-file", "/dev/termination-log"]


def load_arguments(
    topic: TopicSpec, warehouse: WarehouseSpec, location: WarehouseLocation, cluster: ClusterSpec
) -> list[str]:
    """What the loader is to do for a Topic, wherever it runs."""
    port = names.CLIENT_PORT if cluster.security is None else LOADS.port
    servers = names.bootstrap_servers(cluster.name, cluster.namespace, port)
    found = [topic.topic, "--bootstrap-servers", servers, "--warehouse", location.location]
    if cluster.security is not None:
        found += ["--client-config", f"{MOUNT_PATH}/{PROPERTIES_FILE}"]
    found += ["--table", warehouse.table, "--payload", warehouse.format, "--cores", str(CORES)]
    if warehouse.table_format == "iceberg":
        found += ["--format", "iceberg"]
        if location.catalog is not None:
            found += ["--catalog", location.catalog]
        if location.catalog_namespace is not None:
            found += ["--catalog-namespace", location.catalog_namespace]
    if warehouse.schema_registry is not None:
        found += ["--schema-registry", warehouse.schema_registry]
    for field, kind in sorted(warehouse.columns.items()):
        found += ["--column", f"{field}={kind}"]
    if warehouse.event_time is not None:
        found += ["--event-time", warehouse.event_time, "--event-time-unit", warehouse.event_time_unit]
    if warehouse.event_day_min is not None:
        found += ["--event-day-min", warehouse.event_day_min]
    if warehouse.event_day_max is not None:
        found += ["--event-day-max", warehouse.event_day_max]
    if warehouse.headers:
        found.append("--headers")
    if warehouse.dead_letter_table is not None:
        found += ["--dead-letter-table", warehouse.dead_letter_table]
    if warehouse.transform is not None:
        found += _transform_arguments(warehouse.transform)
    if warehouse.on_gap is not None:
        found += ["--on-gap", warehouse.on_gap]
    if warehouse.until_loaded is not None:
        found += ["--delete-loaded-after-ms", str(warehouse.until_loaded.keep_ms)]
    if warehouse.max_records is not None:
        found += ["--max-records", str(warehouse.max_records)]
    return [*found, "--max-rejected-percent", str(warehouse.max_rejected_percent)]


def _transform_arguments(transform: TransformSpec) -> list[str]:
    if transform.sql is not None:
        found = ["--transform-sql", transform.sql]
    elif transform.config_map is not None:
        found = ["--transform", f"{TRANSFORM_FOLDER}/{TRANSFORM_FILE}"]
    else:
        assert transform.function is not None
        found = ["--transform", transform.function]
    for name, source in sorted(transform.inputs.items()):
        if source.table is not None:
            found += ["--input", f"{name}=table:{source.table}"]
        else:
            found += ["--input", f"{name}=topic:{source.topic}:{source.format}"]
        for field, kind in sorted(source.columns.items()):
            found += ["--input-column", f"{name}.{field}={kind}"]
    return [*found, "--transform-deadline-seconds", str(transform.deadline_seconds)]


def _environment(
    cron_job: str,
    location: WarehouseLocation,
    cluster: ClusterSpec,
    images: Images,
    image: str,
    executors: int,
) -> list[Manifest]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    values: dict[str, str] = {}
    if executors:
        values["SPARK_IMAGE"] = image
        if pull_secrets := pull_secrets_of(cluster.brokers.pod, images):
            values["EXECUTOR_PULL_SECRETS"] = ",".join(str(item["name"]) for item in pull_secrets)
        if images.pull_policy:
            values["EXECUTOR_PULL_POLICY"] = images.pull_policy
        if placed := placement_beside(cluster.brokers.pod):
            values["EXECUTOR_PLACEMENT"] = json.dumps(placed, sort_keys=True)
        if annotations := _annotations_of_others(location):
            values["EXECUTOR_ANNOTATIONS"] = json.dumps(annotations, sort_keys=True)
        if location.credentials_secret is not None:
            values["EXECUTOR_SECRET"] = location.credentials_secret
        if cluster.security is not None:
            values["EXECUTOR_IDENTITY_SECRET"] = names.load_identity(cron_job)
            values["EXECUTOR_IDENTITY_PATH"] = MOUNT_PATH
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *store_environment(location),
        *({"name": name, "value": value} for name, value in sorted(values.items())),
    ]


def store_environment(location: WarehouseLocation) -> list[Manifest]:
    """How the loader finds the store; credentials are not among it."""
    if location.volume_claim is not None:
        return []
    found = [] if location.endpoint is None else [{"name": "AWS_ENDPOINT_URL", "value": location.endpoint}]
    return [*found, {"name": "AWS_REGION", "value": location.region}]


def executors_condition(topic: TopicSpec, cluster: ClusterSpec) -> Condition | None:
    """ExecutorsIgnored; None if loads have the executors that the Topic asks for."""
    executors = None if topic.warehouse is None else topic.warehouse.executors
    if not executors or cluster.warehouse is None or cluster.warehouse.volume_claim is None:
        return None
    text = (
        f"Loads have no executors, and {executors} are requested: the warehouse of the BrokerCluster"
        f" {cluster.name} is a volume, which executors on other nodes could not write. Set"
        " spec.warehouse.executors to 0 or auto."
    )
    return Condition("ExecutorsIgnored", True, "WarehouseIsVolume", text)
