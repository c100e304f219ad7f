"""The whole operator over a secured BrokerCluster, against a fake API server (R38, R25)."""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable, Collection
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.support.running_operator import RunningOperator, with_operator
from tests.unit.operator.played_context import brought_up
from tests.unit.operator.played_users import PlayedUsers

from mainstem_operator.api.secret_data import decoded, encoded
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.users import AclRule
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.certificates.issuing import (
    SERVER_DAYS,
    KeyPair,
    expiry_of,
    hosts_in,
    is_issued,
    issue,
    new_authority,
)
from mainstem_operator.certificates.plan import data_of as data_of_pair
from mainstem_operator.certificates.plan import pair_in

SECRETS = {
    "events-broker-tls",
    "events-ca",
    "events-clients-authority",
    "events-cluster-authority",
    "events-operator-tls",
}


def secured(**spec: Any) -> Manifest:
    return resource(
        "BrokerCluster",
        "events",
        {
            "brokers": {"replicas": 3},
            "listeners": {"clients": [{"name": "tls", "port": 9093}]},
            "authorization": {"type": "acl"},
            **spec,
        },
    )


def aged(kubernetes: Kubernetes, days: float) -> str:
    """Replace the brokers' certificate by one that is so old; the new one, in PEM."""
    authority = pair_in(data_of(kubernetes, "events-cluster-authority"))
    present = pair_in(data_of(kubernetes, "events-broker-tls"))
    assert authority is not None
    assert present is not None
    then = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    old = issue(authority, "mainstem-broker", hosts_in(present), SERVER_DAYS, then)
    secret = kubernetes.get("secrets", "events-broker-tls")
    kubernetes.apply({**secret, "data": {**secret["data"], **encoded(data_of_pair(old))}})
    return old.certificate


def data_of(kubernetes: Kubernetes, name: str) -> dict[str, str]:
    return decoded(kubernetes.get("secrets", name))


@with_operator
async def test_a_secured_cluster_comes_up_with_its_keys_and_then_nothing_is_written(
    operator: RunningOperator,
) -> None:
    kubernetes = await brought_up(operator, secured())
    assert {item["metadata"]["name"] for item in kubernetes.find("secrets")} == SECRETS
    brokers, authority = data_of(kubernetes, "events-broker-tls"), data_of(kubernetes, "events-ca")
    issuer = KeyPair("", authority["ca.crt"])
    assert is_issued(KeyPair(brokers["tls.key"], brokers["tls.crt"]), issuer, "mainstem-broker", ())
    status = kubernetes.get("brokerclusters", "events")["status"]
    assert status["bootstrapServers"] == "events-bootstrap.default.svc:9093"
    assert status["listeners"] == [
        {
            "name": "tls",
            "bootstrapServers": "events-bootstrap.default.svc:9093",
            "securityProtocol": "SASL_SSL",
            "authentication": "scram-sha-512",
        }
    ]
    for item in kubernetes.find("secrets"):  # they go with the BrokerCluster
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("BrokerCluster", "events")
    writes, requested = len(kubernetes.writes), len(kubernetes.requests)
    kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: len(kubernetes.requests) > requested + 20, "a look")
    assert kubernetes.writes[writes:] == []


@with_operator
async def test_keys_that_are_lost_are_made_anew_and_no_broker_is_restarted(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, secured())
    pods = {pod["metadata"]["uid"] for pod in kubernetes.find("pods")}
    before = data_of(kubernetes, "events-broker-tls")
    kubernetes.delete("secrets", "events-broker-tls")
    kubernetes.set_ready("events-broker-0", True)
    await operator.until(lambda: bool(data_of(kubernetes, "events-broker-tls")), "new keys")
    after = data_of(kubernetes, "events-broker-tls")
    assert after["tls.key"] != before["tls.key"]
    assert after["ca.crt"] == before["ca.crt"]
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert {pod["metadata"]["uid"] for pod in kubernetes.find("pods")} == pods


