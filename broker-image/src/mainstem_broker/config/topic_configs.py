"""The settings of each topic over the broker's, worked out once for each change of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import InvalidSetting


class TopicConfigs:
    """By topic. An entry counts only for the settings that it was made of, so none is ever outdated.

    `config` answers the broker's present settings; dynamic changes replace the object. `on_invalid` is called
    once for each change of a topic whose own settings are wrong, with its name and what is wrong.
    """

    def __init__(
        self, config: Callable[[], BrokerConfig], on_invalid: Callable[[str, InvalidSetting], None]
    ) -> None:
        self._config = config
        self._on_invalid = on_invalid
        self._made_of: BrokerConfig | None = None
        self._configs: dict[str, tuple[Mapping[str, str], TopicConfig]] = {}

    def get(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """All settings of a topic. Its own do not count if one of them is wrong.

        Wrong ones were written to ZooKeeper by hand; the topic must stay usable.
        """
        config = self._config()
        if config is not self._made_of:
            self._configs.clear()
            self._made_of = config
        known = self._configs.get(topic)
        if known is not None and known[0] == overrides:
            return known[1]
        try:
            made = config.topic(overrides)
        except InvalidSetting as error:
            self._on_invalid(topic, error)
            made = config.topic({})
        self._configs[topic] = dict(overrides), made
        return made

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._configs.pop(topic, None)
