"""However many objects come and go, the operator keeps nothing of those that are gone (R25)."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from prometheus_client import generate_latest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import FixedAddresses, PlayedHealth

from mainstem_operator.api.clusters import Images
from mainstem_operator.brokers.errors import BrokersUnreachable
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.observe import Observer
from mainstem_operator.runtime import context as context_module
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.handlers import Reconciler
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.runtime.work_queue import Key, Kind

ROUNDS = 3


class SilentBrokers:
    """Those of a BrokerCluster, of which none answers."""

    bootstrap_servers = "nowhere:9092"

    def __init__(self, *_: str) -> None:
        """Wherever they are."""

    def connect_to(self, *_: Any) -> None:
        """Nobody is connected to."""

    def users(self) -> SilentBrokers:
        return self

    def __getattr__(self, name: str) -> Any:
        async def ask(*_: Any, **__: Any) -> None:
            raise BrokersUnreachable("No broker answers.")

        return ask


async def _always() -> bool:
    return True


class Scene:
    """An operator whose looks a test begins, and objects of all kinds that come and go."""

    def __init__(self, kubernetes: Kubernetes, kube: Kube) -> None:
        self.kubernetes = kubernetes
        self.metrics = Metrics()
        addresses = FixedAddresses("nowhere:9092")
        observer = Observer(kube, PlayedHealth(kubernetes), addresses)
        self.context = Context(kube, observer, addresses, Images(), self.metrics, _always, "ops")
        self.reconciler = Reconciler(self.context, 120.0)
        self.reconciler._leads = True

    def come(self, name: str) -> None:
        named = {"clusterRef": {"name": name}}
        for manifest in (
            resource("BrokerCluster", name, {"brokers": {"replicas": 1}}),
            resource("Topic", f"{name}-topic", named),
            resource("ConsumerGroup", f"{name}-group", named),
            resource("User", f"{name}-user", named),
        ):
            self.reconciler.heard_of({"type": "ADDED"}, self.kubernetes.apply(manifest), manifest["kind"])

    def go(self, name: str, *, is_heard: bool) -> None:
        for plural, kind, suffix in (
            ("topics", "Topic", "-topic"),
            ("consumergroups", "ConsumerGroup", "-group"),
            ("users", "User", "-user"),
            ("brokerclusters", "BrokerCluster", ""),
        ):
            manifest = self.kubernetes.get(plural, f"{name}{suffix}")
            manifest["metadata"].pop("finalizers", None)
            self.kubernetes.delete(plural, f"{name}{suffix}")
            if is_heard:
                self.reconciler.heard_of({"type": "DELETED"}, manifest, kind)

    async def look(self, name: str) -> None:
        for kind in get_args(Kind):
            await self.reconciler._look(Key(kind, "default", name))

    async def work(self, name: str) -> None:
        """What looks at the objects of a BrokerCluster may keep, whatever state its brokers are in."""
        await self.look(name)
        await self.look(name)
        self.context.moves("default", name)
        for manifest in self.manifests(name):
            await self.context.event(manifest, "Restarting", f"of {name}")
        progress = [{"type": "Progressing", "status": "True", "reason": "Rolling", "message": "It restarts."}]
        now = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
        self.context.watch_progress(
            self.kubernetes.get("brokerclusters", name), {"conditions": progress, "brokersReady": 3}, 1, now
        )
        self.metrics.set_freshness("default", name, {"clicks": (7.0, 60)})
        self.metrics.set_rejecting("default", name, {"clicks": True})

    def manifests(self, name: str) -> list[Manifest]:
        return [
            self.kubernetes.get("brokerclusters", name),
            self.kubernetes.get("topics", f"{name}-topic"),
            self.kubernetes.get("consumergroups", f"{name}-group"),
            self.kubernetes.get("users", f"{name}-user"),
        ]

    def kept(self) -> tuple[Counter[str], int]:
        """How many entries each collection holds, and how many lines the metrics have."""
        queue = self.reconciler.queue
        while queue._due:  # done meanwhile
            queue._due.popitem()
        return entries_in(self.reconciler), len(generate_latest(self.metrics.registry).splitlines())


def entries_in(root: object) -> Counter[str]:
    """The entries of all collections of objects of the operator that `root` leads to, by class and field."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("root", root)]
    while left:
        place, item = left.pop()
        if id(item) in seen or isinstance(item, type | str | bytes):
            continue
        seen.add(id(item))
        if isinstance(item, Mapping):
            found[place] += len(item)
            left += [(f"{place}[]", value) for value in item.values()]
        elif isinstance(item, list | set | frozenset | tuple):
            found[place] += len(item)
            left += [(f"{place}[]", value) for value in item]
        elif type(item).__module__.startswith("mainstem_operator."):
            slots = [name for base in type(item).__mro__ for name in getattr(base, "__slots__", ())]
            names = {*getattr(item, "__dict__", ()), *slots}
            left += [(f"{type(item).__name__}.{name}", getattr(item, name, None)) for name in names]
    return found