@with_operator
async def test_a_certificate_that_is_not_there_is_waited_for(operator: RunningOperator) -> None:
    """Its pods could not start."""
    kubernetes = operator.kubernetes
    kubernetes.apply(changed({"name": "tls", "port": 9093}, tls={"secretName": "from-cert-manager"}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
    assert "from-cert-manager, which does not exist" in condition["message"]
    assert kubernetes.find("statefulsets") == []
    encoded = base64.b64encode(b"theirs").decode()
    kubernetes.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "from-cert-manager", "namespace": "default"},
            "data": dict.fromkeys(("tls.key", "tls.crt", "ca.crt"), encoded),
        }
    )
    kubernetes.annotate("brokerclusters", "events", {"example.com/look": "again"})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert data_of(kubernetes, "events-ca") == {"ca.crt": "theirs"}
    del kubernetes.get("secrets", "from-cert-manager")["data"]["ca.crt"]  # as of an ACME issuer
    kubernetes.annotate("brokerclusters", "events", {"example.com/look": "without"})
    await operator.until(lambda: data_of(kubernetes, "events-ca") == {"ca.crt": ""}, "nothing to trust")
    await operator.condition("brokerclusters", "events", "Stable", "True")


@with_operator
async def test_a_secret_of_somebody_else_is_never_changed(operator: RunningOperator) -> None:
    kubernetes = operator.kubernetes
    theirs = kubernetes.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "events-ca", "namespace": "default"},
            "data": {"ca.crt": base64.b64encode(b"theirs").decode()},
        }
    )
    kubernetes.apply(secured())
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
    assert "belongs to others, not to the BrokerCluster events" in condition["message"]
    assert kubernetes.get("secrets", "events-ca")["data"] == theirs["data"]
    assert kubernetes.find("secrets") == [kubernetes.get("secrets", "events-ca")]


INTERNAL = {"name": "internal", "port": 9092, "tls": False, "authentication": "none"}


def changed(*listeners: dict[str, Any], **spec: Any) -> Manifest:
    """The BrokerCluster with these listeners for clients, or none."""
    manifest = secured(**spec)
    if "authorization" not in spec:
        del manifest["spec"]["authorization"]
    manifest["spec"]["listeners"] = {"clients": list(listeners)} if listeners else {}
    return manifest


def filed(kubernetes: Kubernetes) -> dict[str, str]:
    lines = kubernetes.get("configmaps", "events-broker")["data"]["broker-0.properties"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def uids(kubernetes: Kubernetes) -> dict[str, str]:
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubernetes.find("pods")}
    return {name: uid for name, uid in pods.items() if "broker" in name}


def has_both(kubernetes: Kubernetes) -> bool:
    """Whether brokers get all listeners, and talk to each other over the one without TLS."""
    settings = filed(kubernetes)
    is_internal = settings["inter.broker.listener.name"] == "INTERNAL"
    return is_internal and "BROKERS://:9091" in settings["listeners"]


async def rolled(operator: RunningOperator, before: dict[str, str]) -> None:
    """Wait until every broker has another pod than before."""
    kubernetes = operator.kubernetes
    await operator.until(lambda: not set(before.values()) & set(uids(kubernetes).values()), "a roll")


@with_operator
async def test_a_running_cluster_becomes_secured_and_open_again_by_rolls(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, changed())
    assert "BROKERS" not in filed(kubernetes)["listeners"]
    seen = []
    for listeners, end in (([INTERNAL, {"name": "tls", "port": 9093}], "BROKERS"), ([], "INTERNAL")):
        before = uids(kubernetes)
        kubernetes.apply(changed(*listeners))
        await operator.until(lambda: has_both(kubernetes), "all listeners, and brokers without TLS")
        await rolled(operator, before)
        await rolled(operator, uids(kubernetes))
        await operator.condition("brokerclusters", "events", "Stable", "True")
        assert filed(kubernetes)["inter.broker.listener.name"] == end
        assert "INTERNAL://:9092" in filed(kubernetes)["listeners"]
        seen.append(uids(kubernetes))
    assert seen[0] != seen[1]


