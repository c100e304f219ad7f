from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from tests.unit.broker.cluster.members import joined

from mainstem_broker.cluster.acl_znodes import acl_path, decode_rules, encode_rules, is_storable, pattern_at
from mainstem_broker.errors import UnknownServerError
from mainstem_broker.security.acl import (
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
)

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "x-", PatternType.PREFIXED)
READ = Rule("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = Rule("User:bob", "10.0.0.1", Operation.WRITE, Permission.DENY)


def test_paths_and_rules_are_apache_kafkas() -> None:
    assert acl_path(ORDERS) == "/kafka-acl/Topic/orders"
    assert acl_path(PREFIX) == "/kafka-acl-extended/prefixed/TransactionalId/x-"
    assert (
        acl_path(ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")) == "/kafka-acl/Cluster/kafka-cluster"
    )
    for pattern in (ORDERS, PREFIX):
        assert pattern_at(acl_path(pattern)) == pattern
    assert json.loads(encode_rules([WRITE, READ])) == {
        "version": 1,
        "acls": [
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
            {"principal": "User:bob", "permissionType": "Deny", "operation": "Write", "host": "10.0.0.1"},
        ],
    }
    every = [Rule("User:a", "*", operation, Permission.ALLOW) for operation in Operation]
    assert decode_rules(encode_rules(every)) == set(every)
    assert b'"DescribeConfigs"' in encode_rules(every)


@pytest.mark.parametrize("name", ["a", "*", "a b", "ü", "...", "\uffef"])
def test_names_that_a_node_can_have(name: str) -> None:
    assert is_storable(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\x00", "a\n", "\x7f", "\ue000", "\uffff", "\U0001f680"]
)
def test_names_that_no_node_can_have(name: str) -> None:
    assert not is_storable(name)


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b'{"version":2,"acls":[]}',
    b'{"version":1}',
    b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
    b'{"version":1,"acls":[{"principal":"a","permissionType":"Allow","operation":"Read","host":"*"}]}',
    b'{"version":1,"acls":[{"principal":"User:a","permissionType":"allow","operation":"Read","host":"*"}]}',
    b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read"}]}',
    b'{"version":1,"acls":[{"principal":1,"permissionType":"Allow","operation":"Read","host":"*"}]}',
]


@pytest.mark.parametrize("data", MALFORMED)
def test_rules_are_read_as_a_whole_or_not_at_all(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        decode_rules(data)


# --- In ZooKeeper ---

processes = pytest.mark.processes


def adding(rule: Rule) -> Callable[[frozenset[Rule]], frozenset[Rule]]:
    return lambda present: present | {rule}


@processes
async def test_rules_written_at_the_same_time_are_all_kept_until_they_are_taken_back(
    servers: str, shell: KazooClient
) -> None:
    rules = [Rule(f"User:{number}", "*", Operation.READ, Permission.ALLOW) for number in range(8)]

    async with joined(1, servers) as one, joined(2, servers) as two:
        await asyncio.gather(
            *(
                (one, two)[number % 2].administration.change_rules(ORDERS, adding(rule))
                for number, rule in enumerate(rules)
            )
        )
        await one.until(lambda: one.view.acls.get(ORDERS) == frozenset(rules))
        assert decode_rules(shell.get("/kafka-acl/Topic/orders")[0]) == frozenset(rules)
        await two.administration.change_rules(ORDERS, lambda _: frozenset())
        await one.until(lambda: one.view.acls == {})
        assert shell.exists("/kafka-acl/Topic/orders") is None


@processes
async def test_rules_are_loaded_at_the_start_and_what_cannot_be_read_is_named(
    servers: str, shell: KazooClient
) -> None:
    shell.create("/kafka-acl/Topic/orders", encode_rules([READ]), makepath=True)
    shell.create("/kafka-acl/Group/broken", b"{", makepath=True)
    shell.create("/kafka-acl/Unknown/x", b"{}", makepath=True)
    shell.create("/kafka-acl-extended/prefixed/TransactionalId/x-", encode_rules([WRITE]), makepath=True)
    broken = ResourcePattern(ResourceType.GROUP, "broken")
    with capture_logs() as lines:
        async with joined(1, servers) as member:
            assert member.view.acls == {ORDERS: {READ}, PREFIX: {WRITE}}
            assert member.view.unreadable_acls == {broken}
            with pytest.raises(UnknownServerError, match="/kafka-acl/Group/broken"):
                await member.administration.change_rules(broken, lambda rules: rules)
    named = [line for line in lines if line.get("path") == "/kafka-acl/Group/broken"]
    assert named[0]["log_level"] == "error"
