"""Bringing the loads of Topics about: applies CronJobs, reads what came of their runs. Decides nothing.

Kubernetes is asked about loads only where a Topic has, or had, a warehouse.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from mainstem_operator import names
from mainstem_operator.context import Context
from mainstem_operator.fields import InvalidSpec, Object
from mainstem_operator.kube import Refused
from mainstem_operator.observed import trouble_of
from mainstem_operator.plan_loads import (
    LOADED,
    LoadStatus,
    Run,
    last_good_load,
    last_load,
    load_conditions,
    load_manifest,
    load_name,
    loader_rights,
    run_of,
)
from mainstem_operator.proofs import Refusal
from mainstem_operator.resources import ClusterSpec, TopicSpec, cluster_of

_JOB_LABEL = "batch.kubernetes.io/job-name"


async def bring_about_loads(
    context: Context, there: Object, pairs: Sequence[tuple[TopicSpec, Object]]
) -> dict[tuple[str, str], LoadStatus]:
    """The loads of those Topics of a Cluster that have a warehouse, or had one.

    Args:
        there: the Cluster.
        pairs: Topics that are not being deleted, and their statuses.
    """
    concerned = [(spec, status) for spec, status in pairs if spec.warehouse is not None or _had_loads(status)]
    if not concerned:
        return {}
    try:
        cluster = cluster_of(there)
    except InvalidSpec:
        return {}  # the Cluster says so itself
    loads = _Loads(context, cluster)
    await loads.read()
    return {spec.identity.key: await loads.bring_about(spec, status) for spec, status in concerned}


def _had_loads(status: Object) -> bool:
    return any(item["type"] == LOADED for item in status.get("conditions") or ())


class _Loads:
    """The loads of one Cluster, as they are now."""

    def __init__(self, context: Context, cluster: ClusterSpec) -> None:
        self._context = context
        self._cluster = cluster
        self._cron_jobs: dict[str, Object] = {}
        self._runs: dict[str, list[Run]] = {}
        self._has_rights = False

    async def read(self) -> None:
        kube, namespace = self._context.kube, self._cluster.namespace
        labels = names.pod_labels(self._cluster.name, names.LOADER)
        cron_jobs = await kube.find("batch/v1", "CronJob", namespace, labels)
        # The items of a list do not say what they are.
        self._cron_jobs = {
            found["metadata"]["name"]: {**found, "apiVersion": "batch/v1", "kind": "CronJob"}
            for found in cron_jobs
        }
        last: dict[str, Object] = {}
        for pod in await kube.find("v1", "Pod", namespace, labels):
            job = pod["metadata"]["labels"].get(_JOB_LABEL, "")
            if (
                job not in last
                or last[job]["metadata"]["creationTimestamp"] <= pod["metadata"]["creationTimestamp"]
            ):
                last[job] = pod
        for job in await kube.find("batch/v1", "Job", namespace, labels):
            load = job["metadata"]["labels"].get(names.TOPIC_LABEL, "")
            pod = last.get(job["metadata"]["name"], {})
            self._runs.setdefault(load, []).append(run_of(job, _message_of(pod), _trouble_of(pod)))

    async def bring_about(self, spec: TopicSpec, status: Object) -> LoadStatus:
        name = load_name(spec.identity.name)
        live = self._cron_jobs.get(name)
        wanted = load_manifest(spec, self._cluster, self._context.images)
        if isinstance(wanted, Mapping):
            try:
                await self._give_rights()
                await self._context.kube.apply(wanted, live)
            except Refused as error:
                if not error.by_content:
                    raise
                wanted = Refusal(f"Kubernetes refuses the CronJob of its loads: {error}")
        elif live is not None:
            await self._context.kube.delete_owned(live)
        refusal = wanted if isinstance(wanted, Refusal) else None
        runs, good = self._runs.get(name, []), status.get("lastGoodLoad")
        if spec.warehouse is None:
            return LoadStatus(None, None, ())
        return LoadStatus(
            last_load(runs) or status.get("lastLoad"),
            last_good_load(runs, good),
            load_conditions(spec, refusal, runs, good, dt.datetime.now(dt.UTC)),
        )

    async def _give_rights(self) -> None:
        """The service account of loads, once a look."""
        if self._has_rights:
            return
        for wanted in loader_rights(self._cluster):
            metadata = wanted["metadata"]
            live = await self._context.kube.get(
                wanted["apiVersion"], wanted["kind"], metadata["namespace"], metadata["name"]
            )
            await self._context.kube.apply(wanted, live)
        self._has_rights = True


def _trouble_of(pod: Object) -> str:
    """Why the pod's container can't start, in Kubernetes' words."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or "")
    return trouble_of(status)


def _message_of(pod: Object) -> str:
    """What the pod's container left behind when it ended."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if "message" in ended:
            return str(ended["message"])
    return ""
