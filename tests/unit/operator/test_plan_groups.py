"""Resets of groups, step by step, and what is said of lag (R26)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from mainstem_operator.plan_groups import GroupSeen, ResetStep, group_status, plan_reset, reset_note
from mainstem_operator.resources import GroupSpec, group_of
from mainstem_operator.topic_state import GroupState

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
BOUNDS = {("clicks", 0): (10, 100), ("clicks", 1): (0, 50), ("views", 0): (0, 5)}


def spec(**reset: Any) -> GroupSpec:
    wanted: dict[str, Any] = {"clusterRef": {"name": "events"}}
    if reset:
        wanted["reset"] = {"requestId": "r1", **reset}
    return group_of({"metadata": {"name": "billing", "namespace": "prod"}, "spec": wanted})


def state(members: int = 0, **committed: int) -> GroupState:
    offsets = {(name[:-1], int(name[-1])): offset for name, offset in committed.items()}
    return GroupState("billing", "STABLE" if members else "EMPTY", members, offsets)


def after(step: ResetStep) -> dict[tuple[str, int], int]:
    return {(change.topic, change.partition): change.after for change in step.changes}


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ({"to": "earliest"}, {("clicks", 0): 10, ("clicks", 1): 0}),
        ({"to": "latest"}, {("clicks", 0): 100, ("clicks", 1): 50}),
        ({"to": "offset", "offset": 70}, {("clicks", 0): 70, ("clicks", 1): 50}),
        ({"to": "offset", "offset": 0}, {("clicks", 0): 10, ("clicks", 1): 0}),
        ({"to": "shift", "shiftBy": -15}, {("clicks", 0): 10, ("clicks", 1): 5}),
        ({"to": "shift", "shiftBy": 45}, {("clicks", 0): 65, ("clicks", 1): 50}),
        ({"to": "datetime", "datetime": "2026-11-21T00:00:00Z"}, {("clicks", 0): 33, ("clicks", 1): 50}),
        ({"to": "earliest", "topics": ["views"]}, {("views", 0): 0}),
    ],
)
def test_offsets_are_put_within_the_log(reset: dict[str, Any], expected: dict[tuple[str, int], int]) -> None:
    since = {("clicks", 0): 33, ("clicks", 1): -1}
    step = plan_reset(spec(**reset), {}, state(clicks0=20, clicks1=20), BOUNDS, since)
    assert step.word == "begin"
    assert after(step) == expected


def test_a_request_is_carried_out_once() -> None:
    done = {"lastReset": {"requestId": "r1", "state": "Done", "offsets": []}}
    assert plan_reset(spec(to="earliest"), done, state(clicks0=20), BOUNDS, {}).word == "none"
    failed = {"lastReset": {"requestId": "r1", "state": "Failed"}}
    assert plan_reset(spec(to="earliest"), failed, state(clicks0=20), BOUNDS, {}).word == "none"


def test_a_reset_that_was_begun_is_carried_on_with_the_offsets_it_noted() -> None:
    first = plan_reset(spec(to="shift", shiftBy=-5), {}, state(clicks0=20, clicks1=20), BOUNDS, {})
    status = {"lastReset": reset_note(spec(to="shift", shiftBy=-5), "Started", first, NOW)}
    half = state(clicks0=15, clicks1=20)  # the operator died between the two
    again = plan_reset(spec(to="shift", shiftBy=-5), status, half, BOUNDS, {})
    assert again.word == "resume"
    assert after(again) == {("clicks", 0): 15, ("clicks", 1): 15}
    whole = state(clicks0=15, clicks1=15)
    assert plan_reset(spec(to="shift", shiftBy=-5), status, whole, BOUNDS, {}).word == "done"


def test_members_make_a_reset_wait_or_fail() -> None:
    busy = state(members=2, clicks0=20)
    waiting = plan_reset(spec(to="earliest"), {}, busy, BOUNDS, {})
    assert (waiting.word, waiting.reason[:24]) == ("wait", "The group has 2 members,")
    assert plan_reset(spec(to="earliest", policy="Fail"), {}, busy, BOUNDS, {}).word == "fail"


def test_undo_puts_back_what_the_last_reset_replaced() -> None:
    offsets = [{"topic": "clicks", "partition": 0, "before": 20, "after": 100}]
    status = {"lastReset": {"requestId": "r0", "state": "Done", "offsets": offsets}}
    step = plan_reset(spec(to="undo"), status, state(clicks0=100), BOUNDS, {})
    assert after(step) == {("clicks", 0): 20}
    assert step.changes[0].before == 100
    nothing = plan_reset(spec(to="undo"), {}, state(clicks0=100), BOUNDS, {})
    assert (nothing.word, nothing.reason) == ("fail", "There is no reset that could be undone.")


def test_a_group_without_offsets_has_nothing_to_reset() -> None:
    step = plan_reset(spec(to="earliest"), {}, state(), {}, {})
    assert step.word == "fail"
    assert "name others, or let it consume first" in step.reason


def test_a_dry_run_leaves_everything_as_it_is() -> None:
    step = plan_reset(spec(to="earliest", dryRun=True), {}, state(members=1, clicks0=20), BOUNDS, {})
    assert step.word == "preview"
    status = group_status(
        spec(to="earliest", dryRun=True), GroupSeen(state(clicks0=20), BOUNDS, 5), step, {}, NOW
    )
    assert status["resetPreview"]["offsets"] == [
        {"topic": "clicks", "partition": 0, "before": 20, "after": 10}
    ]
    assert "lastReset" not in status


def test_only_the_partitions_furthest_behind_are_listed() -> None:
    committed = {("clicks", number): 0 for number in range(30)}
    bounds = {("clicks", number): (0, number) for number in range(30)}
    seen = GroupSeen(GroupState("billing", "EMPTY", 0, committed), bounds, 1)
    status = group_status(spec(), seen, ResetStep("none"), {}, NOW)
    assert status["totalLag"] == sum(range(30))
    assert [item["partition"] for item in status["partitions"]] == list(range(29, 9, -1))


def test_a_group_that_nobody_has_joined_yet_is_no_failure() -> None:
    seen = GroupSeen(GroupState("billing", "DEAD", 0, {}), {}, 0)
    ready = next(
        item
        for item in group_status(spec(), seen, ResetStep("none"), {}, NOW)["conditions"]
        if item["type"] == "Ready"
    )
    assert (ready["status"], ready["reason"]) == ("True", "NoSuchGroup")
