"""DescribeAcls (key 29), versions 1 to 3, CreateAcls (key 30), versions 1 to 3, and DeleteAcls (key 31),
versions 1 to 3 (KIP-140, KIP-290).

Any broker serves them: rules are in ZooKeeper in Apache Kafka's layout (`cluster/acl_znodes.py`), and every
broker knows them. A change holds on the broker that answers when it answers, and on the others milliseconds
later. A broker without an authorizer answers SECURITY_DISABLED.

- Each creation and each filter is answered by itself. To create a rule that exists, or to delete one that
  does not, changes nothing and is no error.
- In filters null and type 1 (ANY) match everything; pattern type 2 (MATCH) matches all patterns that the
  named resource is one of.
- v1 pattern types; v2 flexible; v3 resources of type USER.
- Rules that cannot be read are not described; the broker's log names their znodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from mainstem_broker.api.authorization import record_change
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.acl_znodes import is_storable
from mainstem_broker.errors import InvalidRequest, ProtocolError, SecurityDisabled
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
    address_range,
)

TEXT_CHARACTERS_MAX: Final = 1_000
"""Of names, principals and hosts: bounds what a rule takes in ZooKeeper and in the memory of each broker."""
RULES_PER_PATTERN_MAX: Final = 2_000
"""They are one znode, of at most 1 MiB."""


def _require_authorizer(broker: BrokerContext) -> None:
    if broker.authorizer is None:
        raise SecurityDisabled("This broker has no ACLs: set authorizer.class.name in its properties file.")


# --- DescribeAcls ---


def handle_describe(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    resources: dict[ResourcePattern, list[Body]] = {}
    body: Body = {"throttle_time": 0, "error_code": 0, "error_message": None, "resources": ()}
    try:
        _require_authorizer(broker)
        for acl in _matching(broker, _filter(request, request.resource_type_filter)):
            resources.setdefault(acl.resources, []).append(_rule_body(acl.rule))
    except ProtocolError as error:
        return body | {"error_code": error.code, "error_message": error.message}
    return body | {
        "resources": [{**_pattern_body(pattern), "acls": rules} for pattern, rules in resources.items()]
    }


def _matching(broker: BrokerContext, acl_filter: AclFilter) -> list[Acl]:
    return [
        acl
        for pattern, rules in sorted(broker.view.acls.items())
        for rule in sorted(rules)
        if acl_filter.matches(acl := Acl(pattern, rule))
    ]


def _filter(request: Any, resource_type: int) -> AclFilter:
    return AclFilter(
        resource_type,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )


def _pattern_body(pattern: ResourcePattern) -> Body:
    return {
        "resource_type": int(pattern.type),
        "resource_name": pattern.name,
        "pattern_type": int(pattern.pattern),
    }


def _rule_body(rule: Rule) -> Body:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": int(rule.operation),
        "permission_type": int(rule.permission),
    }


# --- CreateAcls ---


async def handle_create(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    results: list[ProtocolError | None] = [None] * len(request.creations)
    by_pattern: dict[ResourcePattern, dict[int, Rule]] = {}
    for number, creation in enumerate(request.creations):
        try:
            _require_authorizer(broker)
            acl = _created(creation)
            by_pattern.setdefault(acl.resources, {})[number] = acl.rule
        except ProtocolError as error:
            results[number] = error
    for pattern, rules in by_pattern.items():
        try:
            await broker.member.administration.change_rules(pattern, _with(pattern, rules.values()))
            for rule in rules.values():
                _record(broker, context, "created", Acl(pattern, rule))
        except ProtocolError as error:
            for number in rules:
                results[number] = error
    if by_pattern:
        await broker.catch_up()
    return {
        "throttle_time": 0,
        "results": [
            {
                "error_code": 0 if error is None else error.code,
                "error_message": None if error is None else error.message,
            }
            for error in results
        ],
    }


def _with(pattern: ResourcePattern, rules: Iterable[Rule]) -> Callable[[frozenset[Rule]], frozenset[Rule]]:
    def change(present: frozenset[Rule]) -> frozenset[Rule]:
        changed = present.union(rules)
        if len(changed) > RULES_PER_PATTERN_MAX:
            raise InvalidRequest(
                f"{pattern} would have {len(changed)} rules; at most {RULES_PER_PATTERN_MAX} are possible:"
                " use fewer principals or hosts."
            )
        return changed

    return change


def _created(creation: Any) -> Acl:
    """The rule that a request describes.

    Raises:
        InvalidRequest: it can be no rule.
    """
    name, principal, host = creation.resource_name, creation.principal, creation.host
    try:
        pattern = ResourcePattern(
            ResourceType(creation.resource_type), name, PatternType(creation.resource_pattern_type)
        )
        rule = Rule(principal, host, Operation(creation.operation), Permission(creation.permission_type))
    except ValueError:
        raise InvalidRequest(
            f"No rule has resource type {creation.resource_type}, pattern type"
            f" {creation.resource_pattern_type}, operation {creation.operation} and permission"
            f" {creation.permission_type}."
        ) from None
    if pattern.type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidRequest(f"The only resource of type Cluster is '{CLUSTER_NAME}'.")
    if not is_storable(name):
        raise InvalidRequest(
            "A resource's name in a rule must not be empty, '.' or '..', and has no '/', no control"
            " characters, none for private use (U+E000 to U+F8FF) and none from U+FFF0 on, such as emoji: use"
            " a rule for the prefix before them."
        )
    kind, colon, user = principal.partition(":")
    if not kind or not colon or not user:
        raise InvalidRequest("A principal has the form User:NAME.")
    if not host:
        raise InvalidRequest("A rule needs a host: an address, a range such as 10.0.0.0/8, or * for all.")
    if "/" in host:
        try:
            address_range(host)
        except ValueError:
            raise InvalidRequest(
                f"The host {host!r} is no range of addresses: write one as 10.0.0.0/8 or 2001:db8::/32."
            ) from None
    if max(len(name), len(principal), len(host)) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest(f"Names, principals and hosts have at most {TEXT_CHARACTERS_MAX} characters.")
    return Acl(pattern, rule)


def refuse_create(request: Entity, error: ProtocolError) -> Body:
    """The answer to a client that may not change rules."""
    failed = {"error_code": error.code, "error_message": error.message}
    return {"throttle_time": 0, "results": [failed for _ in request.creations]}


# --- DeleteAcls ---


async def handle_delete(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    results = []
    for requested in request.filters:
        result: Body = {"error_code": 0, "error_message": None, "matching_acls": ()}
        try:
            _require_authorizer(broker)
            deleted = await _delete(broker, _filter(requested, requested.resource_type_filter), context)
            result["matching_acls"] = [
                {
                    "error_code": 0,
                    "error_message": None,
                    **_pattern_body(acl.resources),
                    **_rule_body(acl.rule),
                }
                for acl in deleted
            ]
        except ProtocolError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        results.append(result)
    return {"throttle_time": 0, "filter_results": results}


async def _delete(broker: BrokerContext, acl_filter: AclFilter, context: RequestContext) -> list[Acl]:
    """Delete the rules that match; answer them."""
    matching: dict[ResourcePattern, set[Rule]] = {}
    for acl in _matching(broker, acl_filter):
        matching.setdefault(acl.resources, set()).add(acl.rule)
    deleted = []
    for pattern, rules in matching.items():
        await broker.member.administration.change_rules(pattern, _without(rules))
        for rule in sorted(rules):
            deleted.append(Acl(pattern, rule))
            _record(broker, context, "deleted", Acl(pattern, rule))
    if deleted:
        await broker.catch_up()
    return deleted


def _without(rules: Iterable[Rule]) -> Callable[[frozenset[Rule]], frozenset[Rule]]:
    return lambda present: present.difference(rules)


def refuse_delete(request: Entity, error: ProtocolError) -> Body:
    """The answer to a client that may not change rules."""
    failed = {"error_code": error.code, "error_message": error.message, "matching_acls": ()}
    return {"throttle_time": 0, "filter_results": [failed for _ in request.filters]}


def _record(broker: BrokerContext, context: RequestContext, outcome: str, acl: Acl) -> None:
    record_change(broker, context, outcome, str(acl.resources), str(acl.rule))
