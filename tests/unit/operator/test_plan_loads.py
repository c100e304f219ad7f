"""The CronJob of a Topic's loads, and what its runs say (R28)."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from mainstem_operator.plan_loads import (
    EXECUTORS_MAX,
    Run,
    last_good_load,
    last_load,
    load_conditions,
    load_manifest,
    load_name,
    loader_rights,
    run_of,
)
from mainstem_operator.proofs import Refusal
from mainstem_operator.resources import ClusterSpec, Images, TopicSpec, cluster_of, topic_of

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
S3 = {"location": "s3://lake/events", "endpoint": "http://s3:9000", "credentialsSecret": "lake"}
VOLUME = {"location": "/warehouse", "volumeClaim": "tables"}


def cluster(warehouse: dict[str, Any] | None = S3) -> ClusterSpec:
    spec: dict[str, Any] = {"brokers": {"replicas": 3}}
    if warehouse is not None:
        spec["warehouse"] = warehouse
    return cluster_of({"metadata": {"name": "events", "namespace": "data", "uid": "c"}, "spec": spec})


def topic(**warehouse: Any) -> TopicSpec:
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "*/10 * * * *", **warehouse}}
    return topic_of({"metadata": {"name": "clicks", "namespace": "data", "uid": "t"}, "spec": spec})


def made(spec: TopicSpec, of: ClusterSpec | None = None) -> dict[str, Any]:
    found = load_manifest(spec, of or cluster(), Images())
    assert isinstance(found, dict)
    return found


def pod_of(cron_job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def arguments(cron_job: dict[str, Any]) -> str:
    return " ".join(pod_of(cron_job)["containers"][0]["args"])


def environment(cron_job: dict[str, Any]) -> dict[str, str]:
    env = pod_of(cron_job)["containers"][0]["env"]
    return {item["name"]: item.get("value", "") for item in env}


def test_a_topic_is_loaded_by_schedule_one_run_at_a_time() -> None:
    cron_job = made(topic())
    assert cron_job["metadata"]["name"] == "clicks-load"
    assert cron_job["metadata"]["ownerReferences"][0]["kind"] == "Topic"
    assert cron_job["spec"]["schedule"] == "*/10 * * * *"
    assert cron_job["spec"]["concurrencyPolicy"] == "Forbid"
    assert arguments(cron_job) == (
        "load clicks --bootstrap-servers events-bootstrap.data.svc:9092 --warehouse s3://lake/events"
        f" --table clicks --payload json --cores 2 --executors {EXECUTORS_MAX}"
        " --summary-file /dev/termination-log"
    )


def test_what_the_topic_says_reaches_the_loader() -> None:
    said = topic(
        table="c",
        format="json",
        eventTime="at",
        columns={"price": "double"},
        headers=True,
        deadLetter={"table": "c_rejected"},
        onGap="skip",
        maxRecords=9,
        executors=2,
        timeZone="Europe/Berlin",
        suspend=True,
    )
    cron_job = made(said)
    told = arguments(cron_job)
    for part in (
        "--table c --payload json --cores 2 --column price=double --event-time at --headers",
        "--dead-letter-table c_rejected --on-gap skip-and-record --max-records 9",
        "--executors 2 --records-per-executor 1",
    ):
        assert part in told
    assert cron_job["spec"]["timeZone"] == "Europe/Berlin"
    assert cron_job["spec"]["suspend"] is True


def test_a_store_is_named_in_the_environment_and_its_secrets_stay_secret() -> None:
    cron_job = made(topic())
    assert environment(cron_job)["AWS_ENDPOINT_URL"] == "http://s3:9000"
    assert environment(cron_job)["EXECUTOR_SECRET"] == "lake"
    assert pod_of(cron_job)["containers"][0]["envFrom"] == [{"secretRef": {"name": "lake"}}]


def test_tables_on_a_volume_are_written_by_one_pod_without_rights() -> None:
    cron_job = made(topic(executors=3), cluster(VOLUME))
    assert "--executors" not in arguments(cron_job)
    pod = pod_of(cron_job)
    assert pod["automountServiceAccountToken"] is False
    assert {"name": "warehouse", "mountPath": "/warehouse"} in pod["containers"][0]["volumeMounts"]


def test_pods_run_as_restricted_as_pods_can() -> None:
    pod = pod_of(made(topic()))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_without_a_place_for_tables_the_topic_says_what_to_do() -> None:
    refusal = load_manifest(topic(), cluster(None), Images())
    assert isinstance(refusal, Refusal)
    assert "Cluster events has no spec.warehouse" in refusal.reason
    assert load_conditions(topic(), refusal, (), None, NOW)[0].reason == "CannotLoad"


def test_the_names_of_long_topics_stay_short_and_apart() -> None:
    names = {load_name("x" * length) for length in range(1, 250)}
    assert len(names) == 249
    assert max(map(len, names)) <= 52


def test_loads_may_make_executors_and_nothing_else() -> None:
    account, role, binding = loader_rights(cluster())
    assert account["automountServiceAccountToken"] is False
    assert role["rules"][0]["apiGroups"] == [""]
    assert "secrets" not in role["rules"][0]["resources"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


def run(minutes_ago: float, succeeded: bool | None, message: object = "") -> Run:
    started = NOW - dt.timedelta(minutes=minutes_ago)
    finished = None if succeeded is None else started + dt.timedelta(minutes=1)
    text = message if isinstance(message, str) else json.dumps(message)
    return Run(f"clicks-load-{minutes_ago}", started, finished, succeeded, text)


def test_the_last_run_that_ended_is_told_with_its_numbers() -> None:
    runs = [
        run(30, True, {"runId": "a", "loaded": 10, "deadLettered": 1}),
        run(20, True, {"runId": "b", "loaded": 5, "deadLettered": 0}),
        run(1, None),
    ]
    told = last_load(runs)
    assert told is not None
    assert (told["runId"], told["rows"], told["rejected"], told["succeeded"]) == ("b", 5, 0, True)
    assert told["message"] == "5 rows loaded."


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"error": "The disk of /warehouse is full."}, "The disk of /warehouse is full."),
        ("Traceback ... killed", "Traceback ... killed"),
    ],
)
def test_a_run_that_failed_is_told_in_its_own_words(message: object, sentence: str) -> None:
    (condition,) = load_conditions(topic(), None, [run(5, False, message)], None, NOW)
    assert (condition.type, condition.holds, condition.message) == ("Loaded", False, sentence)


def test_a_table_is_fresh_as_long_as_the_last_good_load_is_not_too_old() -> None:
    spec = topic(freshWithinSeconds=600)

    def fresh(*runs: Run, present: str | None = None) -> bool | None:
        return load_conditions(spec, None, runs, present, NOW)[1].holds

    assert fresh() is None
    assert fresh(run(5, True, {"loaded": 1})) is True
    assert fresh(run(5, False), run(12, True, {"loaded": 1})) is False
    assert fresh(present="2026-11-21T11:58:00Z") is True  # its Job is gone already


def test_good_loads_are_remembered_when_their_jobs_are_gone() -> None:
    assert last_good_load([], "2026-11-21T11:58:00Z") == "2026-11-21T11:58:00Z"
    assert last_good_load([run(1, True)], "2026-11-21T11:58:00Z") == "2026-11-21T12:00:00Z"
    assert last_good_load([run(1, False)], None) is None


def test_a_job_is_read_as_a_run() -> None:
    job = {
        "metadata": {"name": "clicks-load-1", "creationTimestamp": "2026-11-21T11:00:00Z"},
        "status": {
            "startTime": "2026-11-21T11:00:01Z",
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "lastTransitionTime": "2026-11-21T11:05:00Z",
                    "message": "BackoffLimit",
                }
            ],
        },
    }
    failed = run_of(job, "")
    assert (failed.succeeded, failed.message) == (False, "BackoffLimit")
    assert failed.finished == dt.datetime(2026, 11, 21, 11, 5, tzinfo=dt.UTC)
    assert run_of({"metadata": job["metadata"], "status": {}}, "").succeeded is None
