"""DescribeClientQuotas (key 48, versions 0 and 1) and AlterClientQuotas (key 49, versions 0 and 1).

Any broker serves both (KIP-546): quotas are settings in ZooKeeper, at Kafka's paths, that every broker
knows. They are per broker: each measures what its own clients take (`server/client_throttling.py`).

Entities are a user, a client-id, or both; a name of null is the default. Users are ANONYMOUS where clients do
not authenticate. Quotas on IP addresses (connection_creation_rate) are not kept. v1 flexible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from mainstem_broker.api.authorization import record_change
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.config_entities import quota_entity, quota_path
from mainstem_broker.errors import InvalidRequest, ProtocolError, UnsupportedVersion
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.quota.client_quotas import DEFAULT, QuotaEntity, QuotaKind, quotas_in

USER: Final = "user"
CLIENT_ID: Final = "client-id"
ENTITY_TYPES: Final = (USER, CLIENT_ID, "ip")
WHOLE: Final = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
"""Kinds that are whole numbers of bytes, as in Kafka."""

EXACT: Final = 0
IS_DEFAULT: Final = 1
ANY: Final = 2


# --- DescribeClientQuotas ---


def handle_describe(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    try:
        matches = _matcher(request.components, strict=request.strict)
    except ProtocolError as error:
        return {
            "throttle_time": 0,
            "error_code": error.code,
            "error_message": error.message,
            "entries": None,
        }
    entries = []
    for path, config in sorted(broker.view.entity_configs.items()):
        entity = quota_entity(path)
        if entity is not None and matches(entity) and (quotas := quotas_in(config)):
            values = [{"key": kind.value, "value": limit} for kind, limit in quotas.items()]
            entries.append({"entity": _components(entity), "values": values})
    return {"throttle_time": 0, "error_code": 0, "error_message": None, "entries": entries}


def _names(entity: QuotaEntity) -> dict[str, str]:
    names = {USER: entity.user, CLIENT_ID: entity.client_id}
    return {kind: name for kind, name in names.items() if name is not None}


def _components(entity: QuotaEntity) -> list[Body]:
    return [
        {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
        for kind, name in _names(entity).items()
    ]


def _matcher(components: Sequence[Any], *, strict: bool) -> Callable[[QuotaEntity], bool]:
    """Whether an entity has all these components; `strict`: and no others.

    Raises:
        InvalidRequest: the filter cannot be meant.
        UnsupportedVersion: there are no entities of such a type.
    """
    component_by_kind: dict[str, tuple[int, str | None]] = {}
    for component in components:
        kind = component.entity_type
        if kind not in ENTITY_TYPES:
            raise UnsupportedVersion(f"There are no quotas on '{kind}'; user and client-id have them.")
        if kind in component_by_kind:
            raise InvalidRequest(f"The filter names {kind} more than once.")
        if component.match_type not in (EXACT, IS_DEFAULT, ANY):
            raise InvalidRequest(f"There is no match type {component.match_type}; 0, 1 and 2 are.")
        if component.match_type == EXACT and component.match is None:
            raise InvalidRequest(f"The filter is to match a {kind} exactly, but names none.")
        component_by_kind[kind] = (component.match_type, component.match)

    def matches(entity: QuotaEntity) -> bool:
        names = _names(entity)
        if strict and names.keys() != component_by_kind.keys():
            return False
        for kind, (match_type, name) in component_by_kind.items():
            if kind not in names:
                return False
            if match_type == EXACT and (names[kind] != name or name == DEFAULT):
                return False
            if match_type == IS_DEFAULT and names[kind] != DEFAULT:
                return False
        return True

    return matches


# --- AlterClientQuotas ---


async def handle_alter(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    entries = []
    for entry in request.entries:
        result: Body = {
            "error_code": 0,
            "error_message": None,
            "entity": [
                {"entity_type": one.entity_type, "entity_name": one.entity_name} for one in entry.entity
            ],
        }
        try:
            await _alter(broker, entry, context, validate_only=request.validate_only)
        except ProtocolError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        entries.append(result)
    return {"throttle_time": 0, "entries": entries}


def refuse_alter(request: Entity, error: ProtocolError) -> Body:
    """The answer to a client that may not change quotas."""
    return {
        "throttle_time": 0,
        "entries": [
            {
                "error_code": error.code,
                "error_message": error.message,
                "entity": [
                    {"entity_type": one.entity_type, "entity_name": one.entity_name} for one in entry.entity
                ],
            }
            for entry in request.entries
        ],
    }


async def _alter(broker: BrokerContext, entry: Any, context: RequestContext, *, validate_only: bool) -> None:
    entity = _entity(entry.entity)
    changes = {operation.key: _change(operation) for operation in entry.ops}
    if len(changes) != len(entry.ops):
        raise InvalidRequest("The request changes a quota of one entity more than once.")

    def changed(settings: Mapping[str, str]) -> Mapping[str, str]:
        merged: dict[str, str | None] = {**settings, **changes}
        return {name: text for name, text in merged.items() if text is not None}

    if changes and not validate_only:
        await broker.member.administration.change_config(quota_path(entity), changed)
        resource = ",".join(f"{kind}:{name}" for kind, name in _names(entity).items())
        for key, text in changes.items():
            outcome, value = ("deleted", "") if text is None else ("set", f"={text}")
            record_change(broker, context, outcome, resource, f"{key}{value}")


def _entity(components: Iterable[Any]) -> QuotaEntity:
    """The entity that a request names. Raises InvalidRequest if it can have no quotas."""
    names: dict[str, str] = {}
    for component in components:
        kind, name = component.entity_type, component.entity_name
        if kind not in (USER, CLIENT_ID):
            raise InvalidRequest(f"Quotas can be set on user and client-id, not on '{kind}'.")
        if kind in names:
            raise InvalidRequest(f"The entity names {kind} more than once.")
        if name in ("", DEFAULT):
            raise InvalidRequest(f"'{name}' is no name of a {kind}; null stands for the default.")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise InvalidRequest("The entity is empty: name a user, a client-id or both.")
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID))


def _change(operation: Any) -> str | None:
    """The text to be stored, or None to take the quota back.

    Raises:
        InvalidRequest: there is no such quota, or the value is none for it.
    """
    name, value = operation.key, operation.value
    if name not in list(QuotaKind):
        raise InvalidRequest(f"There is no quota '{name}'; there are {', '.join(QuotaKind)}.")
    if operation.remove:
        return None
    if not isfinite(value) or value <= 0:
        raise InvalidRequest(f"{name} must be more than 0, not {value:g}; take it back for no limit.")
    if name not in WHOLE:
        return str(value)
    if value != int(value):
        raise InvalidRequest(f"{name} is a number of bytes and cannot be a fraction, as {value:g} is.")
    return str(int(value))
