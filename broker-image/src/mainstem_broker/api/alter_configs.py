"""AlterConfigs (key 33, versions 0 to 2) and IncrementalAlterConfigs (key 44, versions 0 and 1).

Resources as in `describe_configs.py`. Any broker alters any of them: altering writes to ZooKeeper, and every
broker takes the change from there while it runs. One wrong setting refuses its whole resource, and the others
are altered.

- AlterConfigs replaces all that is set on a resource by what it names (redpanda-data/docs#635).
- IncrementalAlterConfigs (KIP-339): set 0, delete 1, append 2, subtract 3 (the last two for lists).
- The level of a broker's logger is set, by increments only, on that broker and until it ends (KIP-412).
- Broker settings that are not dynamic are refused with INVALID_REQUEST, and unknown ones with INVALID_CONFIG:
  Apache Kafka stores the latter, for plugins, which there are none of here. Taking back one that is not known
  does nothing: kafka-reassign-partitions does so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainstem_broker.api.config_entries import ROOT_LOGGER
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.describe_configs import (
    ResourceType,
    group_entity,
    require_config_access,
    require_this_broker,
    unknown_resource_type,
)
from mainstem_broker.api.topics import check_topic_name
from mainstem_broker.cluster.config_entities import DEFAULT_ENTITY
from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS
from mainstem_broker.config.setting import Setting, SettingType
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS
from mainstem_broker.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidSetting,
    ProtocolError,
)
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.runtime.log_level import LogLevel, set_log_level
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest
    from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Resource:
    """`entity` is where its settings lie below `/config`; `check` raises what is wrong."""

    entity: str
    present: Settings
    table: Mapping[str, Setting]
    check: Callable[[Settings], None]


Change = Callable[[_Resource, Sequence[Any], Settings], Settings]
"""What a request makes of a resource's settings."""


async def handle_alter(broker: BrokerContext, request: AlterConfigsRequest, context: RequestContext) -> Body:
    return await _alter_all(broker, request, context, _replaced)


