from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from mainstem_broker.security.acl import (
    IMPLYING,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
    address_range,
)
from mainstem_broker.security.authorizer import (
    UNREADABLE,
    Authorizer,
    Decision,
    normalized_host,
    parse_super_users,
)
from mainstem_broker.security.principals import Principal

ALICE = Principal("alice")
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


def topic(name: str) -> ResourcePattern:
    """Of a text such as `orders` or `*`, or `orders-...` for the prefix `orders-`."""
    is_prefix = name.endswith("...")
    return ResourcePattern(
        TOPIC, name.removesuffix("..."), PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    )


def allow(operation: Operation = READ, principal: str = "User:alice", host: str = "*") -> Rule:
    return Rule(principal, host, operation, Permission.ALLOW)


def deny(operation: Operation = READ, principal: str = "User:alice", host: str = "*") -> Rule:
    return Rule(principal, host, operation, Permission.DENY)


def authorizer(
    *rules: tuple[str, Rule], super_users: Iterable[str] = (), allow_everyone: bool = False
) -> Authorizer:
    made = Authorizer(frozenset(super_users), allow_everyone_if_no_acl=allow_everyone)
    by_pattern: dict[ResourcePattern, list[Rule]] = {}
    for name, rule in rules:
        by_pattern.setdefault(topic(name), []).append(rule)
    for pattern, of_pattern in by_pattern.items():
        made.set_rules(pattern, of_pattern)
    return made


def may(
    by: Authorizer,
    operation: Operation = READ,
    name: str = "orders",
    principal: Principal = ALICE,
    host: str = "10.0.0.1",
) -> bool:
    return by.decide(principal, host, operation, TOPIC, name).is_allowed


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        pytest.param([("orders", allow())], True, id="literal"),
        pytest.param([("*", allow())], True, id="wildcard"),
        pytest.param([("ord...", allow())], True, id="prefix"),
        pytest.param([("orders...", allow())], True, id="prefix that is the name"),
        pytest.param([("orders-...", allow())], False, id="longer prefix"),
        pytest.param([("*...", allow())], False, id="a star is no wildcard in a prefix"),
        pytest.param([("other", allow())], False, id="another name"),
        pytest.param([("orders", allow(principal="User:alic"))], False, id="another principal"),
        pytest.param([("orders", allow(principal="Group:alice"))], False, id="another kind of principal"),
        pytest.param([("orders", allow()), ("x...", deny())], True, id="another prefix denied"),
        pytest.param([("orders", allow()), ("orders", UNREADABLE)], False, id="rules that cannot be read"),
    ],
)
def test_rules_decide(rules: list[tuple[str, Rule]], allowed: bool) -> None:
    """R38; `test_decisions_are_those_of_the_definition_for_random_rules` has the rest."""
    assert may(authorizer(*rules)) is allowed


