"""Of several replicas one acts, and whoever is about to act asks again (R25)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes
from tests.support.waiting import wait_until_async

from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.runtime import lease as lease_module
from mainstem_operator.runtime.lease import Lease


class Clock:
    """The replicas' clock: a Lease expires when a test says so, not when the machine is busy."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "_clock", clock)
    monkeypatch.setattr(lease_module, "_RENEW_SECONDS", 0.01)
    monkeypatch.setattr(lease_module, "_RETRY_SECONDS", 0.01)
    return clock


async def test_the_second_replica_takes_over_when_the_first_is_silent(
    kubernetes: Kubernetes, kube: Kube, clock: Clock
) -> None:
    first, second = (Lease(kube, "default", "office", name) for name in ("first", "second"))
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    waiting = asyncio.create_task(second.keep())

    def renewed() -> str:
        return str(kubernetes.get("leases", "office")["spec"]["renewTime"])

    for _ in range(4):
        clock.now_s += lease_module.DURATION_SECONDS / 2
        before = renewed()
        await wait_until_async(lambda before=before: renewed() != before)  # type: ignore[misc]
        # Only the first one renews, so this is what the second one has read since.
        await wait_until_async(lambda before=before: (second._seen[0] or ("",))[0] > before)  # type: ignore[misc]
    assert first.leading
    assert not second.leading
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    last = renewed()
    await wait_until_async(lambda: second._seen[0] == (last, "first"))
    assert not second.leading
    while not second._leading.is_set():  # again, if a renewal was under way when the first one ended
        seen = second._seen
        clock.now_s += lease_module.DURATION_SECONDS + 1
        await wait_until_async(lambda seen=seen: second._seen != seen)  # type: ignore[misc]
    assert not await first.still_mine()  # what it would find before it acts
    assert await second.still_mine()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_replica_that_ends_gives_the_lease_back(kube: Kube) -> None:
    first, second = (Lease(kube, "default", "office", name) for name in ("first", "second"))
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await first.release()
    waiting = asyncio.create_task(second.keep())
    await second.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_request_that_hangs_does_not_cost_the_lease(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """As on a connection that a load balancer has forgotten."""
    first = Lease(kube, "default", "office", "first")
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    hung, answers = asyncio.Event(), kube.get

    async def hang(*arguments: Any) -> Any:
        if hung.is_set():
            return await answers(*arguments)
        hung.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(lease_module, "_TRY_SECONDS", 0.01)
    monkeypatch.setattr(kube, "get", hang)
    await hung.wait()
    clock.now_s += lease_module.DURATION_SECONDS - 1
    before = first._seen
    await wait_until_async(lambda: first._seen != before)
    assert first.leading
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_write_of_others_between_reading_and_writing_does_not_cost_the_lease(
    kubernetes: Kubernetes, kube: Kube, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """As an annotation, which gives the Lease another version."""
    first = Lease(kube, "default", "office", "first")
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    if ends:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    refused, replace = 0, kube.replace

    async def annotate_and_replace(lease: Any) -> Any:
        nonlocal refused
        if refused == 0:
            kubernetes.apply(
                {
                    **kubernetes.get("leases", "office"),
                    "metadata": {**lease["metadata"], "annotations": {"a": "b"}},
                }
            )
        try:
            return await replace(lease)
        except Refused:
            refused += 1
            raise

    monkeypatch.setattr(kube, "replace", annotate_and_replace)
    if ends:
        await first.release()
        assert not await first.still_mine()
        assert refused == 1
        return
    await wait_until_async(lambda: refused == 1)
    before = first._seen
    await wait_until_async(lambda: first._seen != before)
    assert first.leading
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_whoever_has_lost_the_lease_ends(kubernetes: Kubernetes, kube: Kube) -> None:
    first = Lease(kube, "default", "office", "first")
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    kubernetes.get("leases", "office")["spec"] |= {"holderIdentity": "another", "renewTime": "now"}
    await keeping


async def test_whoever_cannot_renew_the_lease_ends_when_it_has_expired(
    kube: Kube, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica acts from then on."""
    first = Lease(kube, "default", "office", "first")
    keeping = asyncio.create_task(first.keep())
    await first.wait()
    tries = 0

    async def fail(_: object) -> None:
        nonlocal tries
        tries += 1
        raise TimeoutError

    monkeypatch.setattr(kube, "replace", fail)
    clock.now_s += lease_module.DURATION_SECONDS - 1
    await wait_until_async(lambda: tries == 2)
    assert first.leading
    assert not keeping.done()
    clock.now_s += 1
    await wait_until_async(lambda: keeping.done() or tries == 5)
    assert keeping.done()
