"""The loads of a secured BrokerCluster: each has a key of its own, and may only read its topic (R28, R38)."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.unit.operator.played_context import applied_secured, context_with
from tests.unit.operator.played_users import PlayedUsers

from mainstem_operator.api.secret_data import decoded
from mainstem_operator.api.topics import topic_of
from mainstem_operator.api.users import AclRule
from mainstem_operator.certificates.issuing import SERVER_DAYS, SERVER_RENEWAL_DAYS, KeyPair, new_authority
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.topics.loads.apply import bring_about_loads
from mainstem_operator.topics.loads.identity import (
    MOUNT_PATH,
    gone_users,
    identity_data,
    load_user,
    plan_load_key,
)
from mainstem_operator.topics.loads.plan import load_name, request_name
from mainstem_operator.topics.loads.runs import LoadStatus

NOW = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)
READ = AclRule("topic", "clicks", False, "read", True, "*")


class Scene:
    """A secured BrokerCluster with a warehouse, and the loads of its Topics."""

    def __init__(self, kubernetes: Kubernetes, kube: Kube, cluster: Manifest) -> None:
        self.kubernetes = kubernetes
        self.cluster = cluster
        self.acls = PlayedUsers()
        self.context = context_with(kube, SimpleNamespace(users=lambda: self.acls))

    async def look(self) -> LoadStatus | None:
        """The status of the loads of the Topic `clicks`."""
        topics = self.kubernetes.find("topics")
        # As a pass does, which leaves out Topics that are not managed.
        pairs = [(spec, item.get("status") or {}) for item in topics if (spec := topic_of(item)).managed]
        statuses = await bring_about_loads(self.context, self.cluster, pairs, topics, Alone())
        return statuses.get(("default", "clicks"))

    def secret(self) -> dict[str, str]:
        return decoded(self.kubernetes.get("secrets", "clicks-load-identity"))


def topic(name: str = "clicks", *, warehouse: bool = True, **settings: Any) -> Manifest:
    """A Topic; `settings` of its warehouse, with a schedule if there are none."""
    spec: dict[str, Any] = {"clusterRef": {"name": "events"}}
    if warehouse:
        spec["warehouse"] = settings or {"schedule": "*/5 * * * *"}
    return resource("Topic", name, spec)


@asynccontextmanager
async def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, authorization: bool = True
) -> AsyncIterator[Scene]:
    async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
        spec: dict[str, Any] = {
            "brokers": {"replicas": 1},
            "listeners": {"clients": [{"name": "tls", "port": 9093}]},
            "warehouse": {
                "location": "s3://lake/tables",
                "credentialsSecret": "lake",
                "allowTransforms": True,
            },
        }
        if authorization:
            spec["authorization"] = {"type": "acl"}
        yield Scene(kubernetes, kube, await applied_secured(kubernetes, kube, spec))


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with scene(tmp_path, monkeypatch) as result:
        yield result


async def test_a_load_gets_a_key_of_its_own_in_a_secret_that_goes_with_its_cron_job(played: Scene) -> None:
    played.kubernetes.apply(topic())
    await played.look()
    cron_job = played.kubernetes.get("cronjobs", "clicks-load")
    (owner,) = played.kubernetes.get("secrets", "clicks-load-identity")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("CronJob", cron_job["metadata"]["uid"])
    certificate = x509.load_pem_x509_certificate(played.secret()["load.pem"].encode())
    assert certificate.subject.rfc4514_string() == "CN=mainstem_clicks-load"
    users = decoded(played.kubernetes.get("secrets", "events-clients-authority"))["tls.crt"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(users.encode()))
    brokers = decoded(played.kubernetes.get("secrets", "events-cluster-authority"))["tls.crt"]
    assert played.secret()["ca.crt"] == brokers
    writes = len(played.kubernetes.writes)
    await played.look()
    assert len(played.kubernetes.writes) == writes, "it rests"


async def test_driver_and_executors_get_the_key_as_files_and_in_no_other_way(played: Scene) -> None:
    played.kubernetes.apply(topic())
    await played.look()
    pod = played.kubernetes.get("cronjobs", "clicks-load")["spec"]["jobTemplate"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    arguments = " ".join(container["args"])
    assert "--bootstrap-servers events-bootstrap.default.svc:9090" in arguments
    assert f"--client-config {MOUNT_PATH}/client.properties" in arguments
    assert {"name": "identity", "mountPath": MOUNT_PATH, "readOnly": True} in container["volumeMounts"]
    volume = {"secretName": "clicks-load-identity", "defaultMode": 0o440}
    assert {"name": "identity", "secret": volume} in pod["spec"]["volumes"]
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert values["EXECUTOR_IDENTITY_SECRET"] == "clicks-load-identity"
    assert values["EXECUTOR_IDENTITY_PATH"] == MOUNT_PATH
    named = dict(line.split("=", 1) for line in played.secret()["client.properties"].splitlines())
    assert named.pop("security.protocol") == "SSL"
    assert {Path(path).name for path in named.values()} <= played.secret().keys()
    assert {Path(path).parent for path in named.values()} == {Path(MOUNT_PATH)}
    assert "PRIVATE KEY" not in str(pod)


async def test_a_load_may_read_its_topic_and_what_else_it_may_is_removed(played: Scene) -> None:
    user = load_user("clicks-load")
    played.acls.rules = {user: {AclRule("topic", "payments", False, "read", True, "*")}}
    played.kubernetes.apply(topic())
    await played.look()
    assert played.acls.rules[user] == {READ}


@pytest.mark.parametrize("how", ["deleted", "without a warehouse"])
async def test_the_rights_of_a_load_that_is_gone_are_removed_and_those_of_others_are_not(
    played: Scene, how: str
) -> None:
    played.acls.rules["alice"] = {READ}
    played.kubernetes.apply(topic())
    played.kubernetes.apply(topic("views"))
    await played.look()
    if how == "deleted":
        played.kubernetes.delete("topics", "clicks")
    else:
        played.kubernetes.apply(topic(warehouse=False))
    await played.look()
    held = {user for user, rules in played.acls.rules.items() if rules}
    assert held == {"alice", load_user("views-load")}


async def test_a_transform_may_read_the_topics_that_are_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {
        "users": {"topic": "users", "columns": {"id": "long"}},
        "prices": {"table": "prices"},
        "same": {"topic": "clicks", "columns": {"id": "long"}},
    }
    transform = {"sql": "SELECT * FROM records", "inputs": inputs}
    async with scene(tmp_path, monkeypatch) as played:
        played.kubernetes.apply(topic(schedule="*/5 * * * *", transform=transform))
        await played.look()
        assert played.acls.rules[load_user("clicks-load")] == {READ, replace(READ, name="users")}
        del transform["inputs"]
        played.kubernetes.apply(topic(schedule="*/5 * * * *", transform=transform))
        await played.look()
        assert played.acls.rules[load_user("clicks-load")] == {READ}


async def test_a_request_logs_in_as_the_load_does_with_a_secret_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30: the executors of a driver may mount only the Secret that is named like its CronJob."""
    rewind = {"requestId": "r1", "to": "earliest"}
    async with scene(tmp_path, monkeypatch) as played:
        played.kubernetes.apply(topic(schedule="*/5 * * * *", rewind=rewind))
        await played.look()
        cron_job = request_name("clicks", "rewind", "r1")
        pod = played.kubernetes.get("cronjobs", cron_job)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        volume = {"secretName": f"{cron_job}-identity", "defaultMode": 0o440}
        assert {"name": "identity", "secret": volume} in pod["volumes"]
        (container,) = pod["containers"]
        assert {"name": "identity", "mountPath": MOUNT_PATH, "readOnly": True} in container["volumeMounts"]
        key = decoded(played.kubernetes.get("secrets", f"{cron_job}-identity"))["load.pem"]
        certificate = x509.load_pem_x509_certificate(key.encode())
        assert certificate.subject.rfc4514_string() == "CN=mainstem_clicks-load"
        assert {user for user, rules in played.acls.rules.items() if rules} == {load_user("clicks-load")}


