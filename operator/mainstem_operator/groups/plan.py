"""What a ConsumerGroup's status says, and what is to be done about its reset. Pure.

A group is made by its first member, so nothing makes or deletes one here: it is looked at, and its offsets
are moved when a reset asks for it, once for each request, while it has no members.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mainstem_operator.api import names
from mainstem_operator.api.conditions import WITHIN_SLO, Condition, merged, pruned
from mainstem_operator.api.fields import Object
from mainstem_operator.api.groups import GroupSpec, ResetSpec
from mainstem_operator.api.timestamps import written
from mainstem_operator.brokers.topic_state import GroupState, TopicPartition
from mainstem_operator.groups.reset_record import record_in

LAG_AGES_SECONDS: Final = (
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200,
    86_400, 259_200, 604_800, 2_592_000,
)  # fmt: skip
_PARTITIONS_SHOWN: Final = 20
_LEFT_OUT_SHOWN: Final = 5
_NOTED_BYTES_MAX: Final = 500_000
"""Of the offsets of a reset. etcd takes objects of 1.5 MiB, and a status has a reset and a preview of one."""

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""The first offset and the end of partitions."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group at one moment. `lag_seconds` is None where it could not be determined, 0 without lag."""

    state: GroupState
    bounds: Bounds
    lag_seconds: int | None

    def lags(self) -> dict[TopicPartition, int]:
        """How many records each partition is behind; one without bounds is left out."""
        return {
            key: max(0, self.bounds[key][1] - offset)
            for key, offset in self.state.committed.items()
            if key in self.bounds
        }


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Where the group is in a partition and where it is to be; None is nowhere."""

    topic: str
    partition: int
    before: int | None
    after: int

    def written(self) -> dict[str, Any]:
        return pruned(
            {"topic": self.topic, "partition": self.partition, "before": self.before, "after": self.after}
        )


Word = Literal["none", "preview", "wait", "fail", "begin", "resume", "done", "repeated"]


@dataclass(frozen=True, slots=True)
class ResetStep:
    """What to do about a reset now: `begin` and `resume` set `changes`, and only those.

    `done` and `repeated` only note that the request has been carried out: with the offsets that the status
    notes, or at a time of which only the group's record is left.
    """

    word: Word
    reason: str = ""
    changes: tuple[OffsetChange, ...] = ()


def plan_reset(
    spec: GroupSpec,
    status: Object,
    state: GroupState,
    bounds: Bounds,
    since: Mapping[TopicPartition, int],
    missing_topics: Collection[str] = (),
    without_leader: Collection[TopicPartition] = (),
) -> ResetStep:
    """The next step of the reset that `spec` asks for.

    Args:
        bounds: of every partition that the reset may touch.
        since: for a reset to a time, the first offset from then on, -1 where there is none.
        missing_topics: those that the reset names and that do not exist.
        without_leader: partitions that it is to move and that cannot be asked now.
    """
    reset = spec.reset
    if reset is None:
        return ResetStep("none")
    record = record_in(state.metadata)
    last: Object = status.get("lastReset") or {}
    is_noted = last.get("requestId") == reset.request_id
    if is_noted and last.get("state") in ("Done", "Failed"):
        return ResetStep("none")
    noted = changes_of(last) if is_noted else ()
    if noted:
        text = str(last.get("message") or "")
        if record.has(reset.request_id) or _are_put(noted, state):
            return ResetStep("done", text, noted)
        return _with_members(reset, state, ResetStep("resume", text, _with_befores(noted, state)))
    # Without a note, or with one that somebody has damaged, only the record next to the offsets says whether
    # the request was carried out: offsets are put together with it or not at all, so it may be planned anew.
    if record.has(reset.request_id):
        return ResetStep("repeated", "This request was carried out before: its requestId is on record.")
    if reset.to != "undo" and missing_topics:  # as a whole: half of a replay looks like all of it
        missing = ", ".join(sorted(missing_topics))
        text = (
            f"These topics do not exist: {missing}. Correct their names, and request it with a new requestId."
        )
        return ResetStep("fail", text)
    if without_leader:
        topic, partition = min(without_leader)
        text = f"{len(without_leader)} partitions have no leader, such as {topic}-{partition}."
        return ResetStep("wait", text)
    changes, problem = _changes(reset, last, state, bounds, since)
    if problem:
        return ResetStep("fail", problem)
    if len(json.dumps([change.written() for change in changes])) > _NOTED_BYTES_MAX:
        text = (
            f"It would set {len(changes)} offsets, more than a status can hold. Reset fewer topics at a time,"
            " each time with a new requestId."
        )
        return ResetStep("fail", text)
    if left_out := _left_out(reset, last, state, bounds):
        left_out = f"The reset {reset.request_id} sets {len(changes)} offsets. {left_out}"
    if reset.dry_run:
        return ResetStep("preview", left_out, changes)
    return _with_members(reset, state, ResetStep("begin", left_out, changes))


def owners_of(specs: Iterable[GroupSpec]) -> dict[str, GroupSpec]:
    """Of several ConsumerGroups of one group the oldest has it; of the same age, the first by name."""
    owners: dict[str, GroupSpec] = {}
    for spec in sorted(specs, key=lambda item: (item.identity.created, item.identity.key)):
        owners.setdefault(spec.group, spec)
    return owners


def conflict_conditions(spec: GroupSpec, owner: GroupSpec, status: Object) -> list[Condition]:
    """What a ConsumerGroup says while an older one has its group."""
    text = f"The ConsumerGroup {owner.identity.name} is older and claims the group {spec.group} too."
    conditions = [Condition("Ready", False, "ResourceConflict", text)]
    last = status.get("lastReset") or {}
    if spec.reset is not None and last.get("requestId") != spec.reset.request_id:
        conditions.append(Condition("ResetPending", True, "ResourceConflict", text))
    return conditions


def _are_put(changes: Sequence[OffsetChange], state: GroupState) -> bool:
    return all(state.committed.get((item.topic, item.partition)) == item.after for item in changes)


def _with_befores(changes: Sequence[OffsetChange], state: GroupState) -> tuple[OffsetChange, ...]:
    """Noted changes that are still to be put; where none is noted, the offset before is the present one."""
    filled = []
    for item in changes:
        present = state.committed.get((item.topic, item.partition))
        is_unknown = item.before is None and present != item.after
        filled.append(replace(item, before=present) if is_unknown else item)
    return tuple(filled)


def _with_members(reset: ResetSpec, state: GroupState, step: ResetStep) -> ResetStep:
    """`step`, unless the group has members, who would overwrite the offsets."""
    if not state.members and state.state in ("EMPTY", "DEAD"):
        return step
    text = f"The group has {state.members} members, which would overwrite the offsets: stop them."
    return ResetStep("wait" if reset.wait_for_empty else "fail", text, step.changes)


def changes_of(last: Object) -> tuple[OffsetChange, ...]:
    """The changes that a status has noted; none if somebody removed a part of the note."""
    noted = last.get("offsets") or ()
    if not all({"topic", "partition", "after"} <= item.keys() for item in noted):
        return ()
    return tuple(
        OffsetChange(item["topic"], item["partition"], item.get("before"), item["after"]) for item in noted
    )


def undoable(state: GroupState, last: Object) -> tuple[OffsetChange, ...]:
    """What the last reset that was carried out has changed.

    The group's own record counts; without one, `last`, the note in the status, if that reset was carried out.
    """
    recorded = tuple(OffsetChange(*item) for item in record_in(state.metadata).undo)
    return recorded or (changes_of(last) if last.get("state") == "Done" else ())


def _changes(
    reset: ResetSpec,
    last: Object,
    state: GroupState,
    bounds: Bounds,
    since: Mapping[TopicPartition, int],
) -> tuple[tuple[OffsetChange, ...], str]:
    """The changes, at least one, or why there are none."""
    if reset.to == "undo":
        undone = [item for item in undoable(state, last) if item.before is not None]
        if not undone:
            return (), "There is no reset to undo."
        restored = tuple(
            OffsetChange(
                item.topic,
                item.partition,
                state.committed.get((item.topic, item.partition)),
                _within(item.before or 0, bounds[item.topic, item.partition]),
            )
            for item in undone
            if (item.topic, item.partition) in bounds
        )
        if not restored:
            return (), (
                "None of the partitions of the last reset exists and has a leader: undo it with another"
                " requestId once they have one."
            )
        return restored, ""
    if reset.to == "shift":
        without = set(reset.topics) - {topic for topic, _ in state.committed}
        if without:  # as a whole: half of a replay looks like all of it
            return (), (
                f"The group has no offsets of these topics to shift: {', '.join(sorted(without))}."
                " Leave them out, and request it with a new requestId."
            )
    changes = []
    for key in sorted(bounds):
        topic, partition = key
        if reset.topics and topic not in reset.topics:
            continue
        if not reset.topics and key not in state.committed:
            continue
        target = _target(reset, state.committed.get(key), bounds[key], since.get(key, -1))
        if target is not None:
            changes.append(OffsetChange(topic, partition, state.committed.get(key), target))
    if not changes:
        return (), "The group has no offsets of these topics: name others, or let it consume first."
    greatest_end = max(bounds[change.topic, change.partition][1] for change in changes)
    if reset.to == "offset" and (reset.offset or 0) > greatest_end:  # it may be a time
        return (), (
            f"Offset {reset.offset} lies beyond the end of every partition ({greatest_end}): request one that"
            " is there, or `to: datetime`, with a new requestId."
        )
    return tuple(changes), ""


def _left_out(reset: ResetSpec, last: Object, state: GroupState, bounds: Bounds) -> str:
    """What a reset that can be carried out does not do; empty if it does all."""
    sentences = []
    if reset.to == "undo":
        undone = {(item.topic, item.partition): item.before for item in undoable(state, last)}
        gone = [key for key, before in undone.items() if before is not None and key not in bounds]
        if new := [key for key, before in undone.items() if before is None]:
            sentences.append(f"The group had no offsets in {_listed(new)} before, and keeps those it has.")
    else:
        gone = [] if reset.topics else [key for key in state.committed if key not in bounds]
        without = [key for key in bounds if key[0] in reset.topics and key not in state.committed]
        if reset.to == "shift" and without:
            sentences.append(f"The group has no offsets in {_listed(without)} that could be shifted.")
    if gone:
        sentences.append(f"Left out, since they do not exist any more: {_listed(gone)}.")
    return " ".join(sentences)


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = [f"{topic}-{number}" for topic, number in sorted(partitions)[:_LEFT_OUT_SHOWN]]
    more = len(partitions) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _target(reset: ResetSpec, committed: int | None, bounds: tuple[int, int], since: int) -> int | None:
    first, end = bounds
    match reset.to:
        case "earliest":
            return first
        case "latest":
            return end
        case "datetime":
            return end if since < 0 else since
        case "offset":
            return _within(reset.offset or 0, bounds)
        case "shift":
            return None if committed is None else _within(committed + (reset.shift_by or 0), bounds)
        case "undo":
            return None


def _within(offset: int, bounds: tuple[int, int]) -> int:
    return min(max(offset, bounds[0]), bounds[1])


# --- The status ---


def group_status(
    spec: GroupSpec,
    observed: GroupSeen,
    step: ResetStep,
    present: Object,
    now: dt.datetime,
) -> dict[str, Any]:
    """The status after a look. `present` is the status as it is, with what was noted of the reset."""
    lags = observed.lags()
    total = sum(lags.values())
    conditions = _conditions(spec, observed, step, present, total)
    greatest = sorted(lags, key=lambda key: (-lags[key], key))[:_PARTITIONS_SHOWN]
    preview = None
    if step.word == "preview" and spec.reset is not None:
        offsets = [change.written() for change in step.changes]
        preview = {"requestId": spec.reset.request_id, "offsets": offsets}
    return pruned(
        {
            "observedGeneration": spec.identity.generation,
            "groupId": spec.group,
            "state": observed.state.state,
            "members": observed.state.members,
            "totalLag": total,
            "lagSeconds": observed.lag_seconds,
            "partitionsTotal": len(observed.state.committed),
            "partitions": [
                {
                    "topic": topic,
                    "partition": partition,
                    "committed": observed.state.committed[topic, partition],
                    "end": observed.bounds[topic, partition][1],
                    "lag": lags[topic, partition],
                }
                for topic, partition in greatest
            ],
            "measured": written(now),
            "resetPreview": preview,
            "lastReset": present.get("lastReset"),
            "conditions": merged(present, conditions, spec.identity.generation, now),
        }
    )


def reset_note(
    spec: GroupSpec, state: Literal["Started", "Done", "Failed"], step: ResetStep, now: dt.datetime
) -> dict[str, Any]:
    """`status.lastReset`: written before offsets are put, and after."""
    reset = spec.reset
    return pruned(
        {
            "requestId": reset.request_id if reset else "",
            "to": reset.to if reset else "",
            "state": state,
            "at": written(now),
            "message": step.reason or None,
            "offsets": [change.written() for change in step.changes],
        }
    )


def _conditions(
    spec: GroupSpec, observed: GroupSeen, step: ResetStep, present: Object, total_lag: int
) -> list[Condition]:
    state = observed.state
    there = state.state != "DEAD" or bool(state.committed)
    conditions = [
        Condition("Ready", True, "Observed", f"The group is {state.state.lower()}, lag {total_lag}.")
        if there
        else Condition(
            "Ready", True, "NoSuchGroup", "No member has joined yet: the group is created when one does."
        ),
        Condition("Active", state.members > 0, "HasMembers" if state.members else "NoMembers"),
        Condition("Paused", spec.paused, "Annotated" if spec.paused else "NotPaused", names.PAUSE),
    ]
    if spec.max_lag is not None or spec.max_lag_seconds is not None:
        conditions.append(_within_slo(spec, observed, total_lag))
    if spec.reset is not None:
        conditions += _reset_conditions(spec.reset, step, present.get("lastReset") or {})
    return conditions


def _within_slo(spec: GroupSpec, observed: GroupSeen, total_lag: int) -> Condition:
    if spec.max_lag is not None and total_lag > spec.max_lag:
        return Condition(
            WITHIN_SLO,
            False,
            "LagTooGreat",
            f"{total_lag} records are not consumed yet, and {spec.max_lag} are allowed.",
        )
    if spec.max_lag_seconds is not None:
        if observed.lag_seconds is None:
            return Condition(
                WITHIN_SLO, None, "NotTold", "The age of the oldest record could not be determined."
            )
        if observed.lag_seconds > spec.max_lag_seconds:
            text = (
                f"Records wait for up to {observed.lag_seconds} s, and {spec.max_lag_seconds} s are allowed."
            )
            return Condition(WITHIN_SLO, False, "LagTooOld", text)
    return Condition(WITHIN_SLO, True, "WithinLimits", f"{total_lag} records wait.")


def _reset_conditions(reset: ResetSpec, step: ResetStep, last: Object) -> list[Condition]:
    name = reset.request_id
    if step.word == "preview":
        text = f"{len(step.changes)} offsets would be set: see status.resetPreview. {step.reason}".strip()
        return [Condition("ResetPending", False, "DryRun", text)]
    if step.word == "wait":
        return [Condition("ResetPending", True, "GroupActive", step.reason)]
    if last.get("requestId") != name:
        return [Condition("ResetPending", True, "Waiting", f"The reset {name} has not begun.")]
    done = last.get("state") == "Done"
    return [
        Condition("ResetPending", last.get("state") == "Started", str(last.get("state"))),
        Condition(
            "ResetDone",
            done,
            "Done" if done else "Failed",
            str(last.get("message") or f"The reset {name} set {len(last.get('offsets') or ())} offsets."),
        ),
    ]
