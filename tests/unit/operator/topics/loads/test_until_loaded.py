"""Retention that waits for loads: the topic's settings, the loads' arguments, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from tests.unit.operator.topics.loads.test_plan import arguments, made

from mainstem_loader.errors import OffsetsLostError
from mainstem_loader.ranges import PartitionOffsets, ReadLimits, plan_load
from mainstem_operator.api.conditions import merged
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.topics.loads.identity import load_acls
from mainstem_operator.topics.loads.resident import TopicPage, resident_loads
from mainstem_operator.topics.loads.runs import EndedLoad, Run, ended_loads, retention_condition

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
UNTIL_LOADED: dict[str, Any] = {"retention": "untilLoaded", "retentionLimit": "50Gi"}


def topic(config: dict[str, Any] | None = None, **warehouse: Any) -> TopicSpec:
    spec = {
        "clusterRef": {"name": "events"},
        "config": config or {},
        "warehouse": {"schedule": "*/10 * * * *", **warehouse},
    }
    return topic_of({"metadata": {"name": "clicks", "namespace": "data", "uid": "t"}, "spec": spec})


def test_brokers_delete_what_is_too_much_and_loads_what_is_old() -> None:
    spec = topic({"retention.ms": "86400000", "segment.ms": "600000"}, **UNTIL_LOADED)
    assert spec.config == {"retention.ms": "-1", "retention.bytes": "53687091200", "segment.ms": "600000"}
    assert "--delete-loaded-after-ms 86400000" in arguments(made(spec))


def test_loaded_records_stay_for_a_week_unless_the_manifest_says_otherwise() -> None:
    assert "--delete-loaded-after-ms 604800000" in arguments(made(topic(**UNTIL_LOADED)))
    assert "--delete-loaded-after-ms 604800000" in arguments(
        made(topic({"retention.ms": None}, **UNTIL_LOADED))
    )


def test_a_load_may_delete_records_of_its_own_topic_and_of_no_other() -> None:
    transform = {"sql": "SELECT 1", "inputs": {"users": {"topic": "users"}}}
    allowed = {(rule.operation, rule.name) for rule in load_acls(topic(**UNTIL_LOADED, transform=transform))}
    assert allowed == {("read", "clicks"), ("read", "users"), ("delete", "clicks")}
    assert {rule.operation for rule in load_acls(topic())} == {"read"}


@pytest.mark.parametrize("more", [{}, {"retention": "topic"}])
def test_other_topics_keep_their_retention(more: dict[str, Any]) -> None:
    spec = topic({"retention.ms": "1000"}, **more)
    assert spec.config == {"retention.ms": "1000"}
    assert "--delete-loaded-after-ms" not in arguments(made(spec))
    assert retention_condition(spec, {}, []) is None


def test_the_limit_is_reported() -> None:
    condition = retention_condition(topic(**UNTIL_LOADED), {}, [])
    assert condition is not None
    assert (condition.type, condition.holds) == ("KeptUntilLoaded", True)
    assert "at most 53687091200 bytes of each partition" in condition.message


def run(minute: int, **summary: Any) -> Run:
    """A run that ended so many minutes after NOW."""
    ended = NOW + dt.timedelta(minutes=minute)
    return Run(f"job-{minute}", ended, ended, "error" not in summary, json.dumps(summary))


def error_of_a_gap() -> str:
    """The loader's own words."""
    offsets = PartitionOffsets(partition=0, earliest=9, latest=20, committed=5)
    with pytest.raises(OffsetsLostError) as caught:
        plan_load("clicks", [offsets], ReadLimits())
    return str(caught.value)


def status_after(status: dict[str, Any], minute: int, *runs: Run) -> dict[str, Any]:
    """The status after a look at this minute that sees these Jobs."""
    return status_of(status, minute, ended_loads(runs))


def status_of(status: dict[str, Any], minute: int, loads: list[EndedLoad]) -> dict[str, Any]:
    condition = retention_condition(topic(**UNTIL_LOADED), status, loads)
    assert condition is not None
    return {"conditions": merged(status, [condition], 1, NOW + dt.timedelta(minutes=minute))}


def condition_in(status: dict[str, Any]) -> tuple[str, str]:
    (condition,) = status["conditions"]
    return condition["status"], condition["message"]


def test_records_that_the_limit_deleted_before_they_were_loaded_are_reported() -> None:
    status = status_after({}, 1, run(0, read=100, gapRecords=7))
    holds, message = condition_in(status)
    assert holds == "False"
    assert "the limit of 53687091200 bytes. 7 offsets were deleted before they were loaded." in message
    assert condition_in(status_after(status, 3, run(2, read=0, gapRecords=0))) == ("False", message)
    assert condition_in(status_after(status, 3, run(2, read=5, gapRecords=0)))[0] == "True"