@pytest.mark.parametrize("implying", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_some_rights_imply_to_describe_and_no_denial_does(implying: Operation) -> None:
    assert may(authorizer(("orders", allow(implying))), DESCRIBE)
    assert may(authorizer(("orders", allow(DESCRIBE)), ("orders", deny(implying))), DESCRIBE)
    assert not may(authorizer(("orders", allow(implying)), ("orders", deny(DESCRIBE))), DESCRIBE)
    assert not may(authorizer(("orders", allow(Operation.CREATE))), DESCRIBE)
    assert may(authorizer(("orders", allow(Operation.ALTER_CONFIGS))), Operation.DESCRIBE_CONFIGS)


def test_rules_of_another_type_do_not_count() -> None:
    assert not authorizer(("*", allow(ALL))).decide(ALICE, "h", READ, GROUP, "orders").is_allowed


def test_super_users_may_do_what_is_denied() -> None:
    by = authorizer(("orders", deny(ALL)), super_users=["User:alice"])
    assert by.decide(ALICE, "h", READ, TOPIC, "orders") == Decision(True, "super user")
    assert not may(by, principal=Principal("alice", "Group"))


def test_a_decision_names_its_rule() -> None:
    decision = authorizer(("ord...", deny())).decide(ALICE, "h", READ, TOPIC, "orders")
    assert decision == Decision(False, "Deny Read to User:alice from *, on Topic:PREFIXED:ord")


def test_a_change_of_rules_takes_effect_at_once() -> None:
    by = authorizer(("orders", allow()))
    assert may(by)
    by.set_rules(topic("orders"), [])
    assert not may(by)
    by.set_rules(topic("o..."), [allow()])
    assert may(by)
    by.set_rules(topic("o..."), [])
    assert not may(by)


@pytest.mark.parametrize(
    ("rule_host", "client_host"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::1", "2001:db8::1"),
    ],
)
def test_an_address_may_have_any_of_its_forms(rule_host: str, client_host: str) -> None:
    assert may(authorizer(("orders", allow(host=rule_host))), host=client_host)
    assert normalized_host("gone") == "gone"


@pytest.mark.parametrize(
    ("rule_host", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.1.2.3", "11.0.0.1"),
        ("10.1.2.3/8", "10.255.0.1", "::a01:203"),
        ("10.0.0.7/32", "::ffff:10.0.0.7", "10.0.0.8"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.1"),
        ("2001:db8::/32", "2001:db8::1", "2001:db9::1"),
        ("0.0.0.0/0", "192.0.2.1", "2001:db8::1"),
    ],
)
def test_r38_a_rule_may_be_about_a_range_of_addresses(rule_host: str, inside: str, outside: str) -> None:
    """KIP-1276."""
    allowing = authorizer(("orders", allow(host=rule_host)))
    assert [may(allowing, host=host) for host in (inside, outside, "gone")] == [True, False, False]
    denying = authorizer(("*", allow()), ("*", deny(host=rule_host)))
    assert [may(denying, host=host) for host in (inside, outside)] == [False, True]
    on_any = [denying.decide_on_any(ALICE, host, READ, TOPIC).is_allowed for host in (inside, outside)]
    assert on_any == [False, True]


@pytest.mark.parametrize(
    "text", ["10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "/8", "10.0.0.0/-1", "a/b", "::/129"]
)
def test_text_that_is_no_range_is_about_nobody(text: str) -> None:
    with pytest.raises(ValueError):
        address_range(text)
    assert not may(authorizer(("orders", allow(host=text))))


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users(" User:a ;User:CN=b,O=c;; ") == {"User:a", "User:CN=b,O=c"}
    assert parse_super_users("") == frozenset()


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([("orders", allow())], True),
        ([("orders...", allow())], True),
        ([("*", allow())], True),
        ([("orders", allow()), ("*", deny())], False),
        ([("orders", allow()), ("orders", deny())], False),
        ([("orders", allow()), ("ord...", deny())], False),
        ([("orders...", allow()), ("ord...", deny())], False),
        ([("ord...", allow()), ("orders...", deny())], True),
        ([("orders", allow()), ("orders", deny(WRITE))], True),
        ([("orders", allow()), ("other", deny())], True),
        ([("*", allow()), ("a...", deny())], True),
        ([("*", allow()), ("*...", deny())], True),
        ([("orders", allow(WRITE))], False),
        ([("orders", allow(host="10.9.9.9"))], False),
    ],
)
def test_a_right_to_some_resource_counts_unless_it_is_denied_for_all(
    rules: list[tuple[str, Rule]], allowed: bool
) -> None:
    """KIP-679"""
    decision = authorizer(*rules).decide_on_any(ALICE, "10.0.0.1", READ, TOPIC)
    assert decision.is_allowed is allowed


def test_allowed_operations_are_those_that_mean_something() -> None:
    by = authorizer(("orders", allow(ALL)), ("orders", deny(Operation.DELETE)))
    assert set(by.allowed_operations(ALICE, "h", TOPIC, "orders")) == {
        READ,
        WRITE,
        DESCRIBE,
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    }


@pytest.mark.parametrize("seed", range(5))
def test_decisions_are_those_of_the_definition_for_random_rules(seed: int) -> None:
    """The definition looks at every rule, without an index or memory."""
    source = random.Random(seed)
    names = ["a", "ab", "abc", "b", "*"]
    principals = [ALICE, Principal("bob"), Principal("carol")]
    for _ in range(200):
        rules = [
            (
                ResourcePattern(TOPIC, source.choice(names), source.choice(list(PatternType))),
                Rule(
                    source.choice(["User:alice", "User:bob", "User:*"]),
                    source.choice(["*", "h"]),
                    source.choice([READ, WRITE, DESCRIBE, ALL]),
                    source.choice(list(Permission)),
                ),
            )
            for _ in range(source.randrange(6))
        ]
        allow_everyone = source.random() < 0.3
        by = Authorizer(frozenset({"User:carol"}), allow_everyone_if_no_acl=allow_everyone)
        dry = Authorizer(frozenset({"User:carol"}), allow_everyone_if_no_acl=allow_everyone, is_dry_run=True)
        for pattern in {pattern for pattern, _ in rules}:
            for each in (by, dry):
                each.set_rules(pattern, [rule for of, rule in rules if of == pattern])
        for _ in range(30):
            principal, host = source.choice(principals), source.choice(["h", "i"])
            operation, name = source.choice([READ, WRITE, DESCRIBE]), source.choice([*names, "abcd"])
            expected = defined(rules, allow_everyone, str(principal), host, operation, name)
            decision = by.decide(principal, host, operation, TOPIC, name)
            assert decision.is_allowed == expected, (rules, principal, host, operation, name)
            only_said = dry.decide(principal, host, operation, TOPIC, name)
            assert only_said == (True, decision.reason, not expected)


def defined(
    rules: list[tuple[ResourcePattern, Rule]],
    allow_everyone: bool,
    principal: str,
    host: str,
    operation: Operation,
    name: str,
) -> bool:
    if principal == "User:carol":
        return True
    about = [rule for pattern, rule in rules if pattern.matches(name)]
    if not about:
        return allow_everyone
    mine = [rule for rule in about if rule.principal in (principal, "User:*") and rule.host in (host, "*")]
    if any(rule.permission is Permission.DENY and rule.operation in (operation, ALL) for rule in mine):
        return False
    allowing = {operation, ALL, *IMPLYING.get(operation, ())}
    return any(rule.permission is Permission.ALLOW and rule.operation in allowing for rule in mine)
