"""Settings of topics, brokers and groups in the form that DescribeConfigs and CreateTopics answer them.

Synonyms are all the places where a value may come from and is set, the one that counts first (KIP-226).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS
from mainstem_broker.config.setting import Setting, SettingType, Source, Value
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.protocol.wire import Body
from mainstem_broker.runtime.log_level import LogLevel

ROOT_LOGGER: Final = "root"
_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    setting.fallbacks[0][0]: tuple(name for name, _ in setting.fallbacks)
    for setting in TOPIC_SETTINGS.values()
    if setting.fallbacks
}
"""log.retention.ms may be given as log.retention.minutes or .hours; and so on."""


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Body]:
    """All settings of a topic with these overrides."""
    return _described_over_brokers(config, overrides, TOPIC_SETTINGS, config.topic_value, Source.TOPIC)


def describe_broker(config: BrokerConfig) -> list[Body]:
    """All settings of a broker."""
    return [
        _described(
            setting,
            setting.text(config.values[name]),
            config.source(name),
            list(_layers(config, *_FAMILIES.get(name, (name,)))),
            read_only=setting.dynamic == "read-only",
        )
        for name, setting in sorted(BROKER_SETTINGS.items())
    ]


def describe_broker_default(overrides: Mapping[str, str]) -> list[Body]:
    """What is set for all brokers at once; nothing else, as in Kafka."""
    source = Source.DYNAMIC_DEFAULT_BROKER
    return [
        _described(BROKER_SETTINGS[name], text, source, [_synonym(name, text, source)])
        for name, text in sorted(overrides.items())
        if name in BROKER_SETTINGS
    ]


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Body]:
    """All settings of a group with these overrides."""
    return _described_over_brokers(config, overrides, GROUP_SETTINGS, config.group_value, Source.GROUP)


def describe_loggers(level: LogLevel) -> list[Body]:
    """The one logger of a broker."""
    logger = Setting(ROOT_LOGGER, SettingType.STRING, None, "The least level that this broker logs.")
    return [_described(logger, level.name, Source.BROKER_LOGGER, [])]


def _described_over_brokers(
    config: BrokerConfig,
    overrides: Mapping[str, str],
    settings: Mapping[str, Setting],
    value_of: Callable[[str, Mapping[str, str]], tuple[Value | None, Source]],
    own: Source,
) -> list[Body]:
    """Settings that fall back to the brokers'; `own` is where an override comes from."""
    described = []
    for name, setting in sorted(settings.items()):
        try:
            value, source = value_of(name, overrides)
            text = setting.text(value)
        except InvalidSetting:
            text, source = overrides[name], own  # shown as it is stored, or nobody would find it
        synonyms: list[Body] = []
        if source is own:
            synonyms.append(_synonym(name, text, source))
        synonyms += _layers(config, *(fallback for fallback, _ in setting.fallbacks))
        described.append(_described(setting, text, source, synonyms))
    return described


def _layers(config: BrokerConfig, *names: str) -> Iterator[Body]:
    return (_synonym(name, text, source) for name, text, source in config.layers(*names))


def _synonym(name: str, value: str | None, source: Source) -> Body:
    setting = BROKER_SETTINGS.get(name)
    is_sensitive = setting is not None and setting.is_sensitive
    return {"name": name, "value": None if is_sensitive else value, "source": source.value}


def _described(
    setting: Setting, text: str | None, source: Source, synonyms: list[Body], *, read_only: bool = False
) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": None if setting.is_sensitive else text,
        "read_only": read_only,
        "config_source": source.value,
        "is_sensitive": setting.is_sensitive,
        "synonyms": synonyms,
        "config_type": setting.type.value,
        "documentation": setting.documentation,
    }
