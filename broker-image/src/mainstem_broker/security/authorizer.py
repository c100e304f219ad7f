"""Decides who may do what, by rules (`acl.py`). Pure: it takes rules and answers decisions.

The order is Apache Kafka's:

1. Super users may do everything, also what a rule denies.
2. Of the rules about the resource, one that denies the operation counts before all that allow it.
3. A rule that allows the operation, or one that implies it (`IMPLYING`), allows it.
4. If there is no rule about the resource at all, `allow.everyone.if.no.acl.found` decides; otherwise the
   answer is no.

Rules whose znode cannot be read deny everything about their resources, as they may have contained a denial.

In a dry run nothing is denied: decisions say what would be, so that it can be recorded.

Rules are kept by type and name, and prefixes are looked up by their lengths, so that a decision does not look
at the rules of other resources. Decisions are kept until the rules change: most requests repeat earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from mainstem_broker.security.acl import (
    ANY_USER,
    IMPLYING,
    OPERATIONS_ON,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
)
from mainstem_broker.security.principals import Principal

DECISIONS_MAX: Final = 50_000
"""Decisions that are kept; about 300 bytes each. Names that clients make up must not fill the memory."""

UNREADABLE: Final = Rule(ANY_USER, WILDCARD, Operation.ALL, Permission.DENY)
"""In place of rules that cannot be read."""


class Decision(NamedTuple):
    """`reason` names the rule, or says why none was needed or found. `is_dry`: it is allowed by the dry run
    alone, and `reason` says why it would be denied.
    """

    is_allowed: bool
    reason: str
    is_dry: bool = False

    @classmethod
    def by(cls, pattern: ResourcePattern, rule: Rule) -> Decision:
        return cls(rule.permission is Permission.ALLOW, f"{rule}, on {pattern}")


_SUPER_USER: Final = Decision(True, "super user")
_NO_RULE: Final = Decision(False, "no rule allows it")
_NO_RULES_ALLOWED: Final = Decision(True, "no rule is about the resource (allow.everyone.if.no.acl.found)")
_NO_RULES_DENIED: Final = Decision(False, "no rule is about the resource")


@dataclass(slots=True)
class _TypeIndex:
    """The rules about one type of resource, by the names in their patterns."""

    literal: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    prefixed: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    prefix_lengths: tuple[int, ...] | None = ()
    """Those of the names in `prefixed`, once each; None after a change, until they are needed."""

    def set(self, pattern: ResourcePattern, rules: tuple[Rule, ...]) -> None:
        by_name = self.literal if pattern.pattern is PatternType.LITERAL else self.prefixed
        if rules:
            by_name[pattern.name] = rules
        else:
            by_name.pop(pattern.name, None)
        self.prefix_lengths = None

    def about(self, kind: ResourceType, name: str) -> list[tuple[ResourcePattern, Rule]]:
        """The rules about a resource, each with its pattern."""
        if self.prefix_lengths is None:
            self.prefix_lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))
        matching = [
            (ResourcePattern(kind, literal), rule)
            for literal in dict.fromkeys((name, WILDCARD))
            for rule in self.literal.get(literal, ())
        ]
        for length in self.prefix_lengths:
            if length > len(name):
                break
            prefix = name[:length]
            matching += [
                (ResourcePattern(kind, prefix, PatternType.PREFIXED), rule)
                for rule in self.prefixed.get(prefix, ())
            ]
        return matching

    def all(self, kind: ResourceType) -> Iterator[tuple[ResourcePattern, Rule]]:
        for pattern_type, by_name in (
            (PatternType.LITERAL, self.literal),
            (PatternType.PREFIXED, self.prefixed),
        ):
            for name, rules in by_name.items():
                for rule in rules:
                    yield ResourcePattern(kind, name, pattern_type), rule


class Authorizer:
    """Decides by super users and ACLs. Without either nothing is allowed, unless everything is."""

    def __init__(
        self, super_users: frozenset[str], *, allow_everyone_if_no_acl: bool, is_dry_run: bool = False
    ) -> None:
        """`super_users` are principals as text, such as `User:admin`."""
        self.super_users = super_users
        self.version = 0
        """Rises with every change of the rules."""
        self._is_dry_run = is_dry_run
        self._without_rules = _NO_RULES_ALLOWED if allow_everyone_if_no_acl else _NO_RULES_DENIED
        self._by_type = {kind: _TypeIndex() for kind in ResourceType}
        self._decisions: dict[tuple[Principal, str, Operation, ResourceType, str], Decision] = {}
        self._decisions_on_any: dict[tuple[Principal, str, Operation, ResourceType], Decision] = {}

    def set_rules(self, pattern: ResourcePattern, rules: Iterable[Rule]) -> None:
        """Replace the rules about the resources of a pattern; none remove it."""
        self._by_type[pattern.type].set(
            pattern, tuple(rule._replace(host=normalized_host(rule.host)) for rule in rules)
        )
        self.version += 1
        self._decisions.clear()
        self._decisions_on_any.clear()

    def decide(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        """Whether `principal`, connected from the address `host`, may do this to the resource."""
        key = (principal, host, operation, kind, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._carried_out(self._decide(str(principal), host, operation, kind, name))
            self._decisions[key] = decision
        return decision

    def _carried_out(self, decision: Decision) -> Decision:
        """The decision, or what becomes of it in a dry run."""
        if decision.is_allowed or not self._is_dry_run:
            return decision
        return Decision(True, decision.reason, is_dry=True)

    def _decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        if principal in self.super_users:
            return _SUPER_USER
        about = self._by_type[kind].about(kind, name)
        if not about:
            return self._without_rules
        host = normalized_host(host)
        relevant = [binding for binding in about if binding[1].is_about(principal, host)]
        for pattern, rule in relevant:
            if rule.permission is Permission.DENY and rule.operation in (operation, Operation.ALL):
                return Decision.by(pattern, rule)
        allowing = {operation, Operation.ALL, *IMPLYING.get(operation, ())}
        for pattern, rule in relevant:
            if rule.permission is Permission.ALLOW and rule.operation in allowing:
                return Decision.by(pattern, rule)
        return _NO_RULE

    def decide_on_any(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType
    ) -> Decision:
        """Whether `principal` may do this to some resource of the type, whether one exists or not (KIP-679).

        So a rule that allows it does not count if another one denies it for all resources of its pattern.
        """
        key = (principal, host, operation, kind)
        decision = self._decisions_on_any.get(key)
        if decision is None:
            if len(self._decisions_on_any) >= DECISIONS_MAX:
                self._decisions_on_any.clear()
            decision = self._carried_out(self._decide_on_any(str(principal), host, operation, kind))
            self._decisions_on_any[key] = decision
        return decision

    def _decide_on_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> Decision:
        if principal in self.super_users:
            return _SUPER_USER
        host = normalized_host(host)
        allowed: list[tuple[ResourcePattern, Rule]] = []
        denied: list[ResourcePattern] = []
        for pattern, rule in self._by_type[kind].all(kind):
            if not rule.is_about(principal, host):
                continue
            if rule.permission is Permission.DENY and rule.operation in (operation, Operation.ALL):
                denied.append(pattern)
            elif rule.permission is Permission.ALLOW and rule.operation in (
                operation,
                Operation.ALL,
                *IMPLYING.get(operation, ()),
            ):
                allowed.append((pattern, rule))
        for pattern in denied:
            if pattern.pattern is PatternType.LITERAL and pattern.name == WILDCARD:
                return Decision(False, f"the operation is denied on {pattern}")
        if self._without_rules.is_allowed:
            return self._without_rules
        for pattern, rule in allowed:
            if not any(_covers(denial, pattern) for denial in denied):
                return Decision.by(pattern, rule)
        return _NO_RULE

    def allowed_operations(
        self, principal: Principal, host: str, kind: ResourceType, name: str
    ) -> list[Operation]:
        """The operations that mean something on this resource and that `principal` may do."""
        return [
            operation
            for operation in OPERATIONS_ON[kind]
            if self.decide(principal, host, operation, kind, name).is_allowed
        ]


def _covers(denial: ResourcePattern, pattern: ResourcePattern) -> bool:
    """Whether all resources of `pattern` are among those of `denial`, which is not `*`."""
    if denial.pattern is PatternType.PREFIXED:
        # `*` is every name, of which only some have the prefix.
        is_wildcard = pattern.pattern is PatternType.LITERAL and pattern.name == WILDCARD
        return not is_wildcard and pattern.name.startswith(denial.name)
    return pattern.pattern is PatternType.LITERAL and pattern.name == denial.name


def normalized_host(host: str) -> str:
    """An address in one form: rules may have other forms of IPv6, and a listener on all interfaces sees IPv4
    addresses mapped into IPv6. Text that is no address stays."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in `super.users`, which semicolons separate, as names of certificates have commas."""
    return frozenset(name.strip() for name in text.split(";") if name.strip())
