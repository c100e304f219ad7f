from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.api.test_access import ADMIN, AUTHORIZER

from mainstem_broker.errors import RequestTimedOut
from mainstem_broker.security.acl import ResourcePattern, ResourceType

TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, ALLOW = 3, 3


@pytest.fixture
def secured(tmp_path: Path) -> LocalBroker:
    broker = LocalBroker(tmp_path, AUTHORIZER)
    broker.principal = ADMIN
    return broker


def creation(name: str = "t", pattern: int = LITERAL, kind: int = TOPIC, **fields: Any) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **fields,
    }


def filtered(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }


async def create(broker: LocalBroker, *creations: dict[str, Any]) -> list[str]:
    answer = await broker.answer("CreateAcls", 3, {"creations": creations})
    return [ErrorCode(result["error_code"]).name for result in answer["results"]]


async def names(broker: LocalBroker, **fields: Any) -> list[tuple[str, int]]:
    """Name and pattern type of the described rules."""
    answer = await broker.answer("DescribeAcls", 3, filtered(**fields))
    assert answer["error_code"] == 0
    return [
        (resource["resource_name"], resource["pattern_type"])
        for resource in answer["resources"]
        for _ in resource["acls"]
    ]


async def test_rules_are_created_described_and_deleted(secured: LocalBroker) -> None:
    """R38"""
    assert (
        await create(secured, creation("a"), creation("a", operation=4), creation("b", PREFIXED))
        == ["none"] * 3
    )
    assert await create(secured, creation("a")) == ["none"]  # which exists
    assert await names(secured) == [("a", LITERAL), ("a", LITERAL), ("b", PREFIXED)]
    answer = await secured.answer(
        "DeleteAcls", 3, {"filters": [filtered(operation=4), filtered(host_filter="h")]}
    )
    first, second = answer["filter_results"]
    assert [(acl["resource_name"], acl["operation"]) for acl in first["matching_acls"]] == [("a", 4)]
    assert second["matching_acls"] == () or second["matching_acls"] == []
    assert await names(secured) == [("a", LITERAL), ("b", PREFIXED)]


async def test_filters_match_patterns_by_name_by_type_and_by_what_they_affect(secured: LocalBroker) -> None:
    await create(secured, creation("orders"), creation("ord", PREFIXED), creation("*"), creation("x"))
    assert await names(secured, resource_name_filter="orders", pattern_type_filter=LITERAL) == [
        ("orders", LITERAL)
    ]
    matching = await names(secured, resource_name_filter="orders", pattern_type_filter=MATCH)
    assert set(matching) == {("*", LITERAL), ("ord", PREFIXED), ("orders", LITERAL)}
    assert await names(secured, pattern_type_filter=PREFIXED) == [("ord", PREFIXED)]
    assert await names(secured, resource_name_filter="ord") == [("ord", PREFIXED)]
    assert await names(secured, principal_filter="User:bob") == []
    assert await names(secured, resource_type_filter=GROUP) == []


@pytest.mark.parametrize(
    "wrong",
    [
        creation(kind=1),
        creation(kind=99),
        creation(pattern=MATCH),
        creation(operation=ANY),
        creation(permission_type=ANY),
        creation(""),
        creation("a/b"),
        creation("a\nb"),
        creation("a" * 1001),
        creation("other", kind=CLUSTER),
        creation(principal="alice"),
        creation(principal="User:"),
        creation(principal=":alice"),
        creation(host=""),
        creation(host="10.0.0.0/33"),
        creation(host="10.0.0.0/255.0.0.0"),
    ],
)
async def test_what_can_be_no_rule_is_refused_and_the_rest_created(
    secured: LocalBroker, wrong: dict[str, Any]
) -> None:
    assert await create(secured, wrong, creation("t")) == ["invalid_request", "none"]
    assert await names(secured) == [("t", LITERAL)]


async def test_the_rules_of_one_pattern_are_bounded(secured: LocalBroker) -> None:
    many = [creation(principal=f"User:{number}") for number in range(2_001)]
    assert set(await create(secured, *many)) == {"invalid_request"}
    assert set(await create(secured, *many[:2_000])) == {"none"}


async def test_a_write_that_fails_is_answered_for_its_rules(secured: LocalBroker) -> None:
    secured.cluster.failure = RequestTimedOut("ZooKeeper is away.")
    assert await create(secured, creation("a"), creation("a/b")) == ["request_timed_out", "invalid_request"]


async def test_without_an_authorizer_there_are_no_rules(broker: LocalBroker) -> None:
    assert await create(broker, creation()) == ["security_disabled"]
    answer = await broker.answer("DescribeAcls", 3, filtered())
    assert answer["error_code"] == ErrorCode.security_disabled
    answer = await broker.answer("DeleteAcls", 3, {"filters": [filtered()]})
    assert answer["filter_results"][0]["error_code"] == ErrorCode.security_disabled


async def test_changes_of_rules_are_in_the_audit_log(secured: LocalBroker) -> None:
    with capture_logs() as lines:
        await create(secured, creation("t"))
        await secured.answer("DeleteAcls", 2, {"filters": [filtered()]})
    changes = [
        (line["principal"], line["outcome"], line["resource"], line["rule"])
        for line in lines
        if line.get("category") == "administration" and line["outcome"] in ("created", "deleted")
    ]
    rule = "Allow Read to User:alice from *"
    assert changes == [
        ("User:admin", "created", "Topic:LITERAL:t", rule),
        ("User:admin", "deleted", "Topic:LITERAL:t", rule),
    ]


async def test_rules_that_cannot_be_read_are_not_described(secured: LocalBroker) -> None:
    secured.view.set_acls(ResourcePattern(ResourceType.TOPIC, "t"), None)
    assert await names(secured) == []
