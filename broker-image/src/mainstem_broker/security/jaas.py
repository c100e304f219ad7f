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
    r"""The options of a login module. Its name is ignored: the setting's name determines the mechanism.

    Quotes may be escaped, as in `name=\"value\"`: Java drops that backslash in a file of properties, and
    `properties_format.py` keeps it.

    Raises:
        InvalidSetting: it is not of that form. The message contains none of it.
    """
    options = _options_of(text)
    if options is None:
        options = _options_of(text.replace('\\"', '"'))
    if options is None:
        raise InvalidSetting(
            f'{setting} cannot be read: write it as MODULE required name="value" ...; with the semicolon.'
        )
    return options


def _options_of(text: str) -> Mapping[str, str] | None:
    """None if the text is not of the form."""
    head = _HEAD.match(text)
    if head is None:
        return None
    options: dict[str, str] = {}
    position = head.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, double, single, bare = option.groups()
        quoted = double if double is not None else single
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = option.end()
    return None if _END.match(text, position) is None else options
