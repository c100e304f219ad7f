"""The maintenance of a Topic's table: a CronJob that merges its small files and deletes old ones. Pure.

It runs beside loads and requests of the same table, of which none waits for the other
(`mainstem_loader.maintain_table`), and asks no broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem_operator.api.clusters import ClusterSpec, Images
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.kubernetes.manifests import Manifest
from mainstem_operator.proofs import Refusal
from mainstem_operator.topics.loads.plan import cron_job_of, load_refusal, maintenance_name
from mainstem_operator.topics.loads.runs import Run, summary_of

MAINTAINED: Final = "Maintained"


def maintenance_manifest(topic: TopicSpec, cluster: ClusterSpec, images: Images) -> Manifest | None:
    """The CronJob that maintains a Topic's table; None if it has none, or cannot be loaded."""
    warehouse = topic.warehouse
    if warehouse is None or warehouse.maintenance is None or load_refusal(topic, cluster) is not None:
        return None
    keep_hours = str(warehouse.maintenance.keep_files_hours)
    cron_job = cron_job_of(
        maintenance_name(topic.identity.name),
        topic,
        cluster,
        images,
        warehouse.maintenance.schedule,
        ["--maintain", "--sweep-orphans-after-hours", keep_hours],
        suspend=warehouse.suspend or topic.paused,
    )
    if warehouse.time_zone is not None:
        cron_job["spec"]["timeZone"] = warehouse.time_zone
    return cron_job


def maintenance_condition(outcome: Refusal | Manifest, runs: Sequence[Run]) -> Condition:
    """Maintained: the last maintenance went well. `outcome` is the CronJob, or why Kubernetes refuses it."""
    if isinstance(outcome, Refusal):
        return Condition(MAINTAINED, False, "CannotMaintain", outcome.reason)
    stuck = next((run for run in runs if run.trouble), None)
    if stuck is not None:
        return Condition(
            MAINTAINED,
            False,
            "MaintenanceLost" if stuck.is_lost else "MaintenanceCannotStart",
            stuck.words(),
        )
    ended = [run for run in runs if run.finished is not None]
    if not ended:
        schedule = outcome["spec"]["schedule"]
        return Condition(MAINTAINED, None, "NoMaintenanceYet", f"The first one begins by {schedule!r}.")
    run = max(ended, key=lambda one: one.started)
    summary = summary_of(run.message)
    if run.succeeded:
        return Condition(MAINTAINED, True, "MaintenanceSucceeded", _sentence(run, summary))
    return Condition(MAINTAINED, False, "MaintenanceFailed", str(summary.get("error") or run.message[-500:]))


def _sentence(run: Run, summary: Mapping[str, Any]) -> str:
    if "filesBefore" not in summary:
        return run.message[-500:]
    merged = f"{summary['filesBefore']} files of {summary['days']} days merged into {summary['filesAfter']}"
    return f"{merged}, {summary['filesDeleted']} old files deleted."
