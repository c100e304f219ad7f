"""A load that rejected too many records is told until one that reads records stays within the limit (R28)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from mainstem_operator.api.conditions import merged
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.topics.loads.rejections import (
    REJECTED,
    Rejection,
    Rejections,
    rejection_condition,
    rejections_in,
    rejections_of_runs,
)
from mainstem_operator.topics.loads.resident import TopicPage, resident_rejections
from mainstem_operator.topics.loads.runs import Run

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)


def topic(**warehouse: Any) -> TopicSpec:
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "*/10 * * * *", **warehouse}}
    return topic_of({"metadata": {"name": "clicks", "namespace": "data"}, "spec": spec})


def run(minute: int, read: int, rejected: int) -> Run:
    """A run that ended so many minutes after NOW."""
    ended = NOW + dt.timedelta(minutes=minute)
    summary = {"runId": f"run-{minute}", "read": read, "deadLettered": rejected}
    return Run(f"job-{minute}", ended, ended, rejected == 0, json.dumps(summary))


def status_after(spec: TopicSpec, status: dict[str, Any], *runs: Run) -> dict[str, Any]:
    """The status after a look that sees these Jobs."""
    rejections = rejections_of_runs(spec, status, runs)
    condition = rejection_condition(spec, rejections)
    assert (condition is None) == (rejections.last is None)
    conditions = merged(status, [] if condition is None else [condition], 1, NOW)
    last = {} if rejections.last is None else {"lastRejection": rejections.last.status()}
    return {**last, "conditions": conditions}


def is_told(status: dict[str, Any]) -> bool:
    return any(item["type"] == REJECTED and item["status"] == "True" for item in status["conditions"])


def test_a_load_with_nothing_to_read_takes_back_no_rejection() -> None:
    status = status_after(topic(), {}, run(0, 100, 50))
    status = status_after(topic(), status, run(0, 100, 50), run(10, 0, 0))
    assert is_told(status)
    expected = {"at": "2026-11-21T12:00:00Z", "runId": "run-0", "read": 100, "rejected": 50}
    assert status["lastRejection"] == expected
    (condition,) = status["conditions"]
    assert condition["message"].startswith("50 of 100 records were rejected by the load that ended at 2026")


def test_a_rejection_is_reported_when_its_job_is_gone_and_until_a_load_is_within_the_limit() -> None:
    status = status_after(topic(), {}, run(0, 100, 50))
    status = status_after(topic(), status, run(10, 0, 0))
    assert is_told(status)
    status = status_after(topic(), status, run(20, 100, 5))
    assert not is_told(status)


def test_an_old_job_that_is_kept_for_longer_than_the_good_one_after_it_is_not_judged_again() -> None:
    bad, good = run(0, 100, 50), run(10, 100, 0)
    status = status_after(topic(), {}, bad)
    status = status_after(topic(), status, bad, good)
    assert not is_told(status)
    assert not is_told(status_after(topic(), status, bad))
    assert is_told(status_after(topic(), status, bad, run(20, 10, 10)))


def test_runs_are_judged_in_the_order_in_which_they_ended() -> None:
    assert not is_told(status_after(topic(), {}, run(10, 100, 0), run(0, 100, 50)))
    assert is_told(status_after(topic(), {}, run(10, 100, 50), run(0, 100, 0)))


def test_a_higher_limit_ends_a_rejection_that_is_within_it() -> None:
    status = status_after(topic(), {}, run(0, 100, 50))
    assert not is_told(status_after(topic(maxRejectedPercent=50), status, run(0, 100, 50)))


def test_without_rejections_there_is_nothing_to_tell() -> None:
    status = status_after(topic(), {}, run(0, 100, 5))
    assert status == {"conditions": []}


@pytest.mark.parametrize("lost", ["at", "read", "rejected"])
def test_a_damaged_note_is_none(lost: str) -> None:
    note = {"at": "2026-11-21T12:00:00Z", "runId": "r", "read": 9, "rejected": 9}
    del note[lost]
    assert rejections_in({"lastRejection": note}) == Rejections()


# --- The resident loader ---

REJECTION = Rejection(NOW, "run-1", 100, 50)
QUIET = TopicPage(NOW, NOW, NOW, True, "", "run-2", 100, 0)
NOTED: dict[str, Any] = {
    "lastRejection": REJECTION.status(),
    "conditions": [{"type": REJECTED, "status": "True"}],
}


def test_a_resident_loader_that_was_started_again_takes_back_no_rejection() -> None:
    for page in (None, replace(QUIET, run_id=None)):
        assert resident_rejections(NOTED, page) == Rejections(REJECTION, True)
    assert resident_rejections(NOTED, QUIET) == Rejections(REJECTION, False)


def test_a_resident_loader_that_goes_on_rejecting_writes_no_status_for_each_load() -> None:
    later = replace(REJECTION, at=NOW + dt.timedelta(seconds=5), run_id="run-2")
    rejecting = replace(QUIET, last_rejection=later)
    assert resident_rejections(NOTED, rejecting) == Rejections(REJECTION, True)
    assert resident_rejections({}, rejecting) == Rejections(later, True)


def test_the_gauge_goes_with_its_topic() -> None:
    metrics = Metrics()
    labels = {"namespace": "prod", "cluster": "events", "topic": "clicks"}

    def value() -> float | None:
        return metrics.registry.get_sample_value("mainstem_topic_records_rejected", labels)

    metrics.set_rejecting("prod", "events", {"clicks": True})
    assert value() == 1.0
    metrics.set_rejecting("prod", "events", {}, unknown={"clicks"})  # an object of its load was refused
    assert value() == 1.0
    metrics.set_rejecting("prod", "events", {"views": False})
    assert value() is None
    metrics.set_rejecting("prod", "events", {"clicks": False})
    assert value() == 0.0
    metrics.forget("prod", "events")
    assert value() is None