async def test_the_resident_loader_has_one_key_and_may_read_what_its_topics_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30: one process loads them all."""
    transform = {
        "sql": "SELECT * FROM records",
        "inputs": {"users": {"topic": "users", "columns": {"id": "long"}}},
    }
    async with scene(tmp_path, monkeypatch) as played:
        played.kubernetes.apply(topic(freshness="60s"))
        played.kubernetes.apply(topic("views", freshness="60s", transform=transform))
        status = await played.look()
        assert status is not None
        assert not status.waits
        workload = played.kubernetes.get("statefulsets", "events-resident-loader")
        pod = workload["spec"]["template"]["spec"]
        volume = {"secretName": "events-resident-loader-identity", "defaultMode": 0o440}
        assert {"name": "identity", "secret": volume} in pod["volumes"]
        (container,) = pod["containers"]
        assert {"name": "identity", "mountPath": MOUNT_PATH, "readOnly": True} in container["volumeMounts"]
        file = played.kubernetes.get("configmaps", "events-resident-loader")["data"]["topics.json"]
        for entry in json.loads(file)["topics"].values():
            arguments = " ".join(entry["arguments"])
            assert "--bootstrap-servers events-bootstrap.default.svc:9090" in arguments
            assert f"--client-config {MOUNT_PATH}/client.properties" in arguments
        secret = played.kubernetes.get("secrets", "events-resident-loader-identity")
        (owner,) = secret["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("StatefulSet", workload["metadata"]["uid"])
        certificate = x509.load_pem_x509_certificate(decoded(secret)["load.pem"].encode())
        assert certificate.subject.rfc4514_string() == "CN=mainstem_resident-loader"
        allowed = {READ, replace(READ, name="views"), replace(READ, name="users")}
        held = {user: rules for user, rules in played.acls.rules.items() if rules}
        assert held == {load_user("resident-loader"): allowed}
        writes = len(played.kubernetes.writes)
        await played.look()
        assert len(played.kubernetes.writes) == writes, "it rests"


async def test_the_resident_loader_may_still_read_what_topics_need_that_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loads of them go on (R30). What only other Topics needed it may read no longer."""
    transform = {
        "sql": "SELECT * FROM records",
        "inputs": {
            "users": {"topic": "users", "columns": {"id": "long"}},
            "prices": {"table": "prices"},
        },
    }
    async with scene(tmp_path, monkeypatch) as played:
        for manifest in (topic(freshness="60s"), topic("views", freshness="60s", transform=transform)):
            played.kubernetes.apply(manifest)
        await played.look()
        played.kubernetes.annotate("topics", "views", {"mainstem.dev/managed": "false"})
        user = load_user("resident-loader")
        for needed in ({"clicks", "views", "users"}, {"views", "users"}):
            await played.look()
            assert played.acls.rules[user] == {replace(READ, name=name) for name in needed}
            file = played.kubernetes.get("configmaps", "events-resident-loader")["data"]["topics.json"]
            assert set(json.loads(file)["topics"]) == needed - {"users"}
            played.kubernetes.apply(topic(warehouse=False))
        # A rule that somebody has removed is not granted for what is left in the ConfigMap.
        await played.acls.remove_acls(user, {replace(READ, name="users")})
        await played.look()
        assert played.acls.rules[user] == {replace(READ, name="views")}


