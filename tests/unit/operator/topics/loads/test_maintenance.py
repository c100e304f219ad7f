"""The CronJob that maintains a Topic's table, and what its runs say."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from tests.unit.operator.topics.loads.test_plan import NOW, arguments, cluster, topic

from mainstem_operator.api.clusters import Images
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.proofs import Refusal
from mainstem_operator.topics.loads.gone_loads import gone_loads
from mainstem_operator.topics.loads.maintenance import maintenance_condition, maintenance_manifest
from mainstem_operator.topics.loads.plan import logged_in_loads, maintenance_name
from mainstem_operator.topics.loads.runs import Run

DAILY = {"schedule": "30 3 * * *"}


def made(**warehouse: Any) -> dict[str, Any]:
    cron_job = maintenance_manifest(topic(**warehouse), cluster(), Images())
    assert cron_job is not None
    return cron_job


def run(succeeded: bool | None, message: str = "", trouble: str = "") -> Run:
    finished = None if succeeded is None else NOW
    return Run("clicks-maintain-1", NOW - dt.timedelta(minutes=1), finished, succeeded, message, trouble)


def test_a_table_is_maintained_by_a_schedule_of_its_own() -> None:
    cron_job = made(maintenance=DAILY, timeZone="Europe/Berlin")
    assert cron_job["metadata"]["name"] == maintenance_name("clicks")
    assert cron_job["spec"]["schedule"] == "30 3 * * *"
    assert cron_job["spec"]["timeZone"] == "Europe/Berlin"
    assert cron_job["spec"]["concurrencyPolicy"] == "Forbid"
    assert "load clicks --bootstrap-servers" in arguments(cron_job)
    assert "--maintain --sweep-orphans-after-hours 168" in arguments(cron_job)


def test_a_topic_that_is_kept_fresh_has_maintenance_too() -> None:
    cron_job = made(schedule=None, freshness="60s", maintenance={**DAILY, "keepFilesHours": 24})
    assert "--maintain --sweep-orphans-after-hours 24" in arguments(cron_job)


@pytest.mark.parametrize("more", [{}, {"maintenance": DAILY, "tableFormat": "iceberg"}])
def test_a_table_without_maintenance_or_loads_has_no_cron_job(more: dict[str, Any]) -> None:
    assert maintenance_manifest(topic(**more), cluster(), Images()) is None


def test_suspended_loads_suspend_their_maintenance() -> None:
    assert made(maintenance=DAILY, suspend=True)["spec"]["suspend"] is True


def test_files_of_running_loads_cannot_be_deleted_by_a_setting() -> None:
    with pytest.raises(InvalidSpec, match="keepFilesHours"):
        topic(maintenance={**DAILY, "keepFilesHours": 23})
    with pytest.raises(InvalidSpec, match="schedule"):
        topic(maintenance={})


def test_the_cron_job_goes_with_its_topic() -> None:
    cron_job = made(maintenance=DAILY)
    there = {"metadata": {"name": "clicks"}}
    assert gone_loads([cron_job], [there], "c") == []
    assert gone_loads([cron_job], [], "c") == [cron_job]


@pytest.mark.parametrize(
    ("runs", "holds", "words"),
    [
        pytest.param([], None, "The first one begins by '30 3 * * *'.", id="none yet"),
        pytest.param([run(None)], None, "The first one begins by", id="under way"),
        pytest.param([run(None, trouble="No image.")], False, "can't start. No image.", id="cannot start"),
        pytest.param([run(False, '{"error": "The disk is full."}')], False, "The disk is full.", id="error"),
        pytest.param([run(False, "Killed")], False, "Killed", id="killed"),
        pytest.param(
            [run(True, json.dumps({"days": 2, "filesBefore": 90, "filesAfter": 3, "filesDeleted": 7}))],
            True,
            "90 files of 2 days merged into 3, 7 old files deleted.",
            id="succeeded",
        ),
    ],
)
def test_the_condition_says_how_the_last_maintenance_ended(
    runs: list[Run], holds: bool | None, words: str
) -> None:
    condition = maintenance_condition(made(maintenance=DAILY), runs)
    assert (condition.type, condition.holds) == ("Maintained", holds)
    assert words in condition.message


def test_a_cron_job_that_kubernetes_refuses_is_reported() -> None:
    condition = maintenance_condition(Refusal("Kubernetes refuses its CronJob: no."), ())
    assert (condition.holds, condition.reason) == (False, "CannotMaintain")


def test_the_maintenance_of_a_topic_that_is_kept_fresh_logs_in_under_a_name_of_its_own() -> None:
    there: dict[str, Any] = {"metadata": {"name": "clicks"}, "spec": {"warehouse": {"freshness": "60s"}}}
    assert logged_in_loads([there]) == {"resident-loader"}
    there["spec"]["warehouse"]["maintenance"] = DAILY
    assert logged_in_loads([there]) == {"resident-loader", "clicks-load"}
