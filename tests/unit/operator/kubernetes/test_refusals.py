"""What the API server's refusals mean, whatever status they have, and lost connections to it (R23, R24)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ServerDisconnectedError
from tests.support.fake_kubernetes import Kubernetes
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.played_context import brought_up, context_with

from mainstem_operator.api import names
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.topics.reconcile import reconcile_topics

DENIED = 'admission webhook "labels.example.com" denied the request: a Topic needs the label team'
NO_WEBHOOK = (
    'Internal error occurred: failed calling webhook "labels.example.com": failed to call webhook: Post'
    ' "https://policies.policies.svc:443/labels?timeout=10s": no endpoints available for service "policies"'
)
BY_POLICY = "ValidatingAdmissionPolicy 'labels' with binding 'all' denied request: not logged in"
CHANGED = (
    'Operation cannot be fulfilled on topics.mainstem.dev "clicks": the object has been modified; please'
    " apply your changes to the latest version and try again"
)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        *((status, DENIED) for status in (400, 403, 404, 409, 418, 429, 500)),
        (500, NO_WEBHOOK),
        (401, BY_POLICY),
        (413, "Request entity too large: limit is 3145728"),
        (422, 'Topic.mainstem.dev "clicks" is invalid: spec.partitions: Invalid value'),
    ],
)
def test_what_admission_refuses_is_refused_by_its_content_whatever_the_status(
    status: int, message: str
) -> None:
    refused = Refused(status, message)
    assert refused.by_content
    assert not refused.conflict
    assert not refused.missing


def test_other_errors_pass() -> None:
    assert Refused(409, CHANGED).conflict
    assert Refused(404, 'topics.mainstem.dev "clicks" not found').missing
    for status, message in ((409, CHANGED), (500, "etcdserver: request timed out"), (429, "slow down")):
        assert not Refused(status, message).by_content


async def test_a_webhook_that_refuses_with_409_is_reported_and_not_asked_for_ever(
    kubernetes: Kubernetes, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a real conflict the object is read and the removal sent again, at once."""
    spec = {"clusterRef": {"name": "gone"}, "deletionPolicy": "Delete"}
    kubernetes.apply(resource("Topic", "clicks", spec, finalizers=[names.FINALIZER]))
    kubernetes.delete("topics", "clicks")
    tries = 0

    async def refuse(*_: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 3:
            raise RuntimeError("It is sent again and again.")
        raise Refused(409, DENIED)

    monkeypatch.setattr(kube, "set_finalizers", refuse)
    manifest = copy.deepcopy(kubernetes.get("topics", "clicks"))
    await reconcile_topics(context_with(kube), "default", "gone", [manifest], None)
    (ready,) = kubernetes.get("topics", "clicks")["status"]["conditions"]
    assert ready["reason"] == "FinalizerRefused"
    assert "needs the label team" in ready["message"]
    assert tries == 1


@with_operator
async def test_a_webhook_that_is_down_is_named_by_the_cluster_that_it_stops(
    operator: RunningOperator,
) -> None:
    """The status would else say that everything is as in the manifest."""
    kubernetes = await brought_up(operator, resource("BrokerCluster", "events", {"brokers": {"replicas": 1}}))
    kubernetes.fails = lambda method, key, _: 500 if (method, key[0]) == ("PATCH", "configmaps") else 0
    kubernetes.failure = NO_WEBHOOK
    kubernetes.apply(
        resource("BrokerCluster", "events", {"brokers": {"replicas": 1, "config": {"num.partitions": 2}}})
    )
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert "no endpoints available" in condition["message"]
    assert (await operator.condition("brokerclusters", "events", "Ready", "True"))["reason"] == "Serving"


@pytest.mark.parametrize("status", [400, 403, 422, 500])
@with_operator
async def test_a_volume_that_may_not_grow_stops_nothing_else(operator: RunningOperator, status: int) -> None:
    brokers = {"replicas": 1, "storage": {"size": "10Gi"}}
    kubernetes = await brought_up(operator, resource("BrokerCluster", "events", {"brokers": brokers}))
    kubernetes.fails = lambda method, key, _: (
        status if (method, key[0]) == ("PATCH", "persistentvolumeclaims") else 0
    )
    kubernetes.failure = DENIED
    larger = {**brokers, "storage": {"size": "20Gi"}, "config": {"num.partitions": 2}}
    kubernetes.apply(resource("BrokerCluster", "events", {"brokers": larger}))
    condition = await operator.condition("brokerclusters", "events", "StorageUnresizable", "True")
    assert "data-events-broker-0 can't grow to 20Gi" in condition["message"]
    await operator.condition("brokerclusters", "events", "Stable", "True")
    files = kubernetes.get("configmaps", "events-broker")["data"]
    assert "num.partitions=2\n" in files["broker-0.properties"]


@with_operator
async def test_a_secret_that_may_not_be_made_is_reported(operator: RunningOperator) -> None:
    kubernetes = operator.kubernetes
    kubernetes.fails = lambda method, key, _: 403 if (method, key[0]) == ("POST", "secrets") else 0
    kubernetes.failure = 'secrets "events-cluster-authority" is forbidden: exceeded quota: compute'
    listeners = {"clients": [{"name": "tls", "port": 9093}]}
    kubernetes.apply(
        resource("BrokerCluster", "events", {"brokers": {"replicas": 1}, "listeners": listeners})
    )
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
    assert condition["message"].startswith("Kubernetes refuses a Secret with keys or certificates: ")
    assert "exceeded quota" in condition["message"]


@with_operator
async def test_a_volume_that_does_not_grow_is_waited_for(operator: RunningOperator) -> None:
    brokers = {"replicas": 1, "storage": {"size": "10Gi"}}
    kubernetes = await brought_up(operator, resource("BrokerCluster", "events", {"brokers": brokers}))
    claim = kubernetes.get("persistentvolumeclaims", "data-events-broker-0")
    claim["status"]["capacity"] = {"storage": "10Gi"}
    kubernetes.apply(
        resource("BrokerCluster", "events", {"brokers": {**brokers, "storage": {"size": "20Gi"}}})
    )
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Waiting")
    assert "The volume of data-events-broker-0 has 10Gi, and 20Gi are requested" in condition["message"]
    kubernetes.get("persistentvolumeclaims", "data-events-broker-0")["status"]["capacity"] = {
        "storage": "20Gi"
    }
    kubernetes.set_ready("events-broker-0", True)
    await operator.condition("brokerclusters", "events", "Stable", "True")


@pytest.mark.parametrize("error", [ServerDisconnectedError(), ClientPayloadError("not all was sent")])
async def test_a_lost_connection_is_no_defect(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As when the API server is restarted. Whoever asks waits, and the Lease is not given up for it."""

    async def lose(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(kube._api, "call_api", lose)
    with pytest.raises(OSError, match=r"The API server is not reached: (Server disconnected|not all)"):
        await kube.get("v1", "Service", "default", "events-bootstrap")
