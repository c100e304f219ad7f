"""What a setting is: its type, default, bounds and how its text is parsed.

Values arrive as text, as in `server.properties` and in ZooKeeper, and are checked once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from typing import Final, Literal

from mainstem_broker.errors import InvalidSetting

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
DECIMAL_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Numbers that Java, in which Kafka is written, and Python read alike: without underscores, for example."""


class SettingType(Enum):
    """Kafka's configuration types, with the number that DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


BOOLEAN: Final = SettingType.BOOLEAN
STRING: Final = SettingType.STRING
INT: Final = SettingType.INT
LONG: Final = SettingType.LONG
DOUBLE: Final = SettingType.DOUBLE
LIST: Final = SettingType.LIST
PASSWORD: Final = SettingType.PASSWORD

Value = bool | int | float | str
Dynamic = Literal["read-only", "cluster-wide"]
"""Whether it may change while brokers run: for one of them, and for all at once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `minimum` and `maximum` are inclusive; `fallbacks` are (broker setting, factor).

    `pattern` is a regular expression that the whole value of a text or list has to match. The value of a
    password is never shown. `new_minimum` is the lowest value that may be set; values from `minimum` on,
    which earlier versions accepted, still count where they are stored. A list with `choices` may be empty if
    `may_be_empty`.
    """

    name: str
    type: SettingType
    default: Value | None
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    new_minimum: float | None = None
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    pattern: str | None = None
    dynamic: Dynamic = "read-only"
    fallbacks: tuple[tuple[str, int], ...] = ()

    def parse(self, text: str) -> Value:
        """The checked value of `text`.

        Raises:
            InvalidSetting: it is not of this type, outside the bounds, or not of the required form.
        """
        text = text.strip()
        value: Value
        try:
            match self.type:
                case SettingType.BOOLEAN:
                    if text.lower() not in ("true", "false"):
                        raise ValueError
                    value = text.lower() == "true"
                case SettingType.INT | SettingType.LONG:
                    if not _WHOLE_NUMBER.fullmatch(text):
                        raise ValueError
                    value = int(text)
                    limit = INT32_MAX if self.type is SettingType.INT else INT64_MAX
                    if not -limit - 1 <= value <= limit:
                        raise ValueError
                case SettingType.DOUBLE:
                    if not DECIMAL_NUMBER.fullmatch(text):
                        raise ValueError
                    value = float(text)
                    if not isfinite(value):
                        raise ValueError
                case SettingType.STRING | SettingType.PASSWORD:
                    value = text
                case SettingType.LIST:
                    value = ",".join(item.strip() for item in text.split(","))
        except ValueError:
            raise InvalidSetting(
                f"Invalid value {text!r} for {self.name}: it must be of type {self.type.name.lower()}."
            ) from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise InvalidSetting(
                    f"Invalid value {text} for {self.name}: it must be at least {self.minimum:.15g}."
                )
            if self.maximum is not None and value > self.maximum:
                raise InvalidSetting(
                    f"Invalid value {text} for {self.name}: it must be at most {self.maximum:.15g}."
                )
        if self.pattern is not None and not re.fullmatch(self.pattern, str(value)):
            raise InvalidSetting(f"Invalid value {text!r} for {self.name}: it must match {self.pattern}.")
        if self.choices and not (value == "" and self.may_be_empty):
            given = str(value).split(",") if self.type is SettingType.LIST else [self.text(value)]
            if any(item not in self.choices for item in given):
                raise InvalidSetting(
                    f"Invalid value {text!r} for {self.name}: it must be one of {', '.join(self.choices)}."
                )
            if self.type is SettingType.LIST:
                # A choice that is repeated counts once (KIP-1161).
                value = ",".join(dict.fromkeys(str(value).split(",")))
        return value

    def parse_new(self, text: str) -> Value:
        """As `parse`, for a value that somebody sets now."""
        if self.new_minimum is None:
            return self.parse(text)
        return replace(self, minimum=self.new_minimum).parse(text)

    def parse_stored(self, text: str) -> Value:
        """As `parse`, for a value that was stored: earlier versions took numbers as Python writes them."""
        try:
            if self.type in (SettingType.INT, SettingType.LONG):
                text = str(int(text))
            elif self.type is SettingType.DOUBLE:
                text = str(float(text))
        except ValueError:
            pass  # `parse` says what is wrong
        return self.parse(text)

    @property
    def is_sensitive(self) -> bool:
        return self.type is SettingType.PASSWORD

    def text(self, value: Value | None) -> str | None:
        """`value` as Kafka prints it."""
        if value is None:
            return None
        return str(value).lower() if isinstance(value, bool) else str(value)


def accepted(setting: Setting) -> Setting:
    """A setting of Kafka that is accepted and has no effect here, so that what sets it works unchanged."""
    documentation = f"Accepted as in Kafka, but without effect. {setting.documentation}"
    return replace(setting, documentation=documentation)


class Source(Enum):
    """Where an effective value comes from, with DescribeConfigs' number (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


def table(*settings: Setting) -> Mapping[str, Setting]:
    return {setting.name: setting for setting in settings}
