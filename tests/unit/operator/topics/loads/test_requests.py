"""Requests of a Topic to load again (R33): one CronJob each, until it is done."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource

from mainstem_operator.api.clusters import ClusterSpec, Images, cluster_of
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.api.topics import LoadRequest, TopicSpec, topic_of
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.observe import Observer
from mainstem_operator.proofs import Refusal
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.loads.apply import bring_about_loads
from mainstem_operator.topics.loads.gone_loads import gone_loads
from mainstem_operator.topics.loads.plan import load_name, request_name
from mainstem_operator.topics.loads.requests import is_done, outcome_of, request_condition, request_manifest
from mainstem_operator.topics.loads.runs import Run

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
REWIND = {"requestId": "r1", "to": "earliest"}


def cluster() -> ClusterSpec:
    spec = {"brokers": {"replicas": 3}, "warehouse": {"location": "s3://lake/events"}}
    return cluster_of({"metadata": {"name": "events", "namespace": "default", "uid": "c"}, "spec": spec})


def topic(name: str = "clicks", **warehouse: Any) -> TopicSpec:
    spec = {"clusterRef": {"name": "events"}, "warehouse": {"schedule": "@hourly", **warehouse}}
    return topic_of({"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def requests(**warehouse: Any) -> tuple[LoadRequest, ...]:
    found = topic(**warehouse).warehouse
    assert found is not None
    return found.requests


def run(succeeded: bool | None, message: Any, minutes: int = 0) -> Run:
    at = NOW + dt.timedelta(minutes=minutes)
    text = message if isinstance(message, str) else json.dumps(message)
    return Run(f"job-{minutes}", at, None if succeeded is None else at, succeeded, text)


@pytest.mark.parametrize(
    ("field", "value", "kind", "arguments"),
    [
        ("backfill", {"requestId": "b"}, "append", ()),
        ("backfill", {"requestId": "b", "mode": "Replace"}, "replace", ()),
        ("backfill", {"requestId": "b", "days": ["2026-11-21"]}, "append", ("--day=2026-11-21",)),
        (
            "backfill",
            {"requestId": "b", "from": "2026-11-21T09:30:00Z", "to": "2026-11-22T00:00:00+01:00"},
            "append",
            ("--since=2026-11-21T09:30:00+00:00", "--until=2026-11-22T00:00:00+01:00"),
        ),
        ("rewind", REWIND, "rewind", ()),
        (
            "rewind",
            {"requestId": "r1", "to": "2026-11-21T09:30:00Z"},
            "rewind",
            ("--since=2026-11-21T09:30:00+00:00",),
        ),
        ("replayDeadLetters", {"requestId": "d1"}, "replay", ()),
    ],
)
def test_a_field_becomes_arguments_of_the_loader(
    field: str, value: dict[str, Any], kind: str, arguments: tuple[str, ...]
) -> None:
    assert requests(**{field: value}) == (LoadRequest(field, value["requestId"], kind, arguments),)


@pytest.mark.parametrize(
    ("warehouse", "reason"),
    [
        ({"backfill": {}}, "requestId is missing"),
        ({"backfill": {"requestId": "b", "days": ["2026-02-30"]}}, "write days as"),
        ({"backfill": {"requestId": "b", "from": "yesterday"}}, "must be like"),
        (
            {"backfill": {"requestId": "b", "days": ["2026-11-21"], "to": "2026-11-22T00:00:00Z"}},
            "either days",
        ),
        ({"rewind": {"requestId": "r"}}, "to is missing"),
        ({"rewind": {"requestId": "r", "to": "latest"}}, "must be like"),
        ({"replayDeadLetters": {}}, "requestId is missing"),
    ],
)
def test_a_request_that_makes_no_sense_is_reported(warehouse: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        topic(**warehouse)


def test_a_request_is_a_load_of_the_topic_with_the_request() -> None:
    spec = topic(rewind={"requestId": "-$(HOME)", "to": "earliest"}, eventTime="at")
    (request,) = requests(rewind={"requestId": "-$(HOME)", "to": "earliest"})
    made = request_manifest(request, spec, cluster(), Images())
    assert isinstance(made, dict)
    assert made["spec"]["concurrencyPolicy"] == "Forbid"
    (container,) = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["load", "clicks"]
    assert "--event-time" in container["args"]
    assert {"--rewrite=rewind", "--request-id=-$$(HOME)"} <= set(container["args"])


def test_without_a_place_for_tables_a_request_says_what_to_do() -> None:
    (request,) = requests(rewind=REWIND)
    refused = request_manifest(request, topic(rewind=REWIND), replace(cluster(), warehouse=None), Images())
    assert isinstance(refused, Refusal)


def test_another_id_is_another_job_and_names_are_short() -> None:
    names = {request_name("a" * 253, field, number) for field in ("backfill", "rewind") for number in "12"}
    assert len(names) == 4
    assert max(map(len, names)) <= 52


def test_jobs_of_requests_go_with_their_requests_and_topics() -> None:
    def cron_job(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "ownerReferences": [{"uid": "c", "controller": True}]}}

    alive = {"metadata": {"name": "clicks"}, "spec": {"warehouse": {"rewind": REWIND}}}
    kept = [load_name("clicks"), request_name("clicks", "rewind", "r1")]
    gone = [request_name("clicks", "rewind", "r0"), request_name("other", "rewind", "r1")]
    found = gone_loads([cron_job(name) for name in [*kept, *gone]], [alive], "c")
    assert [item["metadata"]["name"] for item in found] == gone


def test_what_became_of_a_request_is_reported() -> None:
    (request,) = requests(rewind=REWIND)
    assert outcome_of(request, []).succeeded is None
    failed = outcome_of(request, [run(False, {"error": "No broker answers."})])
    assert (failed.succeeded, failed.message) == (False, "No broker answers.")
    good = {"loaded": 0, "removed": 7, "deadLettered": 0}
    done = outcome_of(request, [run(False, {"error": "No"}), run(True, good, 1), run(False, "killed", 2)])
    assert (done.succeeded, done.message) == (True, "7 rows removed, 0 records loaded.")
    repeated = outcome_of(request, [run(True, {"loaded": 0, "repeated": True})])
    assert repeated.message == "It was carried out before."
    stuck = outcome_of(request, [replace(run(None, ""), trouble='secret "lake" not found')])
    assert 'secret "lake" not found' in stuck.message


def test_the_condition_tells_the_worst() -> None:
    good, waiting, bad = (
        {"field": "rewind", "requestId": "1", "message": "m", "succeeded": succeeded}
        for succeeded in (True, None, False)
    )
    found = [request_condition(entries) for entries in ([], [good], [good, waiting], [waiting, bad])]
    assert [None if one is None else one.reason for one in found] == [
        None,
        "RequestDone",
        "RequestPending",
        "RequestFailed",
    ]


async def test_a_request_is_done_once_whatever_becomes_of_its_job(kubernetes: Kubernetes, kube: Kube) -> None:
    context = cast(Any, Context)(kube, cast(Observer, None), None, Images(), None, None, "ops")
    there: dict[str, Any] = resource(
        "BrokerCluster", "events", {"brokers": {"replicas": 3}, "warehouse": {"location": "s3://lake/events"}}
    )
    kubernetes.apply(there)
    (stored,) = kubernetes.find("brokerclusters")
    there["metadata"]["uid"] = stored["metadata"]["uid"]
    spec = topic(rewind=REWIND)
    name = request_name("clicks", "rewind", "r1")

    def cron_jobs() -> list[str]:
        return [job["metadata"]["name"] for job in kubernetes.find("cronjobs")]

    found = await bring_about_loads(context, there, [(spec, {})], [], Alone())
    (entry,) = found["default", "clicks"].requests
    assert "succeeded" not in entry
    assert cron_jobs() == ["clicks-load", name]

    done = {"loadRequests": [{**entry, "succeeded": True, "message": "7 rows removed."}]}
    (request,) = requests(rewind=REWIND)
    assert is_done(request, done)
    found = await bring_about_loads(context, there, [(spec, done)], [], Alone())
    assert found["default", "clicks"].requests == done["loadRequests"]
    assert cron_jobs() == ["clicks-load"]
    await bring_about_loads(
        context, there, [(topic(rewind={**REWIND, "requestId": "r2"}), done)], [], Alone()
    )
    assert request_name("clicks", "rewind", "r2") in cron_jobs()
