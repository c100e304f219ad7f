"""Looking at groups and moving their offsets: asks brokers, lets `plan.py` decide, acts. No Kubernetes.

A reset is noted as begun, with every offset that it will put, before the first is put; an operator that finds
it so notes the same numbers anew and carries them out again. So it happens once, whatever dies in between.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mainstem_operator.api.fields import Object
from mainstem_operator.api.groups import GroupSpec
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.offset_requests import OFFSETS_TOPIC
from mainstem_operator.brokers.topic_state import GroupState, TopicPartition
from mainstem_operator.groups.plan import (
    LAG_AGES_SECONDS,
    GroupSeen,
    ResetStep,
    changes_of,
    group_status,
    plan_reset,
    reset_note,
    undoable,
)
from mainstem_operator.groups.reset_record import pieces_of, record_in, undo_of
from mainstem_operator.proofs import Refusal, prove_offset_move

Note = Callable[[GroupSpec, Mapping[str, Any]], Awaitable[None]]
"""Stores a status for good, before what follows from it is done.

Raises `Refused` if somebody has stored another one since the statuses were read.
"""


async def _always() -> bool:
    return True


def _unguarded(_: tuple[str, str]) -> AbstractContextManager[None]:
    return nullcontext()


async def look_at_groups(
    brokers: Brokers,
    specs: Sequence[GroupSpec],
    statuses: Mapping[tuple[str, str], Object],
    note: Note,
    may_act: Callable[[], Awaitable[bool]] = _always,
    alone: Callable[[tuple[str, str]], AbstractContextManager[None]] = _unguarded,
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[tuple[str, str], str]]:
    """The new status of each ConsumerGroup, or why there is none; resets are carried out on the way.

    Args:
        alone: the block in which one of them is looked at. If `note` fails and the block ignores it, there is
            neither a status nor a reason.

    Raises:
        BrokersUnreachable: no broker answers.
    """
    groups = await brokers.groups(spec.group for spec in specs)
    snapshots: dict[tuple[str, str], dict[str, Any]] = {}
    failed: dict[tuple[str, str], str] = {}
    for spec in specs:
        state, key = groups[spec.group], spec.identity.key
        if isinstance(state, str):
            failed[key] = state
            continue
        with alone(key):
            try:
                snapshots[key] = await _look(brokers, spec, state, statuses.get(key) or {}, note, may_act)
            except BrokersRefused as error:
                failed[key] = str(error)
    return snapshots, failed


async def _look(
    brokers: Brokers,
    spec: GroupSpec,
    state: GroupState,
    status: Object,
    note: Note,
    may_act: Callable[[], Awaitable[bool]],
) -> dict[str, Any]:
    bounds = await _bounds(brokers, state.committed)
    step = ResetStep("none")
    if spec.reset is not None and not spec.paused:
        step, status = await _reset(brokers, spec, state, status, note, may_act)
        if step.word in ("begin", "resume", "done"):
            again = (await brokers.groups([spec.group]))[spec.group]
            state = again if isinstance(again, GroupState) else state
            bounds = await _bounds(brokers, state.committed)
    observed = GroupSeen(state, bounds, None)
    observed = GroupSeen(state, bounds, await _lag_seconds(brokers, spec, observed))
    return group_status(spec, observed, step, status, dt.datetime.now(dt.UTC))


async def _bounds(brokers: Brokers, partitions: Any) -> dict[TopicPartition, tuple[int, int]]:
    requested_partitions = list(partitions)
    first, end = await asyncio.gather(
        brokers.earliest(requested_partitions), brokers.latest(requested_partitions)
    )
    return {key: (first[key], end[key]) for key in requested_partitions if key in first and key in end}


async def _reset(
    brokers: Brokers,
    spec: GroupSpec,
    state: GroupState,
    status: Object,
    note: Note,
    may_act: Callable[[], Awaitable[bool]],
) -> tuple[ResetStep, Object]:
    """Carry the reset on; the step that was taken, and the status with what was noted."""
    reset = spec.reset
    if reset is None:
        return ResetStep("none"), status
    last = status.get("lastReset") or {}
    touched: set[TopicPartition] = set(state.committed)
    touched |= {(item.topic, item.partition) for item in changes_of(last)}
    undone = undoable(state, last)
    touched |= {(item.topic, item.partition) for item in undone}
    moved = set(state.committed)
    if reset.to == "undo":
        moved = {(item.topic, item.partition) for item in undone if item.before is not None}
    topics = await brokers.topics({*reset.topics, *(topic for topic, _ in moved)})
    if reset.topics:
        moved = {
            (name, number) for name in reset.topics if name in topics for number in topics[name].partitions
        }
    touched |= moved
    bounds = await _bounds(brokers, touched)
    without_leader = {
        key for key in moved - bounds.keys() if key[0] in topics and key[1] in topics[key[0]].partitions
    }
    since = {} if reset.timestamp_ms is None else await brokers.since(bounds, reset.timestamp_ms)
    missing_topics = set(reset.topics) - topics.keys()
    step = plan_reset(spec, status, state, bounds, since, missing_topics, without_leader)

    async def noted(word: Any, step: ResetStep) -> Object:
        fresh = {name: value for name, value in status.items() if name != "resetPreview"}
        fresh["lastReset"] = reset_note(spec, word, step, dt.datetime.now(dt.UTC))
        await note(spec, fresh)
        return fresh

    match step.word:
        case "fail":
            return step, await noted("Failed", step)
        case "done" | "repeated":
            return step, await noted("Done", step)
        case "begin" | "resume":
            status = await noted("Started", step)
        case _:
            return step, status
    fresh = (await brokers.groups([spec.group]))[spec.group]
    if isinstance(fresh, str):
        return ResetStep("wait", fresh), status
    if not await may_act():
        return ResetStep("wait", "Another replica of the operator acts now.", step.changes), status
    after = {(change.topic, change.partition): change.after for change in step.changes}
    offsets_topic = (await brokers.topics([OFFSETS_TOPIC])).get(OFFSETS_TOPIC)
    record = record_in(fresh.metadata)
    completed = record.with_completed(reset.request_id, undo_of(step.changes))
    proof = prove_offset_move(
        spec.group,
        reset.request_id,
        fresh.state,
        fresh.members,
        after,
        await _bounds(brokers, after),
        pieces_of(completed, len(offsets_topic.partitions) if offsets_topic else 1),
        is_done=record.has(reset.request_id),
    )
    if isinstance(proof, Refusal):
        return ResetStep("wait", proof.reason, step.changes), status
    try:
        refused = await brokers.put_offsets(proof)
    except BrokersUnreachable as error:  # one coordinator that is away holds up no other group
        return ResetStep("wait", str(error), step.changes), status
    if refused:
        (topic, partition), sentence = sorted(refused.items())[0]
        return ResetStep("wait", f"{topic}-{partition}: {sentence}", step.changes), status
    return step, await noted("Done", step)


async def _lag_seconds(brokers: Brokers, spec: GroupSpec, observed: GroupSeen) -> int | None:
    """How old the oldest record that waits is at most, as one of a few ages; 0 if none waits.

    A record that waits is younger than an age if the first offset of that age is not beyond the committed
    one: exact for the requested age, and cheaper than reading records.
    """
    waiting = {key: observed.state.committed[key] for key, lag in observed.lags().items() if lag > 0}
    if not waiting:
        return 0
    now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    ages = sorted({*LAG_AGES_SECONDS, *([spec.max_lag_seconds] if spec.max_lag_seconds else [])})
    low, high = 0, len(ages) - 1
    while low < high:
        middle = (low + high) // 2
        first = await brokers.since(waiting, now_ms - ages[middle] * 1000)
        if all(0 <= first.get(key, -1) <= offset for key, offset in waiting.items()):
            high = middle
        else:
            low = middle + 1
    return ages[low]
