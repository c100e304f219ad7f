"""A broker's settings: what the file, ZooKeeper and the defaults give together, and the typed views of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mainstem_broker.config.broker_settings import BROKER_SETTINGS, RACK_AWARE_REPLICA_SELECTOR
from mainstem_broker.config.group_settings import BOUNDS_OF_ACCEPTED, GROUP_SETTINGS, GroupConfig
from mainstem_broker.config.listener_config import ListenerConfig, overridden_setting
from mainstem_broker.config.setting import Setting, Source, Value
from mainstem_broker.config.topic_settings import (
    INTERNAL_SEGMENT_BYTES,
    KEEPING_RECORDS,
    KEEPING_RECORDS_BY_BROKERS,
    TOPIC_SETTINGS,
    TopicConfig,
    topic_setting,
)
from mainstem_broker.config.unserved_protection import require_no_unserved_protection
from mainstem_broker.errors import InvalidSetting

_SERVED_GROUP_SETTINGS: Final = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
"""In the order of the fields of `GroupConfig`; all others are accepted without effect."""


def readable_settings(
    layer: Mapping[str, str], before: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What brokers can take of a dynamic layer; and of the rest, what is wrong with each.

    Args:
        before: the layer as it was taken last: what it had in place of a wrong value goes on to hold.
    """

    def dynamic_setting(name: str) -> Setting | None:
        setting = BROKER_SETTINGS.get(name)
        return None if setting is None or setting.dynamic == "read-only" else setting

    return _readable(layer, dynamic_setting, {**KEEPING_RECORDS_BY_BROKERS, **before})


