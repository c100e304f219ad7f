"""A BrokerCluster of three played brokers with settings that need no restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator
from tests.unit.operator.played_context import brought_up

from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable


class PlayedBrokers:
    """What is set for all brokers, and the file that each started with.

    `says` is what is wrong with a change, if anything; `code` Kafka's name for that.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.started: dict[str, dict[str, str]] = {}
        self.questions = 0
        self.asked_files: list[list[int]] = []
        self.changes: list[dict[str, str | None]] = []
        self.says: Callable[[Mapping[str, str | None]], str] = lambda changes: ""
        self.code = "INVALID_CONFIG"
        self.reachable = True
        self.silent: set[int] = set()
        self.dies_after_a_change = False
        self.kubernetes: Kubernetes | None = None

    def of(self, kubernetes: Kubernetes) -> None:
        """From here on: what pods have is the file that is there when they are first seen."""
        self.kubernetes = kubernetes
        self.see_starts()

    def see_starts(self) -> None:
        if self.kubernetes is None:
            return
        for pod in self.kubernetes.find("pods"):
            if "broker" in pod["metadata"]["name"]:
                self.started.setdefault(pod["metadata"]["uid"], settings_in(self.kubernetes))

    async def tell(self) -> dict[str, str]:
        self.questions += 1
        self.see_starts()
        if not self.reachable:
            raise BrokersUnreachable("No broker of events:9092 answered.")
        return dict(self.values)

    async def tell_files(self, names: Collection[str], brokers: Collection[int]) -> dict[int, dict[str, str]]:
        assert self.kubernetes is not None
        self.see_starts()
        self.asked_files.append(sorted(brokers))
        results = {}
        for broker in set(brokers) - self.silent:
            started = self.started[self.kubernetes.get("pods", f"events-broker-{broker}")["metadata"]["uid"]]
            results[broker] = {name: value for name, value in started.items() if name in names}
        return results

    async def check(self, changes: Mapping[str, str | None]) -> None:
        if sentence := self.says(changes):
            raise BrokersRefused(self.code, sentence)

    async def take(self, changes: Mapping[str, str | None]) -> None:
        await self.check(changes)
        self.changes.append(dict(changes))
        for name, value in changes.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        if self.dies_after_a_change:
            await asyncio.Event().wait()  # for the operator to be ended here


def settings_in(kubernetes: Kubernetes) -> dict[str, str]:
    """What is in the brokers' files."""
    text = kubernetes.get("configmaps", "events-broker")["data"]["broker-0.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def cluster(annotations: Mapping[str, str] | None = None, **config: Any) -> Manifest:
    return resource(
        "BrokerCluster",
        "events",
        {
            "brokers": {
                "replicas": 3,
                "config": {name.replace("_", "."): value for name, value in config.items()},
            }
        },
        annotations=dict(annotations or {}),
    )


def broker_uids(kubernetes: Kubernetes) -> set[str]:
    pods = kubernetes.find("pods")
    return {pod["metadata"]["uid"] for pod in pods if "broker" in pod["metadata"]["name"]}


def events(kubernetes: Kubernetes, reason: str) -> list[str]:
    return [event["message"] for event in kubernetes.find("events") if event["reason"] == reason]


def managed(kubernetes: Kubernetes) -> list[str]:
    results: list[str] = kubernetes.get("brokerclusters", "events")["status"].get("managedSettings", [])
    return results


def plan(kubernetes: Kubernetes) -> str:
    return str(kubernetes.get("brokerclusters", "events")["status"].get("plan"))


def told(operator: RunningOperator, type_: str) -> str:
    conditions = operator.kubernetes.get("brokerclusters", "events")["status"]["conditions"]
    return next((str(item["message"]) for item in conditions if item["type"] == type_), "")


async def stable(operator: RunningOperator) -> None:
    await operator.condition("brokerclusters", "events", "Stable", "True")


async def running(
    operator: RunningOperator, defaults: PlayedBrokers, manifest: Manifest | None = None
) -> Kubernetes:
    """Where a cluster has come up, and its brokers say what they started with."""
    kubernetes = await brought_up(operator, manifest or cluster())
    defaults.of(kubernetes)
    return kubernetes
