from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism, credential_of

SHA_256, SHA_512 = 1, 2


def upsertion(name: str, mechanism: int = SHA_256, **fields: Any) -> dict[str, Any]:
    size = 32 if mechanism == SHA_256 else 64
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"p" * size,
        **fields,
    }


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def alter(
    broker: LocalBroker, upsertions: list[dict[str, Any]], deletions: list[dict[str, Any]] | None = None
) -> dict[str, str]:
    request = {"deletions": deletions or [], "upsertions": upsertions}
    answer = await broker.answer("AlterUserScramCredentials", 0, request)
    return {result["user"]: ErrorCode(result["error_code"]).name for result in answer["results"]}


async def describe(broker: LocalBroker, *users: str) -> dict[str, list[tuple[int, int]] | str]:
    request = {"users": [{"name": name} for name in users] or None}
    answer = await broker.answer("DescribeUserScramCredentials", 0, request)
    return {
        result["user"]: [(info["mechanism"], info["iterations"]) for info in result["credential_infos"]]
        if result["error_code"] == 0
        else ErrorCode(result["error_code"]).name
        for result in answer["results"]
    }


async def test_credentials_are_created_replaced_described_and_deleted(broker: LocalBroker) -> None:
    """R38"""
    assert await alter(broker, [upsertion("alice"), upsertion("alice", SHA_512, iterations=8192)]) == {
        "alice": "none"
    }
    assert await describe(broker) == {"alice": [(SHA_256, 4096), (SHA_512, 8192)]}
    assert await alter(broker, [upsertion("alice", iterations=5000)], [deletion("alice", SHA_512)]) == {
        "alice": "none"
    }
    assert await describe(broker, "alice", "bob") == {"alice": [(SHA_256, 5000)], "bob": "resource_not_found"}
    await alter(broker, [], [deletion("alice")])
    assert await describe(broker) == {}


async def test_the_text_is_apache_kafkas_and_leaves_quotas_alone(broker: LocalBroker) -> None:
    broker.view.set_config("users/a%2Fb", {"producer_byte_rate": "5"})
    await alter(broker, [upsertion("a/b")])
    settings = broker.view.entity_configs["users/a%2Fb"]
    client_key = hmac.digest(b"p" * 32, b"Client Key", "sha256")
    expected = {
        "salt": b"salt",
        "stored_key": hashlib.sha256(client_key).digest(),
        "server_key": hmac.digest(b"p" * 32, b"Server Key", "sha256"),
    }
    parts = [f"{name}={base64.b64encode(value).decode()}" for name, value in expected.items()]
    assert settings == {"SCRAM-SHA-256": ",".join([*parts, "iterations=4096"]), "producer_byte_rate": "5"}
    await alter(broker, [], [deletion("a/b")])
    assert broker.view.entity_configs == {"users/a%2Fb": {"producer_byte_rate": "5"}}


@pytest.mark.parametrize(
    ("upsertions", "deletions", "error"),
    [
        ([upsertion("u", iterations=4095)], [], "unacceptable_credential"),
        ([upsertion("u", iterations=16_385)], [], "unacceptable_credential"),
        ([upsertion("u", salted_password=b"short")], [], "unacceptable_credential"),
        ([upsertion("u", salt=b"")], [], "unacceptable_credential"),
        ([upsertion("u", salt=b"s" * 1001)], [], "unacceptable_credential"),
        ([upsertion("u", mechanism=3, salted_password=b"p" * 32)], [], "unsupported_sasl_mechanism"),
        ([], [deletion("u")], "resource_not_found"),
        ([upsertion("u"), upsertion("u")], [], "duplicate_resource"),
        ([upsertion("u")], [deletion("u")], "duplicate_resource"),
        ([upsertion("u")], [deletion("u", SHA_512)], "resource_not_found"),
        ([upsertion("u"), upsertion("u", SHA_512, iterations=1)], [], "unacceptable_credential"),
    ],
)
async def test_of_one_user_all_changes_are_made_or_none(
    broker: LocalBroker, upsertions: list[dict[str, Any]], deletions: list[dict[str, Any]], error: str
) -> None:
    answered = await alter(broker, [*upsertions, upsertion("other")], deletions)
    assert answered == {"u": error, "other": "none"}
    assert await describe(broker) == {"other": [(SHA_256, 4096)]}


@pytest.mark.parametrize("name", ["", "<default>", "u" * 1001])
async def test_names_that_no_user_can_have_are_refused(broker: LocalBroker, name: str) -> None:
    assert await alter(broker, [upsertion(name)]) == {name: "unacceptable_credential"}
    assert broker.view.entity_configs == {}


async def test_a_user_named_twice_is_not_described(broker: LocalBroker) -> None:
    await alter(broker, [upsertion("alice"), upsertion("bob")])
    assert await describe(broker, "alice", "alice", "bob") == {
        "alice": "duplicate_resource",
        "bob": [(SHA_256, 4096)],
    }


async def test_answers_and_logs_contain_no_key(broker: LocalBroker) -> None:
    secret = b"the-salted-password-of-32-bytes!"
    with capture_logs() as lines:
        await alter(broker, [upsertion("alice", salted_password=secret)])
        await alter(broker, [upsertion("alice", salted_password=secret, iterations=1)])
        answer = await broker.answer("DescribeUserScramCredentials", 0, {"users": None})
    credential = credential_of(broker.view.entity_configs["users/alice"], ScramMechanism.SHA_256)
    assert credential is not None
    printed = f"{lines} {answer} {credential!r}"
    for key in (secret, credential.stored_key, credential.server_key):
        assert base64.b64encode(key).decode() not in printed
        assert repr(key)[2:-1] not in printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=c2FsdA==",
        "salt=c2FsdA==,stored_key=AA==,server_key=AA==,iterations=4096",
        "salt=?,stored_key=AA==,server_key=AA==,iterations=4096",
        ScramCredential(0, b"s", b"k" * 32, b"k" * 32).encode(),
        ScramCredential(4096, b"s", b"k" * 64, b"k" * 64).encode(),
    ],
)
async def test_a_credential_that_cannot_be_read_is_none(broker: LocalBroker, text: str) -> None:
    broker.view.set_config("users/alice", {"SCRAM-SHA-256": text})
    assert credential_of(broker.view.entity_configs["users/alice"], ScramMechanism.SHA_256) is None
    assert await describe(broker) == {}
    assert await alter(broker, [upsertion("alice")]) == {"alice": "none"}
    assert await describe(broker) == {"alice": [(SHA_256, 4096)]}