def _readable(
    stored: Mapping[str, str], setting_of: Callable[[str], Setting | None], instead: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The stored values that can be read, with those of `instead` for the rest; and what is wrong."""
    taken, wrong = {}, []
    for name, text in stored.items():
        try:
            setting = setting_of(name)
            if setting is not None:
                setting.parse_stored(text)
            taken[name] = text
        except InvalidSetting as error:
            wrong.append(str(error))
            if name in instead:
                taken[name] = instead[name]
    return taken, wrong


class BrokerConfig:
    """A broker's settings: the file's (static), and the dynamic ones that ZooKeeper adds.

    Immutable: `with_dynamic` answers a new one. `values` holds every known setting's parsed value. What
    the dynamic layers say of read-only settings does not count.
    """

    def __init__(
        self,
        static: Mapping[str, str],
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> None:
        """Check and take the settings.

        Raises:
            InvalidSetting: a known setting's value does not fit, or a required one is missing.
                Unknown names are kept aside in `unknown`, as Kafka only warns of them; but see
                `unserved_protection.py`.
        """
        self.static = dict(static)
        self.dynamic = dict(dynamic or {})
        self.dynamic_default = dict(dynamic_default or {})
        self.unknown = []
        for name in sorted(self.static.keys() - BROKER_SETTINGS.keys()):
            overridden = overridden_setting(name)
            if overridden is None:
                self.unknown.append(name)
            else:
                replace(overridden, name=name).parse(self.static[name])
        require_no_unserved_protection({name: self.static[name] for name in self.unknown})
        self.values: dict[str, Value | None] = {}
        for name, setting in BROKER_SETTINGS.items():
            text, source = self._text_and_source(name)
            if text is None:
                self.values[name] = setting.default
            elif source is Source.STATIC_BROKER:
                self.values[name] = setting.parse_new(text)
            else:
                self.values[name] = setting.parse_stored(text)
        for name in ("broker.id", "zookeeper.connect"):
            if self.values[name] is None:
                raise InvalidSetting(f"The setting {name} is missing: add it to the properties file.")

    def layers(self, *names: str) -> Iterator[tuple[str, str, Source]]:
        """(name, text, source) of each place where one of these broker settings is set, the one that
        counts first; the default last."""
        for source, layer in (
            (Source.DYNAMIC_BROKER, self.dynamic),
            (Source.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (Source.STATIC_BROKER, self.static),
        ):
            for name in names:
                is_dynamic = BROKER_SETTINGS[name].dynamic != "read-only"
                if name in layer and (is_dynamic or source is Source.STATIC_BROKER):
                    yield name, layer[name], source
        for name in names:
            default = BROKER_SETTINGS[name].text(BROKER_SETTINGS[name].default)
            if default is not None:
                yield name, default, Source.DEFAULT

    def _text_and_source(self, name: str) -> tuple[str | None, Source]:
        _, text, source = next(self.layers(name), ("", None, Source.DEFAULT))
        return (None if source is Source.DEFAULT else text), source

    def source(self, name: str) -> Source:
        """Where the value of the broker setting `name` comes from."""
        return self._text_and_source(name)[1]

    def with_dynamic(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]) -> BrokerConfig:
        return BrokerConfig(self.static, dynamic, dynamic_default)

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """The value of a setting that is a number with a fraction."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def flag(self, name: str) -> bool:
        return self.values[name] is True

    def string(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def optional_string(self, name: str) -> str | None:
        value = self.values[name]
        return value if isinstance(value, str) else None

    def listener(self, name: str) -> ListenerConfig:
        """The settings as the listener of that name has them."""
        return ListenerConfig(self.static, name)

    @property
    def log_directories(self) -> list[str]:
        """The folders that hold partitions, without repetition. Raises InvalidSetting if there is none."""
        name = "log.dir" if self.values["log.dirs"] is None else "log.dirs"
        folders = dict.fromkeys(folder for folder in self.string(name).split(",") if folder)
        if not folders:
            raise InvalidSetting(f"{name} names no directory: add one to the properties file.")
        return list(folders)

    @property
    def reads_by_rack(self) -> bool:
        """Whether consumers that name their rack may read from followers (KIP-392)."""
        return self.values["replica.selector.class"] == RACK_AWARE_REPLICA_SELECTOR

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener through which brokers talk to each other."""
        name = self.optional_string("inter.broker.listener.name")
        return (name or self.string("security.inter.broker.protocol")).upper()

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> tuple[Value | None, Source]:
        """The effective value of topic setting `name` and where it comes from."""
        if name in overrides:
            return topic_setting(name).parse_stored(overrides[name]), Source.TOPIC
        return self._fallback(TOPIC_SETTINGS[name])

    def group_value(self, name: str, overrides: Mapping[str, str]) -> tuple[Value | None, Source]:
        """The effective value of group setting `name` and where it comes from."""
        if name in overrides:
            return GROUP_SETTINGS[name].parse_stored(overrides[name]), Source.GROUP
        return self._fallback(GROUP_SETTINGS[name])

    def _fallback(self, setting: Setting) -> tuple[Value | None, Source]:
        for fallback, factor in setting.fallbacks:
            text, source = self._text_and_source(fallback)
            if text is not None:
                value = BROKER_SETTINGS[fallback].parse_stored(text)
                if isinstance(value, int) and factor != 1 and value > 0:  # -1 is "no bound" in every unit
                    value *= factor
                return value, source
        return setting.default, Source.DEFAULT

    def check_group_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raise InvalidSetting for the first that is no group setting or does not fit."""
        for name, text in overrides.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise InvalidSetting(f"Unknown group config name: {name}.")
            value = setting.parse(text)
            if name in BOUNDS_OF_ACCEPTED:
                low, high = BOUNDS_OF_ACCEPTED[name]
                replace(setting, minimum=low, maximum=high).parse(text)
            if name not in _SERVED_GROUP_SETTINGS:
                continue
            assert isinstance(value, int)
            for bound in ("min", "max"):
                bound_name = f"group.consumer.{bound}.{name.removeprefix('consumer.')}"
                limit = self.integer(bound_name)
                if (value < limit) if bound == "min" else (value > limit):
                    comparison = "at least" if bound == "min" else "at most"
                    raise InvalidSetting(
                        f"Invalid value {text} for {name}: it must be {comparison} {bound_name} = {limit}."
                    )
        group = self.group(overrides)
        if group.session_timeout_ms <= group.heartbeat_interval_ms:
            raise InvalidSetting(
                f"consumer.session.timeout.ms ({group.session_timeout_ms}) must be more than"
                f" consumer.heartbeat.interval.ms ({group.heartbeat_interval_ms})."
            )

    def group(self, overrides: Mapping[str, str]) -> GroupConfig:
        """All settings of a group that overrides these. Raises InvalidSetting for what cannot be read."""
        values = [self.group_value(name, overrides)[0] for name in _SERVED_GROUP_SETTINGS]
        heartbeat_interval_ms, session_timeout_ms = (int(value or 0) for value in values)
        return GroupConfig(heartbeat_interval_ms, session_timeout_ms)

    def topic(self, overrides: Mapping[str, str]) -> TopicConfig:
        """All settings of a topic that overrides these. Raises InvalidSetting for what cannot be read."""
        for name in overrides:
            topic_setting(name)  # raises for one that there is none of
        values = {name.replace(".", "_"): self.topic_value(name, overrides)[0] for name in TOPIC_SETTINGS}
        if INTERNAL_SEGMENT_BYTES in overrides:
            values["segment_bytes"] = self.topic_value(INTERNAL_SEGMENT_BYTES, overrides)[0]
        return TopicConfig(**values)  # type: ignore[arg-type]  # the tests hold fields and table equal

    def stored_topic(self, stored: Mapping[str, str]) -> tuple[TopicConfig, list[str]]:
        """All settings of a topic whose own are stored so, and what is wrong with those that do not count.

        Such were written by hand, or by a broker of another version. The others hold, and nothing that
        they might have kept is deleted or compacted: neither can be taken back.
        """
        readable, wrong = _readable(stored, topic_setting, KEEPING_RECORDS)
        return self.topic(readable), wrong

    def check_new_topic_overrides(self, overrides: Mapping[str, str], present: Mapping[str, str]) -> None:
        """Check settings that somebody gives a topic that has the settings `present`.

        Raises:
            InvalidSetting: as `check_topic_overrides`; a value that is new is below what may be set now; or
                records would have to be compacted before they may be.
        """
        for name, text in overrides.items():
            setting = topic_setting(name)
            if present.get(name) == text:
                setting.parse_stored(text)
            else:
                setting.parse_new(text)
        topic = self.topic(overrides)
        if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
            raise InvalidSetting(
                f"min.compaction.lag.ms ({topic.min_compaction_lag_ms}) must be at most"
                f" max.compaction.lag.ms ({topic.max_compaction_lag_ms})."
            )
