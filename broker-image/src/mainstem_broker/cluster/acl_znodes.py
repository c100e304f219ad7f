"""ACLs in ZooKeeper, in Apache Kafka's layout: paths and JSON, nothing that talks to it.

- `/kafka-acl/TYPE/NAME`: the rules about the resource of that name, or about all with the name `*`.
- `/kafka-acl-extended/prefixed/TYPE/NAME`: the rules about all resources whose names begin with it (KIP-290).

Types are Topic, Group, Cluster, TransactionalId, DelegationToken and User. A node contains all rules of its
pattern; one without rules is removed:

    {"version": 1, "acls": [{"principal": "User:alice", "permissionType": "Allow", "operation": "Read",
                             "host": "*"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from mainstem_broker.security.acl import (
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
)

ACLS: Final = "/kafka-acl"
EXTENDED_ACLS: Final = "/kafka-acl-extended/prefixed"

_ROOTS: Final = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: EXTENDED_ACLS}
_OF_FOLDER: Final = {
    f"{root}/{kind.text}": (pattern, kind) for pattern, root in _ROOTS.items() for kind in ResourceType
}
FOLDERS: Final = {root: [f"{root}/{kind.text}" for kind in ResourceType] for root in _ROOTS.values()}
"""For both roots the paths that the nodes are below, one for each type of resource."""
_OPERATIONS: Final = {operation.text: operation for operation in Operation}
_PERMISSIONS: Final = {permission.text: permission for permission in Permission}


def acl_path(pattern: ResourcePattern) -> str:
    return f"{_ROOTS[pattern.pattern]}/{pattern.type.text}/{pattern.name}"


def pattern_at(path: str) -> ResourcePattern:
    """The pattern whose rules are at `path`. Raises KeyError if no rules can be there."""
    folder, _, name = path.rpartition("/")
    pattern, kind = _OF_FOLDER[folder]
    return ResourcePattern(kind, name, pattern)


def is_storable(name: str) -> bool:
    """Whether a node can have this name: the layout does not escape, and ZooKeeper takes not every name."""
    return (
        bool(name)
        and name not in (".", "..")
        and "/" not in name
        and not any(_is_refused(ord(character)) for character in name)
    )


def _is_refused(code: int) -> bool:
    """The characters that ZooKeeper refuses in paths (PathUtils.validatePath). Those beyond U+FFFF are two
    surrogates to it."""
    return code <= 0x1F or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xF8FF or code >= 0xFFF0


def encode_rules(rules: Iterable[Rule]) -> bytes:
    acls = [
        {
            "principal": rule.principal,
            "permissionType": rule.permission.text,
            "operation": rule.operation.text,
            "host": rule.host,
        }
        for rule in sorted(rules)
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":")).encode()


def decode_rules(data: bytes) -> frozenset[Rule]:
    """The rules in a node.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: they cannot be read, not even one of them.
    """
    body: Any = json.loads(data)
    if body["version"] != 1:
        raise ValueError(f"Version {body['version']} of rules is not known.")
    return frozenset(_rule(entry) for entry in body["acls"])


def _rule(entry: Any) -> Rule:
    principal, host = entry["principal"], entry["host"]
    if not isinstance(principal, str) or not isinstance(host, str) or ":" not in principal:
        raise ValueError("A rule's principal or host is no text of the form that it has.")
    return Rule(principal, host, _OPERATIONS[entry["operation"]], _PERMISSIONS[entry["permissionType"]])
