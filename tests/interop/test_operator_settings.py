"""Settings that apply without a restart, from a BrokerCluster's manifest to real brokers and back (R25)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource
from tests.support.clusters import Cluster
from tests.support.fake_kubernetes import Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.support.topics import ANSWER_SECONDS
from tests.support.waiting import let_pass_async

from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.cluster.broker_manifests import ADVERTISED_LISTENERS
from mainstem_operator.cluster.settings import plan

SETTING = "log.cleaner.delete.retention.ms"
NOT_OURS = "log.cleaner.min.compaction.lag.ms"


@pytest.fixture
def brokers(own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """The brokers of the test; pod N stands for broker N + 1."""
    ask = Brokers.file_settings

    async def of_pods(self: Brokers, names: Iterable[str], pods: Iterable[int]) -> dict[int, dict[str, str]]:
        reported = await ask(self, names, [pod + 1 for pod in pods])
        return {broker - 1: values for broker, values in reported.items()}

    monkeypatch.setattr(Brokers, "file_settings", of_pods)
    return Brokers(own_cluster.bootstrap_servers)


def cluster(**config: Any) -> Manifest:
    return resource(
        "BrokerCluster",
        "events",
        {
            "brokers": {
                "replicas": 3,
                "config": {name.replace("_", "."): value for name, value in config.items()},
            }
        },
    )


async def all_run_with(stack: Cluster, name: str, value: str, source: ConfigSource) -> None:
    """Wait until every broker says so: they hear of a change one after another."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})

    def sources() -> list[tuple[str, int]]:
        resources = [ConfigResource(ConfigResource.Type.BROKER, str(broker)) for broker in stack.brokers]
        entries = [
            admin.describe_configs([resource])[resource].result(ANSWER_SECONDS)[name]
            for resource in resources  # librdkafka takes one broker per request
        ]
        return [(entry.value, entry.source) for entry in entries]

    results: list[tuple[str, int]] = []
    for _ in range(100):
        results = await asyncio.to_thread(sources)
        if set(results) == {(value, source.value)}:
            return
        await let_pass_async(0.05, "between two looks")
    pytest.fail(f"{name} is {results}")


async def refused(operator: RunningOperator) -> str:
    condition = await operator.condition(
        "brokerclusters", "events", "SettingsRefused", "True", "InvalidConfig"
    )
    return str(condition["message"])


def refusal_message(operator: RunningOperator) -> str:
    conditions = operator.kubernetes.get("brokerclusters", "events")["status"]["conditions"]
    return str(next(item["message"] for item in conditions if item["type"] == "SettingsRefused"))


@with_operator
async def test_running_brokers_take_a_setting_give_it_back_and_say_what_they_refuse(
    operator: RunningOperator, monkeypatch: pytest.MonkeyPatch, own_cluster: Cluster, brokers: Brokers
) -> None:
    # As with brokers of another version, which don't take what the operator knows as live.
    live = plan.LIVE_SETTINGS | {"num.partitions"}
    monkeypatch.setattr(plan, "LIVE_SETTINGS", live)

    kubernetes = operator.kubernetes
    await brokers.change_default_settings({NOT_OURS: "5"})
    kubernetes.apply(cluster(log_cleaner_delete_retention_ms=7_200_000))
    await operator.condition("brokerclusters", "events", "Stable", "True")
    await all_run_with(own_cluster, SETTING, "7200000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    pods = {pod["metadata"]["uid"] for pod in kubernetes.find("pods")}

    kubernetes.apply(cluster(log_cleaner_delete_retention_ms=3_600_000, log_segment_bytes=1))
    assert (await refused(operator)).startswith(
        "Invalid value 1 for log.segment.bytes: it must be at least 1048576."
    )
    await all_run_with(own_cluster, SETTING, "7200000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)

    kubernetes.apply(cluster(num_partitions=7))
    await operator.until(
        lambda: "num.partitions cannot be changed while brokers run" in refusal_message(operator),
        "the refusal",
    )

    kubernetes.apply(cluster())
    await operator.condition("brokerclusters", "events", "Stable", "True")
    await all_run_with(own_cluster, SETTING, "86400000", ConfigSource.DEFAULT_CONFIG)
    assert await brokers.default_settings() == {NOT_OURS: "5"}
    assert {pod["metadata"]["uid"] for pod in kubernetes.find("pods")} == pods


async def test_brokers_say_what_they_have_from_their_files_whatever_is_set_since(
    own_cluster: Cluster, brokers: Brokers
) -> None:
    await brokers.change_default_settings({SETTING: "1"})
    await all_run_with(own_cluster, SETTING, "1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    reported = await brokers.file_settings(["broker.id", ADVERTISED_LISTENERS, SETTING], [0, 1, 2, 7])
    addresses = own_cluster.bootstrap_servers.split(",")
    assert reported == {
        pod: {"broker.id": str(pod + 1), ADVERTISED_LISTENERS: f"PLAINTEXT://{addresses[pod]}"}
        for pod in range(3)
    }


async def test_what_would_be_refused_is_known_before_it_is_set(brokers: Brokers) -> None:
    await brokers.check_default_settings({SETTING: "1"})
    assert await brokers.default_settings() == {}
    with pytest.raises(BrokersRefused) as caught:
        await brokers.check_default_settings({SETTING: "1", "log.segment.bytes": "1"})
    assert caught.value.code == "INVALID_CONFIG"