async def test_what_no_topic_asks_for_any_more_has_no_rights(played: Scene) -> None:
    played.kubernetes.apply(topic(freshness="60s"))
    await played.look()
    played.kubernetes.apply(topic(schedule="*/5 * * * *"))
    await played.look()
    assert {user for user, rules in played.acls.rules.items() if rules} == {load_user("clicks-load")}
    assert played.kubernetes.get("statefulsets", "events-resident-loader")["spec"]["replicas"] == 0
    played.kubernetes.apply(topic(freshness="60s"))
    await played.look()
    assert {user for user, rules in played.acls.rules.items() if rules} == {load_user("resident-loader")}


@pytest.mark.parametrize(
    ("settings", "plural", "name"),
    [
        ({"schedule": "*/5 * * * *"}, "cronjobs", "clicks-load"),
        ({"freshness": "60s"}, "statefulsets", "events-resident-loader"),
    ],
)
async def test_loads_wait_while_brokers_refuse_their_rights(
    played: Scene, settings: dict[str, Any], plural: str, name: str
) -> None:
    """Else the first run would fail, and use up what it may try."""
    played.acls.acls_refusal = "There is no authorizer."
    played.kubernetes.apply(topic(**settings))
    status = await played.look()
    assert status is not None
    assert status.waits
    assert "There is no authorizer." in status.conditions[0].message
    assert (plural, "default", name) not in played.kubernetes.objects


