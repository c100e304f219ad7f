from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.protocol.wire import Body

Name = str | None
EXACT, DEFAULT, ANY = 0, 1, 2


def entity_of(**names: Name) -> list[dict[str, Any]]:
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in names.items()]


async def alter(
    broker: LocalBroker,
    entity: list[dict[str, Any]],
    *changes: tuple[str, float | None],
    validate_only: bool = False,
) -> tuple[str, str]:
    operations = [
        {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
        for key, value in changes
    ]
    request = {"entries": [{"entity": entity, "ops": operations}], "validate_only": validate_only}
    (entry,) = (await broker.answer("AlterClientQuotas", 1, request))["entries"]
    assert entry["entity"] == entity
    return ErrorCode(entry["error_code"]).name, entry["error_message"] or ""


async def answer_to(
    broker: LocalBroker,
    components: Sequence[tuple[str, int, Name]],
    *,
    strict: bool = False,
    version: int = 1,
) -> Body:
    parts = [
        {"entity_type": kind, "match_type": match_type, "match": name}
        for kind, match_type, name in components
    ]
    return await broker.answer("DescribeClientQuotas", version, {"components": parts, "strict": strict})


async def describe(
    broker: LocalBroker, *components: tuple[str, int, Name], strict: bool = False
) -> dict[tuple[tuple[str, Name], ...], dict[str, float]]:
    answer = await answer_to(broker, components, strict=strict)
    assert answer["error_code"] == 0, answer["error_message"]
    return {
        tuple((part["entity_type"], part["entity_name"]) for part in entry["entity"]): {
            value["key"]: value["value"] for value in entry["values"]
        }
        for entry in answer["entries"]
    }


async def test_quotas_are_set_changed_one_by_one_and_taken_back(broker: LocalBroker) -> None:
    alice = entity_of(user="alice")
    changes = (("producer_byte_rate", 1_000.0), ("request_percentage", 5.5))
    assert await alter(broker, alice, *changes) == ("none", "")
    assert broker.view.entity_configs["users/alice"] == {
        "producer_byte_rate": "1000",
        "request_percentage": "5.5",
    }
    await alter(broker, alice, ("producer_byte_rate", None), ("consumer_byte_rate", 7.0))
    assert await describe(broker) == {
        (("user", "alice"),): {"consumer_byte_rate": 7.0, "request_percentage": 5.5}
    }
    await alter(broker, alice, ("consumer_byte_rate", None), ("request_percentage", None))
    assert await describe(broker) == {}
    assert broker.view.entity_configs == {}


async def test_what_else_is_set_on_a_user_is_neither_reported_nor_touched(broker: LocalBroker) -> None:
    broker.view.set_config("users/alice", {"SCRAM-SHA-256": "salt=..."})
    assert await describe(broker) == {}
    await alter(broker, entity_of(user="alice"), ("producer_byte_rate", 1.0))
    await alter(broker, entity_of(user="alice"), ("producer_byte_rate", None))
    assert broker.view.entity_configs == {"users/alice": {"SCRAM-SHA-256": "salt=..."}}


def test_to_validate_changes_nothing(broker: LocalBroker) -> None:
    changes = ("producer_byte_rate", 1.0)
    assert run(alter(broker, entity_of(user="a"), changes, validate_only=True)) == ("none", "")
    assert broker.view.entity_configs == {}


@pytest.mark.parametrize(
    ("entity", "changes", "message"),
    [
        ([], [("producer_byte_rate", 1.0)], "The entity is empty"),
        (entity_of(ip="10.0.0.1"), [("connection_creation_rate", 1.0)], "not on 'ip'"),
        (entity_of(planet="mars"), [("producer_byte_rate", 1.0)], "not on 'planet'"),
        (entity_of(user=""), [("producer_byte_rate", 1.0)], "'' is no name of a user"),
        (entity_of(user="<default>"), [("producer_byte_rate", 1.0)], "null stands for the default"),
        (2 * entity_of(user="a"), [("producer_byte_rate", 1.0)], "names user more than once"),
        (entity_of(user="a"), [("no_such_rate", 1.0)], "There is no quota 'no_such_rate'"),
        (entity_of(user="a"), [("producer_byte_rate", 0.5)], "cannot be a fraction"),
        (entity_of(user="a"), [("producer_byte_rate", 0.0)], "must be more than 0"),
        (entity_of(user="a"), [("request_percentage", -1.0)], "must be more than 0, not -1"),
        (entity_of(user="a"), [("request_percentage", float("inf"))], "must be more than 0, not inf"),
        (entity_of(user="a"), 2 * [("request_percentage", 1.0)], "more than once"),
    ],
)
def test_what_can_be_no_quota_is_refused_with_the_reason(
    broker: LocalBroker, entity: list[dict[str, Any]], changes: list[tuple[str, float]], message: str
) -> None:
    got = run(alter(broker, entity, *changes))
    assert got[0] == "invalid_request"
    assert message in got[1]
    assert broker.view.entity_configs == {}


KNOWN = {
    "users/alice": (("user", "alice"),),
    "users/<default>": (("user", None),),
    "users/alice/clients/app": (("user", "alice"), ("client-id", "app")),
    "users/bob/clients/<default>": (("user", "bob"), ("client-id", None)),
    "clients/app": (("client-id", "app"),),
}


@pytest.mark.parametrize(
    ("components", "strict", "results"),
    [
        ([], False, list(KNOWN)),
        ([("user", ANY, None)], False, [path for path in KNOWN if path.startswith("users")]),
        ([("user", ANY, None)], True, ["users/alice", "users/<default>"]),
        ([("user", EXACT, "alice")], False, ["users/alice", "users/alice/clients/app"]),
        ([("user", EXACT, "alice")], True, ["users/alice"]),
        ([("user", DEFAULT, None)], True, ["users/<default>"]),
        ([("user", EXACT, "<default>")], False, []),
        ([("client-id", EXACT, "app")], False, ["users/alice/clients/app", "clients/app"]),
        ([("client-id", DEFAULT, None)], False, ["users/bob/clients/<default>"]),
        ([("user", ANY, None), ("client-id", ANY, None)], True, [p for p in KNOWN if "/clients/" in p]),
        ([("user", EXACT, "carol")], False, []),
        ([("ip", ANY, None)], False, []),
    ],
)
def test_entities_are_found_by_their_parts(
    broker: LocalBroker, components: list[tuple[str, int, Name]], strict: bool, results: list[str]
) -> None:
    for path in KNOWN:
        broker.view.set_config(path, {"producer_byte_rate": "1"})
    described = run(describe(broker, *components, strict=strict))
    assert described.keys() == {KNOWN[path] for path in results}


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("planet", ANY, None)], "unsupported_version"),
        (2 * [("user", ANY, None)], "invalid_request"),
        ([("user", 7, None)], "invalid_request"),
        ([("user", EXACT, None)], "invalid_request"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(
    broker: LocalBroker, components: list[tuple[str, int, Name]], error: str
) -> None:
    for version in (0, 1):
        answer = run(answer_to(broker, components, version=version))
        assert ErrorCode(answer["error_code"]).name == error
        assert answer["entries"] is None
