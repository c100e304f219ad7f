"""Settings of topics and brokers in the form that DescribeConfigs and CreateTopics answer them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainstem_broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, Setting, Source
from mainstem_broker.protocol.codec import Body


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Body]:
    """All settings of a topic with these overrides; synonyms from the most to the least specific."""
    described = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        value, source = config.topic_value(name, overrides)
        synonyms: list[Body] = []
        if source is Source.TOPIC:
            synonyms.append(_synonym(name, setting.text(value), source))
        for fallback, _factor in setting.fallbacks:
            fallback_source = config.source(fallback)
            if fallback_source is not Source.DEFAULT:
                synonyms.append(_synonym(fallback, _broker_text(config, fallback), fallback_source))
        if setting.fallbacks:
            synonyms.append(_synonym(setting.fallbacks[0][0], setting.text(setting.default), Source.DEFAULT))
        described.append(_described(setting, setting.text(value), source, synonyms, read_only=False))
    return described


def describe_broker(config: BrokerConfig) -> list[Body]:
    """All settings of a broker."""
    described = []
    for name, setting in sorted(BROKER_SETTINGS.items()):
        text = _broker_text(config, name)
        source = config.source(name)
        read_only = setting.dynamic == "read-only"
        synonyms = [_synonym(name, text, source)]
        described.append(_described(setting, text, source, synonyms, read_only=read_only))
    return described


def describe_broker_default(overrides: Mapping[str, str]) -> list[Body]:
    """What is set for all brokers at once; nothing else, as in Kafka."""
    return [
        _described(
            BROKER_SETTINGS[name],
            text,
            Source.DYNAMIC_DEFAULT_BROKER,
            [_synonym(name, text, Source.DYNAMIC_DEFAULT_BROKER)],
            read_only=False,
        )
        for name, text in sorted(overrides.items())
        if name in BROKER_SETTINGS
    ]


def _broker_text(config: BrokerConfig, name: str) -> str | None:
    return BROKER_SETTINGS[name].text(config.values[name])


def _synonym(name: str, value: str | None, source: Source) -> Body:
    return {"name": name, "value": value, "source": source.value}


def _described(
    setting: Setting, text: str | None, source: Source, synonyms: list[Body], *, read_only: bool
) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": text,
        "read_only": read_only,
        "config_source": source.value,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": setting.type.value,
        "documentation": setting.documentation,
    }
