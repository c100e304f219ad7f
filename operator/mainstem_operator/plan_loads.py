"""The loads of a Topic: a CronJob whose pod is the Spark driver, and what came of its runs. Pure.

A load is safe to kill, to repeat and to run twice (`mainstem_loader`), so the CronJob needs no care but
`Forbid`, which saves work. Executors are made by the driver itself, with the rights of the Cluster's service
account for loads; when they are not worth their start, the driver's pod does it all.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator import names
from mainstem_operator.conditions import Condition
from mainstem_operator.fields import Object
from mainstem_operator.manifests import CONTAINER_SECURITY, POD_SECURITY, Manifest, digest, manifest
from mainstem_operator.observed import moment, written
from mainstem_operator.proofs import Refusal
from mainstem_operator.resources import ClusterSpec, Images, TopicSpec, WarehouseLocation, WarehouseSpec

LOADED: Final = "Loaded"
EXECUTORS_MAX: Final = 4
"""Of a Topic that says `auto`."""
CORES: Final = 2
DEFAULT_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "250m", "memory": "1Gi"},
    "limits": {"memory": "3Gi"},  # Java's heap, and what two tasks keep of the days they write
}
START_WITHIN_S: Final = 300
TRIES_MAX: Final = 2
RUN_SECONDS_MAX: Final = 6 * 3600
HISTORY: Final = 3
_RBAC: Final = "rbac.authorization.k8s.io"
_CRON_JOB_NAME_MAX: Final = 52  # Kubernetes appends eleven characters to make the names of Jobs


def load_name(topic: str) -> str:
    """The CronJob of the Topic object of that name."""
    name = f"{topic}-load"
    return name if len(name) <= _CRON_JOB_NAME_MAX else f"{topic[:30].rstrip('-.')}-{digest(topic)}-load"


def loader_rights(cluster: ClusterSpec) -> list[Manifest]:
    """The service account of all loads of a Cluster: it may make executors, and nothing else."""
    name = names.workload(cluster.name, names.LOADER)
    rights = {
        "apiGroups": [""],
        "resources": ["pods", "configmaps", "services", "persistentvolumeclaims"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete", "deletecollection"],
    }
    account = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}

    def made(api_version: str, kind: str, **body: Any) -> Manifest:
        return manifest(api_version, kind, cluster, names.LOADER, name, **body)

    return [
        made("v1", "ServiceAccount", automountServiceAccountToken=False),
        made(f"{_RBAC}/v1", "Role", rules=[rights]),
        made(
            f"{_RBAC}/v1",
            "RoleBinding",
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": name},
            subjects=[account],
        ),
    ]


def load_manifest(topic: TopicSpec, cluster: ClusterSpec, images: Images) -> Manifest | Refusal | None:
    """The CronJob of a Topic; None if it has no warehouse, or why there can be none."""
    warehouse, location = topic.warehouse, cluster.warehouse
    if warehouse is None:
        return None
    if location is None:
        return Refusal(
            f"Cluster {cluster.name} has no spec.warehouse: say there where tables are to lie, or take"
            " spec.warehouse out of this Topic."
        )
    labels = {**names.labels(cluster.name, names.LOADER), names.TOPIC_LABEL: load_name(topic.identity.name)}
    pod = _pod(topic, warehouse, location, cluster, images)
    spec: Manifest = {
        "schedule": warehouse.schedule,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": START_WITHIN_S,
        "suspend": warehouse.suspend or topic.paused,
        "successfulJobsHistoryLimit": HISTORY,
        "failedJobsHistoryLimit": HISTORY,
        "jobTemplate": {
            "metadata": {"labels": labels},
            "spec": {
                "backoffLimit": TRIES_MAX,
                "activeDeadlineSeconds": RUN_SECONDS_MAX,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    }
    if warehouse.time_zone is not None:
        spec["timeZone"] = warehouse.time_zone
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": load_name(topic.identity.name),
            "namespace": topic.identity.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "Topic",
                    "name": topic.identity.name,
                    "uid": topic.identity.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _pod(
    topic: TopicSpec,
    warehouse: WarehouseSpec,
    location: WarehouseLocation,
    cluster: ClusterSpec,
    images: Images,
) -> Manifest:
    # A volume is on one node; executors elsewhere could not write there.
    executors = 0 if location.volume_claim else _executors(warehouse)
    container: Manifest = {
        "name": names.LOADER,
        "image": images.spark,
        "args": ["load", *_arguments(topic, warehouse, location, cluster, executors)],
        "env": _environment(location, images, executors),
        "resources": warehouse.resources or DEFAULT_RESOURCES,
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
    pod: Manifest = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "serviceAccountName": names.workload(cluster.name, names.LOADER),
        "automountServiceAccountToken": executors > 0,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }
    if cluster.brokers.pod.image_pull_secrets:
        pod["imagePullSecrets"] = list(cluster.brokers.pod.image_pull_secrets)
    return pod


def _executors(warehouse: WarehouseSpec) -> int:
    return EXECUTORS_MAX if warehouse.executors is None else warehouse.executors


def _arguments(
    topic: TopicSpec,
    warehouse: WarehouseSpec,
    location: WarehouseLocation,
    cluster: ClusterSpec,
    executors: int,
) -> list[str]:
    servers = names.bootstrap_servers(cluster.name, cluster.namespace)
    found = [topic.topic, "--bootstrap-servers", servers, "--warehouse", location.location]
    found += ["--table", warehouse.table, "--payload", warehouse.format, "--cores", str(CORES)]
    for field, kind in sorted(warehouse.columns.items()):
        found += ["--column", f"{field}={kind}"]
    if warehouse.event_time is not None:
        found += ["--event-time", warehouse.event_time]
    if warehouse.headers:
        found.append("--headers")
    if warehouse.dead_letter_table is not None:
        found += ["--dead-letter-table", warehouse.dead_letter_table]
    if warehouse.on_gap == "skip":
        found += ["--on-gap", "skip-and-record"]
    if warehouse.max_records is not None:
        found += ["--max-records", str(warehouse.max_records)]
    if executors:
        found += ["--executors", str(executors)]
        if warehouse.executors is not None:
            found += ["--records-per-executor", "1"]  # a number is a wish, not a bound
    return [*found, "--summary-file", "/dev/termination-log"]


def _environment(location: WarehouseLocation, images: Images, executors: int) -> list[Manifest]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    values: dict[str, str] = {}
    if location.volume_claim is None:
        values["AWS_REGION"] = location.region
        if location.endpoint is not None:
            values["AWS_ENDPOINT_URL"] = location.endpoint
    if executors:
        values["SPARK_IMAGE"] = images.spark
        if location.credentials_secret is not None:
            values["EXECUTOR_SECRET"] = location.credentials_secret
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in sorted(values.items())),
    ]


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """What a Topic's status says of its loads; None is left out."""

    last_load: Mapping[str, Any] | None
    last_good_load: str | None
    conditions: Sequence[Condition]


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
    summary = _summary(run.message)
    found = {
        "job": run.job,
        "runId": summary.get("runId"),
        "started": written(run.started),
        "finished": None if run.finished is None else written(run.finished),
        "succeeded": bool(run.succeeded),
        "rows": summary.get("loaded"),
        "rejected": summary.get("deadLettered"),
        "message": _sentence(run, summary),
    }
    return {name: value for name, value in found.items() if value is not None}


