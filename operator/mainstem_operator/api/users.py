"""Users as values, read from their objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.listeners import RESERVED_USERS
from mainstem_operator.api.objects import Identity, adopted_secrets, annotated, identity_of

LoginType = Literal["scram-sha-512", "tls"]

RESOURCES: Final = ("topic", "group", "transactional-id", "cluster")
OPERATIONS: Final = (
    "all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs",
    "alter-configs", "idempotent-write",
)  # fmt: skip
EVERY_HOST: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
_USER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_QUOTAS: Final = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
QUOTAS: Final = tuple(_QUOTAS.values())
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class AclRule:
    """One ACL of a user. `is_prefix` says that `name` is the beginning of names."""

    resource: str
    name: str
    is_prefix: bool
    operation: str
    allows: bool
    host: str


@dataclass(frozen=True, slots=True)
class UserSpec:
    """`password_from` names a Secret of the namespace and a key in it; None has a password generated.

    `adopted_secrets` are the uids of Secrets without an owner that it takes over.
    """

    identity: Identity
    cluster: str
    authentication: LoginType
    password_from: tuple[str, str] | None
    acls: frozenset[AclRule]
    quotas: Mapping[str, float]
    paused: bool
    adopted_secrets: frozenset[str]

    @property
    def user(self) -> str:
        """The name under which it logs in."""
        return self.identity.name

    @property
    def secret(self) -> str:
        """The Secret with what its clients need."""
        return f"{self.cluster}-user-{self.user}"


def user_of(manifest: Object) -> UserSpec:
    """The User in `manifest`.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    identity, spec = identity_of(manifest), Fields(manifest.get("spec"), "spec")
    if not _USER_NAME.fullmatch(identity.name):
        raise InvalidSpec(
            f"metadata.name {identity.name!r} can't be a user's name: at most 63 lower-case letters, digits,"
            " - and dots."
        )
    if identity.name in RESERVED_USERS:
        raise InvalidSpec(f"metadata.name {identity.name} is a name that the brokers or the operator use.")
    authentication = spec.inner("authentication")
    kind = cast(LoginType, authentication.choice("type", ("scram-sha-512", "tls"), "scram-sha-512"))
    password_from = None
    if authentication.has("passwordFrom"):
        if kind != "scram-sha-512":
            raise InvalidSpec("spec.authentication.passwordFrom goes with type: scram-sha-512 only.")
        source = authentication.inner("passwordFrom")
        password_from = source.text("name"), source.text_or_none("key") or "password"
    acls = [
        rule
        for place, item in enumerate(spec.objects("acls"))
        for rule in _rules(Fields(item, f"spec.acls[{place}]"))
    ]
    return UserSpec(
        identity=identity,
        cluster=spec.inner("clusterRef").text("name"),
        authentication=kind,
        password_from=password_from,
        acls=frozenset(acls),
        quotas=_quotas(spec.inner("quotas")),
        paused=annotated(manifest, names.PAUSE),
        adopted_secrets=adopted_secrets(manifest),
    )


def _rules(acl: Fields) -> list[AclRule]:
    resource = acl.choice("resource", RESOURCES)
    is_prefix = acl.choice("patternType", ("literal", "prefix"), "literal") == "prefix"
    if resource == "cluster":
        if acl.has("name") or is_prefix:
            raise InvalidSpec("An ACL of resource: cluster must not have name or patternType.")
        name = CLUSTER_NAME
    else:
        name = acl.text("name")
    operations = acl.texts("operations")
    if not operations:
        raise InvalidSpec(f"The ACL for {resource} {name} has no operations.")
    for operation in operations:
        if operation not in OPERATIONS:
            raise InvalidSpec(f"There is no operation {operation!r}: it can be {', '.join(OPERATIONS)}.")
    allows = not acl.boolean("deny", False)
    host = acl.text_or_none("host") or EVERY_HOST
    return [AclRule(resource, name, is_prefix, operation, allows, host) for operation in operations]


def _quotas(quotas: Fields) -> dict[str, float]:
    values = {key: quotas.integer_or_none(field, 1, _INT64_MAX) for field, key in _QUOTAS.items()}
    return {key: float(value) for key, value in values.items() if value is not None}
