"""Settings as requests of the Kafka protocol and what is answered: values, and nothing that sends.

The stock client has no words for the default of all brokers, nor for groups. kio is loaded when a request is
built: the command starts without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any, Final

_SET: Final = 0
_DELETE: Final = 1
_FILE: Final = 4


class Kind(IntEnum):
    """Kinds of resources, by the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


ALL_BROKERS: Final = ""
"""The broker of this name is the default of all brokers (KIP-226)."""


def describe_request(kind: Kind, name: str, settings: Collection[str] | None = None) -> Any:
    """What is it set to? (DescribeConfigs)

    Args:
        settings: only these, each with every place where it is set; None asks for all, and what counts.
    """
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

    keys = None if settings is None else tuple(settings)
    resource = DescribeConfigsResource(resource_type=int(kind), resource_name=name, configuration_keys=keys)
    return DescribeConfigsRequest(resources=(resource,), include_synonyms=settings is not None)


def file_settings_in(result: Any) -> dict[str, str]:
    """What a broker has from its file, of a result to `describe_request` with settings."""
    return {
        config.name: place.value
        for config in result.configs
        for place in config.synonyms
        if place.source == _FILE and place.name == config.name and place.value is not None
    }


def change_request(
    kind: Kind, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> Any:
    """Set these values, or with None take them back: all of them or none. (IncrementalAlterConfigs)"""
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    configs = tuple(
        AlterableConfig(name=setting, config_operation=_DELETE if value is None else _SET, value=value)
        for setting, value in changes.items()
    )
    altered = AlterConfigsResource(resource_type=int(kind), resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=(altered,), validate_only=validate_only)
