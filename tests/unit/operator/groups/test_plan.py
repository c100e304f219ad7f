"""Resets of groups, step by step, and what is said of lag (R26)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.unit.operator.played_groups import PlayedGroups

from mainstem_operator.api.groups import GroupSpec, group_of
from mainstem_operator.brokers.topic_state import GroupState, TopicPartition
from mainstem_operator.groups.apply import look_at_groups
from mainstem_operator.groups.plan import (
    GroupSeen,
    ResetStep,
    conflict_conditions,
    group_status,
    owners_of,
    plan_reset,
    reset_note,
)
from mainstem_operator.groups.reset_record import ResetRecord, pieces_of

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
BOUNDS = {("clicks", 0): (10, 100), ("clicks", 1): (0, 50), ("views", 0): (0, 5)}


def spec(**reset: Any) -> GroupSpec:
    expected: dict[str, Any] = {"clusterRef": {"name": "events"}}
    if reset:
        expected["reset"] = {"requestId": "r1", **reset}
    return group_of({"metadata": {"name": "billing", "namespace": "prod"}, "spec": expected})


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


def test_a_reset_that_was_begun_is_carried_on_with_the_offsets_it_noted() -> None:
    first = plan_reset(spec(to="shift", shiftBy=-5), {}, state(clicks0=20, clicks1=20), BOUNDS, {})
    status = {"lastReset": reset_note(spec(to="shift", shiftBy=-5), "Started", first, NOW)}
    half = state(clicks0=15, clicks1=20)  # the operator died between the two
    again = plan_reset(spec(to="shift", shiftBy=-5), status, half, BOUNDS, {})
    assert again.word == "resume"
    assert after(again) == {("clicks", 0): 15, ("clicks", 1): 15}
    whole = state(clicks0=15, clicks1=15)
    assert plan_reset(spec(to="shift", shiftBy=-5), status, whole, BOUNDS, {}).word == "done"


def recorded(request_id: str, *undo: tuple[str, int, int | None, int], **committed: int) -> GroupState:
    """A group whose own record has this reset as the newest one."""
    pieces = pieces_of(ResetRecord().with_completed(request_id, undo), 1)
    return replace(state(**committed), metadata=dict(enumerate(pieces)))


def test_a_reset_that_failed_does_not_take_the_undo_of_the_one_before() -> None:
    failed = {"lastReset": {"requestId": "r2", "state": "Failed", "message": "The group has 2 members."}}
    there = recorded("r0", ("clicks", 0, 20, 100), ("clicks", 1, None, 50), clicks0=100)
    step = plan_reset(spec(to="undo"), failed, there, BOUNDS, {})
    assert (step.word, after(step)) == ("begin", {("clicks", 0): 20})


STARTED: dict[str, Any] = {
    "requestId": "r1",
    "to": "earliest",
    "state": "Started",
    "at": "2026-11-21T12:00:00Z",
    "offsets": [
        {"topic": "clicks", "partition": 0, "before": 20, "after": 10},
        {"topic": "clicks", "partition": 1, "before": 20, "after": 0},
    ],
}


def cut_short(lost: str) -> dict[str, Any]:
    """The note of a reset that was carried out, without a key of one of its offsets."""
    offsets = [
        {"topic": "clicks", "partition": partition, "before": 20, "after": 100} for partition in range(2)
    ]
    del offsets[1][lost]
    return {"requestId": "r0", "state": "Done", "offsets": offsets}


IN_USE = state(clicks0=20, clicks1=20)
DECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any], GroupState, str, str]] = {
    "done": ({"to": "earliest"}, {"requestId": "r1", "state": "Done", "offsets": []}, IN_USE, "none", ""),
    "failed": ({"to": "earliest"}, {"requestId": "r1", "state": "Failed"}, IN_USE, "none", ""),
    "on record, without a status": ({"to": "earliest"}, {}, recorded("r1", clicks0=20), "repeated", ""),
    "on record, after a later one": (
        {"to": "earliest"}, {"requestId": "r2", "state": "Done", "offsets": []}, recorded("r1", clicks0=20),
        "repeated", "",
    ),
    # The group has gone on since.
    "stored by the coordinator": (
        {"to": "earliest"}, STARTED, recorded("r1", ("clicks", 0, 20, 10), clicks0=13), "done", "",
    ),
    "no offsets": ({"to": "earliest"}, {}, state(), "fail", "name others, or let it consume first"),
    "an offset that no partition has, such as a time": (
        {"to": "offset", "offset": 1_767_139_200_000}, {}, IN_USE,
        "fail", "Offset 1767139200000 lies beyond the end of every partition (100)",
    ),
    "nothing to undo": ({"to": "undo"}, {}, state(clicks0=100), "fail", "There is no reset to undo."),
    "undo of partitions that are gone": (
        {"to": "undo"}, {}, recorded("r0", ("gone", 0, 20, 100), clicks0=100),
        "fail", "None of the partitions of the last reset exists and has a leader",
    ),
    **{
        f"undo of a note without {lost}": (
            {"to": "undo"}, cut_short(lost), state(clicks0=100, clicks1=100),
            "fail", "There is no reset to undo.",
        )
        for lost in ("topic", "partition", "after")
    },
    # As a whole: half of a replay looks like all of it.
    "a topic that does not exist": (
        {"to": "earliest", "topics": ["clicks", "clickz"]}, {}, IN_USE, "fail", "clickz",
    ),
    "partitions without a leader": ({"to": "earliest"}, {}, state(clicks0=20, views1=3), "wait", "views-1"),
}  # fmt: skip


@pytest.mark.parametrize(("reset", "last", "there", "word", "reason"), DECISIONS.values(), ids=DECISIONS)
def test_a_reset_that_is_done_or_cannot_be_done_moves_nothing(
    reset: dict[str, Any], last: dict[str, Any], there: GroupState, word: str, reason: str
) -> None:
    missing = set(reset.get("topics", ())) - {topic for topic, _ in BOUNDS}
    leaderless = there.committed.keys() - BOUNDS.keys()
    step = plan_reset(spec(**reset), {"lastReset": last}, there, BOUNDS, {}, missing, leaderless)
    assert step.word == word
    assert reason in step.reason
    assert word == "done" or step.changes == ()


def damaged_notes() -> dict[str, dict[str, Any]]:
    """The note of a started reset without each of its keys, and without each key of an offset."""
    notes = {key: {name: value for name, value in STARTED.items() if name != key} for key in STARTED}
    for key in STARTED["offsets"][0]:
        offsets = [dict(item) for item in STARTED["offsets"]]
        del offsets[1][key]
        notes[f"offsets.{key}"] = {**STARTED, "offsets": offsets}
    notes["every offset"] = {**STARTED, "offsets": []}
    return notes


@pytest.mark.parametrize("lost", damaged_notes())
def test_a_started_reset_is_carried_out_whatever_part_of_its_note_is_lost(lost: str) -> None:
    status = {"lastReset": damaged_notes()[lost]}
    step = plan_reset(spec(to="earliest"), status, state(clicks0=20, clicks1=20), BOUNDS, {})
    assert step.word in ("begin", "resume")
    assert [(change.before, change.after) for change in step.changes] == [(20, 10), (20, 0)]


@pytest.mark.parametrize("lost", damaged_notes())
def test_a_recorded_reset_is_not_carried_out_again_whatever_part_of_its_note_is_lost(lost: str) -> None:
    status = {"lastReset": damaged_notes()[lost]}
    there = recorded("r1", ("clicks", 0, 20, 10), ("clicks", 1, 20, 0), clicks0=13, clicks1=20)
    assert plan_reset(spec(to="earliest"), status, there, BOUNDS, {}).word in ("done", "repeated")


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

    carried_out = group_status(
        spec(), GroupSeen(state(clicks0=10), BOUNDS, 5), ResetStep("none"), status, NOW
    )
    assert "resetPreview" not in carried_out, "once no dry run is requested"


def told(spec: GroupSpec, observed: GroupSeen, step: ResetStep, status: dict[str, Any]) -> dict[str, Any]:
    """What each condition says."""
    items = group_status(spec, observed, step, status, NOW)["conditions"]
    return {item["type"]: (item["status"], item["reason"]) for item in items}


@pytest.mark.parametrize(
    ("limits", "lag_seconds", "said"),
    [
        ({}, 99, None),
        ({"maxLag": 80}, 99, ("True", "WithinLimits")),
        ({"maxLag": 79}, 99, ("False", "LagTooGreat")),
        ({"maxLagSeconds": 99}, 99, ("True", "WithinLimits")),
        ({"maxLagSeconds": 98}, 99, ("False", "LagTooOld")),
        ({"maxLagSeconds": 98}, None, ("Unknown", "NotTold")),
        ({"maxLag": 80, "maxLagSeconds": 98}, 99, ("False", "LagTooOld")),
        ({"maxLag": 79, "maxLagSeconds": 98}, None, ("False", "LagTooGreat")),
    ],
)
def test_a_group_is_within_its_limits_if_it_is_in_each(
    limits: dict[str, int], lag_seconds: int | None, said: tuple[str, str] | None
) -> None:
    """80 records wait, the first for `lag_seconds`."""
    fields = {"clusterRef": {"name": "events"}, **limits}
    limited = group_of({"metadata": {"name": "billing", "namespace": "prod"}, "spec": fields})
    seen = GroupSeen(state(clicks0=20), {("clicks", 0): (10, 100)}, lag_seconds)
    assert told(limited, seen, ResetStep("none"), {}).get("WithinSLO") == said


@pytest.mark.parametrize(
    ("step", "last", "pending", "done"),
    [
        (ResetStep("preview"), {}, ("False", "DryRun"), None),
        (ResetStep("wait"), {}, ("True", "GroupActive"), None),
        (ResetStep("none"), {}, ("True", "Waiting"), None),
        (ResetStep("none"), {"requestId": "r0", "state": "Done"}, ("True", "Waiting"), None),
        (
            ResetStep("none"),
            {"requestId": "r1", "state": "Started"},
            ("True", "Started"),
            ("False", "Failed"),
        ),
        (ResetStep("none"), {"requestId": "r1", "state": "Done"}, ("False", "Done"), ("True", "Done")),
        (ResetStep("none"), {"requestId": "r1", "state": "Failed"}, ("False", "Failed"), ("False", "Failed")),
    ],
)
def test_a_reset_is_pending_until_it_is_done_or_has_failed(
    step: ResetStep, last: dict[str, Any], pending: tuple[str, str], done: tuple[str, str] | None
) -> None:
    seen = GroupSeen(state(members=1, clicks0=20), BOUNDS, 5)
    said = told(spec(to="earliest"), seen, step, {"lastReset": last} if last else {})
    assert (said["ResetPending"], said.get("ResetDone")) == (pending, done)
    assert said["Active"] == ("True", "HasMembers")


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


def test_of_two_consumer_groups_of_one_group_the_oldest_has_it() -> None:
    """Else both would move its offsets, and each would report that its request was met."""

    def named(name: str, created: str) -> GroupSpec:
        return group_of(
            {
                "metadata": {"name": name, "namespace": "prod", "creationTimestamp": created},
                "spec": {
                    "clusterRef": {"name": "events"},
                    "groupId": "readers",
                    "reset": {"requestId": "r1", "to": "latest"},
                },
            }
        )

    older, younger = named("second", "2026-11-21T11:00:00Z"), named("first", "2026-11-21T11:00:01Z")
    owner = owners_of([younger, older])["readers"]
    assert owner is older
    ready, pending = conflict_conditions(younger, owner, {})
    assert (ready.type, ready.holds, ready.reason) == ("Ready", False, "ResourceConflict")
    assert "second" in ready.message
    assert (pending.type, pending.holds) == ("ResetPending", True)


def test_an_undo_waits_for_partitions_without_a_leader() -> None:
    """Those would be left out, and the next undo would know nothing of them."""
    there = recorded("r0", ("clicks", 0, 20, 100), ("clicks", 1, 7, 50), clicks0=100, clicks1=50)
    bounds = {("clicks", 0): (10, 100)}
    step = plan_reset(spec(to="undo"), {}, there, bounds, {}, without_leader=[("clicks", 1)])
    assert step.word == "wait"
    assert "clicks-1" in step.reason


def test_an_undo_names_what_it_cannot_put_back() -> None:
    there = recorded("r0", ("clicks", 0, 20, 100), ("clicks", 1, None, 50), ("gone", 0, 3, 9), clicks0=100)
    step = plan_reset(spec(to="undo"), {}, there, BOUNDS, {})
    assert (step.word, after(step)) == ("begin", {("clicks", 0): 20})
    assert "sets 1 offsets" in step.reason
    assert "no offsets in clicks-1 before" in step.reason
    assert "do not exist any more: gone-0" in step.reason
    assert reset_note(spec(to="undo"), "Done", step, NOW)["message"] == step.reason


def test_a_reset_of_all_names_the_offsets_of_topics_that_are_gone() -> None:
    step = plan_reset(spec(to="earliest"), {}, state(clicks0=20, gone0=3), BOUNDS, {})
    assert after(step) == {("clicks", 0): 10}
    assert "do not exist any more: gone-0" in step.reason


def test_a_shift_of_a_topic_without_offsets_fails_as_a_whole() -> None:
    shift = spec(to="shift", shiftBy=-5, topics=["clicks", "views"])
    step = plan_reset(shift, {}, state(clicks0=20, clicks1=20), BOUNDS, {})
    assert step.word == "fail"
    assert "no offsets of these topics to shift: views" in step.reason


def test_a_shift_names_partitions_without_offsets() -> None:
    shift = spec(to="shift", shiftBy=-5, topics=["clicks"])
    step = plan_reset(shift, {}, state(clicks0=20), BOUNDS, {})
    assert (step.word, after(step)) == ("begin", {("clicks", 0): 15})
    assert "no offsets in clicks-1 that could be shifted" in step.reason


def test_what_a_reset_has_left_out_is_reported_though_it_was_carried_on() -> None:
    first = plan_reset(spec(to="earliest"), {}, state(clicks0=20, gone0=3), BOUNDS, {})
    assert "gone-0" in first.reason
    status = {"lastReset": reset_note(spec(to="earliest"), "Started", first, NOW)}
    for there, word in ((state(clicks0=20, gone0=3), "resume"), (state(clicks0=10, gone0=3), "done")):
        again = plan_reset(spec(to="earliest"), status, there, BOUNDS, {})
        assert (again.word, again.reason) == (word, first.reason)


def test_a_reset_that_no_status_could_note_fails_and_says_what_to_do() -> None:
    """etcd would refuse the status, and nothing would be said."""
    many = {("t" * 200, number): (0, 9) for number in range(5000)}
    there = GroupState("billing", "EMPTY", 0, dict.fromkeys(many, 5))
    step = plan_reset(spec(to="earliest"), {}, there, many, {})
    assert step.word == "fail"
    assert "5000 offsets, more than a status can hold" in step.reason


async def test_an_undo_looks_for_leaders_of_what_it_puts_back() -> None:
    """The group may have no other offsets there."""

    class Brokers(PlayedGroups):
        async def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            return {key: 10 for key in partitions if key[0] != "views"}

        async def groups(self, group_names: Iterable[str]) -> dict[str, GroupState | str]:
            there = recorded("r0", ("views", 0, 2, 5), clicks0=10)
            return {name: replace(there, group=name) for name in group_names}

    async def note(*_: object) -> None:
        """Nothing is noted."""

    undo = spec(to="undo")
    statuses, failed = await look_at_groups(cast(Any, Brokers()), [undo], {}, note)
    assert not failed
    (pending,) = [
        item for item in statuses["prod", "billing"]["conditions"] if item["type"] == "ResetPending"
    ]
    assert pending["status"] == "True"
    assert "views-0" in pending["message"]
