"""What a look at the played API server gets, and the BrokerCluster that it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator

from mainstem_operator.api.clusters import Images, cluster_of
from mainstem_operator.certificates.apply import put_certificates
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.observe import Observer, ServiceAddresses
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.metrics import Metrics


async def _always() -> bool:
    return True


async def _no_page(pod_ip: str) -> None:
    """As of a resident loader that does not answer."""


def context_with(kube: Kube, brokers: Any = None, observer: Any = None) -> Context:
    """One of an operator without a Lease, so that it acts whatever others do."""
    seen = cast(Observer, observer or SimpleNamespace(loads=_no_page))
    context = Context(kube, seen, ServiceAddresses(), Images(), Metrics(), _always, "ops")
    context.brokers = lambda *_: brokers  # type: ignore[method-assign]
    return context


async def applied_secured(kubernetes: Kubernetes, kube: Kube, spec: Mapping[str, Any]) -> Manifest:
    """A BrokerCluster with listeners for clients, whose keys have been made."""
    cluster = kubernetes.apply(resource("BrokerCluster", "events", spec))
    parsed = cluster_of(cluster)
    assert parsed.security is not None
    await put_certificates(kube, parsed, parsed.security, ())
    return cluster


async def brought_up(operator: RunningOperator, manifest: Manifest) -> Kubernetes:
    """Apply the BrokerCluster `events`, and wait until nothing of it is left to do."""
    operator.kubernetes.apply(manifest)
    await operator.condition("brokerclusters", "events", "Stable", "True")
    return operator.kubernetes
