"""Which Jobs, pods and CronJobs of loads are outdated, gone or orphaned. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mainstem_operator.api import names
from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import annotations_of
from mainstem_operator.snapshot import belongs_to, is_orphan
from mainstem_operator.topics.loads.plan import load_name, maintenance_name, request_names


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
        cron_jobs: all with the labels of its loads. Anybody can set labels, so only those it controls count,
            and those that one of its name has left behind.
        topics: all Topics that name it.
    """
    loads = _names_of(topic for topic in topics if not topic["metadata"].get("deletionTimestamp"))
    return [
        item
        for item in cron_jobs
        if belongs_to(item, cluster_uid, {}) and not is_copy(item) and item["metadata"]["name"] not in loads
    ]


def is_copy(cron_job: Object) -> bool:
    """Whether somebody has copied a CronJob of ours, with labels and owner, under another name."""
    metadata = cron_job["metadata"]
    made_as: str | None = (metadata.get("labels") or {}).get(names.TOPIC_LABEL)
    return made_as is not None and made_as != metadata["name"]


def orphaned_loads(cron_jobs: Iterable[Object]) -> list[Object]:
    """The CronJobs that begin runs though nobody owns them.

    `kubectl delete --cascade=orphan` of a BrokerCluster leaves them, and the next one takes them back.

    Args:
        cron_jobs: all with the labels of its loads. A copy has these too, but another name.
    """
    return [
        item
        for item in cron_jobs
        if is_orphan(item) and not is_copy(item) and not item["spec"].get("suspend")
    ]


def _names_of(topics: Iterable[Object]) -> set[str]:
    """The CronJobs that these Topics may have."""
    loads: set[str] = set()
    for topic in topics:
        name = topic["metadata"]["name"]
        loads |= {load_name(name), maintenance_name(name), *request_names(topic)}
    return loads