def test_a_load_that_fails_for_deleted_records_is_reported_until_one_has_no_gap() -> None:
    failed = run(0, error=error_of_a_gap())
    status = status_after({}, 1, failed)
    holds, message = condition_in(status)
    assert (holds, error_of_a_gap() in message) == ("False", True)
    status = status_after(status, 3, failed, run(2, read=5, gapRecords=0))
    assert condition_in(status)[0] == "True"
    # The Job that failed is kept for longer than the good one after it.
    assert condition_in(status_after(status, 5, failed, run(4, read=0)))[0] == "True"


def test_other_failures_say_nothing_of_deleted_records() -> None:
    assert condition_in(status_after({}, 1, run(0, error="The store does not answer.")))[0] == "True"


def page(minute: int, error: str = "", *, read: int | None = None, gap: int = 0) -> list[EndedLoad]:
    """What the resident loader knows after a load that ended so many minutes after NOW.

    Args:
        error: of the load.
        read: the minute at which the last load ended that read records, and `gap` the offsets it passed over.
    """
    ended = NOW + dt.timedelta(minutes=minute)
    read_at = None if read is None else NOW + dt.timedelta(minutes=read)
    return resident_loads(
        TopicPage(ended, ended, ended, not error, error, "run", 5, 0, read=read_at, gap_records=gap)
    )


def test_the_resident_loader_reports_records_that_the_limit_deleted_as_loads_by_schedule_do() -> None:
    """R30. Of loads it knows the last one that ended, and the last one that read records."""
    status = status_of({}, 1, page(0, read=0))
    assert condition_in(status)[0] == "True"
    status = status_of(status, 3, page(2, read=2, gap=7))
    holds, message = condition_in(status)
    assert (holds, "7 offsets were deleted" in message) == ("False", True)
    assert condition_in(status_of(status, 5, page(4, read=2, gap=7)))[0] == "False", "nothing was read"
    assert condition_in(status_of(status, 5, []))[0] == "False", "it has started again"
    assert condition_in(status_of(status, 5, resident_loads(None)))[0] == "False", "it does not answer"
    assert condition_in(status_of(status, 5, page(4, read=4)))[0] == "True"


def test_the_resident_loader_fails_for_deleted_records_until_it_reads_records_again() -> None:
    status = status_of({}, 1, page(0, read=0))
    status = status_of(status, 3, page(2, error_of_a_gap(), read=0))
    holds, message = condition_in(status)
    assert (holds, error_of_a_gap() in message) == ("False", True)
    # The last load that read records was before the gap.
    assert condition_in(status_of(status, 5, page(4, "No broker answers.", read=0)))[0] == "False"
    assert condition_in(status_of(status, 5, page(4, read=4)))[0] == "True"


def test_what_loads_by_schedule_have_reported_ends_by_the_resident_loader() -> None:
    status = status_after({}, 1, run(0, read=100, gapRecords=7))
    assert condition_in(status_of(status, 3, page(2)))[0] == "False"
    assert condition_in(status_of(status, 3, page(2, read=2)))[0] == "True"


@pytest.mark.parametrize(
    ("config", "warehouse", "words"),
    [
        ({}, {"retention": "untilLoaded"}, "retentionLimit"),
        ({}, {"retentionLimit": "1Gi"}, "goes with retention: untilLoaded"),
        ({}, {"retention": "untilLoaded", "retentionLimit": "0"}, "must be a positive number"),
        ({}, {"retention": "untilLoaded", "retentionLimit": "much"}, "is not a quantity"),
        ({}, {"retention": "always"}, "retention"),
        ({"retention.bytes": "1"}, UNTIL_LOADED, "retentionLimit is the limit"),
        ({"cleanup.policy": "compact"}, UNTIL_LOADED, "cleanup.policy is not delete"),
        ({"cleanup.policy": "compact,delete"}, UNTIL_LOADED, "cleanup.policy is not delete"),
        ({"retention.ms": "-1"}, UNTIL_LOADED, "how long records stay that are loaded"),
        ({"retention.ms": "7d"}, UNTIL_LOADED, "a number of milliseconds such as 604800000"),
    ],
)
def test_what_contradicts_itself_is_refused(
    config: dict[str, Any], warehouse: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSpec, match=words):
        topic(config, **warehouse)
