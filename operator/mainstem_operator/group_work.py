"""Looking at groups and moving their offsets: asks brokers, lets `plan_groups` decide, acts. No Kubernetes.

A reset is noted as begun, with every offset that it will put, before the first is put; whoever finds it so
carries the same numbers out again. So it happens once, whatever dies in between.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mainstem_operator.admin import Brokers
from mainstem_operator.fields import Object
from mainstem_operator.plan_groups import (
    LAG_AGES_SECONDS,
    GroupSeen,
    ResetStep,
    group_status,
    plan_reset,
    reset_note,
)
from mainstem_operator.proofs import Refusal, prove_offset_move
from mainstem_operator.resources import GroupSpec
from mainstem_operator.topic_state import GroupState, TopicPartition

Note = Callable[[GroupSpec, Mapping[str, Any]], Awaitable[None]]
"""Stores a status for good, before what follows from it is done."""


async def look_at_groups(
    brokers: Brokers, specs: Sequence[GroupSpec], statuses: Mapping[tuple[str, str], Object], note: Note
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[tuple[str, str], str]]:
    """The new status of each ConsumerGroup, or why there is none; resets are carried out on the way.

    Raises:
        BrokersUnreachable: no broker answers.
    """
    groups = await brokers.groups(spec.group for spec in specs)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    failed: dict[tuple[str, str], str] = {}
    for spec in specs:
        state = groups[spec.group]
        if isinstance(state, str):
            failed[spec.identity.key] = state
        else:
            found[spec.identity.key] = await _look(
                brokers, spec, state, statuses.get(spec.identity.key) or {}, note
            )
    return found, failed


async def _look(
    brokers: Brokers, spec: GroupSpec, state: GroupState, status: Object, note: Note
) -> dict[str, Any]:
    bounds = await _bounds(brokers, state.committed)
    step = ResetStep("none")
    if spec.reset is not None and not spec.paused:
        step, status = await _reset(brokers, spec, state, status, note)
        if step.word in ("begin", "resume", "done"):
            again = (await brokers.groups([spec.group]))[spec.group]
            state = again if isinstance(again, GroupState) else state
            bounds = await _bounds(brokers, state.committed)
    seen = GroupSeen(state, bounds, None)
    seen = GroupSeen(state, bounds, await _lag_seconds(brokers, spec, seen))
    return group_status(spec, seen, step, status, dt.datetime.now(dt.UTC))


async def _bounds(brokers: Brokers, partitions: Any) -> dict[TopicPartition, tuple[int, int]]:
    asked = list(partitions)
    first, end = await asyncio.gather(brokers.earliest(asked), brokers.latest(asked))
    return {key: (first[key], end[key]) for key in asked if key in first and key in end}


async def _reset(
    brokers: Brokers, spec: GroupSpec, state: GroupState, status: Object, note: Note
) -> tuple[ResetStep, Object]:
    """Carry the reset on; the step that was taken, and the status with what was noted."""
    reset = spec.reset
    if reset is None:
        return ResetStep("none"), status
    last = status.get("lastReset") or {}
    touched: set[TopicPartition] = set(state.committed)
    touched |= {(item["topic"], item["partition"]) for item in last.get("offsets") or ()}
    for named in (await brokers.topics(reset.topics)).values():
        touched |= {(named.name, number) for number in named.partitions}
    bounds = await _bounds(brokers, touched)
    since = {} if reset.timestamp_ms is None else await brokers.since(bounds, reset.timestamp_ms)
    step = plan_reset(spec, status, state, bounds, since)

    async def noted(word: Any, step: ResetStep) -> Object:
        fresh = {name: value for name, value in status.items() if name != "resetPreview"}
        fresh["lastReset"] = reset_note(spec, word, step, dt.datetime.now(dt.UTC))
        await note(spec, fresh)
        return fresh

    match step.word:
        case "fail":
            return step, await noted("Failed", step)
        case "done":
            return step, await noted("Done", step)
        case "begin":
            status = await noted("Started", step)
        case "resume":
            pass
        case _:
            return step, status
    fresh = (await brokers.groups([spec.group]))[spec.group]
    if isinstance(fresh, str):
        return ResetStep("wait", fresh), status
    after = {(change.topic, change.partition): change.after for change in step.changes}
    proof = prove_offset_move(
        spec.group, reset.request_id, fresh.state, fresh.members, None, after, await _bounds(brokers, after)
    )
    if isinstance(proof, Refusal):
        return ResetStep("wait", proof.reason, step.changes), status
    refused = await brokers.put_offsets(proof)
    if refused:
        (topic, partition), sentence = sorted(refused.items())[0]
        return ResetStep("wait", f"{topic}-{partition}: {sentence}", step.changes), status
    return step, await noted("Done", step)


async def _lag_seconds(brokers: Brokers, spec: GroupSpec, seen: GroupSeen) -> int | None:
    """How old the oldest record that waits is at most, as one of a few ages; 0 if none waits.

    A record that waits is younger than an age if the first offset of that age is not beyond the committed
    one: exact for the age asked for, and cheaper than reading records.
    """
    waiting = {key: seen.state.committed[key] for key, lag in seen.lags().items() if lag > 0}
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
