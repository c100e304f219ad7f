"""The resident loader of a BrokerCluster, and what Topics say of it (R30)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.topics.loads.plan import load_manifest
from mainstem_operator.topics.loads.rejections import Rejection
from mainstem_operator.topics.loads.resident import (
    TopicPage,
    kept_entries,
    pages_of,
    resident_manifests,
    resident_status,
)
from mainstem_operator.topics.loads.runs import LoadStatus

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
S3 = {"location": "s3://lake/events", "endpoint": "http://s3:9000", "credentialsSecret": "lake"}


def cluster(**warehouse: Any) -> ClusterSpec:
    spec = {"brokers": {"replicas": 3}, "warehouse": {**S3, **warehouse}}
    return cluster_of({"metadata": {"name": "events", "namespace": "data", "uid": "c"}, "spec": spec})


def topic(name: str = "clicks", **warehouse: Any) -> TopicSpec:
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"freshness": "60s", **warehouse}}
    return topic_of({"metadata": {"name": name, "namespace": "data", "uid": "t"}, "spec": spec})


def page(seconds_ago: int = 10, **more: Any) -> TopicPage:
    up_to = NOW - dt.timedelta(seconds=seconds_ago)
    found = TopicPage(up_to, up_to, up_to, True, "5 rows loaded.", "run-1", 5, 0)
    return replace(found, **more)


def status(present: dict[str, Any], read: TopicPage | None, trouble: str = "") -> LoadStatus:
    return resident_status(topic(), present, read, trouble, NOW)


def test_one_pod_without_rights_loads_all_topics_that_are_to_be_fresh() -> None:
    config_map, workload = resident_manifests([topic("b"), topic("a", freshness="5m")], cluster(), Images())
    topics = json.loads(config_map["data"]["topics.json"])["topics"]
    assert list(topics) == ["a", "b"]
    assert topics["a"]["freshnessSeconds"] == 300
    assert topics["b"]["arguments"][:3] == ["b", "--bootstrap-servers", "events-bootstrap.data.svc:9092"]
    assert "--executors" not in topics["b"]["arguments"]
    assert workload["spec"]["replicas"] == 1
    pod = workload["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["args"][:2] == ["resident", "/etc/mainstem/loads/topics.json"]
    assert container["envFrom"] == [{"secretRef": {"name": "lake"}}]
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://s3:9000"} in container["env"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    "file",
    [
        None,
        "",
        "no JSON",
        "[]",
        '{"topics": []}',
        '{"topics": {"clicks": {}}}',
        '{"topics": {"clicks": {"arguments": []}}}',
        '{"topics": {"clicks": {"arguments": [1]}}}',
        '{"topics": {"clicks": "a"}}',
    ],
)
def test_of_a_damaged_file_nothing_is_kept(file: str | None) -> None:
    data = {} if file is None else {"data": {"topics.json": file}}
    assert kept_entries({"metadata": {}, **data}, {"clicks"}) == {}


def test_entries_are_kept_as_they_are_beside_those_that_are_looked_at() -> None:
    config_map, _ = resident_manifests([topic("a", freshness="5m"), topic("b")], cluster(), Images())
    kept = kept_entries(config_map, {"a", "c"})
    assert list(kept) == ["a"]
    again, workload = resident_manifests([], cluster(), Images(), kept=kept)
    assert json.loads(again["data"]["topics.json"])["topics"] == kept
    assert workload["spec"]["replicas"] == 1


def test_a_topic_that_is_to_be_fresh_has_no_schedule() -> None:
    assert load_manifest(topic(), cluster(), Images()) is None


def test_a_statement_is_not_escaped_in_the_file() -> None:
    said = topic(transform={"sql": "SELECT '$(HOME)'"})
    config_map, _ = resident_manifests([said], cluster(allowTransforms=True), Images())
    arguments = json.loads(config_map["data"]["topics.json"])["topics"]["clicks"]["arguments"]
    assert arguments[arguments.index("--transform-sql") + 1] == "SELECT '$(HOME)'"


def test_the_pod_goes_when_all_topics_are_suspended() -> None:
    _, workload = resident_manifests([topic(suspend=True)], cluster(), Images())
    assert workload["spec"]["replicas"] == 0


def test_the_pod_has_the_resources_of_the_cluster_and_its_volume() -> None:
    resources = {"limits": {"memory": "8Gi"}}
    spec = {
        "brokers": {"replicas": 3},
        "warehouse": {
            "location": "/tables",
            "volumeClaim": "tables",
            "residentLoader": {"resources": resources},
        },
    }
    found = cluster_of({"metadata": {"name": "events", "namespace": "data", "uid": "c"}, "spec": spec})
    _, workload = resident_manifests([topic()], found, Images())
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == resources
    assert {"name": "warehouse", "mountPath": "/tables"} in container["volumeMounts"]


@pytest.mark.parametrize(
    ("warehouse", "reason"),
    [
        ({"freshness": "1s"}, "a duration such as 60s"),
        ({"freshness": "2d"}, "a duration such as 60s"),
        ({"freshness": "25h"}, "a duration such as 60s"),
        ({"schedule": "@hourly"}, "takes the place of schedule"),
        ({"freshWithinSeconds": 60}, "takes the place of schedule"),
        ({"transform": {"function": "a:b"}}, "with freshness is sql"),
    ],
)
def test_a_freshness_that_makes_no_sense_is_reported(warehouse: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        topic(**warehouse)


def test_a_topic_without_schedule_and_freshness_is_reported() -> None:
    with pytest.raises(InvalidSpec, match="schedule is missing"):
        topic_of(
            {
                "metadata": {"name": "a"},
                "spec": {"clusterRef": {"name": "events"}, "warehouse": {"table": "a"}},
            }
        )


def test_the_page_is_read_and_what_is_no_page_is_left_out() -> None:
    good = {
        "loadedUpToMs": 0,
        "startedMs": None,
        "finishedMs": 1000,
        "succeeded": True,
        "message": "",
        "runId": None,
        "rows": 1,
        "rejected": 0,
    }
    found = pages_of({"topics": {"a": good, "b": {}, "c": None, "d": {**good, "loadedUpToMs": 1e300}}})
    assert list(found) == ["a"]
    assert found["a"].finished == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    rejection = {"atMs": 1000, "runId": "r", "read": 9, "rejected": 5}
    pages = pages_of(
        {"topics": {"a": {**good, "lastRejection": rejection}, "b": {**good, "lastRejection": {}}}}
    )
    assert list(pages) == ["a"]
    assert pages["a"].last_rejection == Rejection(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "r", 9, 5)
    assert (pages["a"].read, pages["a"].gap_records) == (None, 0), "a loader of an earlier version"
    (read,) = pages_of({"topics": {"a": {**good, "readMs": 1000, "gapRecords": 7}}}).values()
    assert (read.read, read.gap_records) == (read.finished, 7)
    no_pages: list[Any] = [None, [], {"topics": []}, "text"]
    for nonsense in no_pages:
        assert pages_of(nonsense) == {}


def test_a_loaded_topic_is_fresh() -> None:
    told = status({}, page())
    loaded, fresh = told.conditions
    assert (loaded.holds, loaded.reason) == (True, "LoadSucceeded")
    assert (fresh.holds, fresh.reason) == (True, "LoadedRecently")
    assert told.freshness_seconds == 60
    assert told.loaded_up_to == "2026-11-21T11:59:50Z"
    assert told.last_load is not None
    assert (told.last_load["runId"], told.last_load["rows"]) == ("run-1", 5)


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21"])
def test_a_time_that_is_none_in_the_status_is_replaced_by_what_the_loader_says(text: str) -> None:
    assert status({"loadedUpTo": text}, page()).loaded_up_to == "2026-11-21T11:59:50Z"


def test_loads_that_go_on_well_write_no_status_until_its_time_is_old() -> None:
    first = status({}, page(50))
    present = {
        "loadedUpTo": first.loaded_up_to,
        "lastLoad": first.last_load,
        "lastGoodLoad": first.last_good_load,
    }
    again = status(present, page(10, run_id="run-2"))
    assert (again.loaded_up_to, again.last_load) == (first.loaded_up_to, first.last_load)
    assert again.newest == NOW - dt.timedelta(seconds=10)
    old = {**present, "loadedUpTo": "2026-11-21T11:58:00Z"}
    later = status(old, page(10, run_id="run-2"))
    assert later.loaded_up_to == "2026-11-21T11:59:50Z"
    assert later.last_load is not None
    assert later.last_load["runId"] == "run-2"


def test_a_rewind_lowers_the_time_up_to_which_everything_is_loaded() -> None:
    """R33, R45: what is loaded again is not in the table until then."""
    present = {"loadedUpTo": "2026-11-21T11:59:50Z"}
    rewound = status(present, page(3600))
    assert rewound.loaded_up_to == "2026-11-21T11:00:00Z"
    assert rewound.newest == NOW - dt.timedelta(seconds=3600)


def test_a_failure_is_reported_at_once_and_so_is_its_end() -> None:
    good = status({}, page(30))
    present = {
        "loadedUpTo": good.loaded_up_to,
        "lastLoad": good.last_load,
        "lastGoodLoad": good.last_good_load,
    }
    failed = status(present, page(30, succeeded=False, message="No broker answers."))
    loaded, fresh = failed.conditions
    assert (loaded.holds, loaded.reason, loaded.message) == (False, "LoadFailed", "No broker answers.")
    assert fresh.holds is True
    assert failed.last_good_load == good.last_good_load
    recovered = status({**present, "lastLoad": failed.last_load}, page(5))
    assert recovered.last_load is not None
    assert recovered.last_load["succeeded"] is True


def test_freshness_goes_by_data_whatever_the_loader_says_or_does_not() -> None:
    old = {"loadedUpTo": "2026-11-21T11:57:30Z"}
    for read in (None, page(150)):
        told = status(old, read)
        assert told.conditions[1].reason == "TooOld"
        assert told.freshness_seconds == 180


def test_a_loader_that_does_not_answer_or_can_not_start_is_reported() -> None:
    assert status({}, None).conditions[0].reason == "LoaderNotReady"
    told = status({}, None, 'secret "lake" not found').conditions[0]
    assert (told.reason, told.holds) == ("LoadCannotStart", False)
    assert 'secret "lake" not found' in told.message