def last_good_load(runs: Iterable[Run], present: str | None) -> str | None:
    """When a load last ended well; `present` is what the status says, for Jobs are not kept for ever."""
    ends = [run.finished for run in runs if run.succeeded and run.finished is not None]
    if present is not None:
        ends.append(moment(present))
    return written(max(ends)) if ends else None


def load_conditions(
    topic: TopicSpec, refusal: Refusal | None, runs: Iterable[Run], present: str | None, now: dt.datetime
) -> list[Condition]:
    """Loaded: the last load went well. Fresh: it is not too long ago."""
    warehouse = topic.warehouse
    if warehouse is None:
        return []
    if refusal is not None:
        return [Condition(LOADED, False, "CannotLoad", refusal.reason)]
    known = list(runs)
    last = last_load(known)
    stuck = next((run for run in known if run.trouble), None)
    if stuck is not None:
        text = f"The pod of {stuck.job} can't start. {stuck.trouble}"
        loaded = Condition(LOADED, False, "LoadCannotStart", text)
    elif last is None:
        loaded = Condition(LOADED, None, "NoLoadYet", f"The first one begins by {warehouse.schedule!r}.")
    elif last["succeeded"]:
        loaded = Condition(LOADED, True, "LoadSucceeded", last["message"])
    else:
        loaded = Condition(LOADED, False, "LoadFailed", last["message"])
    limit_s = warehouse.fresh_within_seconds
    if limit_s is None:
        return [loaded]
    good = last_good_load(known, present)
    if good is None:
        return [loaded, Condition("Fresh", None, "NoLoadYet")]
    age_s = (now - moment(good)).total_seconds()
    if age_s <= limit_s:
        return [loaded, Condition("Fresh", True, "LoadedRecently", f"The last good load ended {good}.")]
    late = f"The last good load ended {good}, more than {limit_s} s ago."
    return [loaded, Condition("Fresh", False, "TooOld", late)]


def _summary(message: str) -> Mapping[str, Any]:
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
        return f"{summary['loaded']} rows loaded{more}."
    return run.message[-500:]
