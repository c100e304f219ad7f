"""ConsumerGroups as values, read from their objects. Pure.

Defaults are those of `crds/`, so that manifests read the same with and without an API server.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final, Literal, cast

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.objects import INT64_MAX, Identity, annotated, identity_of, text_in

ResetTo = Literal["earliest", "latest", "datetime", "offset", "shift", "undo"]


@dataclass(frozen=True, slots=True)
class ResetSpec:
    """Where offsets are to be put; `topics` empty means all that the group has offsets of."""

    request_id: str
    to: ResetTo
    timestamp_ms: int | None
    offset: int | None
    shift_by: int | None
    topics: tuple[str, ...]
    wait_for_empty: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class GroupSpec:
    identity: Identity
    cluster: str
    group: str
    max_lag: int | None
    max_lag_seconds: int | None
    reset: ResetSpec | None
    paused: bool


def group_of(manifest: Object) -> GroupSpec:
    """The ConsumerGroup in `manifest`.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    identity, spec = identity_of(manifest), Fields(manifest.get("spec"), "spec")
    return GroupSpec(
        identity=identity,
        cluster=spec.inner("clusterRef").text("name"),
        group=spec.text_or_none("groupId") or identity.name,
        max_lag=spec.integer_or_none("maxLag", 0, INT64_MAX),
        max_lag_seconds=spec.integer_or_none("maxLagSeconds", 1, 31_536_000),
        reset=_reset(spec.inner("reset")) if spec.has("reset") else None,
        paused=annotated(manifest, names.PAUSE),
    )


def claim_of_group(manifest: Object) -> GroupSpec:
    """What a ConsumerGroup claims whose manifest is not valid: see `claim_of_topic`."""
    return GroupSpec(
        identity=identity_of(manifest),
        cluster=text_in(manifest, "clusterRef", "name") or "",
        group=text_in(manifest, "groupId") or manifest["metadata"]["name"],
        max_lag=None,
        max_lag_seconds=None,
        reset=None,
        paused=True,
    )


_RESET_ARGUMENTS: Final = {"datetime": "datetime", "offset": "offset", "shift": "shiftBy"}


def _reset(reset: Fields) -> ResetSpec:
    to = reset.choice("to", ("earliest", "latest", "datetime", "offset", "shift", "undo"))
    for kind, argument in _RESET_ARGUMENTS.items():
        if (to == kind) != reset.has(argument):
            raise InvalidSpec(
                f"spec.reset.to: {kind} needs {argument}." if to == kind
                else f"spec.reset.{argument} goes with to: {kind} only."
            )  # fmt: skip
    topics = reset.texts("topics")
    if to == "undo" and topics:
        raise InvalidSpec("spec.reset.to: undo puts back all that the last reset changed: leave out topics.")
    moment = reset.text_or_none("datetime")
    return ResetSpec(
        request_id=reset.text("requestId"),
        to=cast(ResetTo, to),
        timestamp_ms=None if moment is None else _timestamp_ms(moment),
        offset=reset.integer_or_none("offset", 0, INT64_MAX),
        shift_by=reset.integer_or_none("shiftBy", -INT64_MAX, INT64_MAX),
        topics=topics,
        wait_for_empty=reset.choice("policy", ("WaitForEmpty", "Fail"), "WaitForEmpty") == "WaitForEmpty",
        dry_run=reset.boolean("dryRun", False),
    )


def _timestamp_ms(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidSpec(f"spec.reset.datetime must be like 2026-11-21T09:30:00Z, not {text!r}.")
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
