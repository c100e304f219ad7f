"""DescribeConfigs (key 32, versions 1 to 4) and ListConfigResources (key 74, versions 0 and 1).

Resources: topics (type 2), brokers (4; the empty name is what is set for all brokers at once), the loggers
of a broker (8; there is one, called root) and groups (32, whether they exist or not, as in Apache Kafka).
Any broker describes topics, groups and the default of all brokers; a broker's own settings and loggers only
that broker, since only it knows its file.

DescribeConfigs v1 synonyms; v3 types and documentation. ListConfigResources v0 listed only client metrics,
of which there are none here; v1 (KIP-1142) all that has settings, by type.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from mainstem_broker.api.authorization import require, require_topic
from mainstem_broker.api.config_entries import (
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_loggers,
    describe_topic,
)
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.topics import check_topic_name
from mainstem_broker.cluster.config_entities import DEFAULT_ENTITY, group_of, group_path
from mainstem_broker.errors import (
    InvalidRequest,
    ProtocolError,
    UnsupportedVersion,
)
from mainstem_broker.protocol.wire import Body
from mainstem_broker.runtime.log_level import log_level
from mainstem_broker.security import acl
from mainstem_broker.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest


class ResourceType(IntEnum):
    """What has settings here, with the protocol's number."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def unknown_resource_type(number: int) -> InvalidRequest:
    return InvalidRequest(
        f"Resources of type {number} have no settings here; topics (2), brokers (4), loggers of brokers (8)"
        " and groups (32) do."
    )


def group_entity(group_id: str) -> str:
    """Where a group's settings lie, below `/config`."""
    if not group_id:
        raise InvalidRequest("A group's settings are those of one group: name it.")
    return group_path(group_id)


def require_this_broker(broker: BrokerContext, name: str) -> None:
    """Raise InvalidRequest for what only another broker can tell or do."""
    if name != str(broker.broker_id):
        raise InvalidRequest(f"This is broker {broker.broker_id}, not '{name}': send the request there.")


def require_config_access(
    broker: BrokerContext, context: RequestContext, operation: Operation, resource_type: int, name: str
) -> None:
    """Raise if the client may not do this to the settings of the resource; those of brokers are the
    cluster's."""
    match resource_type:
        case ResourceType.TOPIC:
            require_topic(broker, context, operation, name)
        case ResourceType.GROUP:
            require(broker, context, operation, acl.ResourceType.GROUP, name)
        case _:
            require(broker, context, operation, acl.ResourceType.CLUSTER, acl.CLUSTER_NAME)


def handle_describe(broker: BrokerContext, request: DescribeConfigsRequest, context: RequestContext) -> Body:
    results = []
    for resource in request.resources:
        result: dict[str, Any] = {
            "error_code": 0,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            require_config_access(
                broker, context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
            )
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
    view = broker.view
    match kind:
        case ResourceType.TOPIC:
            check_topic_name(name)
            return describe_topic(broker.config, broker.require_topic(name).config)
        case ResourceType.BROKER:
            if name == "":
                return describe_broker_default(view.broker_configs.get(DEFAULT_ENTITY, {}))
            require_this_broker(broker, name)
            return describe_broker(broker.config)
        case ResourceType.BROKER_LOGGER:
            require_this_broker(broker, name)
            return describe_loggers(log_level())
        case ResourceType.GROUP:
            return describe_group(broker.config, view.entity_configs.get(group_entity(name), {}))
    raise unknown_resource_type(kind)


def handle_list(broker: BrokerContext, request: ListConfigResourcesRequest, context: RequestContext) -> Body:
    brokers = [str(broker_id) for broker_id in sorted(broker.view.brokers)]
    listed = {
        ResourceType.TOPIC: sorted(broker.view.topics),
        ResourceType.BROKER: brokers,
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.GROUP: sorted(
            group_id for path in broker.view.entity_configs if (group_id := group_of(path)) is not None
        ),
        ResourceType.CLIENT_METRICS: [],
    }
    resource_types = set(request.resource_types) or set(listed) if context.version >= 1 else {16}
    body: Body = {"throttle_time": 0, "error_code": 0, "config_resources": ()}
    if not resource_types <= set(listed):
        return body | {"error_code": UnsupportedVersion.code}
    body["config_resources"] = [
        {"resource_name": name, "resource_type": int(kind)}
        for kind, names in listed.items()
        if kind in resource_types
        for name in names
    ]
    return body
