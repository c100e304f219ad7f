"""With which keys the operator talks to the brokers."""

from __future__ import annotations

from types import SimpleNamespace

from tests.support.fake_kubernetes import Kubernetes
from tests.unit.operator.played_context import applied_secured, context_with

from mainstem_operator.kubernetes.client import Kube

SPEC = {"brokers": {"replicas": 3}, "listeners": {"clients": [{"name": "tls", "port": 9093}]}}


async def test_keys_in_a_secret_of_others_are_not_used(kubernetes: Kubernetes, kube: Kube) -> None:
    """R38. A user who may create Secrets could make the operator trust other brokers."""
    connections: list[tuple[str, dict[str, str]]] = []
    brokers = SimpleNamespace(connect_to=lambda *connection: connections.append(connection))
    context = context_with(kube, brokers)
    cluster = await applied_secured(kubernetes, kube, SPEC)
    await context.log_in(cluster)
    ((servers, properties),) = connections
    assert (servers, properties["security.protocol"]) == ("events-bootstrap.default.svc:9091", "SSL")
    del kubernetes.get("secrets", "events-operator-tls")["metadata"]["ownerReferences"]
    await context.log_in(cluster)
    assert len(connections) == 1
