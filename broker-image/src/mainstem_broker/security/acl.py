"""Access control lists as values: resources, patterns, rules and filters, with the names and numbers of
Apache Kafka (KIP-11, KIP-290). Pure.

Numbers are those of the protocol; names are those that znodes, tools and messages use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from mainstem_broker.whole_numbers import is_whole_number

WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of its type. As a host: every host."""
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of type Cluster."""


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def text(self) -> str:
        return _text(self.name)


class PatternType(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14

    @property
    def text(self) -> str:
        return _text(self.name)


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3

    @property
    def text(self) -> str:
        return _text(self.name)


def _text(name: str) -> str:
    """`DESCRIBE_CONFIGS` as `DescribeConfigs`."""
    return "".join(word.capitalize() for word in name.split("_"))


class Resource(NamedTuple):
    """What a request needs a right to, such as a topic."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.text}:{self.name}"


CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


class ResourcePattern(NamedTuple):
    """The resources that a rule is about: the one of that name, all (`*`), or all with that prefix."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.type.text}:{self.pattern.name}:{self.name}"

    def matches(self, name: str) -> bool:
        """Whether the resource of that name is one of them."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class Rule(NamedTuple):
    """Allows or denies an operation to a principal from a host; `User:*` and `*` stand for all of them."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return f"{self.permission.text} {self.operation.text} to {self.principal} from {self.host}"

    def is_about(self, principal: str, host: str) -> bool:
        if self.principal not in (principal, ANY_USER):
            return False
        return self.host in (host, WILDCARD) or ("/" in self.host and _is_in_range(host, self.host))


def address_range(text: str) -> IPv4Network | IPv6Network:
    """The addresses of a rule's host in CIDR notation, such as 10.0.0.0/8 (KIP-1276).

    A range of IPv4 addresses mapped into IPv6 is one of IPv4 addresses, as clients' addresses are.

    Raises:
        ValueError: it is no such notation.
    """
    address, _, length = text.partition("/")
    if not is_whole_number(length):
        raise ValueError(f"{text} has no prefix length.")  # ip_network takes masks as well, Kafka does not
    prefix = int(length)
    start = ip_address(address)
    if isinstance(start, IPv6Address) and start.ipv4_mapped is not None and 96 <= prefix <= 128:
        start, prefix = start.ipv4_mapped, prefix - 96
    return ip_network((start, prefix), strict=False)


@lru_cache(maxsize=4096)
def _stored_range(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return address_range(text)
    except ValueError:
        return None  # stored before ranges were checked: it is about nobody, as then


def _is_in_range(host: str, text: str) -> bool:
    addresses = _stored_range(text)
    try:
        return addresses is not None and ip_address(host) in addresses
    except ValueError:
        return False  # the client's host is no address


class Acl(NamedTuple):
    """A rule about the resources of a pattern (Kafka's AclBinding)."""

    resources: ResourcePattern
    rule: Rule


IMPLYING: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
"""Where one of these is allowed, the key is allowed too. What is denied implies nothing."""

OPERATIONS_ON: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that mean something on a type of resource, besides ALL (Kafka's AclEntry)."""


# --- Filters ---

ANY: Final = 1
"""In a filter, in place of a type, an operation or a permission."""
MATCH: Final = 2
"""In a filter, in place of a pattern's type: the patterns that the named resource is one of."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs a request is about; None in place of a text and `ANY` in place of a number match all."""

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        resources, rule = acl
        return (
            self.resource_type in (ANY, resources.type)
            and self._matches_pattern(resources)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (ANY, rule.operation)
            and self.permission in (ANY, rule.permission)
        )

    def _matches_pattern(self, resources: ResourcePattern) -> bool:
        if self.pattern == MATCH:
            return self.name is None or resources.matches(self.name)
        return self.pattern in (ANY, resources.pattern) and self.name in (None, resources.name)
