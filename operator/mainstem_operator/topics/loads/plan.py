"""The loads of a Topic: a CronJob whose pod is the Spark driver, and what came of its runs. Pure.

A load is safe to kill, to repeat and to run twice (`mainstem_loader`), so the CronJob needs no care but
`Forbid`, which saves work. Executors are created by the driver itself, with the rights of the BrokerCluster's
service account for loads; a small load runs in the driver's pod alone.

A load needs its Topic and its BrokerCluster, and Kubernetes deletes an object with two owners only when both
are gone. So the BrokerCluster owns the CronJob, which then goes with it even where no operator is left, and
the operator deletes the CronJobs of Topics that are gone (`gone_loads`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.listeners import LOADS
from mainstem_operator.api.resources import (
    ClusterSpec,
    Images,
    TopicSpec,
    TransformSpec,
    WarehouseLocation,
    WarehouseSpec,
    annotations_of,
)
from mainstem_operator.api.timestamps import moment, moment_noted, written
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
from mainstem_operator.snapshot import controller_of
from mainstem_operator.topics.loads.identity import (
    IDENTITY_MOUNT,
    MOUNT_PATH,
    PROPERTIES_FILE,
    identity_volume,
)

LOADED: Final = "Loaded"
CANNOT_LOAD: Final = "CannotLoad"
KEPT_UNTIL_LOADED: Final = "KeptUntilLoaded"
LOST_OFFSETS: Final = "were deleted before"
"""In the words of a load that fails for it (`mainstem_loader.ranges`)."""
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
SILENCE: Final = dt.timedelta(minutes=10)
"""In which most images have been pulled."""
NO_POD: Final = dt.timedelta(minutes=1)
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


def outdated_jobs(
    cron_job: Object, jobs: Iterable[Object], pods: Mapping[str | None, Object]
) -> list[Object]:
    """The runs of a CronJob that have never started and that an earlier template made.

    Each holds up all later runs for hours, and a load may be ended and repeated at any time.

    Args:
        cron_job: as it is to be.
        jobs: its runs.
        pods: the newest pod of each run, by the run's uid.
    """
    wanted = annotations_of(cron_job["spec"]["jobTemplate"]).get(names.TEMPLATE_HASH)
    return [
        job
        for job in jobs
        if annotations_of(job).get(names.TEMPLATE_HASH) != wanted
        and not job["metadata"].get("deletionTimestamp")
        and not any(
            item.get("status") == "True" for item in (job.get("status") or {}).get("conditions") or ()
        )
        and (pods.get(job["metadata"]["uid"], {}).get("status") or {}).get("phase", "Pending") == "Pending"
    ]


def waits_in_silence(pod: Object, now: dt.datetime) -> str:
    """What to say of a pod that has not started for long, as without a volume or a Secret, of which no
    field says so; empty if it has not waited for so long.
    """
    metadata = pod["metadata"]
    created = moment_noted(metadata.get("creationTimestamp"))
    if (pod.get("status") or {}).get("phase") != "Pending" or created is None or now - created < SILENCE:
        return ""
    return f"It has not started since {written(created)}: `kubectl describe pod {metadata['name']}` says why."


def without_pod(job: Object, now: dt.datetime) -> str:
    """What to say of a run that gets no pod, as above a quota; empty if it may get one yet."""
    metadata, status = job["metadata"], job.get("status") or {}
    created = moment_noted(metadata.get("creationTimestamp"))
    is_waiting = not (
        status.get("active") or status.get("conditions") or (job.get("spec") or {}).get("suspend")
    )
    if not is_waiting or metadata.get("deletionTimestamp") or created is None or now - created < NO_POD:
        return ""
    return f"Kubernetes creates no pod for it: `kubectl describe job {metadata['name']}` says why."


def is_of_earlier_template(pod: Object, workload: Object) -> bool:
    """Whether a pod of a StatefulSet waits to start as an earlier template says.

    Kubernetes does not always replace such a pod, and it would wait for ever.
    """
    metadata, status = workload["metadata"], workload.get("status") or {}
    wanted = status.get("updateRevision")
    revision = (pod["metadata"].get("labels") or {}).get(names.REVISION_LABEL)
    is_current = int(status.get("observedGeneration", 0)) >= int(metadata.get("generation", 0))
    return (
        is_current
        and (pod.get("status") or {}).get("phase") == "Pending"
        and not pod["metadata"].get("deletionTimestamp")
        and bool(wanted and revision and revision != wanted)
    )


def gone_loads(cron_jobs: Iterable[Object], topics: Iterable[Object], cluster_uid: str) -> list[Object]:
    """The CronJobs of a BrokerCluster whose Topics, or whose requests, are gone or are being deleted.

    Args:
        cron_jobs: all with the labels of its loads. Anybody can set labels, so only those it controls count.
        topics: all Topics that name it.
    """
    loads = _names_of(topic for topic in topics if not topic["metadata"].get("deletionTimestamp"))
    return [
        item
        for item in cron_jobs
        if controller_of(item) == cluster_uid and not is_copy(item) and item["metadata"]["name"] not in loads
    ]


def is_copy(cron_job: Object) -> bool:
    """Whether somebody has copied a CronJob of ours, with labels and owner, under another name."""
    metadata = cron_job["metadata"]
    made_as: str | None = (metadata.get("labels") or {}).get(names.TOPIC_LABEL)
    return made_as is not None and made_as != metadata["name"]


def orphaned_loads(cron_jobs: Iterable[Object], topics: Iterable[Object]) -> list[Object]:
    """The CronJobs of Topics that begin runs though nobody owns them.

    `kubectl delete --cascade=orphan` of a BrokerCluster leaves them, and the next one takes them back.

    Args:
        cron_jobs: all with the labels of its loads. A copy has these too, but another name.
        topics: all Topics that name it.
    """
    loads = _names_of(topics)
    return [
        item
        for item in cron_jobs
        if item["metadata"]["name"] in loads and is_orphan(item) and not item["spec"].get("suspend")
    ]


def is_orphan(item: Object) -> bool:
    """Whether the operator has made an object that has no owner any more."""
    return controller_of(item) is None and names.APPLIED_HASH in annotations_of(item)


def _names_of(topics: Iterable[Object]) -> set[str]:
    """The CronJobs that these Topics may have."""
    loads: set[str] = set()
    for topic in topics:
        name = topic["metadata"]["name"]
        loads |= {load_name(name), maintenance_name(name), *request_names(topic)}
    return loads


def logged_in_loads(topics: Iterable[Object]) -> set[str]:
    """The names by which loads log in that Topics ask for, whatever else is wrong with them."""
    loads: set[str] = set()
    for topic in topics:
        warehouse = (topic.get("spec") or {}).get("warehouse")
        if topic["metadata"].get("deletionTimestamp") or not isinstance(warehouse, Mapping):
            continue
        is_resident = warehouse.get("freshness") is not None
        if is_resident:
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


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """What a Topic's status says of its loads; None is left out. `newest`: the time up to which everything is
    loaded, which may be later than the status says. `requests`: `status.loadRequests`. `has_leftovers`: a
    CronJob that should be deleted is left. `last_rejection`: the last load that rejected too many records;
    `is_rejecting`: no load has stayed within the limit since.
    """

    last_load: Mapping[str, Any] | None
    last_good_load: str | None
    loaded_up_to: str | None
    conditions: Sequence[Condition]
    freshness_seconds: int | None = None
    newest: dt.datetime | None = None
    requests: Sequence[Mapping[str, Any]] = ()
    has_leftovers: bool = False
    last_rejection: Mapping[str, Any] | None = None
    is_rejecting: bool = False

    @property
    def waits(self) -> bool:
        """Whether the load waits for what no event tells, such as a Secret."""
        return self.has_leftovers or any(condition.reason == CANNOT_LOAD for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class Run:
    """One Job of a Topic's loads. `message` is what its pod left behind: JSON from the loader, or its last
    words; `succeeded` None while it goes on; `trouble` why its pod can't start, if it can't.
    """

    job: str
    started: dt.datetime
    finished: dt.datetime | None
    succeeded: bool | None
    message: str
    trouble: str = ""


def run_of(job: Object, message: str, trouble: str = "") -> Run:
    """The run that a Job is. `message` is the termination message of its last pod."""
    status = job.get("status") or {}
    ended = {item["type"]: item for item in status.get("conditions") or () if item.get("status") == "True"}
    outcome = ended.get("Complete") or ended.get("Failed")
    started = status.get("startTime") or job["metadata"]["creationTimestamp"]
    finished = None if outcome is None else status.get("completionTime") or outcome["lastTransitionTime"]
    return Run(
        job=job["metadata"]["name"],
        started=moment(started),
        finished=None if finished is None else moment(finished),
        succeeded=None if outcome is None else "Complete" in ended,
        message=message or (outcome or {}).get("message", ""),
        trouble="" if outcome else trouble,
    )


def last_load(runs: Iterable[Run]) -> dict[str, Any] | None:
    """`status.lastLoad`: the last run that has ended; None if none has."""
    ended = [run for run in runs if run.finished is not None]
    if not ended:
        return None
    run = max(ended, key=lambda one: one.started)
    summary = summary_of(run.message)
    found = {
        "job": run.job,
        "runId": summary.get("runId"),
        "started": written(run.started),
        "finished": None if run.finished is None else written(run.finished),
        "succeeded": bool(run.succeeded),
        "rows": summary.get("rows", summary.get("loaded")),
        "rejected": summary.get("deadLettered"),
        "message": _sentence(run, summary),
    }
    return {name: value for name, value in found.items() if value is not None}


def last_good_load(runs: Iterable[Run], present: str | None) -> str | None:
    """When a load last ended well; `present` is what the status says, for Jobs are not kept for ever."""
    ends = [run.finished for run in runs if run.succeeded and run.finished is not None]
    if (known := moment_noted(present)) is not None:
        ends.append(known)
    return written(max(ends)) if ends else None


def loaded_up_to(runs: Iterable[Run], present: str | None) -> str | None:
    """The newest time up to which everything is loaded, as runs reported it; `present` is what the status
    says, for Jobs are not kept for ever.
    """
    reported = [summary_of(run.message).get("loadedUpTo") for run in runs]
    times = [time for text in [*reported, present] if (time := moment_noted(text)) is not None]
    return written(max(times)) if times else None


def rounded_age(newest: dt.datetime, limit_seconds: int, now: dt.datetime) -> int:
    """How old a record may be that is not loaded, in seconds, rounded up to a multiple of the limit: always
    the same for a table that is fresh enough, so that no status is written for its sake.
    """
    age_seconds = max(int((now - newest).total_seconds()), 1)
    return -(-age_seconds // limit_seconds) * limit_seconds


def load_conditions(
    topic: TopicSpec, refusal: Refusal | None, runs: Iterable[Run], present: str | None, now: dt.datetime
) -> list[Condition]:
    """Loaded: the last load went well. Fresh: everything up to a recent time is loaded.

    `present`: the status's time up to which everything is loaded.
    """
    warehouse = topic.warehouse
    if warehouse is None:
        return []
    if refusal is not None:
        return [Condition(LOADED, False, CANNOT_LOAD, refusal.reason)]
    known = list(runs)
    last = last_load(known)
    stuck = next((run for run in known if run.trouble), None)
    if stuck is not None:
        text = f"The pod of {stuck.job} can't start. {stuck.trouble}"
        loaded = Condition(LOADED, False, "LoadCannotStart", text)
    elif last is None and (warehouse.suspend or topic.paused):
        loaded = Condition(LOADED, None, "Suspended", "Loads of this topic are suspended.")
    elif last is None:
        loaded = Condition(
            LOADED, None, "NoLoadYet", f"The first load begins by the schedule {warehouse.schedule!r}."
        )
    elif last["succeeded"]:
        loaded = Condition(LOADED, True, "LoadSucceeded", last["message"])
    else:
        loaded = Condition(LOADED, False, "LoadFailed", last["message"])
    limit_s = warehouse.fresh_within_seconds
    if limit_s is None:
        return [loaded]
    up_to = loaded_up_to(known, present)
    if up_to is None:
        return [loaded, Condition("Fresh", None, "NoLoadYet")]
    age_s = (now - moment(up_to)).total_seconds()
    if age_s <= limit_s:
        return [loaded, Condition("Fresh", True, "LoadedRecently", f"Everything up to {up_to} is loaded.")]
    late = f"Records are loaded only up to {up_to}, more than {limit_s} s ago."
    return [loaded, Condition("Fresh", False, "TooOld", late)]


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


def retention_condition(topic: TopicSpec, status: Object, runs: Iterable[Run]) -> Condition | None:
    """KeptUntilLoaded: no record is deleted before it is loaded, up to a limit; None if retention does not
    wait for loads.

    What the limit deleted is a gap, which the next load reports: it fails, or loads what is behind the gap.
    The condition is false until a load reads records without a gap.

    Args:
        status: of the Topic. Its condition says what is known of runs whose Jobs are gone, and which runs it
            was made of: Jobs that failed are kept for longer than others.
    """
    if topic.warehouse is None or topic.warehouse.until_loaded is None:
        return None
    limit_bytes = topic.warehouse.until_loaded.limit_bytes
    present: Object = next(
        (item for item in status.get("conditions") or () if item.get("type") == KEPT_UNTIL_LOADED), {}
    )
    lost = str(present.get("message", "")) if present.get("status") == "False" else ""
    judged = moment_noted(present.get("lastTransitionTime"))
    ended = [(run.finished, run) for run in runs if run.finished is not None]
    for finished, run in sorted(ended, key=lambda pair: pair[0]):
        if judged is None or finished >= judged:
            lost = _lost_in(summary_of(run.message), limit_bytes, lost)
    if lost:
        return Condition(KEPT_UNTIL_LOADED, False, "RecordsDeleted", lost)
    return Condition(
        KEPT_UNTIL_LOADED,
        True,
        "RetentionWaits",
        f"Records are kept until they are loaded, and at most {limit_bytes} bytes of each partition.",
    )


def _lost_in(summary: Mapping[str, Any], limit_bytes: int, before: str) -> str:
    """What was deleted before it was loaded, as this run says, or as `before` if it says nothing."""
    deleted = ""
    if gap := summary.get("gapRecords"):
        deleted = f"{gap} offsets were deleted before they were loaded."
    elif LOST_OFFSETS in str(summary.get("error", "")):
        deleted = str(summary["error"])
    if deleted:
        return (
            f"A partition has reached the limit of {limit_bytes} bytes. {deleted} Raise"
            " spec.warehouse.retentionLimit, or load more often."
        )
    return "" if summary.get("read") else before


def summary_of(message: str) -> Mapping[str, Any]:
    """What the loader left behind, as JSON; empty if it is something else."""
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(run: Run, summary: Mapping[str, Any]) -> str:
    if "error" in summary:
        return str(summary["error"])
    if run.succeeded and "loaded" in summary:
        rejected = summary.get("deadLettered") or 0
        more = f", {rejected} to the dead letters" if rejected else ""
        gap = summary.get("gapRecords") or 0
        expired = f" {gap} offsets were deleted before they were loaded." if gap else ""
        return f"{summary.get('rows', summary['loaded'])} rows loaded{more}.{expired}"
    return run.message[-500:]
