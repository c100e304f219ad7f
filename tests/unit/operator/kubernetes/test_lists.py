"""Lists come in pages, and are of one state of the API server (R24)."""

from __future__ import annotations

import pytest
from tests.support.fake_kubernetes import Key, Kubernetes
from tests.support.manifests import resource

from mainstem_operator.api import names
from mainstem_operator.kubernetes import client
from mainstem_operator.kubernetes.client import Kube, Refused


@pytest.fixture(autouse=True)
def topics(kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)
    for name in ("a", "b", "c", "d", "e"):
        kubernetes.apply(resource("Topic", name, {}))


async def listed(kube: Kube) -> list[str]:
    return [item["metadata"]["name"] for item in await kube.find(names.API_VERSION, "Topic", None)]


async def test_all_pages_are_read(kubernetes: Kubernetes, kube: Kube) -> None:
    assert await listed(kube) == ["a", "b", "c", "d", "e"]
    assert len(kubernetes.requests) == 3


async def test_a_list_whose_state_is_forgotten_between_two_pages_begins_anew(
    kubernetes: Kubernetes, kube: Kube
) -> None:
    """The same page again would be refused for ever, and one of a newer state would miss objects."""
    lists = 0

    def change(method: str, key: Key, subresource: str) -> int:
        nonlocal lists
        lists += 1
        if lists == 2:
            kubernetes.delete("topics", "a")
            kubernetes.apply(resource("Topic", "f", {}))
        return 0

    kubernetes.fails = change
    assert await listed(kube) == ["b", "c", "d", "e", "f"]
    assert lists == 3, "in one piece, so that it comes to an end however busy the API server is"


async def test_a_list_that_is_gone_from_the_beginning_is_refused(kubernetes: Kubernetes, kube: Kube) -> None:
    kubernetes.fails = lambda *_: 410
    with pytest.raises(Refused):
        await listed(kube)
    assert len(kubernetes.requests) == 1
