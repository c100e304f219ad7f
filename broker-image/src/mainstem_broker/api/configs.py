"""DescribeConfigs (key 32, versions 1 to 4) and IncrementalAlterConfigs (key 44, versions 0 and 1).

Resources: topics (type 2) and brokers (type 4; the empty name is the default of all brokers). Any broker
describes and alters topics; a broker's own settings only that broker describes, since only it knows its
file. Altering writes to ZooKeeper, and every broker takes the change from there while it runs.

DescribeConfigs v1 synonyms; v3 types and documentation. IncrementalAlterConfigs (KIP-339): set 0,
delete 1, append 2, subtract 3 (the last two for lists); one wrong setting refuses its whole resource.
Taking back a broker setting that is not known here does nothing: kafka-reassign-partitions does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.described_configs import describe_broker, describe_broker_default, describe_topic
from mainstem_broker.cluster.znodes import DEFAULT_ENTITY
from mainstem_broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, SettingType
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidSetting,
    ProtocolError,
    UnknownTopicOrPartition,
)
from mainstem_broker.protocol.codec import Body, Entity

TOPIC: Final = 2
BROKER: Final = 4

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def handle_describe(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    results = []
    for resource in request.resources:
        result: dict[str, Any] = {
            "error_code": 0,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            described = _describe(broker, resource.resource_type, resource.resource_name)
            if resource.configuration_keys:  # null and empty both ask for all
                described = [item for item in described if item["name"] in resource.configuration_keys]
            if not request.include_synonyms:
                described = [{**item, "synonyms": ()} for item in described]
            if not request.include_documentation:
                described = [{**item, "documentation": None} for item in described]
            result["configs"] = described
        except ProtocolError as error:
            result |= {"error_code": error.code, "error_message": error.message, "configs": ()}
        results.append(result)
    return {"throttle_time": 0, "results": results}


def _describe(broker: BrokerContext, kind: int, name: str) -> list[Body]:
    if kind == TOPIC:
        topic = broker.view.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'.")
        return describe_topic(broker.config, topic.config)
    if kind == BROKER:
        if name == "":
            return describe_broker_default(broker.view.broker_configs.get(DEFAULT_ENTITY, {}))
        if name != str(broker.broker_id):
            raise InvalidRequest(f"Broker {broker.broker_id} cannot describe broker '{name}': ask that one.")
        return describe_broker(broker.config)
    raise InvalidRequest(f"Resources of type {kind} have no settings here; topics (2) and brokers (4) do.")


async def handle_incremental_alter(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    responses = []
    for resource in request.resources:
        response: dict[str, Any] = {
            "error_code": 0,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            await _alter(broker, resource, request.validate_only)
        except ProtocolError as error:
            response |= {"error_code": error.code, "error_message": error.message}
        responses.append(response)
    return {"throttle_time": 0, "responses": responses}


async def _alter(broker: BrokerContext, resource: Any, validate_only: bool) -> None:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        topic = broker.view.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'.")
        kind, entity, present, table = "topics", name, topic.config, TOPIC_SETTINGS
        if any(item.name not in table for item in resource.configs):
            unknown = next(item.name for item in resource.configs if item.name not in table)
            raise InvalidConfig(f"Unknown topic config name: {unknown}.")
    elif resource.resource_type == BROKER:
        kind, entity, table = "brokers", name or DEFAULT_ENTITY, BROKER_SETTINGS
        if name and name not in map(str, broker.view.brokers):
            raise InvalidRequest(f"There is no live broker '{name}'.")
        present = broker.view.broker_configs.get(entity, {})
        for item in resource.configs:
            setting = table.get(item.name)
            if item.config_operation == DELETE and setting is None:
                continue
            if setting is None or setting.dynamic == "read-only":
                raise InvalidConfig(f"{item.name} cannot be changed while brokers run.")
    else:
        raise InvalidRequest(f"Resources of type {resource.resource_type} have no settings here.")

    def change(settings: Mapping[str, str]) -> Mapping[str, str]:
        changed = dict(settings)
        for item in resource.configs:
            if item.config_operation == DELETE:
                changed.pop(item.name, None)
            else:
                _apply(changed, table[item.name], item.config_operation, item.value)
        return changed

    change(present)  # refuses what does not fit, before anything is written
    if not validate_only:
        await broker.member.administration.change_config(kind, entity, change)


def _apply(settings: dict[str, str], setting: Setting, operation: int, value: str | None) -> None:
    """Carry out one operation other than DELETE on `settings`.

    Raises:
        InvalidConfig: the value does not fit, or there is none.
        InvalidRequest: unknown operation.
    """
    name = setting.name
    if value is None:
        raise InvalidConfig(f"{name} needs a value.")
    if operation in (APPEND, SUBTRACT):
        if setting.type is not SettingType.LIST:
            raise InvalidConfig(f"{name} is no list, so nothing can be appended or subtracted.")
        default = setting.text(setting.default) or ""
        items = [item.strip() for item in settings.get(name, default).split(",") if item.strip()]
        named = [item.strip() for item in value.split(",")]
        if operation == APPEND:
            items += [item for item in named if item not in items]
        else:
            items = [item for item in items if item not in named]
        value = ",".join(items)
    elif operation != SET:
        raise InvalidRequest(f"There is no operation {operation} on settings.")
    try:
        setting.parse(value)
    except InvalidSetting as error:
        raise InvalidConfig(str(error)) from None
    settings[name] = value
