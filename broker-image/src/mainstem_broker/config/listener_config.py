"""A broker's settings as one of its listeners has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.config.security_settings import LISTENER_SETTINGS, MECHANISMS
from mainstem_broker.config.setting import Setting, Value

PREFIX: Final = "listener.name."
_TOKENS: Final = "OAUTHBEARER"
_OF_TOKENS: Final = "sasl.oauthbearer."


class ListenerConfig:
    """`listener.name.X.NAME` counts before `NAME`, and `listener.name.X.MECHANISM.NAME` before both."""

    def __init__(self, static: Mapping[str, str], listener: str) -> None:
        """`static` are settings that have been checked."""
        self.listener = listener
        self._static = static
        self._prefix = f"{PREFIX}{listener.lower()}."

    def is_overridden(self, name: str) -> bool:
        """Whether the setting is given for this very listener."""
        return self._prefix + name in self._static

    def value(self, name: str, mechanism: str | None = None) -> Value | None:
        setting = LISTENER_SETTINGS[name]
        keys = [self._prefix + name, name]
        if name.startswith(_OF_TOKENS):
            mechanism = _TOKENS
        if mechanism is not None:
            keys.insert(0, f"{self._prefix}{mechanism.lower()}.{name}")
        for key in keys:
            if key in self._static:
                return setting.parse(self._static[key])
        return setting.default

    def optional_string(self, name: str, mechanism: str | None = None) -> str | None:
        """None for a setting that is missing or empty."""
        value = self.value(name, mechanism)
        return value if isinstance(value, str) and value else None

    def string(self, name: str, mechanism: str | None = None) -> str:
        return str(self.value(name, mechanism))

    def integer(self, name: str, mechanism: str | None = None) -> int:
        value = self.value(name, mechanism)
        assert isinstance(value, int)
        return value

    def items(self, name: str) -> list[str]:
        """The items of a list."""
        return [item for item in self.string(name).split(",") if item]


def overridden_setting(name: str) -> Setting | None:
    """The setting that `listener.name.X.NAME` overrides, or with MECHANISM before NAME, if it is one."""
    if not name.startswith(PREFIX):
        return None
    _, _, rest = name.removeprefix(PREFIX).partition(".")
    first, _, after = rest.partition(".")
    is_of_tokens = first.upper() == _TOKENS and after.startswith(_OF_TOKENS)
    if first.upper() in MECHANISMS and (after == "sasl.jaas.config" or is_of_tokens):
        return LISTENER_SETTINGS.get(after)
    return LISTENER_SETTINGS.get(rest)
