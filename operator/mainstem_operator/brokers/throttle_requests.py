"""Throttles as requests of the Kafka protocol and what is answered: values, and nothing that sends.

The stock client has no words for the default of all brokers, and asks for all settings where four will do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mainstem.kafka.raw_request import reason_of
from mainstem_operator.cluster.throttles.plan import ALL_BROKERS, RATES, RECEIVERS, SENDERS, Changes, Settings

_TOPIC: Final = 2
_BROKER: Final = 4
_OWN_SOURCES: Final = frozenset({1, 3})  # set for this topic, set for all brokers (KIP-226)
_UNKNOWN_TOPIC: Final = "unknown_topic_or_partition"


def describe_request(topics: Iterable[str]) -> Any:
    """What are the throttles of these topics, and of all brokers? (DescribeConfigs)"""
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

    of_topics = tuple(
        DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=(SENDERS, RECEIVERS)
        )
        for topic in sorted(topics)
    )
    of_all = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=ALL_BROKERS, configuration_keys=RATES
    )
    return DescribeConfigsRequest(resources=(*of_topics, of_all))


def change_request(changes: Changes) -> Any:
    """Change these. (IncrementalAlterConfigs)"""
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    resources = tuple(
        AlterConfigsResource(
            resource_type=_BROKER if where == ALL_BROKERS else _TOPIC,
            resource_name=where,
            configs=tuple(
                AlterableConfig(name=name, config_operation=change.operation, value=change.value)
                for name, change in settings.items()
            ),
        )
        for where, settings in changes.items()
    )
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def settings_in(answer: Any) -> Settings:
    """The content of the answer to `describe_request`; topics that are missing are left out."""
    return {
        result.resource_name: {
            config.name: config.value
            for config in result.configs
            if config.config_source in _OWN_SOURCES and config.value is not None
        }
        for result in answer.results
        if result.error_code.value == 0
    }


def refusals_in(results: Iterable[Any]) -> dict[str, tuple[str, str]]:
    """What the answers to both requests refuse, by topic or ALL_BROKERS: Kafka's error by name, a sentence.

    A topic that is not there is none: it was deleted meanwhile, and its settings with it.
    """
    return {
        result.resource_name: (
            result.error_code.name.upper(),
            f"{result.resource_name or 'All brokers'}: {reason_of(result)}",
        )
        for result in results
        if result.error_code.value != 0 and result.error_code.name != _UNKNOWN_TOPIC
    }
