"""The form of `sasl.jaas.config`: `org.example.LoginModule required name="value" name="value";`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mainstem_broker.errors import InvalidSetting

_VALUE: Final = r'"((?:\\.|[^"\\])*)"' + r"|'((?:\\.|[^'\\])*)'" + r"|([^\s;\"']+)"
_OPTION: Final = re.compile(r"\s*([\w.\-@]+)\s*=\s*(?:" + _VALUE + ")", re.DOTALL)
_HEAD: Final = re.compile(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)
_END: Final = re.compile(r"\s*;\s*$")


def parse_jaas(text: str, setting: str) -> Mapping[str, str]:
    """The options of a login module. Its name is ignored: the setting's name determines the mechanism.

    Raises:
        InvalidSetting: it is not of that form. The message contains none of it.
    """
    head = _HEAD.match(text)
    if head is None:
        raise _invalid(setting)
    options: dict[str, str] = {}
    position = head.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, double, single, bare = option.groups()
        quoted = double if double is not None else single
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = option.end()
    if _END.match(text, position) is None:
        raise _invalid(setting)
    return options


def _invalid(setting: str) -> InvalidSetting:
    return InvalidSetting(
        f'{setting} cannot be read: write it as MODULE required name="value" ...; with the semicolon.'
    )