@with_operator
async def test_a_cluster_that_clients_could_not_follow_is_left_as_it_is(operator: RunningOperator) -> None:
    kubernetes = await brought_up(operator, changed())
    before, pods = filed(kubernetes), uids(kubernetes)
    kubernetes.apply(changed({"name": "tls", "port": 9093}))
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "Refused")
    assert "put {name: internal, port: 9092" in condition["message"]
    assert (filed(kubernetes), uids(kubernetes)) == (before, pods)


FOREIGN = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "events-broker", "namespace": "default"},
    "spec": {"podSelector": {}},
}
OUTSIDE = {"name": "outside", "port": 9094, "type": "nodeport", "host": "kafka.example.org"}
ELSEWHERE = {**OUTSIDE, "host": "elsewhere.example.org"}


def refused(kubernetes: Kubernetes) -> None:
    """Have each pass end at an object of others, with a manifest that asks for another host."""
    kubernetes.delete("networkpolicies", "events-broker")
    kubernetes.apply(FOREIGN)
    kubernetes.apply(changed(ELSEWHERE))


def without_secret(kubernetes: Kubernetes) -> None:
    kubernetes.apply(changed(ELSEWHERE, tls={"secretName": "missing"}))


def invalid(kubernetes: Kubernetes) -> None:
    kubernetes.apply(changed({**OUTSIDE, "port": 9091}))


@pytest.mark.parametrize("spoil", [refused, without_secret, invalid])
@with_operator
async def test_what_is_due_is_renewed_whatever_else_of_the_manifest_is_refused(
    operator: RunningOperator, spoil: Callable[[Kubernetes], None]
) -> None:
    """R38: with the hosts that it has, not with those of the refused manifest."""
    kubernetes = await brought_up(operator, changed(OUTSIDE))
    condition = await operator.condition("brokerclusters", "events", "CertificatesEnding", "False", "NotDue")
    assert condition["message"].startswith("They are valid until ")
    old = aged(kubernetes, days=65)
    hosts = hosts_in(KeyPair("", old))
    assert "kafka.example.org" in hosts
    spoil(kubernetes)
    await operator.until(lambda: data_of(kubernetes, "events-broker-tls")["tls.crt"] != old, "a renewal")
    await operator.condition("brokerclusters", "events", "CertificatesEnding", "False", "NotDue")
    renewed, authority = pair_in(data_of(kubernetes, "events-broker-tls")), data_of(kubernetes, "events-ca")
    assert renewed is not None
    assert is_issued(renewed, KeyPair("", authority["ca.crt"]), "mainstem-broker", hosts)
    assert hosts_in(renewed) == hosts
    assert data_of(kubernetes, "events-broker-tls").keys() >= {"ca.crt", "clients-ca.crt"}


@pytest.mark.parametrize("annotation", ["mainstem.dev/pause-reconciliation", "mainstem.dev/plan-only"])
@with_operator
async def test_where_nothing_may_be_changed_the_status_says_when_certificates_end(
    operator: RunningOperator, annotation: str
) -> None:
    """R38, R25."""
    kubernetes = await brought_up(operator, changed(OUTSIDE))
    old = aged(kubernetes, days=65)
    kubernetes.annotate("brokerclusters", "events", {annotation: "true"})
    condition = await operator.condition("brokerclusters", "events", "CertificatesEnding", "True")
    assert condition["reason"] == "NotRenewed"
    assert f"because of the annotation {annotation}: remove it" in condition["message"]
    assert f"From {written(expiry_of(KeyPair('', old)))} on" in condition["message"]
    assert data_of(kubernetes, "events-broker-tls")["tls.crt"] == old
    kubernetes.annotate("brokerclusters", "events", {annotation: None})
    await operator.condition("brokerclusters", "events", "CertificatesEnding", "False", "NotDue")
    assert data_of(kubernetes, "events-broker-tls")["tls.crt"] != old


