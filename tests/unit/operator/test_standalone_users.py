"""Users from manifests without Kubernetes (R27, R38)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.operator.played_users import PlayedUsers

from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.users import AclRule
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.standalone import Applied, Statuses, apply_manifests

READ = AclRule("topic", "clicks", False, "read", True, "*")
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "of-alice"},
    "stringData": {"password": "a-good-password"},
}


def user(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": "User",
        "metadata": {"name": "alice"},
        "spec": {
            "clusterRef": {"name": "local"},
            "acls": [{"resource": "topic", "name": "clicks", "operations": ["read"]}],
            **spec,
        },
    }


def apply(users: PlayedUsers, path: Path, *manifests: Object) -> list[Applied]:
    brokers = cast(Brokers, SimpleNamespace(users=lambda: users))

    async def no_groups(*_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem_operator.standalone.look_at_groups", no_groups)
        return asyncio.run(apply_manifests(brokers, manifests, Statuses(path / "statuses.json")))


def test_a_user_gets_what_its_manifest_says_with_the_password_of_a_secret(tmp_path: Path) -> None:
    users = PlayedUsers()
    manifest = user(authentication={"passwordFrom": {"name": "of-alice"}}, quotas={"producerByteRate": 1_000})
    (applied,) = apply(users, tmp_path, SECRET, manifest)
    assert applied.ready["status"] == "True"
    assert applied.changes == (
        "password set",
        "ACL added: allow read on topic clicks from *",
        "producer_byte_rate: 1000",
    )
    assert users.passwords == {"alice": "a-good-password"}
    assert users.rules == {"alice": {READ}}
    (applied,) = apply(users, tmp_path, manifest, SECRET)
    assert applied.changes == ("password set",), "which one brokers have nobody can tell"
    assert "a-good-password" not in (tmp_path / "statuses.json").read_text()


def test_a_user_that_is_paused_is_left_as_it_is(tmp_path: Path) -> None:
    """As a Topic is, and as the operator leaves it on Kubernetes."""
    users = PlayedUsers()
    users.rules["alice"] = {AclRule("topic", "more", True, "write", True, "*")}
    manifest = user(authentication={"type": "tls"})
    manifest["metadata"]["annotations"] = {"mainstem.dev/pause-reconciliation": "true"}
    (applied,) = apply(users, tmp_path, manifest)
    assert (applied.changes, users.changes) == ((), [])
    assert (applied.ready["status"], applied.ready["reason"]) == ("Unknown", "Paused")


def test_what_the_manifest_does_not_name_is_taken_away(tmp_path: Path) -> None:
    users = PlayedUsers()
    users.passwords["alice"] = "set-before"
    users.rules["alice"] = {READ, AclRule("topic", "more", True, "write", True, "*")}
    (applied,) = apply(users, tmp_path, user())
    assert applied.changes == ("ACL removed: allow write on topic more* from *",)
    assert users.passwords == {"alice": "set-before"}
    assert users.rules["alice"] == {READ}


def test_a_user_without_a_password_gets_no_rights_and_a_message_how_to_have_one(tmp_path: Path) -> None:
    users = PlayedUsers()
    (applied,) = apply(users, tmp_path, user())
    assert (applied.ready["status"], applied.ready["reason"]) == ("False", "NoPassword")
    assert "mainstem user create alice" in applied.ready["message"]
    assert not users.rules


def test_a_user_with_a_certificate_gets_its_rights(tmp_path: Path) -> None:
    users = PlayedUsers()
    (applied,) = apply(users, tmp_path, user(authentication={"type": "tls"}))
    assert applied.ready["status"] == "True"
    assert users.rules == {"alice": {READ}}


def test_brokers_that_refuse_to_show_acls_are_quoted(tmp_path: Path) -> None:
    users = PlayedUsers()
    users.acls_refusal = "There is no authorizer."
    (applied,) = apply(users, tmp_path, user(authentication={"type": "tls"}, quotas={"producerByteRate": 9}))
    assert applied.ready["reason"] == "AclsRefused"
    assert "There is no authorizer." in applied.ready["message"]
    assert users.limits == {"alice": {"producer_byte_rate": 9.0}}


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ([], "the Secret of-alice has no password, or is missing"),
        ([{**SECRET, "metadata": {"name": "of-alice", "namespace": "elsewhere"}}], "or is missing"),
        ([{**SECRET, "stringData": {"password": "short"}}], "8 to 128 characters"),
        ([{**SECRET, "stringData": None, "data": {"password": "?"}}], "or is missing"),
        ([{**SECRET, "data": "text"}], "must be an object"),
        ([{**SECRET, "apiVersion": "v2"}], "apiVersion must be v1"),
    ],
)
def test_a_password_that_cannot_be_used_changes_nothing(
    secret: list[dict[str, Any]], words: str, tmp_path: Path
) -> None:
    users = PlayedUsers()
    manifest = user(authentication={"passwordFrom": {"name": "of-alice"}})
    with pytest.raises(InvalidSpec, match=words):
        apply(users, tmp_path, manifest, *secret)
    assert not users.passwords
    assert not users.rules
