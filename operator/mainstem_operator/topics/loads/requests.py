"""Requests of a Topic to load again: backfill, rewind, replay of dead letters; each happens once. Pure.

A request is a CronJob that runs each minute until a run succeeds, and is then deleted. The table itself
remembers which requests were carried out, in the commit that does so (`mainstem_loader.rewrite_rows`). So
a request is done once even if a run is repeated, its outcome is lost, the status is lost, or the Topic is
restored from a copy. What the status says only spares runs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api.clusters import ClusterSpec, Images
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.topics import LoadRequest, TopicSpec
from mainstem_operator.kubernetes.manifests import Manifest
from mainstem_operator.proofs import Refusal
from mainstem_operator.topics.loads.plan import cron_job_of, load_refusal, request_name
from mainstem_operator.topics.loads.runs import Run, summary_of

LOADED_AGAIN: Final = "LoadedAgain"
_EVERY_MINUTE: Final = "* * * * *"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What the status says of a request. `succeeded` is None until a run has ended."""

    field: str
    request_id: str
    succeeded: bool | None
    message: str
    finished: dt.datetime | None = None

    def status(self) -> dict[str, Any]:
        """The entry of `status.loadRequests`."""
        found = {
            "field": self.field,
            "requestId": self.request_id,
            "succeeded": self.succeeded,
            "message": self.message,
            "finished": None if self.finished is None else written(self.finished),
        }
        return {name: value for name, value in found.items() if value is not None}


def is_done(request: LoadRequest, status: Object) -> bool:
    """Whether the status says that a request has succeeded."""
    return any(
        entry.get("field") == request.field
        and entry.get("requestId") == request.request_id
        and entry.get("succeeded") is True
        for entry in status.get("loadRequests") or ()
    )


def request_manifest(
    request: LoadRequest, topic: TopicSpec, cluster: ClusterSpec, images: Images
) -> Manifest | Refusal:
    """The CronJob that carries a request out, or why there can be none."""
    refusal = load_refusal(topic, cluster)
    if refusal is not None:
        return refusal
    name = request_name(topic.identity.name, request.field, request.request_id)
    # With the sign between: an id may begin with a dash.
    arguments = [f"--rewrite={request.kind}", f"--request-id={request.request_id}", *request.arguments]
    return cron_job_of(name, topic, cluster, images, _EVERY_MINUTE, arguments, suspend=topic.paused)


def outcome_of(request: LoadRequest, runs: Sequence[Run]) -> RequestOutcome:
    """What became of a request that the status does not say is done."""
    ended = [run for run in runs if run.finished is not None]
    succeeded = [run for run in ended if run.succeeded]
    if not ended:
        stuck = next((run.words() for run in runs if run.trouble), "")
        message = stuck or "It begins within a minute or two."
        return RequestOutcome(request.field, request.request_id, None, message)
    run = max(succeeded or ended, key=lambda one: one.started)
    return RequestOutcome(
        request.field, request.request_id, bool(run.succeeded), _sentence(run), run.finished
    )


def _sentence(run: Run) -> str:
    summary = summary_of(run.message)
    if "error" in summary:
        return str(summary["error"])
    if not run.succeeded or "loaded" not in summary:
        return run.message[-500:]
    if summary.get("repeated"):
        return "It was carried out before."
    removed = f"{summary['removed']} rows removed, " if summary.get("removed") else ""
    rejected = f", {summary['deadLettered']} to the dead letters" if summary.get("deadLettered") else ""
    return f"{removed}{summary['loaded']} records loaded{rejected}."


def done_before(request: LoadRequest, status: Object) -> dict[str, Any]:
    """The entry of a request that is done, as the status has it."""
    return next(
        dict(entry)
        for entry in status["loadRequests"]
        if entry.get("field") == request.field and entry.get("requestId") == request.request_id
    )


def request_condition(entries: Sequence[Mapping[str, Any]]) -> Condition | None:
    """Whether all requests were carried out; None if there are none."""
    if not entries:
        return None
    failed = [entry for entry in entries if entry.get("succeeded") is False]
    if failed:
        return Condition(
            LOADED_AGAIN, False, "RequestFailed", f"{failed[0]['field']}: {failed[0]['message']}"
        )
    waiting = [entry for entry in entries if entry.get("succeeded") is None]
    if waiting:
        return Condition(
            LOADED_AGAIN, None, "RequestPending", f"{waiting[0]['field']}: {waiting[0]['message']}"
        )
    return Condition(LOADED_AGAIN, True, "RequestDone", f"{entries[-1]['field']}: {entries[-1]['message']}")