READ = AclRule("topic", "clicks", False, "read", True, "*")


class UsersOfBrokers(PlayedUsers):
    """Brokers show ACLs only where their files have an authorizer."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        super().__init__()
        self._kubernetes = kubernetes
        self.removed_at: list[str | None] = []

    async def acls(self) -> dict[str, frozenset[AclRule]]:
        self.acls_refusal = "" if "authorizer.class.name" in filed(self._kubernetes) else "SECURITY_DISABLED"
        return await super().acls()

    async def remove_acls(self, user: str, rules: Collection[AclRule]) -> None:
        self.removed_at.append(filed(self._kubernetes).get("authorizer.dry.run"))
        await super().remove_acls(user, rules)


@with_operator
async def test_acls_of_a_user_that_was_deleted_while_they_did_not_count_go_before_they_count_again(
    operator: RunningOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R38: a certificate that was issued to it would have all its rights again."""
    users = UsersOfBrokers(operator.kubernetes)
    users.rules = {"alice": {READ}, "carol": {READ}}
    monkeypatch.setattr(Brokers, "users", lambda _: users)
    kubernetes = await brought_up(operator, changed({"name": "tls", "port": 9093}))
    acls = [{"resource": "topic", "name": "clicks", "operations": ["read"]}]
    kubernetes.apply(resource("User", "alice", {"clusterRef": {"name": "events"}, "acls": acls}))
    await operator.condition("users", "alice", "Ready", "False", "NoAuthorization")
    kubernetes.delete("users", "alice")
    await operator.until(lambda: kubernetes.find("users") == [], "the end of the deletion")
    annotations = kubernetes.get("brokerclusters", "events")["metadata"]["annotations"]
    assert annotations["mainstem.dev/removed-users"] == "alice"
    assert users.rules == {"alice": {READ}, "carol": {READ}}
    kubernetes.apply(secured())
    await operator.until(lambda: users.rules["alice"] == set(), "no ACLs of alice")
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert "authorizer.dry.run" not in filed(kubernetes)
    assert users.removed_at == ["true"], "while they were only recorded"
    assert users.rules == {"alice": set(), "carol": {READ}}, "no User stood for carol"
    annotations = kubernetes.get("brokerclusters", "events")["metadata"]["annotations"]
    assert "mainstem.dev/removed-users" not in annotations


@with_operator
async def test_what_a_deleted_cluster_has_left_behind_belongs_to_the_next_one_of_its_name(
    operator: RunningOperator,
) -> None:
    """As `kubectl delete --cascade=orphan` leaves it. Of all kinds alike, and it goes with the next one. Its
    brokers run on until the manifest names the Secrets of both authorities.
    """
    manifest = secured()
    del manifest["spec"]["authorization"]  # the brokers are not asked for ACLs of loads
    kubernetes = await brought_up(operator, manifest)
    keys = {name: data_of(kubernetes, name) for name in SECRETS}
    pods = {pod["metadata"]["uid"] for pod in kubernetes.find("pods")}
    kubernetes.orphan("brokerclusters", "events")
    assert kubernetes.get("secrets", "events-ca")["metadata"]["ownerReferences"] == []
    kubernetes.apply(manifest)
    condition = await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
    uids_named = re.search(
        r"mainstem\.dev/adopt-secrets=(\S+) on the BrokerCluster events", condition["message"]
    )
    assert uids_named
    assert {pod["metadata"]["uid"] for pod in kubernetes.find("pods")} == pods
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/adopt-secrets": uids_named[1]})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert {name: data_of(kubernetes, name) for name in SECRETS} == keys
    assert {pod["metadata"]["uid"] for pod in kubernetes.find("pods")} == pods
    kubernetes.delete("brokerclusters", "events")
    assert {
        key[0]
        for key, item in kubernetes.objects.items()
        if "mainstem.dev/cluster" in (item["metadata"].get("labels") or {})
    } == {"persistentvolumeclaims"}


