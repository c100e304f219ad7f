"""Runs of loads: Jobs as values, and what the status of a Topic says of them. Pure."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api.conditions import FRESH, LOADED, Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import moment, moment_noted, written
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.proofs import Refusal

CANNOT_LOAD: Final = "CannotLoad"
KEPT_UNTIL_LOADED: Final = "KeptUntilLoaded"
LOST_OFFSETS: Final = "were deleted before"
"""In the words of a load that fails for it (`mainstem_loader.ranges`)."""
SILENCE: Final = dt.timedelta(minutes=10)
"""In which most images have been pulled."""
NO_POD: Final = dt.timedelta(minutes=1)


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
    words; `succeeded` None while it goes on; `trouble` why its pod can't start, if it can't, or, if it
    `is_lost`, does not end.
    """

    job: str
    started: dt.datetime
    finished: dt.datetime | None
    succeeded: bool | None
    message: str
    trouble: str = ""
    is_lost: bool = False

    def words(self) -> str:
        """The trouble, and what it is about."""
        what = f"{self.job} does not end." if self.is_lost else f"The pod of {self.job} can't start."
        return f"{what} {self.trouble}"


EndedLoad = tuple[dt.datetime, Mapping[str, Any]]
"""When a load ended, and its summary, as of the loader."""


def run_of(job: Object, message: str, trouble: str = "", *, is_lost: bool = False) -> Run:
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
        is_lost=is_lost and outcome is None,
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
        loaded = Condition(LOADED, False, "LoadLost" if stuck.is_lost else "LoadCannotStart", stuck.words())
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
        return [loaded, Condition(FRESH, None, "NoLoadYet")]
    age_s = (now - moment(up_to)).total_seconds()
    if age_s <= limit_s:
        return [loaded, Condition(FRESH, True, "LoadedRecently", f"Everything up to {up_to} is loaded.")]
    late = f"Records are loaded only up to {up_to}, more than {limit_s} s ago."
    return [loaded, Condition(FRESH, False, "TooOld", late)]


def ended_loads(runs: Iterable[Run]) -> list[EndedLoad]:
    """What loads have left behind that have ended."""
    return [(run.finished, summary_of(run.message)) for run in runs if run.finished is not None]


def retention_condition(topic: TopicSpec, status: Object, loads: Iterable[EndedLoad]) -> Condition | None:
    """KeptUntilLoaded: no record is deleted before it is loaded, up to a limit; None if retention does not
    wait for loads.

    What the limit deleted is a gap, which the next load reports: it fails, or loads what is behind the gap.
    The condition is false until a load reads records without a gap.

    Args:
        status: of the Topic. Its condition says what is known of loads whose Jobs are gone, and which loads
            it was made of: Jobs that failed are kept for longer than others.
        loads: those that are known.
    """
    if topic.warehouse is None or topic.warehouse.until_loaded is None:
        return None
    limit_bytes = topic.warehouse.until_loaded.limit_bytes
    present: Object = next(
        (item for item in status.get("conditions") or () if item.get("type") == KEPT_UNTIL_LOADED), {}
    )
    lost = str(present.get("message", "")) if present.get("status") == "False" else ""
    judged = moment_noted(present.get("lastTransitionTime"))
    for finished, summary in sorted(loads, key=lambda pair: pair[0]):
        if judged is None or finished >= judged:
            lost = _lost_in(summary, limit_bytes, lost)
    if lost:
        return Condition(KEPT_UNTIL_LOADED, False, "RecordsDeleted", lost)
    return Condition(
        KEPT_UNTIL_LOADED,
        True,
        "RetentionWaits",
        f"Records are kept until they are loaded, and at most {limit_bytes} bytes of each partition.",
    )


def _lost_in(summary: Mapping[str, Any], limit_bytes: int, before: str) -> str:
    """What was deleted before it was loaded, as this load says, or as `before` if it says nothing."""
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
