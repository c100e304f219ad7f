"""The resident loader of a BrokerCluster: one pod that keeps the tables of all Topics with `freshness` fresh.
Pure.

Its pod reads a ConfigMap that names the topics, with the arguments that a scheduled load would have, and
serves a page with the state of each. Kubernetes starts no second pod of a StatefulSet before the first is
gone; were there two, or a scheduled load beside it, the commits of tables let only one of them bring each
record. So the pod may be killed and replaced at any time.

The StatefulSet stays without pods when no Topic needs it, for the operator may not delete StatefulSets.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Images, WarehouseLocation
from mainstem_operator.api.conditions import FRESH, LOADED, Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import moment_noted, written
from mainstem_operator.api.topics import TopicSpec
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
from mainstem_operator.topics.loads.identity import IDENTITY_MOUNT, identity_volume
from mainstem_operator.topics.loads.plan import (
    CORES,
    TRANSFORM_RESOURCES,
    load_arguments,
    load_pod_metadata,
    store_environment,
)
from mainstem_operator.topics.loads.rejections import Rejection, Rejections, rejections_in
from mainstem_operator.topics.loads.runs import EndedLoad, LoadStatus, rounded_age

CONFIG_FOLDER: Final = "/etc/mainstem/loads"
CONFIG_FILE: Final = "topics.json"
_STOP_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class TopicPage:
    """What the resident loader says of a topic; times are None before its first load.

    Attributes:
        loaded_up_to: the newest time up to which everything is loaded.
        started, finished: of the last load.
        succeeded: whether it went well.
        message: what became of it.
        run_id, rows, rejected: of the last load that brought records.
        last_rejection: None, unless the last load that read records rejected too many.
        read, gap_records: when the last load ended that read records or passed over deleted ones, and how
            many offsets it passed over.
    """

    loaded_up_to: dt.datetime | None
    started: dt.datetime | None
    finished: dt.datetime | None
    succeeded: bool
    message: str
    run_id: str | None
    rows: int
    rejected: int
    last_rejection: Rejection | None = None
    read: dt.datetime | None = None
    gap_records: int = 0


def is_resident(spec: TopicSpec) -> bool:
    """Whether the resident loader loads a Topic."""
    return spec.warehouse is not None and spec.warehouse.freshness_seconds is not None


def resident_manifests(
    topics: Iterable[TopicSpec],
    cluster: ClusterSpec,
    images: Images,
    credentials: Mapping[str, str] | None = None,
    kept: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Manifest]:
    """The ConfigMap and the StatefulSet of the resident loader.

    Args:
        topics: those with `freshness` that can be loaded.
        cluster: with a warehouse.
        images: see there.
        credentials: what the Secret of the warehouse holds. The pod has it in its environment, so another
            content replaces the pod.
        kept: the entries of other Topics, which stay as they are (`kept_entries`). If there are no entries
            at all, there is no pod.
    """
    location = cluster.warehouse
    assert location is not None
    name = names.workload(cluster.name, names.RESIDENT_LOADER)
    entries: dict[str, Any] = dict(kept or {})
    entries |= {
        spec.identity.name: {
            "freshnessSeconds": warehouse.freshness_seconds,
            "arguments": load_arguments(spec, warehouse, location, cluster),
        }
        for spec in sorted(topics, key=lambda one: one.identity.name)
        if (warehouse := spec.warehouse) is not None and not (warehouse.suspend or spec.paused)
    }
    data = {CONFIG_FILE: json.dumps({"topics": entries}, indent=1, sort_keys=True)}
    component = names.RESIDENT_LOADER
    metadata = load_pod_metadata(location, names.labels(cluster.name, component))
    if credentials is not None:  # with the uid, so that equal Secrets elsewhere cannot be found by it
        mark = digest([cluster.identity.uid, dict(credentials)])
        metadata["annotations"] = {**metadata.get("annotations", {}), names.CREDENTIALS_HASH: mark}
    spec: Manifest = {
        "serviceName": names.headless(cluster.name, component),
        "replicas": 1 if entries else 0,
        "podManagementPolicy": "Parallel",  # or a pod that cannot start would hold up its own replacement
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.pod_labels(cluster.name, component)},
        "template": {
            "metadata": metadata,
            "spec": _pod(name, location, cluster, images),
        },
    }
    return [
        manifest("v1", "ConfigMap", cluster, component, name, data=data),
        manifest("apps/v1", "StatefulSet", cluster, component, name, spec=spec),
    ]


def kept_entries(config_map: Object, topics: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """The entries that the resident loader has of these Topics, at which nobody looks now.

    They are not managed, not valid, or something of them is refused. Their loads go on as they are, as the
    CronJobs of scheduled loads do.
    """
    try:
        entries = json.loads((config_map.get("data") or {})[CONFIG_FILE])["topics"]
    except (KeyError, TypeError, ValueError):  # somebody has damaged it
        return {}
    return {
        name: entry
        for name, entry in (entries.items() if isinstance(entries, Mapping) else ())
        if name in topics and isinstance(entry, Mapping) and _are_arguments(entry.get("arguments"))
    }


def _are_arguments(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(item, str) for item in found)


def _pod(name: str, location: WarehouseLocation, cluster: ClusterSpec, images: Images) -> Manifest:
    container: Manifest = {
        "name": names.RESIDENT_LOADER,
        **pulled(images.spark, images),
        "args": ["resident", f"{CONFIG_FOLDER}/{CONFIG_FILE}", "--cores", str(CORES)],
        "env": store_environment(location),
        "ports": [{"name": "http", "containerPort": names.HTTP_PORT}],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": names.HTTP_PORT},
            "initialDelaySeconds": 60,
            "timeoutSeconds": 10,
            "periodSeconds": 30,
            "failureThreshold": 4,
        },
        "resources": location.resident_resources or TRANSFORM_RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "config", "configMap": {"name": name}},
    ]
    if location.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": location.credentials_secret}}]
    if location.volume_claim is not None:
        container["volumeMounts"].append({"name": "warehouse", "mountPath": location.location})
        volumes.append({"name": "warehouse", "persistentVolumeClaim": {"claimName": location.volume_claim}})
    if cluster.security is not None:
        container["volumeMounts"].append(IDENTITY_MOUNT)
        volumes.append(identity_volume(name))
    pod: Manifest = {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
        **placement_beside(cluster.brokers.pod),
    }
    if pull_secrets := pull_secrets_of(cluster.brokers.pod, images):
        pod["imagePullSecrets"] = pull_secrets
    return pod


def pages_of(answer: Any) -> dict[str, TopicPage]:
    """The page of the resident loader, by Topic; empty if it is not of its form."""
    found: dict[str, TopicPage] = {}
    topics = answer.get("topics") if isinstance(answer, Mapping) else None
    for name, page in (topics if isinstance(topics, Mapping) else {}).items():
        try:
            found[str(name)] = TopicPage(
                loaded_up_to=_moment_of(page["loadedUpToMs"]),
                started=_moment_of(page["startedMs"]),
                finished=_moment_of(page["finishedMs"]),
                succeeded=bool(page["succeeded"]),
                message=str(page["message"]),
                run_id=None if page["runId"] is None else str(page["runId"]),
                rows=int(page["rows"]),
                rejected=int(page["rejected"]),
                last_rejection=_rejection_of(page.get("lastRejection")),
                read=_moment_of(page.get("readMs")),
                gap_records=int(page.get("gapRecords", 0)),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found


def _rejection_of(page: Any) -> Rejection | None:
    if page is None:
        return None
    at = dt.datetime.fromtimestamp(int(page["atMs"]) / 1000, dt.UTC)
    return Rejection(at, str(page["runId"]), int(page["read"]), int(page["rejected"]))


def resident_loads(page: TopicPage | None) -> list[EndedLoad]:
    """The loads on a page, as far as they say whether records were deleted before they were loaded."""
    found: list[EndedLoad] = []
    if page is not None and page.read is not None:
        found.append((page.read, {"read": True, "gapRecords": page.gap_records}))
    if page is not None and page.finished is not None and not page.succeeded:
        found.append((page.finished, {"error": page.message}))
    return found


def resident_rejections(present: Mapping[str, Any], page: TopicPage | None) -> Rejections:
    """What is known of loads that rejected too many records.

    A loader that has just started knows of no load, so what the status says counts until one has read
    records. While loads go on rejecting, the first of them is kept: each write of a status goes to all who
    watch.
    """
    known = rejections_in(present)
    if page is None or page.run_id is None:
        return known
    if page.last_rejection is None:
        return Rejections(known.last, False)
    return known if known.counts else Rejections(page.last_rejection, True)


def resident_status(
    spec: TopicSpec, present: Mapping[str, Any], page: TopicPage | None, trouble: str, now: dt.datetime
) -> LoadStatus:
    """What a Topic's status says of the resident loader's loads.

    Loads succeed every few seconds, and each write of a status goes to all who watch. So what they report is
    written when it says something else, or is older than the freshness.

    Args:
        spec: with `freshness`.
        present: the Topic's status.
        page: None while the resident loader does not answer.
        trouble: why its pod cannot start, if it cannot.
        now: the time.
    """
    warehouse = spec.warehouse
    assert warehouse is not None and warehouse.freshness_seconds is not None
    limit = dt.timedelta(seconds=warehouse.freshness_seconds)
    known = moment_noted(present.get("loadedUpTo"))
    # Earlier than what is known after a rewind: what is loaded again is not in the table until then.
    newest = known if page is None or page.loaded_up_to is None else page.loaded_up_to
    last_load, last_good_load = present.get("lastLoad"), present.get("lastGoodLoad")
    is_worth_a_write = newest is not None and (known is None or newest < known or newest - known >= limit)
    if page is not None and page.finished is not None:
        said = (last_load or {}).get("succeeded"), (last_load or {}).get("message")
        is_news = said[0] != page.succeeded or (not page.succeeded and said[1] != page.message)
        if is_news or is_worth_a_write:
            is_worth_a_write = True
            last_load = _last_load(page)
            last_good_load = written(page.finished) if page.succeeded else last_good_load
    up_to = newest if newest is not None and is_worth_a_write else known
    age_seconds = None if newest is None else max(int((now - newest).total_seconds()), 0)
    return LoadStatus(
        last_load,
        last_good_load,
        None if up_to is None else written(up_to),
        [_loaded(spec, page, trouble), _fresh(warehouse.freshness_seconds, newest, age_seconds)],
        freshness_seconds=None if newest is None else rounded_age(newest, warehouse.freshness_seconds, now),
        newest=newest,
    )


def _loaded(spec: TopicSpec, page: TopicPage | None, trouble: str) -> Condition:
    warehouse = spec.warehouse
    assert warehouse is not None
    if trouble:
        return Condition(LOADED, False, "LoadCannotStart", f"The resident loader can't start. {trouble}")
    if warehouse.suspend or spec.paused:
        return Condition(LOADED, None, "Suspended", "Loads of this topic are suspended.")
    if page is None:
        return Condition(LOADED, None, "LoaderNotReady", "The resident loader does not answer yet.")
    if page.finished is None:
        return Condition(LOADED, None, "NoLoadYet", "The first load has not ended.")
    if page.succeeded:
        return Condition(LOADED, True, "LoadSucceeded", "The resident loader loads the topic.")
    return Condition(LOADED, False, "LoadFailed", page.message)


def _fresh(limit_seconds: int, newest: dt.datetime | None, age_seconds: int | None) -> Condition:
    if newest is None or age_seconds is None:
        return Condition(FRESH, None, "NoLoadYet")
    if age_seconds <= limit_seconds:
        return Condition(FRESH, True, "LoadedRecently", f"Records are loaded within {limit_seconds} s.")
    return Condition(
        FRESH, False, "TooOld", f"Records are not loaded within {limit_seconds} s; see loadedUpTo."
    )


def _last_load(page: TopicPage) -> dict[str, Any]:
    found = {
        "runId": page.run_id,
        "started": None if page.started is None else written(page.started),
        "finished": None if page.finished is None else written(page.finished),
        "succeeded": page.succeeded,
        "rows": page.rows,
        "rejected": page.rejected,
        "message": page.message,
    }
    return {name: value for name, value in found.items() if value is not None}


def _moment_of(time_ms: Any) -> dt.datetime | None:
    return None if time_ms is None else dt.datetime.fromtimestamp(int(time_ms) / 1000, dt.UTC)
