"""The whole operator: settings that brokers take while they run are put, and nothing is restarted (R25)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.cluster.settings.played_settings import (
    PlayedBrokers,
    broker_uids,
    cluster,
    events,
    managed,
    running,
    settings_in,
    stable,
    told,
)
from tests.unit.operator.played_context import brought_up


@with_operator
async def test_a_live_setting_is_put_and_nothing_restarts(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = operator.kubernetes
    defaults.values = {"max.connections": "99"}  # somebody's, and nobody else's business
    kubernetes.apply(cluster())
    await stable(operator)
    defaults.of(kubernetes)
    assert defaults.questions == 0, "no such setting is named"
    before = broker_uids(kubernetes)
    kubernetes.apply(cluster(log_retention_ms=60_000))
    await stable(operator)
    assert defaults.values == {"max.connections": "99", "log.retention.ms": "60000"}
    assert events(kubernetes, "SettingsChanged") == ["log.retention.ms=60000, without a restart."]
    assert managed(kubernetes) == ["log.retention.ms"]
    assert settings_in(kubernetes)["log.retention.ms"] == "60000", "for brokers that start"
    # No broker has started with it: taken out of the manifest it is as it was.
    assert defaults.asked_files == []
    kubernetes.apply(cluster())
    await stable(operator)
    assert defaults.values == {"max.connections": "99"}
    assert managed(kubernetes) == []
    assert broker_uids(kubernetes) == before
    assert events(kubernetes, "RestartingPod") == []
    assert "log.retention.ms" not in settings_in(kubernetes)
    assert defaults.asked_files[-1] == [0, 1, 2]


@with_operator
async def test_what_brokers_started_with_is_taken_back_by_a_roll_and_the_default_goes_last(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    """From milliseconds to hours: else Kafka's own retention would hold in between, and delete."""
    kubernetes = await running(operator, defaults, cluster(log_retention_ms=60_000))
    before, restarts_at_change = broker_uids(kubernetes), list[int]()

    def says(changes: Mapping[str, str | None]) -> str:
        restarts_at_change.append(len(events(kubernetes, "RestartingPod")))
        return ""

    defaults.says = says
    kubernetes.apply(cluster(log_retention_hours=3))
    await stable(operator)
    assert not before & broker_uids(kubernetes)
    assert (defaults.values, managed(kubernetes)) == ({}, [])
    assert restarts_at_change == [3]
    assert len(events(kubernetes, "RestartingPod")) == 3


@with_operator
async def test_a_broker_that_has_the_old_value_in_its_file_is_restarted_and_one_that_is_silent_is_waited_for(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await running(operator, defaults)
    kubernetes.apply(cluster(log_retention_ms=60_000))
    await stable(operator)
    uid = kubernetes.get("pods", "events-broker-1")["metadata"]["uid"]
    defaults.started[uid] = settings_in(kubernetes)  # its container has ended and begun again
    defaults.silent = {2}
    kubernetes.apply(cluster())
    await operator.until(lambda: uid not in broker_uids(kubernetes), "it is restarted")
    await operator.until(lambda: "at the start of broker 2" in told(operator, "Stable"), "the other waits")
    assert defaults.values == {"log.retention.ms": "60000"}
    assert managed(kubernetes) == ["log.retention.ms"]
    defaults.silent = set()
    kubernetes.annotate("brokerclusters", "events", {"look": "now"})
    await stable(operator)
    assert (defaults.values, managed(kubernetes)) == ({}, [])
    assert len(events(kubernetes, "RestartingPod")) == 1


@with_operator
async def test_an_idle_look_asks_once_and_writes_nothing(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    kubernetes = await brought_up(operator, cluster(log_retention_ms=60_000))
    await operator.until(lambda: defaults.values != {}, "it is put")
    writes, questions, requested = len(kubernetes.writes), defaults.questions, len(kubernetes.requests)
    kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: len(kubernetes.requests) > requested + 15, "a look")
    await operator.until(lambda: defaults.questions > questions, "its question")
    assert kubernetes.writes[writes:] == []
    assert defaults.questions <= questions + 2  # the look may have been one of two
    assert len(defaults.changes) == 1