@pytest.fixture
def scene(kubernetes: Kubernetes, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(context_module, "Brokers", SilentBrokers)
    return Scene(kubernetes, kube)


@pytest.mark.parametrize("is_heard", [True, False], ids=["reported by events", "found by looks"])
async def test_nothing_is_kept_of_clusters_that_are_gone(scene: Scene, is_heard: bool) -> None:
    await scene.context.event(scene.kubernetes.apply(resource("Topic", "stays", {})), "Restarting", "before")
    scene.reconciler._take(scene.kubernetes.get("topics", "stays"), "Topic")
    scene.come("first")
    await scene.work("first")
    while_there = scene.kept()
    scene.go("first", is_heard=is_heard)
    await scene.look("first")
    before = scene.kept()
    assert before[0]["Context._kept"] == 1
    assert while_there[0]["Context._kept"] > before[0]["Context._kept"], "the scene has seen it"
    for number in range(ROUNDS):
        name = f"cluster-{number}"
        scene.come(name)
        await scene.work(name)
        scene.go(name, is_heard=is_heard)
        await scene.look(name)
    assert scene.kept() == before


@pytest.mark.parametrize("is_heard", [True, False], ids=["reported by events", "found by looks"])
async def test_nothing_is_kept_of_objects_that_are_gone_from_a_cluster_that_stays(
    scene: Scene, is_heard: bool
) -> None:
    scene.come("events")
    await scene.work("events")
    before = scene.kept()
    kinds = (("topics", "Topic"), ("consumergroups", "ConsumerGroup"), ("users", "User"))
    for number in range(ROUNDS):
        for plural, kind in kinds:
            name = f"passing-{number}"
            manifest = scene.kubernetes.apply(resource(kind, name, {"clusterRef": {"name": "events"}}))
            scene.reconciler.heard_of({"type": "ADDED"}, manifest, kind)
            await scene.look("events")
            await scene.context.event(manifest, "Restarting", f"of {name}")
            scene.kubernetes.get(plural, name)["metadata"].pop("finalizers", None)
            scene.kubernetes.delete(plural, name)
            if is_heard:
                scene.reconciler.heard_of({"type": "DELETED"}, manifest, kind)
            await scene.look("events")
    assert scene.kept() == before


async def test_what_a_look_keeps_that_ends_after_its_cluster_was_gone_goes_with_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of its Topics, while the one of the BrokerCluster itself found that it is gone."""
    before, _ = scene.kept()
    scene.come("events")
    scene.go("events", is_heard=True)

    async def go_on(context: Context, *_: Any) -> None:
        context.moves("default", "events")
        context.metrics.set_freshness("default", "events", {"clicks": (7.0, 60)})

    monkeypatch.setattr("mainstem_operator.runtime.handlers.reconcile_topics", go_on)
    await scene.reconciler._look(Key("cluster", "default", "events"))
    await scene.reconciler._look(Key("topics", "default", "events"))
    assert scene.kept()[0] == before
    assert 'cluster="events"' not in generate_latest(scene.metrics.registry).decode()


async def test_a_replica_that_waits_queues_nothing_and_looks_at_all_objects_once_it_leads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of objects that come and go would stay in its queue."""
    scene.reconciler._leads = False
    scene.come("events")
    scene.come("passing")
    scene.go("passing", is_heard=True)
    assert len(scene.reconciler.queue) == 0

    async def end(*_: Any) -> None:
        raise EndedError

    async def leading() -> None:
        """At once."""

    monkeypatch.setattr(scene.reconciler, "_resync", end)
    with pytest.raises(ExceptionGroup):
        await scene.reconciler.run(leading)
    assert scene.reconciler.queue._due.keys() == {Key(kind, "default", "events") for kind in get_args(Kind)}


class EndedError(Exception):
    """Nothing more is done."""
