"""Settings of brokers and operators that restart or are upgraded at the wrong moment (R25)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.running_operator import RunningOperator, running_operator, with_operator
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


@with_operator
async def test_a_broker_that_started_with_an_old_file_just_after_it_was_asked_is_found(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    """Kubernetes may be late with the files."""
    kubernetes = await running(operator, defaults)
    kubernetes.apply(cluster(log_retention_ms=60_000))
    await stable(operator)
    uid, old = kubernetes.get("pods", "events-broker-1")["metadata"]["uid"], settings_in(kubernetes)

    def says(changes: Mapping[str, str | None]) -> str:
        if None in changes.values():
            defaults.started[uid] = old
        return ""

    defaults.says = says
    kubernetes.apply(cluster())
    await stable(operator)
    assert uid not in broker_uids(kubernetes)
    assert (defaults.values, managed(kubernetes)) == ({}, [])
    assert len(events(kubernetes, "RestartingPod")) == 1


async def test_what_others_set_before_an_upgrade_holds_until_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: PlayedBrokers
) -> None:
    """Else a year's retention would be a day at once, with nobody's edit, and the rest deleted."""
    year = {"log.retention.ms": "31536000000"}

    kubernetes = Kubernetes()
    async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
        kubernetes.apply(cluster(log_retention_ms=86_400_000))
        await stable(operator)
    del kubernetes.get("brokerclusters", "events")["status"]["managedSettings"]  # as operators left it before
    defaults.values, defaults.changes = dict(year), []
    async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
        await operator.condition("brokerclusters", "events", "SettingsOverridden", "True", "SetByOthers")
        kubernetes.apply(cluster(log_retention_ms=86_400_000, num_partitions=7))
        await stable(operator)
        assert "log.retention.ms=31536000000" in told(operator, "SettingsOverridden")
        assert (defaults.values, defaults.changes, managed(kubernetes)) == (year, [], [])
        defaults.values = {}
        kubernetes.annotate("brokerclusters", "events", {"look": "now"})
        await operator.until(lambda: defaults.values == {"log.retention.ms": "86400000"}, "it is put")
        await operator.until(lambda: told(operator, "SettingsOverridden") == "", "it is told no more")
        assert managed(kubernetes) == ["log.retention.ms"]


@with_operator
async def test_what_files_get_is_noted_before_so_that_brokers_can_lose_it_again(
    operator: RunningOperator, defaults: PlayedBrokers
) -> None:
    """Also of a new BrokerCluster, whose brokers do not answer yet."""
    kubernetes = operator.kubernetes
    kubernetes.apply(cluster(log_retention_ms=60_000))
    await operator.until(lambda: settings_in(kubernetes)["log.retention.ms"] == "60000", "files")
    assert managed(kubernetes) == ["log.retention.ms"]
    writes = [path for _, path in kubernetes.writes if "/dry" not in path]
    noted = next(place for place, path in enumerate(writes) if path.endswith("/events/status"))
    filed = next(place for place, path in enumerate(writes) if path.endswith("configmaps/events-broker"))
    assert noted < filed


async def test_what_an_operator_put_that_died_at_once_the_next_one_takes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: PlayedBrokers
) -> None:
    """It is noted before it is put: else nobody would know whose it is."""

    kubernetes = Kubernetes()
    async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        defaults.dies_after_a_change = True
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await operator.until(lambda: defaults.values != {}, "it is put")
    defaults.dies_after_a_change = False
    kubernetes.apply(cluster())
    async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
        await operator.until(lambda: defaults.values == {}, "it is taken back")
        await stable(operator)
        assert managed(kubernetes) == []
