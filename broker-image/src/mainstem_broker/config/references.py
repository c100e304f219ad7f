"""References in a settings file, filled in once, when the broker starts: what is known only where it runs.

`${env:NAME}` is a variable of the environment, as of Kafka's EnvVarConfigProvider (KIP-887), and
`${file:PATH:NAME}` the value of NAME in another file of `name=value` lines, as of its FileConfigProvider
(KIP-297). Variables come first, so a variable may be part of a reference to a file:
`broker.rack=${file:/etc/mainstem/racks.properties:${env:NODE_NAME}}`. What a file says is taken as it is.

Unlike in Kafka no provider has to be declared, and a reference that leads nowhere does not stay in the
value as text: it is an error. The exception is a NAME that is missing in the file in `broker.rack`, which is
then not set: a broker on a node of which no rack is known is in none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mainstem_broker.config.properties import parse_properties
from mainstem_broker.errors import InvalidSetting

_VARIABLE: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_FILE: Final = re.compile(r"\$\{file:([^:{}]+):([^{}]+)\}")
_MAY_BE_UNKNOWN: Final = "broker.rack"


def filled_in(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings with their references replaced; each file is read once.

    Raises:
        InvalidSetting: a variable is not set, a file cannot be read, or a name is missing in it.
    """
    files: dict[str, dict[str, str]] = {}

    def variable(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise InvalidSetting(f"{match[0]} cannot be filled in: the environment has no {match[1]}.")
        return environment[match[1]]

    def entry(match: re.Match[str]) -> str:
        reference, path, name = match[0], match[1], match[2]
        if path not in files:
            files[path] = _read(path, reference)
        if name not in files[path]:
            raise _MissingEntry(f"{reference} cannot be filled in: {path} has no {name}; add it there.")
        return files[path][name]

    filled = {}
    for setting, text in settings.items():
        try:
            filled[setting] = _FILE.sub(entry, _VARIABLE.sub(variable, text))
        except _MissingEntry:
            if setting != _MAY_BE_UNKNOWN:
                raise
    return filled


class _MissingEntry(InvalidSetting):
    """The file is there, and does not have the name."""


def _read(path: str, reference: str) -> dict[str, str]:
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidSetting) as error:
        raise InvalidSetting(
            f"{reference} cannot be filled in: {path} cannot be read ({error}); put a file of name=value"
            " lines there, or take the reference out."
        ) from error
