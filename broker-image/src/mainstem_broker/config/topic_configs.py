"""The settings of each topic over the broker's, worked out once for each change of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.topic_settings import TopicConfig


class TopicConfigs:
    """By topic. An entry counts only for the settings that it was made of, so none is ever outdated.

    `config` answers the broker's present settings; dynamic changes replace the object. `on_invalid` is called
    for each setting of a topic that cannot be read, once for each change, with the topic's name and the
    reason.
    """

    def __init__(self, config: Callable[[], BrokerConfig], on_invalid: Callable[[str, str], None]) -> None:
        self._config = config
        self._on_invalid = on_invalid
        self._made_of: BrokerConfig | None = None
        self._configs: dict[str, tuple[Mapping[str, str], TopicConfig]] = {}

    def get(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """All settings of a topic, as `BrokerConfig.stored_topic`: it must stay usable."""
        config = self._config()
        if config is not self._made_of:
            self._configs.clear()
            self._made_of = config
        known = self._configs.get(topic)
        if known is not None and known[0] == overrides:
            return known[1]
        made, wrong = config.stored_topic(overrides)
        for reason in wrong:
            self._on_invalid(topic, reason)
        self._configs[topic] = dict(overrides), made
        return made

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._configs.pop(topic, None)
