"""The CronJob of a Topic's loads, and what its runs say (R28)."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.proofs import Refusal
from mainstem_operator.topics.loads.plan import (
    EXECUTORS_MAX,
    TRANSFORM_RESOURCES,
    executors_condition,
    load_manifest,
    load_name,
    loader_rights,
)
from mainstem_operator.topics.loads.resident import resident_manifests
from mainstem_operator.topics.loads.runs import (
    Run,
    last_good_load,
    last_load,
    load_conditions,
    loaded_up_to,
    run_of,
    waits_in_silence,
    without_pod,
)

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
    result = load_manifest(spec, of or cluster(), Images())
    assert isinstance(result, dict)
    return result


def pod_of(cron_job: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return results


def arguments(cron_job: dict[str, Any]) -> str:
    return " ".join(pod_of(cron_job)["containers"][0]["args"])


def environment(cron_job: dict[str, Any]) -> dict[str, str]:
    env = pod_of(cron_job)["containers"][0]["env"]
    return {item["name"]: item.get("value", "") for item in env}


def test_a_topic_is_loaded_by_schedule_one_run_at_a_time() -> None:
    cron_job = made(topic())
    assert cron_job["metadata"]["name"] == "clicks-load"
    assert [owner["kind"] for owner in cron_job["metadata"]["ownerReferences"]] == ["BrokerCluster"]
    assert cron_job["metadata"]["labels"]["mainstem.dev/load-of"] == "clicks-load"
    assert cron_job["spec"]["schedule"] == "*/10 * * * *"
    assert cron_job["spec"]["concurrencyPolicy"] == "Forbid"
    assert arguments(cron_job) == (
        "load clicks --bootstrap-servers events-bootstrap.data.svc:9092 --warehouse s3://lake/events"
        f" --table clicks --payload json --cores 2 --max-rejected-percent 5 --executors {EXECUTORS_MAX}"
        " --summary-file /dev/termination-log"
    )


def test_what_the_topic_says_reaches_the_loader() -> None:
    said = topic(
        table="c",
        format="json",
        eventTime="at",
        eventDayMin="2020-01-01",
        eventDayMax="2030-12-31",
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
    reported = arguments(cron_job)
    for part in (
        "--table c --payload json --cores 2 --column price=double",
        "--event-time at --event-time-unit ms --event-day-min 2020-01-01",
        "--event-day-max 2030-12-31 --headers",
        "--dead-letter-table c_rejected --on-gap skip --max-records 9",
        "--executors 2 --records-per-executor 1",
    ):
        assert part in reported
    assert cron_job["spec"]["timeZone"] == "Europe/Berlin"
    assert cron_job["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("days", "words"),
    [
        ({"eventDayMin": "2026-02-30"}, "eventDayMin has '2026-02-30'; write days as 2026-11-21"),
        ({"eventDayMax": "soon"}, "eventDayMax has 'soon'"),
        ({"eventDayMin": "2026-01-02", "eventDayMax": "2026-01-01"}, "later than eventDayMax"),
    ],
)
def test_days_of_events_that_make_no_sense_are_reported(days: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        topic(**days)


def test_iceberg_tables_are_loaded_with_their_catalog() -> None:
    catalog = {"uri": "http://catalog:8181", "namespace": "lake.events"}
    said = topic(tableFormat="iceberg")
    reported = arguments(made(said, cluster({**S3, "catalog": catalog})))
    named = "--format iceberg --catalog http://catalog:8181 --catalog-namespace lake.events"
    assert named in reported
    on_volume = arguments(made(said, cluster(VOLUME)))
    assert "--format iceberg" in on_volume
    assert "--catalog" not in on_volume
    refusal = load_manifest(said, cluster(), Images())
    assert isinstance(refusal, Refusal)
    assert "Iceberg tables in a bucket need one" in refusal.reason


def test_avro_values_are_loaded_with_their_registry() -> None:
    reported = arguments(made(topic(format="avro", schemaRegistry="http://registry:8081")))
    assert "--payload avro --cores 2 --schema-registry http://registry:8081" in reported


def test_a_topic_that_says_fail_on_gaps_also_fails_at_its_first_load() -> None:
    assert "--on-gap fail" in arguments(made(topic(onGap="fail")))
    assert "--on-gap" not in arguments(made(topic()))


ALLOWED = {**S3, "allowTransforms": True}


def test_a_statement_reaches_the_loader_as_it_is() -> None:
    """Kubernetes would replace $(NAME) in arguments."""
    statement = "SELECT '$(POD_IP)' AS ip\nFROM records"
    cron_job = made(topic(transform={"sql": statement, "deadlineSeconds": 60}), cluster(ALLOWED))
    args = pod_of(cron_job)["containers"][0]["args"]
    assert args[args.index("--transform-sql") + 1] == "SELECT '$$(POD_IP)' AS ip\nFROM records"
    assert args[args.index("--transform-deadline-seconds") + 1] == "60"
    assert pod_of(cron_job)["containers"][0]["resources"] == TRANSFORM_RESOURCES


def test_a_statement_in_a_config_map_is_mounted() -> None:
    said = topic(transform={"configMap": {"name": "statements", "key": "clicks.sql"}})
    cron_job = made(said, cluster(ALLOWED))
    assert "--transform /etc/mainstem/transform/statement.sql" in arguments(cron_job)
    assert {
        "name": "transform",
        "configMap": {"name": "statements", "items": [{"key": "clicks.sql", "path": "statement.sql"}]},
    } in pod_of(cron_job)["volumes"]
    mounted = {"name": "transform", "mountPath": "/etc/mainstem/transform", "readOnly": True}
    assert mounted in pod_of(cron_job)["containers"][0]["volumeMounts"]


def test_a_function_runs_in_its_image_here_and_in_executors() -> None:
    inputs = {"users": {"topic": "users.v1", "columns": {"id": "long"}}, "shops": {"table": "shops"}}
    said = topic(transform={"function": "jobs:clean", "image": "jobs:1", "inputs": inputs})
    cron_job = made(said, cluster(ALLOWED))
    assert (
        "--transform jobs:clean --input shops=table:shops --input users=topic:users.v1:json"
        " --input-column users.id=long --transform-deadline-seconds 3600"
    ) in arguments(cron_job)
    assert pod_of(cron_job)["containers"][0]["image"] == "jobs:1"
    assert environment(cron_job)["SPARK_IMAGE"] == "jobs:1"


def test_transforms_run_only_where_the_cluster_allows_them() -> None:
    """Their code can read the credentials of loads."""
    refusal = load_manifest(topic(transform={"sql": "SELECT 1"}), cluster(), Images())
    assert isinstance(refusal, Refusal)
    assert "allowTransforms" in refusal.reason


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        ({}, "exactly one of"),
        ({"sql": "SELECT 1", "function": "a:b"}, "exactly one of"),
        ({"sql": "SELECT 1", "image": "jobs:1"}, "image goes with function"),
        ({"configMap": {"name": "statements"}}, "key is missing"),
        ({"sql": "SELECT 1", "inputs": {"a": {}}}, "either table or topic"),
        ({"sql": "SELECT 1", "inputs": {"a": {"table": "a", "format": "json"}}}, "go with topic only"),
        ({"sql": "SELECT 1", "inputs": {"a": {"topic": "a", "format": "avro"}}}, "schemaRegistry is missing"),
        ({"sql": "SELECT 1", "deadlineSeconds": 0}, "must be from 1"),
    ],
)
def test_what_is_no_transform_is_reported(transform: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        topic(transform=transform)


def test_the_rows_of_a_load_are_those_that_a_transform_returned() -> None:
    message = json.dumps({"loaded": 9, "rows": 4, "deadLettered": 1})
    run = Run("clicks-load-1", NOW, NOW, True, message)
    reported = last_load([run])
    assert reported is not None
    assert (reported["rows"], reported["message"]) == (4, "4 rows loaded, 1 to the dead letters.")


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
    assert "BrokerCluster events has no spec.warehouse" in refusal.reason
    assert load_conditions(topic(), refusal, (), None, NOW)[0].reason == "CannotLoad"


def test_the_names_of_long_topics_stay_short_and_apart() -> None:
    names = {load_name("x" * length) for length in range(1, 250)}
    assert len(names) == 249
    assert max(map(len, names)) <= 52


def rights_of(spec: ClusterSpec) -> dict[str, set[str]]:
    """Verbs by group and resource, and name where only that one."""
    return {
        "/".join([group, resource, *rule.get("resourceNames", ())]): set(rule["verbs"])
        for rule in loader_rights(spec)[1]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_loads_may_make_executors_and_nothing_else() -> None:
    account, _, binding = loader_rights(cluster())
    assert account["automountServiceAccountToken"] is False
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    executors = {
        # Spark looks for its driver's pod, watches its executors, and deletes them all when it stops.
        "/pods": {"get", "list", "watch", "create", "delete", "deletecollection"},
        # By which the admission policy knows the account.
        "mainstem.dev/executors": {"create"},
    }
    assert rights_of(cluster()) == {**executors, "mainstem.dev/executorsecrets/lake": {"use"}}
    assert rights_of(cluster(VOLUME)) == rights_of(cluster(None)) == executors


def run(minutes_ago: float, succeeded: bool | None, message: object = "") -> Run:
    started = NOW - dt.timedelta(minutes=minutes_ago)
    finished = None if succeeded is None else started + dt.timedelta(minutes=1)
    text = message if isinstance(message, str) else json.dumps(message)
    return Run(f"clicks-load-{minutes_ago}", started, finished, succeeded, text)


def test_the_last_run_that_ended_is_reported_with_its_numbers() -> None:
    runs = [
        run(30, True, {"runId": "a", "loaded": 10, "deadLettered": 1}),
        run(20, True, {"runId": "b", "loaded": 5, "deadLettered": 0}),
        run(1, None),
    ]
    reported = last_load(runs)
    assert reported is not None
    assert (reported["runId"], reported["rows"], reported["rejected"], reported["succeeded"]) == (
        "b",
        5,
        0,
        True,
    )
    assert reported["message"] == "5 rows loaded."


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"error": "The disk of /warehouse is full."}, "The disk of /warehouse is full."),
        ("Traceback ... killed", "Traceback ... killed"),
    ],
)
def test_a_run_that_failed_is_reported_in_its_own_words(message: object, sentence: str) -> None:
    (condition,) = load_conditions(topic(), None, [run(5, False, message)], None, NOW)
    assert (condition.type, condition.holds, condition.message) == ("Loaded", False, sentence)


def test_a_table_is_fresh_as_long_as_all_records_are_loaded_up_to_a_recent_time() -> None:
    """However often loads succeed: a capped one may leave days of records behind."""
    spec = topic(freshWithinSeconds=600)

    def fresh(*runs: Run, present: str | None = None) -> bool | None:
        return load_conditions(spec, None, runs, present, NOW)[1].holds

    assert fresh() is None
    assert fresh(run(5, True, {"loaded": 1})) is None
    assert fresh(run(5, True, {"loaded": 1, "loadedUpTo": "2026-11-21T11:56:00Z"})) is True
    assert fresh(run(5, True, {"loaded": 1, "loadedUpTo": "2026-11-20T00:00:00Z"})) is False
    assert fresh(present="2026-11-21T11:58:00Z") is True  # its Job is gone already


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21", 5])
def test_a_time_that_is_none_in_a_report_or_a_status_counts_as_not_reported(text: Any) -> None:
    """It ended the look at all Topics of the BrokerCluster."""
    good = "2026-11-21T11:56:00Z"
    damaged = run(5, True, {"loaded": 1, "loadedUpTo": text})
    assert loaded_up_to([damaged], good) == good
    assert loaded_up_to([run(5, True, {"loaded": 1, "loadedUpTo": good})], text) == good
    assert last_good_load([], text) is None


def test_a_load_that_rejected_too_many_records_is_not_tried_again() -> None:
    manifest = load_manifest(topic(), cluster(), Images())
    assert isinstance(manifest, dict)
    (rule,) = manifest["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [3])


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


def test_a_load_and_its_executors_pull_their_image_with_the_secrets_of_the_installation() -> None:
    result = load_manifest(topic(executors=3), cluster(), Images(pull_secrets=("registry", "mirror")))
    assert isinstance(result, dict)
    assert pod_of(result)["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert environment(result)["EXECUTOR_PULL_SECRETS"] == "registry,mirror"


def test_a_load_and_its_executors_run_where_brokers_may() -> None:
    """On nodes that are all tainted, or where a quota wants a priority, no load could run otherwise (R28)."""
    pod = {
        "nodeSelector": {"pool": "events"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "priorityClassName": "high",
    }
    spec = {"brokers": {"replicas": 3, "pod": pod}, "warehouse": S3}
    there = cluster_of({"metadata": {"name": "events", "namespace": "data", "uid": "c"}, "spec": spec})
    result = made(topic(executors=3), there)
    assert {name: pod_of(result)[name] for name in pod} == pod
    assert json.loads(environment(result)["EXECUTOR_PLACEMENT"]) == pod
    assert "EXECUTOR_PLACEMENT" not in environment(made(topic(executors=3)))
    *_, workload = resident_manifests([topic(schedule=None, freshness="60s")], there, Images())
    resident = workload["spec"]["template"]["spec"]
    assert {name: resident[name] for name in pod} == pod


def test_each_pod_of_loads_has_limits_that_a_quota_may_ask_for() -> None:
    *_, workload = resident_manifests([topic(schedule=None, freshness="60s")], cluster(), Images())
    for pod in (pod_of(made(topic())), workload["spec"]["template"]["spec"]):
        resources = pod["containers"][0]["resources"]
        assert set(resources["limits"]) == set(resources["requests"]) == {"cpu", "memory"}


def job(age: dt.timedelta, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "clicks-load-1", "creationTimestamp": written(NOW - age)}, "status": status}


@pytest.mark.parametrize(
    ("manifest", "is_told"),
    [
        (job(dt.timedelta(seconds=30)), False),
        (job(dt.timedelta(minutes=2)), True),
        (job(dt.timedelta(minutes=2), active=1), False),
        (job(dt.timedelta(minutes=2), conditions=[{"type": "Complete", "status": "True"}]), False),
        ({**job(dt.timedelta(minutes=2)), "spec": {"suspend": True}}, False),
    ],
)
def test_a_run_for_which_kubernetes_creates_no_pod_is_reported(
    manifest: dict[str, Any], is_told: bool
) -> None:
    """As above a quota, or where its account is missing: only an event of the Job says so."""
    text = without_pod(manifest, NOW)
    assert text == (
        "Kubernetes creates no pod for it: `kubectl describe job clicks-load-1` says why." if is_told else ""
    )


def test_a_pod_that_waits_for_a_volume_or_a_secret_is_reported_after_a_while() -> None:
    """Its container is being created, for ever, and the last load would seem to be the last word."""
    pod = job(dt.timedelta(minutes=9), phase="Pending")
    assert waits_in_silence(pod, NOW) == ""
    pod = job(dt.timedelta(minutes=11), phase="Pending")
    assert "not started since 2026-11-21T11:49:00Z: `kubectl describe pod clicks" in waits_in_silence(
        pod, NOW
    )
    assert waits_in_silence({**pod, "status": {"phase": "Running"}}, NOW) == ""


@pytest.mark.parametrize(
    ("warehouse", "executors", "is_told"),
    [(VOLUME, 2, True), (VOLUME, 0, False), (VOLUME, "auto", False), (S3, 2, False)],
)
def test_executors_that_a_load_cannot_have_are_reported(
    warehouse: dict[str, Any], executors: int | str, is_told: bool
) -> None:
    condition = executors_condition(topic(executors=executors), cluster(warehouse))
    assert (condition is not None) == is_told
    if condition is not None:
        assert "2 are requested" in condition.message


def test_the_first_load_of_a_suspended_topic_is_not_announced() -> None:
    (condition,) = load_conditions(topic(suspend=True), None, [], None, NOW)
    assert (condition.holds, condition.reason) == (None, "Suspended")