@with_operator
async def test_what_the_next_cluster_does_not_want_of_what_was_left_behind_is_deleted(
    operator: RunningOperator,
) -> None:
    external = {"external": {"type": "NodePort", "host": "kafka.example.org"}}
    brokers = {"brokers": {"replicas": 1}}
    kubernetes = await brought_up(
        operator, resource("BrokerCluster", "events", {**brokers, "listeners": external})
    )
    kubernetes.orphan("brokerclusters", "events")
    await brought_up(
        operator, resource("BrokerCluster", "events", {**brokers, "networkPolicy": {"enabled": False}})
    )
    assert kubernetes.find("networkpolicies") == []
    assert not [
        item for item in kubernetes.find("services") if item["metadata"]["name"].endswith("-external")
    ]


@with_operator
async def test_a_secret_that_was_left_behind_by_a_cluster_of_another_name_is_not_taken_over(
    operator: RunningOperator,
) -> None:
    labels = {"mainstem.dev/cluster": "others", "app.kubernetes.io/managed-by": "mainstem-operator"}
    metadata = {"name": "events-ca", "namespace": "default", "labels": labels}
    data = {"ca.crt": base64.b64encode(b"theirs").decode()}
    operator.kubernetes.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    operator.kubernetes.apply(secured())
    await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
    assert data_of(operator.kubernetes, "events-ca") == {"ca.crt": "theirs"}


def planted(name: str, data: dict[str, str]) -> Manifest:
    """A Secret that somebody has made to look like one that a BrokerCluster `events` has left behind."""
    labels = {"mainstem.dev/cluster": "events", "app.kubernetes.io/managed-by": "mainstem-operator"}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded(data)}


@pytest.mark.parametrize("name", ["events-cluster-authority", "events-clients-authority"])
@with_operator
async def test_an_authority_that_somebody_has_planted_issues_nothing(
    operator: RunningOperator, name: str
) -> None:
    """Who may create Secrets would be every user, or every broker, of the next BrokerCluster (R38)."""
    kubernetes = operator.kubernetes
    theirs = data_of_pair(new_authority("Mainstem brokers", dt.datetime.now(dt.UTC)))
    kubernetes.apply(planted(name, theirs))
    for _ in range(2):  # a uid of another Secret is no consent to this one
        kubernetes.apply(secured())
        condition = await operator.condition("brokerclusters", "events", "Stable", "False", "SecretNotUsable")
        assert f"No object owns the Secret {name}, and whoever" in condition["message"]
        kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/adopt-secrets": "0123-abcd"})
    assert data_of(kubernetes, name) == theirs
    assert {item["metadata"]["name"] for item in kubernetes.find("secrets")} == {name}
    assert kubernetes.find("statefulsets") == []
    kubernetes.delete("secrets", name)
    kubernetes.annotate("brokerclusters", "events", {"mainstem.dev/adopt-secrets": None})
    await operator.condition("brokerclusters", "events", "Stable", "True")
    assert data_of(kubernetes, name)["tls.key"] != theirs["tls.key"]


@with_operator
async def test_certificates_that_somebody_has_planted_are_issued_again(operator: RunningOperator) -> None:
    """Only those that the authorities have issued count, so no consent is needed."""
    kubernetes = operator.kubernetes
    authority = new_authority("Mainstem brokers", dt.datetime.now(dt.UTC))
    pair = issue(authority, "mainstem-broker", ["x"], 90, dt.datetime.now(dt.UTC))
    names = ("events-broker-tls", "events-operator-tls", "events-ca")
    for name in names:
        kubernetes.apply(planted(name, {**data_of_pair(pair), "ca.crt": authority.certificate}))
    await brought_up(operator, secured())
    for name in names:
        assert (
            data_of(kubernetes, name)["ca.crt"] == data_of(kubernetes, "events-cluster-authority")["tls.crt"]
        )
    for name in names[:2]:
        assert data_of(kubernetes, name)["tls.key"] != pair.key
