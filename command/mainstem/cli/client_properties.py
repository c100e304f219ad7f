"""Client properties: settings of librdkafka for a connection, from `-X`, files and the environment.

Secrets come from files only. The arguments of a process are visible to all users of a machine, and a shell
remembers them.

Properties of a schema registry may stand beside them, with the names of Confluent's serializers, and the
addresses of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mainstem.errors import BadInput
from mainstem.properties_format import MalformedLine, read_properties
from mainstem.schema_registry import AUTHORITIES, USER_INFO

FILE_VARIABLE: Final = "MAINSTEM_CLIENT_CONFIG"
"""Names a file of client properties that apply unless an option overrides them."""

REGISTRY_URL: Final = "schema.registry.url"
_REGISTRY_PROPERTIES: Final = frozenset({REGISTRY_URL, USER_INFO, AUTHORITIES})

_BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
# librdkafka has two names for some settings. With one of them, the last value counts, whatever it is called.
_NAME_OF_ALIAS: Final = {"metadata.broker.list": _BOOTSTRAP_SERVERS, "sasl.mechanisms": "sasl.mechanism"}

_SECRETS: Final = frozenset(
    {
        USER_INFO,
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)


def properties_of_options(entries: Sequence[str] | None) -> dict[str, str]:
    """The properties that the values of `-X` give: `NAME=VALUE`, or `@FILE`; the last value of a name counts.

    Raises:
        BadInput: an entry has another form or contains a secret, or a file cannot be read.
    """
    properties: dict[str, str] = {}
    for entry in entries or ():
        if entry.startswith("@"):
            properties.update(properties_of_file(Path(entry[1:])))
            continue
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not name:
            raise BadInput(f"--client-property takes NAME=VALUE or @FILE, not {entry!r}.")
        if name in _SECRETS:
            raise BadInput(
                f"{name} is a secret, which other users of this machine could see on a command line: write"
                f" {name}=... into a file that only you may read, and use -X @FILE."
            )
        properties[_NAME_OF_ALIAS.get(name, name)] = value
    return properties


def bootstrap_servers_in(properties: Mapping[str, str]) -> str | None:
    """The addresses of the cluster; None if the properties have none."""
    return properties.get(_BOOTSTRAP_SERVERS)


def kafka_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those for a connection to a cluster whose addresses are known.

    Left out are the addresses, which would override the known ones, and those of a schema registry, which
    librdkafka would refuse.
    """
    return {
        name: value
        for name, value in properties.items()
        if name not in _REGISTRY_PROPERTIES and _NAME_OF_ALIAS.get(name, name) != _BOOTSTRAP_SERVERS
    }


def registry_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of a schema registry."""
    return {name: value for name, value in properties.items() if name in _REGISTRY_PROPERTIES}


def properties_of_environment() -> dict[str, str]:
    """The properties in the file that MAINSTEM_CLIENT_CONFIG names; none without it.

    Raises:
        BadInput: the file cannot be read.
    """
    path = os.environ.get(FILE_VARIABLE)
    return properties_of_file(Path(path)) if path else {}


def properties_of_file(path: Path) -> dict[str, str]:
    """The properties in a file; `properties_format` has its form.

    Raises:
        BadInput: the file cannot be read, or a line has another form.
    """
    try:
        properties = read_properties(path.read_text(encoding="utf-8"))
        return {_NAME_OF_ALIAS.get(name, name): value for name, value in properties.items()}
    except MalformedLine as error:
        raise BadInput(f"The client properties in {path} cannot be read: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"The client properties in {path} cannot be read: {reason}.") from error
