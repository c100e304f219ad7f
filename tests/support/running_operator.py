"""The operator, whole, against the fake API server, with brokers that say what a test wants."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.waiting import wait_until_async

from mainstem_operator.__main__ import Options, run
from mainstem_operator.brokers.health import Health
from mainstem_operator.snapshot import BrokerReport, index_of


class PlayedHealth(Health):
    """Brokers and servers answer if their pod is ready; `changes` alters what a broker says.

    Those of `starting` say how they are though they are not ready.
    """

    def __init__(self, kubernetes: Kubernetes) -> None:
        super().__init__()
        self._kubernetes = kubernetes
        self.changes: dict[int, dict[str, Any]] = {}
        self.silent: set[str] = set()
        self.starting: set[str] = set()

    def _serves(self, pod_name: str) -> bool:
        pod = self._kubernetes.objects.get(("pods", "default", pod_name))
        if pod is None or pod_name in self.silent:
            return False
        if pod_name in self.starting:
            return True
        return any(
            item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"]
        )

    async def report(self, host: str, port: int) -> BrokerReport | None:
        pod_name = host.split(".")[0]
        if not self._serves(pod_name):
            return None
        broker = index_of(pod_name)
        answer: dict[str, Any] = {
            "broker": broker,
            "cluster_id": "abc",
            "running": True,
            "controller": 0,
            "live_brokers": frozenset({0, 1, 2}),
            "catching_up": 0,
            "under_replicated": 0,
            "offline": 0,
            "leaders": 1,
            "replicas": 1,
            "may_stop": True,
            "blockers": (),
        }
        return BrokerReport(**{**answer, **self.changes.get(broker, {})})

    async def zookeeper_mode(self, host: str, port: int) -> str | None:
        pod_name = host.split(".")[0]
        if not self._serves(pod_name):
            return None
        return "leader" if index_of(pod_name) == 0 else "follower"


class FixedAddresses:
    """The names of pods, and a real cluster in place of the brokers' Service."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def bootstrap_servers(self, namespace: str, cluster: str) -> str:
        return self._bootstrap_servers

    def secured_servers(self, namespace: str, cluster: str) -> str:
        return self._bootstrap_servers

    def broker(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        return f"{cluster}-broker-{index}.x", 9404

    def zookeeper(self, namespace: str, cluster: str, index: int) -> tuple[str, int]:
        return f"{cluster}-zookeeper-{index}.x", 2181


class RunningOperator:
    """What a test holds of it."""

    def __init__(self, kubernetes: Kubernetes, health: PlayedHealth) -> None:
        self.kubernetes = kubernetes
        self.health = health

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()`; a lookup that fails is as good as no."""

        def holds_by_now() -> bool:
            try:
                return holds()
            except LookupError:
                return False

        await wait_until_async(holds_by_now, what, step_seconds=0.02)

    async def condition(self, plural: str, name: str, type_: str, status: str, reason: str = "") -> Manifest:
        """Wait until a condition says so of the present generation; the condition."""

        def found() -> Manifest:
            item = self.kubernetes.get(plural, name)
            return next(
                condition
                for condition in item["status"]["conditions"]
                if condition["type"] == type_
                and condition.get("observedGeneration") == item["metadata"]["generation"]
            )

        def holds() -> bool:
            try:
                return found()["status"] == status and reason in ("", found()["reason"])
            except StopIteration:
                return False

        item = self.kubernetes.objects.get((plural, "default", name), {})
        try:
            await self.until(holds, f"{type_}={status} {reason}")
        except BaseException:
            print(item.get("status"))  # noqa: T201  # for the report of the failure
            raise
        return found()


@asynccontextmanager
async def running_operator(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    bootstrap_servers: str = "127.0.0.1:1",
    kubernetes: Kubernetes | None = None,
    options: Options | None = None,
) -> AsyncIterator[RunningOperator]:
    """The operator runs in this event loop until the block ends."""
    async with (kubernetes or Kubernetes()).serve() as served:
        path = directory / "kubeconfig"
        path.write_text(served.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        health = PlayedHealth(served)
        stop = asyncio.Event()
        task = asyncio.create_task(
            run(
                options or Options(namespaces=("default",), http_port=0),
                FixedAddresses(bootstrap_servers),
                stop,
                health,
            )
        )
        try:
            yield RunningOperator(served, health)
        finally:
            task.cancel()  # setting `stop` would let the watches take their time
            await asyncio.wait([task], timeout=60)


def with_operator(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Runs a test with an operator of its own, which it takes as its argument `operator`.

    The operator reaches the brokers of `local_stack` or `own_cluster` in a test that takes one of them, too.
    No fixture that gives the operator: as it ends, kopf cancels all tasks that began after it, and waits for
    them, so the task that ends a fixture would be among them.
    """
    own = [name for name in inspect.signature(test).parameters if name != "operator"]

    @functools.wraps(test)
    async def run_with_operator(**fixtures: Any) -> None:
        stack = fixtures.get("local_stack", fixtures.get("own_cluster"))
        servers = {} if stack is None else {"bootstrap_servers": stack.bootstrap_servers}
        async with running_operator(fixtures["tmp_path"], fixtures["monkeypatch"], **servers) as operator:
            await test(operator=operator, **{name: fixtures[name] for name in own})

    run_with_operator.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what pytest reads
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            for name in dict.fromkeys((*own, "tmp_path", "monkeypatch"))
        ]
    )
    return run_with_operator
