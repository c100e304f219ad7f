"""ACLs of a cluster: reading, adding and removing them (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mainstem.errors import BadInput
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster

CLUSTER_NAME: Final = "kafka-cluster"
EVERY_HOST: Final = "*"
OPERATIONS: Final = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
)
_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,  # librdkafka's name for the cluster
}
_NAME_OF_TYPE: Final = {number: name for name, number in _TYPES.items()}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An ACL: `resource` is a key of the types above; `is_prefix` says that `name` is one of many names."""

    resource: str
    name: str
    is_prefix: bool
    principal: str
    operation: str
    allows: bool
    host: str

    def __str__(self) -> str:
        permission = "allow" if self.allows else "deny"
        what = f"{self.resource} {self.name}{'...' if self.is_prefix else ''}"
        if self.resource == "cluster":
            what = "the cluster"
        where = "" if self.host == EVERY_HOST else f" from {self.host}"
        return f"{permission} {self.principal} {self.operation} on {what}{where}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant; None matches all. `name` matches all patterns that the resource is one of."""

    resource: str | None = None
    name: str | None = None
    principal: str | None = None


def principal_of(text: str) -> str:
    """`alice` as `User:alice`; a principal with its kind stays as it is."""
    if not text:
        raise BadInput("A principal needs a name, such as alice or User:alice.")
    return text if ":" in text else f"User:{text}"


def operation_of(text: str) -> str:
    """The operation of that name, in any spelling that tools use: `DescribeConfigs`, `describe_configs`.

    Raises:
        BadInput: there is none.
    """
    plain = text.replace("-", "").replace("_", "").lower()
    for operation in OPERATIONS:
        if operation.replace("-", "") == plain:
            return operation
    raise BadInput(f"There is no operation {text!r}: it can be {', '.join(OPERATIONS)}.")


def list_acls(cluster: Cluster, acl_filter: AclFilter) -> list[Acl]:
    """The ACLs that match, in order.

    Raises:
        ClusterUnreachable, ClusterRefused: the brokers do not answer, or say no.
    """
    name = CLUSTER_NAME if acl_filter.resource == "cluster" else acl_filter.name
    binding = AclBindingFilter(
        ResourceType.ANY if acl_filter.resource is None else _TYPES[acl_filter.resource],
        name,
        ResourcePatternType.ANY if name is None else ResourcePatternType.MATCH,
        acl_filter.principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    bindings = cluster.result(
        cluster.admin.describe_acls(binding, request_timeout=ADMIN_TIMEOUT_SECONDS),
        "The ACLs could not be read",
    )
    return sorted(_acl(one) for one in bindings if one.restype in _NAME_OF_TYPE)


def add_acls(cluster: Cluster, acls: Iterable[Acl]) -> None:
    """Add ACLs; those that are there already stay.

    Raises:
        ClusterUnreachable, ClusterRefused: the first failure; others may have been added.
    """
    futures = cluster.admin.create_acls(
        [_binding(acl) for acl in acls], request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    for future in futures.values():
        cluster.result(future, "The ACL was not added")


def remove_acls(cluster: Cluster, acls: Iterable[Acl]) -> list[Acl]:
    """Remove just these ACLs; returns those that were there.

    Raises:
        ClusterUnreachable, ClusterRefused: the first failure; others may have been removed.
    """
    filters = [
        AclBindingFilter(
            binding.restype,
            binding.name,
            binding.resource_pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission_type,
        )
        for binding in map(_binding, acls)
    ]
    removed: list[Acl] = []
    futures = cluster.admin.delete_acls(filters, request_timeout=ADMIN_TIMEOUT_SECONDS)
    for future in futures.values():
        removed += [_acl(one) for one in cluster.result(future, "The ACL was not removed")]
    return sorted(removed)


def _binding(acl: Acl) -> AclBinding:
    return AclBinding(
        _TYPES[acl.resource],
        acl.name,
        ResourcePatternType.PREFIXED if acl.is_prefix else ResourcePatternType.LITERAL,
        acl.principal,
        acl.host,
        AclOperation[acl.operation.replace("-", "_").upper()],
        AclPermissionType.ALLOW if acl.allows else AclPermissionType.DENY,
    )


def _acl(binding: Any) -> Acl:
    return Acl(
        _NAME_OF_TYPE[binding.restype],
        binding.name,
        binding.resource_pattern_type == ResourcePatternType.PREFIXED,
        binding.principal,
        binding.operation.name.lower().replace("_", "-"),
        binding.permission_type == AclPermissionType.ALLOW,
        binding.host,
    )
