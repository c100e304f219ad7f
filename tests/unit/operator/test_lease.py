"""Of several replicas one acts, and whoever is about to act asks again (R25)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator import lease as lease_module
from mainstem_operator.kube import Kube
from mainstem_operator.lease import Lease

Scenario = Callable[[Kubernetes, Kube], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    monkeypatch.setattr(lease_module, "_RENEW_SECONDS", 0.02)
    monkeypatch.setattr(lease_module, "DURATION_SECONDS", 0.3)

    def run(scenario: Scenario) -> None:
        async def within() -> None:
            async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
                await scenario(kubernetes, kube)

        asyncio.run(within())

    return run


def test_the_second_replica_takes_over_when_the_first_is_silent(play: Callable[[Scenario], None]) -> None:
    async def scenario(kubernetes: Kubernetes, kube: Kube) -> None:
        first, second = (Lease(kube, "default", "office", name) for name in ("first", "second"))
        keeping = asyncio.create_task(first.keep())
        await asyncio.wait_for(first.wait(), 5)
        waiting = asyncio.create_task(second.keep())
        await asyncio.sleep(0.5)  # longer than the Lease lasts: it is renewed, so nothing changes
        assert first.leading
        assert not second.leading
        keeping.cancel()
        await asyncio.wait_for(second.wait(), 5)
        assert not await first.still_mine()  # what it would find before it acts
        assert await second.still_mine()
        waiting.cancel()
        await asyncio.gather(keeping, waiting, return_exceptions=True)

    play(scenario)


def test_a_replica_that_ends_gives_the_lease_back(play: Callable[[Scenario], None]) -> None:
    async def scenario(kubernetes: Kubernetes, kube: Kube) -> None:
        first, second = (Lease(kube, "default", "office", name) for name in ("first", "second"))
        keeping = asyncio.create_task(first.keep())
        await asyncio.wait_for(first.wait(), 5)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await first.release()
        waiting = asyncio.create_task(second.keep())
        await asyncio.wait_for(second.wait(), 5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    play(scenario)


def test_whoever_has_lost_the_lease_ends(play: Callable[[Scenario], None]) -> None:
    async def scenario(kubernetes: Kubernetes, kube: Kube) -> None:
        first = Lease(kube, "default", "office", "first")
        keeping = asyncio.create_task(first.keep())
        await asyncio.wait_for(first.wait(), 5)
        kubernetes.get("leases", "office")["spec"] |= {"holderIdentity": "another", "renewTime": "now"}
        await asyncio.wait_for(keeping, 5)

    play(scenario)
