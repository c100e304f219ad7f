"""Quotas of users and client ids: reading and changing them (KIP-546).

The stock client cannot send these requests, so `routed_requests.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable
from mainstem.kafka.client import Cluster
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.routed_requests import ask_any

DEFAULT_NAME: Final = "<default>"
QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_NUMBER: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2


@dataclass(frozen=True, slots=True)
class Client:
    """Whom a quota holds for: a user, a client id, or both; `<default>` is everyone without an own quota."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        named = {"user": self.user, "client id": self.client_id}
        return " with ".join(f"{kind} {name}" for kind, name in named.items() if name is not None)

    @property
    def entity(self) -> dict[str, str | None]:
        """By the protocol's types; None is its name for the default."""
        named = {"user": self.user, "client-id": self.client_id}
        return {
            kind: None if name == DEFAULT_NAME else name for kind, name in named.items() if name is not None
        }


def read_quotas(cluster: Cluster, client: Client) -> dict[str, float]:
    """The quotas that are set for exactly this client.

    Raises:
        ClusterRefused: the brokers say no, or know no quotas.
    """
    from kio.schema.describe_client_quotas.v0.request import ComponentData, DescribeClientQuotasRequest

    components = tuple(
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in client.entity.items()
    )
    answer = _ask(cluster, DescribeClientQuotasRequest(components=components, strict=True))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The quotas of {client} could not be read: {reason_of(answer)}")
    return {
        value.key: float(value.value)
        for entry in answer.entries or ()
        for value in sorted(entry.values, key=lambda value: value.key)
    }


def read_quotas_of_users(cluster: Cluster) -> dict[str, dict[str, float]]:
    """The quotas of each user that has some, without those of its single clients and of the default.

    Raises:
        ClusterRefused: the brokers say no, or know no quotas.
    """
    from kio.schema.describe_client_quotas.v0.request import ComponentData, DescribeClientQuotasRequest

    components = (ComponentData(entity_type="user", match_type=_ANY, match=None),)
    answer = _ask(cluster, DescribeClientQuotasRequest(components=components, strict=True))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The quotas of users could not be read: {reason_of(answer)}")
    return {
        entry.entity[0].entity_name: {quota.key: float(quota.value) for quota in entry.values}
        for entry in answer.entries or ()
        if len(entry.entity) == 1 and entry.entity[0].entity_name is not None
    }


def change_quotas(cluster: Cluster, client: Client, changes: Mapping[str, float | None]) -> None:
    """Set quotas, or with None take them back.

    Raises:
        ClusterRefused: the brokers say no, or know no quotas.
    """
    from kio.schema.alter_client_quotas.v0.request import (
        AlterClientQuotasRequest,
        EntityData,
        EntryData,
        OpData,
    )

    entity = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in client.entity.items())
    operations = tuple(
        OpData(key=name, value=value or 0.0, remove=value is None) for name, value in changes.items()
    )
    entry = EntryData(entity=entity, ops=operations)
    answer = _ask(cluster, AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    for altered in answer.entries:
        if altered.error_code.value != 0:
            raise ClusterRefused(f"The quotas of {client} were not changed: {reason_of(altered)}")


def _ask(cluster: Cluster, request: Any) -> Any:
    try:
        return ask_any(cluster, request)
    except ClusterUnreachable as error:
        # The brokers were there a moment ago; they close connections on requests that they do not know.
        raise ClusterRefused(
            "No broker answered the request about quotas: they may be of a version without them."
        ) from error


def quota_value(name: str, text: str) -> float:
    """The number that a quota is set to.

    Raises:
        BadInput: `text` is no positive number.
    """
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} takes a number greater than 0, not {text!r}.")
    return value