async def handle_incremental_alter(
    broker: BrokerContext, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> Body:
    return await _alter_all(broker, request, context, _changed)


async def _alter_all(broker: BrokerContext, request: Entity, context: RequestContext, change: Change) -> Body:
    times_named = Counter(
        (requested.resource_type, requested.resource_name) for requested in request.resources
    )
    responses = []
    for requested in request.resources:
        name = requested.resource_name
        response = {
            "error_code": 0,
            "error_message": None,
            "resource_type": requested.resource_type,
            "resource_name": name,
        }
        try:
            require_config_access(broker, context, Operation.ALTER_CONFIGS, requested.resource_type, name)
            if times_named[requested.resource_type, name] > 1:
                raise InvalidRequest(f"The request names the resource '{name}' more than once.")
            await _alter(broker, requested, change, validate_only=request.validate_only)
        except ProtocolError as error:
            response |= {"error_code": error.code, "error_message": error.message}
        responses.append(response)
    return {"throttle_time": 0, "responses": responses}


async def _alter(broker: BrokerContext, alteration: Any, change: Change, *, validate_only: bool) -> None:
    _require_distinct(item.name for item in alteration.configs)
    if alteration.resource_type == ResourceType.BROKER_LOGGER and change is _changed:
        _set_log_level(broker, alteration, validate_only=validate_only)
        return
    resource = _find(broker, alteration.resource_type, alteration.resource_name)

    def changed(settings: Settings) -> Settings:
        return change(resource, alteration.configs, settings)

    try:
        resource.check(changed(resource.present))  # before anything is written
    except InvalidSetting as error:
        raise InvalidConfig(str(error)) from None
    if not validate_only:
        await broker.member.administration.change_config(resource.entity, changed)


def _set_log_level(broker: BrokerContext, alteration: Any, *, validate_only: bool) -> None:
    require_this_broker(broker, alteration.resource_name)
    for item in alteration.configs:
        if item.name != ROOT_LOGGER:
            raise InvalidConfig(f"There is no logger '{item.name}'; there is one, {ROOT_LOGGER}.")
        if item.config_operation != SET:
            raise InvalidRequest(f"The level of {ROOT_LOGGER} can only be set.")
        if item.value not in LogLevel.__members__:
            raise InvalidConfig(
                f"There is no log level '{item.value}'; there are {', '.join(LogLevel.__members__)}."
            )
        if not validate_only:
            set_log_level(LogLevel[item.value])


def _require_distinct(names: Any) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidRequest(f"The request changes {name} more than once.")


def _find(broker: BrokerContext, kind: int, name: str) -> _Resource:
    view = broker.view
    match kind:
        case ResourceType.TOPIC:
            if not name:
                raise InvalidRequest("A topic's settings are those of one topic: name it.")
            check_topic_name(name)
            overrides = broker.require_topic(name).config
            check_topic = partial(broker.config.check_new_topic_overrides, present=overrides)
            return _Resource(f"topics/{name}", overrides, TOPIC_SETTINGS, check_topic)
        case ResourceType.BROKER:
            if name and name not in map(str, view.brokers):
                raise InvalidRequest(f"There is no live broker '{name}'.")
            entity = name or DEFAULT_ENTITY
            present = view.broker_configs.get(entity, {})
            return _Resource(f"brokers/{entity}", present, BROKER_SETTINGS, _check_broker_settings(present))
        case ResourceType.GROUP:
            entity = group_entity(name)
            present = view.entity_configs.get(entity, {})
            return _Resource(entity, present, GROUP_SETTINGS, broker.config.check_group_overrides)
        case ResourceType.BROKER_LOGGER:
            raise InvalidRequest("The level of a logger is changed by IncrementalAlterConfigs only.")
    raise unknown_resource_type(kind)


def _check_broker_settings(present: Settings) -> Callable[[Settings], None]:
    """What was written to ZooKeeper by hand does not stand in the way of other changes."""

    def check(changed: Settings) -> None:
        for name, text in changed.items():
            if present.get(name) == text:
                continue
            setting = BROKER_SETTINGS.get(name)
            if setting is None:
                raise InvalidConfig(f"Unknown broker config name: {name}.")
            if setting.dynamic == "read-only":
                raise InvalidRequest(
                    f"{name} cannot be changed while brokers run: change it in the properties file and start"
                    " the broker again."
                )
            setting.parse_new(text)

    return check


def _replaced(_resource: _Resource, items: Sequence[Any], _settings: Settings) -> Settings:
    for item in items:
        if item.value is None:
            raise InvalidRequest(f"{item.name} needs a value; leave it out to take it back.")
    return {item.name: item.value for item in items}


def _changed(resource: _Resource, items: Sequence[Any], settings: Settings) -> Settings:
    changed = dict(settings)
    for item in items:
        if item.config_operation == DELETE:
            changed.pop(item.name, None)
        else:
            changed[item.name] = _operated(resource, item, settings.get(item.name))
    return changed


def _operated(resource: _Resource, item: Any, present: str | None) -> str:
    """The value after one operation other than DELETE.

    Raises:
        InvalidConfig: the value does not fit.
        InvalidRequest: there is no value, or an unknown operation.
    """
    name, value = item.name, item.value
    if value is None:
        raise InvalidRequest(f"{name} needs a value.")
    if item.config_operation == SET:
        return str(value)
    if item.config_operation not in (APPEND, SUBTRACT):
        raise InvalidRequest(f"There is no operation {item.config_operation} on settings.")
    setting = resource.table.get(name)
    if setting is None or setting.type is not SettingType.LIST:
        raise InvalidConfig(f"{name} is no list, so nothing can be appended or subtracted.")
    if present is None:
        present = setting.text(setting.default) or ""
    items = [item.strip() for item in present.split(",") if item.strip()]
    named = [item.strip() for item in value.split(",")]
    if item.config_operation == APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)
