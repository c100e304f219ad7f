"""Settings that brokers refuse or cannot judge: nothing is done, and the reason is reported (R25)."""

from __future__ import annotations

import pytest
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.cluster.settings.played_settings import (
    PlayedBrokers,
    broker_uids,
    cluster,
    events,
    managed,
    plan,
    running,
    settings_in,
    stable,
    told,
)
from tests.unit.operator.played_context import brought_up


@pytest.mark.parametrize("code", ["INVALID_CONFIG", "INVALID_REQUEST"])
@with_operator
async def test_what_brokers_refuse_is_reported_and_nothing_of_the_edit_is_done(
    operator: RunningOperator, defaults: PlayedBrokers, code: str
) -> None:
    """A broker that started with it would not come back."""
    defaults.code = code
    sentence = "Invalid value 'soon' for log.retention.ms: it must be of type long."
    kubernetes = await brought_up(operator, cluster())
    before, files = broker_uids(kubernetes), settings_in(kubernetes)
    defaults.says = lambda changes: sentence if changes.get("log.retention.ms") == "soon" else ""
    kubernetes.apply(cluster(log_retention_ms="soon", log_segment_bytes=1_048_576, num_partitions=7))
    condition = await operator.condition(
        "brokerclusters", "events", "SettingsRefused", "True", "InvalidConfig"
    )
    assert condition["message"].startswith(sentence)
    await operator.condition("brokerclusters", "events", "Stable", "False", "SettingsRefused")
    await operator.condition("brokerclusters", "events", "Ready", "True")
    assert (defaults.values, managed(kubernetes)) == ({}, [])
    assert len(events(kubernetes, "SettingsRefused")) == 1
    lines = kubernetes.get("brokerclusters", "events")["status"]["plan"]
    assert {line["action"] for line in lines} == {"ChangeSettings", "Restart"}
    assert lines[1]["waitingFor"].startswith(sentence)
    questions = defaults.questions
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: defaults.questions > questions, "a look")
    kubernetes.annotate("brokerclusters", "events", {"look": "again"})
    await operator.until(lambda: defaults.questions > questions + 1, "another, when that has ended")
    assert broker_uids(kubernetes) == before
    assert settings_in(kubernetes) == files
    kubernetes.apply(cluster(log_segment_bytes=1_048_576, num_partitions=7))
    await stable(operator)
    assert defaults.values == {"log.segment.bytes": "1048576"}
    assert not before & broker_uids(kubernetes)
    types = {item["type"] for item in kubernetes.get("brokerclusters", "events")["status"]["conditions"]}
    assert "SettingsRefused" not in types


@with_operator
async def test_an_answer_that_is_no_refusal_of_a_value_is_waited_out(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await brought_up(operator, cluster())
    before = broker_uids(kubernetes)
    defaults.code, defaults.says = ("REQUEST_TIMED_OUT", lambda changes: "ZooKeeper did not answer in time.")
    kubernetes.apply(cluster(log_retention_ms=60_000, num_partitions=7))
    await operator.until(lambda: "ZooKeeper did not answer" in told(operator, "Stable"), "it is told")
    assert told(operator, "SettingsRefused") == ""
    assert "log.retention.ms" not in settings_in(kubernetes)
    assert broker_uids(kubernetes) == before
    defaults.says = lambda changes: ""
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await stable(operator)
    assert defaults.values == {"log.retention.ms": "60000"}
    assert not before & broker_uids(kubernetes)


@with_operator
async def test_a_plan_that_is_only_shown_names_what_would_be_set(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await running(operator, defaults)
    only = {"mainstem.dev/plan-only": "true"}
    kubernetes.apply(cluster(only, log_retention_ms=60_000))
    await operator.condition("brokerclusters", "events", "Stable", "False", "ChangingSettings")
    (line,) = kubernetes.get("brokerclusters", "events")["status"]["plan"]
    assert (line["action"], line["target"]) == ("ChangeSettings", "log.retention.ms=60000")
    assert defaults.values == {}
    assert managed(kubernetes) == []
    assert "log.retention.ms" not in settings_in(kubernetes)
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/plan-only": None})
    await operator.until(lambda: defaults.values == {"log.retention.ms": "60000"}, "it is put")
    kubernetes.apply(cluster(only))
    await operator.until(lambda: "removed" in told(operator, "Stable"), "the plan")
    assert defaults.values == {"log.retention.ms": "60000"}
    assert managed(kubernetes) == ["log.retention.ms"]


@with_operator
async def test_while_paused_nothing_is_put_and_what_was_noted_stays(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await running(operator, defaults, cluster(log_retention_ms=60_000))
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/pause-reconciliation": "true"})
    await operator.condition("brokerclusters", "events", "Paused", "True")
    questions = defaults.questions
    kubernetes.apply(cluster({"mainstem.dev/pause-reconciliation": "true"}))
    await operator.condition("brokerclusters", "events", "Stable", "Unknown", "Paused")
    assert (defaults.questions, managed(kubernetes)) == (questions, ["log.retention.ms"])
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/pause-reconciliation": None})
    await operator.until(lambda: defaults.values == {}, "it is taken back")


@with_operator
async def test_while_no_broker_answers_nothing_is_decided_and_nobody_is_restarted(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await brought_up(operator, cluster(log_retention_ms=60_000))
    before = broker_uids(kubernetes)
    defaults.reachable = False
    kubernetes.apply(cluster(log_retention_ms=70_000))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "ChangingSettings")
    assert "No broker of events:9092 answered." in condition["message"]
    assert managed(kubernetes) == ["log.retention.ms"]
    defaults.reachable = True
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: defaults.values == {"log.retention.ms": "70000"}, "it is put")
    assert broker_uids(kubernetes) == before


@with_operator
async def test_while_brokers_run_and_none_is_ready_files_get_no_new_value(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    """As while ZooKeeper is away: a typo would be in the files of whichever broker starts next."""
    kubernetes = await brought_up(operator, cluster(log_retention_ms=60_000))
    names = {f"events-broker-{broker}" for broker in range(3)}
    operator.health.starting = names
    for name in names:
        kubernetes.set_ready(name, False)
    kubernetes.apply(cluster(log_retention_ms="soon"))
    await operator.until(
        lambda: "No broker is ready and answers. Until then files" in told(operator, "Stable"), "it waits"
    )
    assert settings_in(kubernetes)["log.retention.ms"] == "60000"
    operator.health.starting = set()  # no process is left: the files may be what it needs
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await operator.until(lambda: settings_in(kubernetes)["log.retention.ms"] == "soon", "files")


@with_operator
async def test_unclean_elections_end_at_once_while_a_broker_is_lost(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes, name = operator.kubernetes, "unclean.leader.election.enable"
    kubernetes.apply(cluster())
    await stable(operator)
    defaults.of(kubernetes)
    kubernetes.apply(cluster(unclean_leader_election_enable="true"))
    await stable(operator)
    kubernetes.set_ready("events-broker-2", False)
    defaults.silent = {2}  # its node is lost
    kubernetes.apply(cluster())
    await operator.until(lambda: defaults.values == {name: "false"}, "none from now on")
    await operator.until(lambda: "at the start of broker 2" in plan(kubernetes), "the rest waits")
    kubernetes.set_unschedulable("events-broker-2")  # another pod in its place, which will read the files
    await operator.until(lambda: (defaults.values, managed(kubernetes)) == ({}, []), "it is taken back")
    assert defaults.changes == [{name: "true"}, {name: "false"}, {name: None}]
    assert events(kubernetes, "RestartingPod") == []