async def test_without_authorization_nobody_is_asked_for_acls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, monkeypatch, authorization=False) as played:
        played.acls.acls_refusal = "There is no authorizer."
        played.kubernetes.apply(topic())
        status = await played.look()
        assert status is not None
        assert not status.waits
        assert played.secret()["load.pem"]


async def test_a_key_that_a_load_has_left_behind_belongs_to_the_next_one_of_its_name(played: Scene) -> None:
    played.kubernetes.apply(topic())
    await played.look()
    before = played.secret()
    played.kubernetes.orphan("cronjobs", "clicks-load")
    await played.look()
    assert played.secret() == before
    played.kubernetes.delete("cronjobs", "clicks-load")
    assert ("secrets", "default", "clicks-load-identity") not in played.kubernetes.objects


async def test_a_secret_of_others_is_never_changed(played: Scene) -> None:
    metadata = {"name": "clicks-load-identity", "namespace": "default"}
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"theirs": "eA=="}}
    played.kubernetes.apply(theirs)
    played.kubernetes.apply(topic())
    status = await played.look()
    assert status is not None
    assert status.waits
    assert "belongs to others, not to the CronJob clicks-load" in status.conditions[0].message
    assert played.secret() == {"theirs": "x"}


@pytest.mark.parametrize(
    ("settings", "api_version", "kind", "name"),
    [
        ({}, "batch/v1", "CronJob", "clicks-load"),
        ({}, "v1", "Secret", "clicks-load-identity"),
        ({"freshness": "60s"}, "v1", "ConfigMap", "events-resident-loader"),
        ({"freshness": "60s"}, "apps/v1", "StatefulSet", "events-resident-loader"),
        ({"freshness": "60s"}, "v1", "Secret", "events-resident-loader-identity"),
    ],
)
async def test_nothing_is_granted_or_created_for_a_load_whose_name_others_have(
    played: Scene, settings: dict[str, Any], api_version: str, kind: str, name: str
) -> None:
    played.kubernetes.apply(
        {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "theirs"}},
            "spec": {"replicas": 0, "template": {}},
        }
    )
    played.kubernetes.apply(topic(**settings))
    before = set(played.kubernetes.objects)
    status = await played.look()
    assert status is not None
    assert not any(played.acls.rules.values())
    assert set(played.kubernetes.objects) == before


def test_a_key_is_kept_until_it_comes_near_its_end_or_its_authority_is_another() -> None:
    authority = new_authority("Mainstem users", NOW)
    first = plan_load_key("clicks-load", {}, authority, NOW)
    data = identity_data(first, "trust")

    def later(days: int, issuer: KeyPair = authority) -> KeyPair:
        return plan_load_key("clicks-load", data, issuer, NOW + dt.timedelta(days=days))

    assert later(SERVER_DAYS - SERVER_RENEWAL_DAYS - 1) == first
    assert later(SERVER_DAYS - SERVER_RENEWAL_DAYS + 1) != first
    assert later(0, new_authority("Mainstem users", NOW)) != first
    assert plan_load_key("views-load", data, authority, NOW) != first
    assert plan_load_key("clicks-load", {"load.pem": "spoilt"}, authority, NOW) != first


def test_the_name_of_a_load_fits_a_certificate_and_is_never_that_of_a_user() -> None:
    authority = new_authority("Mainstem users", NOW)
    for length in (1, 50, 249):
        load = load_name("x" * length)
        plan_load_key(load, {}, authority, NOW)
        assert "_" in load_user(load)
    assert gone_users(["alice", "mainstem-x", load_user("a-load"), load_user("b-load")], ["a-load"]) == {
        load_user("b-load")
    }


def test_the_rules_of_a_user_of_others_are_left_alone_whatever_its_name() -> None:
    """A person may call a user so; nothing that Topics ask for ever had this name."""
    users = ["mainstem_exporter", load_user("gone-load"), load_user("resident-loader")]
    assert gone_users(users, []) == set(users[1:])
