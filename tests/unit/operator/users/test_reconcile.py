"""Users against a fake API server and played brokers: what is created, reported and removed (R38, R25)."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from tests.support.connected_kube import connected
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.manifests import resource
from tests.unit.operator.played_context import applied_secured, context_with
from tests.unit.operator.played_users import OperatorEnded, PlayedUsers

from mainstem_operator.api import names
from mainstem_operator.api.secret_data import decoded, encoded
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.users import AclRule
from mainstem_operator.certificates.issuing import issue, new_authority
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.users.reconcile import reconcile_users

READ = AclRule("topic", "clicks", False, "read", True, "*")
DENIED = AclRule("topic", "clicks", False, "read", False, "10.0.0.7")


class Scene:
    """A BrokerCluster that is ready, with its keys, and an operator that looks at its Users."""

    def __init__(self, kubernetes: Kubernetes, kube: Kube) -> None:
        self.kubernetes = kubernetes
        self.users = PlayedUsers()
        self.cluster: Manifest | None = None
        self.context = context_with(kube, SimpleNamespace(users=lambda: self.users))

    async def look(self) -> float | None:
        manifests = self.kubernetes.find("users")
        return await reconcile_users(self.context, "default", "events", manifests, self.cluster)

    async def settle(self) -> float | None:
        """The first look sets the finalizer, the next one goes on."""
        await self.look()
        return await self.look()

    def secret(self, user: str = "alice") -> dict[str, str]:
        return decoded(self.kubernetes.get("secrets", f"events-user-{user}"))

    def ready(self, user: str = "alice") -> tuple[str, str, str]:
        conditions = self.kubernetes.get("users", user)["status"]["conditions"]
        (result,) = [item for item in conditions if item["type"] == "Ready"]
        return result["status"], result["reason"], result["message"]


def user(name: str = "alice", **spec: Any) -> Manifest:
    return resource(
        "User",
        name,
        {
            "clusterRef": {"name": "events"},
            "acls": [{"resource": "topic", "name": "clicks", "operations": ["read"]}],
            **spec,
        },
    )


@asynccontextmanager
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> AsyncIterator[Scene]:
    async with connected(tmp_path, monkeypatch) as (kubernetes, kube):
        result = Scene(kubernetes, kube)
        listeners = [{"name": "tls", "port": 9093}, {"name": "mutual", "port": 9095, "authentication": "tls"}]
        base = {
            "brokers": {"replicas": 1},
            "listeners": {"clients": listeners},
            "authorization": {"type": "acl"},
        }
        cluster = await applied_secured(kubernetes, kube, {**base, **spec})
        result.cluster = {**cluster, "status": {"brokersReady": 1}}
        yield result


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with scene(tmp_path, monkeypatch) as result:
        yield result


async def test_a_user_gets_its_secret_acls_and_password_and_then_nothing_is_written(played: Scene) -> None:
    played.kubernetes.apply(user(quotas={"producerByteRate": 9}))
    await played.settle()
    assert played.ready() == ("True", "Ready", "")
    assert played.users.passwords == {"alice": played.secret()["password"]}
    assert played.users.rules == {"alice": {READ}}
    assert played.users.limits == {"alice": {"producer_byte_rate": 9.0}}
    assert played.secret()["bootstrap.servers"] == "events-bootstrap.default.svc:9093"
    status = played.kubernetes.get("users", "alice")["status"]
    assert (status["username"], status["secret"]) == ("alice", "events-user-alice")
    assert played.kubernetes.get("users", "alice")["metadata"]["finalizers"] == [names.USER_FINALIZER]
    changes, writes = len(played.users.changes), len(played.kubernetes.writes)
    assert await played.look() is None
    assert (len(played.users.changes), len(played.kubernetes.writes)) == (changes, writes)


async def test_what_is_denied_is_denied_before_the_user_can_log_in(played: Scene) -> None:
    acls: list[dict[str, Any]] = [
        {"resource": "topic", "name": "clicks", "operations": ["read"]},
        {"resource": "topic", "name": "clicks", "operations": ["read"], "host": "10.0.0.7", "deny": True},
    ]
    played.kubernetes.apply(user(acls=acls))
    await played.settle()
    assert played.users.changes == ["deny", "allow", "password"]
    assert played.users.rules == {"alice": {READ, DENIED}}
    played.kubernetes.apply(user(acls=acls[:1]))
    await played.look()
    assert played.users.rules == {"alice": {READ}}, "what is denied no more is allowed"
    played.kubernetes.apply(user(acls=[{**acls[0], "operations": ["write"]}, acls[1]]))
    played.users.changes.clear()
    await played.look()
    assert played.users.changes == ["deny", "remove", "allow"]


@pytest.mark.parametrize("steps", range(4))
async def test_an_operator_that_ends_between_two_steps_is_followed_by_one_that_completes_them(
    played: Scene, steps: int
) -> None:
    played.kubernetes.apply(user(quotas={"producerByteRate": 9}))
    await played.look()
    played.users.ends_after = steps
    if steps < 3:
        with pytest.raises(OperatorEnded):
            await played.look()
    played.users.ends_after = None
    await played.look()
    assert played.users.passwords == {"alice": played.secret()["password"]}
    assert played.users.rules == {"alice": {READ}}
    assert played.users.limits == {"alice": {"producer_byte_rate": 9.0}}


async def test_an_operator_that_ends_before_a_password_is_changed_is_followed_by_one_that_changes_it(
    played: Scene,
) -> None:
    """R38: or the user of the new Secret could never log in, though it is ready."""
    played.kubernetes.apply(user())
    await played.settle()
    played.kubernetes.delete("secrets", "events-user-alice")
    played.users.ends_after = 0
    with pytest.raises(OperatorEnded):
        await played.look()
    played.users.ends_after = None
    await played.look()
    assert played.users.passwords == {"alice": played.secret()["password"]}


async def test_a_user_goes_with_all_that_it_had(played: Scene) -> None:
    played.kubernetes.apply(user(quotas={"producerByteRate": 9}))
    await played.settle()
    played.users.passwords["bob"] = "of somebody else"
    played.kubernetes.delete("users", "alice")
    await played.look()
    assert played.kubernetes.find("users") == []
    assert played.users.passwords == {"bob": "of somebody else"}
    assert played.users.rules == {"alice": set()}
    assert played.users.limits == {"alice": {}}
    assert played.users.changes[-3:] == ["no password", "remove", "quotas"]


async def test_a_user_of_a_cluster_that_is_not_there_says_so_and_goes(played: Scene) -> None:
    played.kubernetes.apply(user())
    await played.settle()
    played.cluster = None
    await played.look()
    assert played.ready()[1] == "ClusterNotFound"
    played.kubernetes.delete("users", "alice")
    await played.look()
    assert played.kubernetes.find("users") == []


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"status": {}}, "No broker of the BrokerCluster events is ready."),
        ({"spec": {"brokers": 3}}, "The manifest of the BrokerCluster events is not valid: "),
        ({}, "The brokers of the BrokerCluster events are being restarted with its listeners."),
    ],
)
async def test_a_user_waits_until_its_cluster_can_have_it_and_says_so(
    played: Scene, monkeypatch: pytest.MonkeyPatch, cluster: Manifest, words: str
) -> None:
    assert played.cluster is not None
    if not cluster:
        monkeypatch.setattr(played.context, "is_still_open", lambda *_: True)
    played.kubernetes.apply(user())
    played.cluster = {**played.cluster, **cluster}
    assert await played.look() is not None
    assert played.ready()[:2] == ("Unknown", "ClusterNotReady")
    assert played.ready()[2].startswith(words)
    assert played.users.changes == []


async def test_a_deletion_waits_for_brokers_for_some_minutes_and_then_ends(played: Scene) -> None:
    played.kubernetes.apply(user())
    await played.settle()
    played.users.reachable = False
    played.kubernetes.delete("users", "alice")
    await played.look()
    (held,) = played.kubernetes.find("users")
    assert played.ready()[1] == "DeletionWaits"
    held["metadata"]["deletionTimestamp"] = written(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=6))
    await played.look()
    assert played.kubernetes.find("users") == []
    assert [event["reason"] for event in played.kubernetes.find("events")] == ["UserKept"]


@pytest.mark.parametrize(
    ("broken", "words"), [("manifest", "The manifest is not valid: "), ("brokers", "alice is refused. ")]
)
async def test_a_user_that_goes_without_its_password_and_acls_says_so(
    played: Scene, broken: str, words: str
) -> None:
    played.kubernetes.apply(user())
    await played.settle()
    played.kubernetes.delete("users", "alice")
    (held,) = played.kubernetes.find("users")
    held["metadata"]["deletionTimestamp"] = written(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=6))
    if broken == "manifest":
        held["spec"]["acls"] = "all"
    else:
        played.users.refuses.add("alice")
    with structlog.testing.capture_logs() as logs:
        await played.look()
    assert played.kubernetes.find("users") == []
    (event,) = played.kubernetes.find("events")
    assert event["reason"] == "UserKept"
    assert event["message"].startswith(words)
    assert event["message"].endswith("The password, ACLs and quotas of the user are kept.")
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["user kept"]


@pytest.mark.parametrize("refused", [False, True])
async def test_a_user_that_goes_where_brokers_show_no_acls_is_noted_or_says_that_they_are_kept(
    played: Scene, refused: bool
) -> None:
    """R38: they would count again with authorization."""
    assert played.cluster is not None
    played.cluster = {**played.cluster, "spec": {**played.cluster["spec"]}}
    del played.cluster["spec"]["authorization"]
    for name in ("bob", "alice"):
        played.kubernetes.apply(user(name))
    await played.settle()
    for name in ("bob", "alice"):
        played.kubernetes.delete("users", name)
    if refused:
        played.kubernetes.fails = lambda method, key, _: (
            403 if (method, key[0]) == ("PATCH", "brokerclusters") else 0
        )
    await played.look()
    assert played.kubernetes.find("users") == []
    annotations = played.kubernetes.get("brokerclusters", "events")["metadata"].get("annotations", {})
    assert annotations == ({} if refused else {names.REMOVED_USERS: "alice,bob"})
    events = [event["message"] for event in played.kubernetes.find("events")]
    assert len(events) == (2 if refused else 0)
    assert all(text.startswith("The ACLs that the user may have are kept, and count") for text in events)


@pytest.mark.parametrize(("had_acls", "noted"), [(False, {}), (True, {names.REMOVED_USERS: "alice"})])
async def test_only_a_user_that_has_or_had_acls_is_noted_where_brokers_show_none(
    played: Scene, had_acls: bool, noted: dict[str, str]
) -> None:
    """R38: each note changes the BrokerCluster, and many without need would fill its annotations."""
    assert played.cluster is not None
    played.kubernetes.apply(user() if had_acls else user(acls=[]))
    await played.settle()
    played.cluster = {**played.cluster, "spec": {**played.cluster["spec"]}}
    del played.cluster["spec"]["authorization"]
    played.kubernetes.apply(user(acls=[]))
    await played.settle()
    before = played.kubernetes.get("brokerclusters", "events")["metadata"]["resourceVersion"]
    played.kubernetes.delete("users", "alice")
    await played.look()
    assert played.kubernetes.find("users") == []
    metadata = played.kubernetes.get("brokerclusters", "events")["metadata"]
    assert metadata.get("annotations", {}) == noted
    assert (metadata["resourceVersion"] == before) is not had_acls


async def test_the_note_of_removed_users_stops_growing_and_their_deletion_ends(played: Scene) -> None:
    """R38: with annotations of 256 KiB nobody could change the BrokerCluster any more."""
    assert played.cluster is not None
    played.cluster = {**played.cluster, "spec": {**played.cluster["spec"]}}
    del played.cluster["spec"]["authorization"]
    full = {names.REMOVED_USERS: ",".join(f"{number:063}" for number in range(256))}
    played.kubernetes.annotate("brokerclusters", "events", full)
    played.kubernetes.apply(user())
    await played.settle()
    played.kubernetes.delete("users", "alice")
    await played.look()
    assert played.kubernetes.find("users") == []
    assert played.kubernetes.get("brokerclusters", "events")["metadata"]["annotations"] == full
    (event,) = played.kubernetes.find("events")
    assert event["reason"] == "UserKept"
    assert event["message"].endswith(
        "its annotation mainstem.dev/removed-users has no room for another user."
    )


async def test_a_password_that_is_not_there_is_reported(played: Scene) -> None:
    played.kubernetes.apply(user(authentication={"passwordFrom": {"name": "mine"}}))
    assert await played.settle() is not None
    assert played.ready()[:2] == ("False", "InvalidSpec")
    assert "the Secret mine has no password" in played.ready()[2]
    assert played.users.passwords == {}


async def test_what_brokers_refuse_of_one_user_holds_up_no_other(played: Scene) -> None:
    played.kubernetes.apply(user("alice"))
    played.kubernetes.apply(user("bob"))
    played.users.refuses = {"alice"}
    assert await played.settle() is not None
    assert played.ready("alice") == ("False", "KafkaError", "alice is refused.")
    assert played.ready("bob")[0] == "True"


async def test_a_secret_of_somebody_else_is_never_overwritten(played: Scene) -> None:
    """Otherwise anybody who may create Users could overwrite every Secret."""
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "events-user-alice", "namespace": "default"},
        "data": {"password": "dGhlaXJz"},
    }
    played.kubernetes.apply(theirs)
    played.kubernetes.apply(user())
    await played.settle()
    assert played.ready()[:2] == ("False", "SecretNotUsable")
    assert played.secret() == {"password": "theirs"}
    assert played.users.passwords == {}


async def test_a_secret_that_a_user_has_left_behind_belongs_to_the_next_one_of_its_name(
    played: Scene,
) -> None:
    """As `kubectl delete --cascade=orphan` leaves it; clients go on with the password that they have.

    The manifest names the Secret: who may create Secrets could have made it, and would know the password.
    """
    played.kubernetes.apply(user())
    await played.settle()
    before = played.secret()
    played.kubernetes.get("users", "alice")["metadata"]["finalizers"] = []
    played.kubernetes.orphan("users", "alice")
    played.users.passwords.clear()
    played.kubernetes.apply(user())
    await played.settle()
    uid = played.kubernetes.get("secrets", "events-user-alice")["metadata"]["uid"]
    assert played.ready()[:2] == ("False", "SecretNotUsable")
    assert f"mainstem.dev/adopt-secrets={uid} on the User alice" in played.ready()[2]
    assert played.users.passwords == {}
    played.kubernetes.annotate("users", "alice", {"mainstem.dev/adopt-secrets": f"0-1, {uid}"})
    await played.look()
    assert played.ready()[0] == "True"
    assert played.users.passwords == {"alice": before["password"]}
    assert played.secret() == before
    played.kubernetes.get("users", "alice")["metadata"]["finalizers"] = []
    played.kubernetes.delete("users", "alice")
    assert ("secrets", "default", "events-user-alice") not in played.kubernetes.objects


@pytest.mark.parametrize(
    "authentication", [{"type": "tls"}, {"passwordFrom": {"name": "own", "key": "password"}}]
)
async def test_a_secret_that_was_left_behind_needs_no_consent_where_its_password_is_not_used(
    played: Scene, authentication: dict[str, Any]
) -> None:
    labels = {"mainstem.dev/user": "alice", "app.kubernetes.io/managed-by": "mainstem-operator"}
    foreign = issue(new_authority("x", dt.datetime.now(dt.UTC)), "alice", (), 365, dt.datetime.now(dt.UTC))
    known = {"password": "known-to-others", "user.key": foreign.key, "user.crt": foreign.certificate}
    for name, data in {"events-user-alice": known, "own": {"password": "pass-word_1"}}.items():
        metadata = {"name": name, "namespace": "default", "labels": labels}
        played.kubernetes.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded(data)}
        )
    played.kubernetes.apply(user(authentication=authentication))
    await played.settle()
    assert played.ready()[0] == "True"
    if "passwordFrom" in authentication:
        assert played.users.passwords == {"alice": "pass-word_1"}
    else:
        assert played.secret()["user.key"] != foreign.key


async def test_a_user_that_changes_to_a_certificate_has_its_password_no_more(played: Scene) -> None:
    played.kubernetes.apply(user())
    await played.settle()
    played.kubernetes.apply(user(authentication={"type": "tls"}))
    await played.look()
    assert played.users.passwords == {}
    assert "password" not in played.secret()
    assert "user.crt" in played.secret()
    assert played.secret()["bootstrap.servers"].endswith(":9095")
    assert "certificateExpires" in played.kubernetes.get("users", "alice")["status"]
    writes = len(played.kubernetes.writes)
    await played.look()
    assert len(played.kubernetes.writes) == writes


async def test_a_planted_authority_issues_no_certificate(played: Scene) -> None:
    """Until the BrokerCluster has taken it over, or others could make certificates of every user."""
    played.kubernetes.get("secrets", names.clients_authority("events"))["metadata"]["ownerReferences"] = []
    played.kubernetes.apply(user(authentication={"type": "tls"}))
    await played.settle()
    assert played.ready()[:2] == ("False", "SecretNotUsable")
    assert "does not belong to the BrokerCluster events yet" in played.ready()[2]
    assert ("secrets", "default", "events-user-alice") not in played.kubernetes.objects


@pytest.mark.parametrize(("data", "words"), [(None, "does not exist yet"), ({}, "has no key")])
async def test_a_user_with_a_certificate_waits_for_the_authority_that_issues_it(
    played: Scene, data: dict[str, str] | None, words: str
) -> None:
    authority = played.kubernetes.get("secrets", names.clients_authority("events"))
    if data is None:
        played.kubernetes.delete("secrets", names.clients_authority("events"))
    else:
        authority["data"] = data
    played.kubernetes.apply(user(authentication={"type": "tls"}))
    assert await played.settle() is not None
    assert played.ready()[:2] == ("False", "SecretNotUsable")
    assert words in played.ready()[2]


async def test_a_user_at_a_node_port_waits_until_its_address_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = [{"name": "outside", "port": 9094, "type": "nodeport"}]
    async with scene(tmp_path, monkeypatch, listeners={"clients": outside}) as played:
        played.kubernetes.apply(user())
        await played.settle()
        assert "not known yet" in played.ready()[2]
        assert played.cluster is not None
        played.cluster["status"]["externalBootstrapServers"] = "10.0.0.1:31090"
        await played.look()
        assert played.secret()["bootstrap.servers"] == "10.0.0.1:31090"


async def test_a_user_that_is_paused_is_left_as_it_is(played: Scene) -> None:
    manifest = user()
    manifest["metadata"]["annotations"] = {names.PAUSE: "true"}
    played.kubernetes.apply(manifest)
    await played.settle()
    assert played.users.changes == []
    assert played.ready()[:2] == ("Unknown", "Paused")


async def test_a_user_that_is_paused_says_so_and_whether_its_manifest_has_changed_since(
    played: Scene,
) -> None:
    """As Topics and ConsumerGroups do. ACLs are required when all Users are ready, so it must not seem ready
    as a manifest says that nobody has followed (R38).
    """

    def status() -> tuple[str, int]:
        found = played.kubernetes.get("users", "alice")["status"]
        (paused,) = [item["status"] for item in found["conditions"] if item["type"] == "Paused"]
        return paused, found["observedGeneration"]

    played.kubernetes.apply(user())
    await played.settle()
    assert status() == ("False", 1)
    played.kubernetes.annotate("users", "alice", {names.PAUSE: "true"})
    await played.look()
    assert (played.ready(), status()) == (("True", "Ready", ""), ("True", 1))
    assert played.kubernetes.get("users", "alice")["status"]["secret"] == "events-user-alice"
    writes = len(played.kubernetes.writes)
    await played.look()
    assert len(played.kubernetes.writes) == writes, "it rests"

    played.kubernetes.apply(user(acls=[]))
    for _ in range(2):
        await played.look()
        assert (played.ready()[:2], status()) == (("Unknown", "Paused"), ("True", 2))
    assert played.users.rules == {"alice": {READ}}
    played.kubernetes.annotate("users", "alice", {names.PAUSE: None})
    await played.look()
    assert (played.ready()[0], status()) == ("True", ("False", 2))
    assert played.users.rules == {"alice": set()}


async def test_no_secret_outlives_what_it_was_made_for(played: Scene) -> None:
    """Each has an owner, with which Kubernetes deletes it: the operator itself may delete none (R38)."""
    for name in ("alice", "bob"):
        played.kubernetes.apply(user(name))
    await played.settle()
    secrets = {item["metadata"]["name"] for item in played.kubernetes.find("secrets")}
    assert secrets >= {"events-user-alice", "events-user-bob", names.clients_authority("events")}
    played.kubernetes.delete("users", "alice")
    await played.look()
    left = {item["metadata"]["name"] for item in played.kubernetes.find("secrets")}
    assert left == secrets - {"events-user-alice"}
    played.kubernetes.delete("users", "bob")
    await played.look()
    played.kubernetes.delete("brokerclusters", "events")
    assert played.kubernetes.find("secrets") == []
    assert not [path for method, path in played.kubernetes.writes if method == "DELETE"]
