"""The schema registry that options, client properties, the profile in use or the local stack select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstem.cli.client_properties import (
    REGISTRY_URL,
    properties_of_environment,
    properties_of_options,
    registry_properties,
)
from mainstem.cli.profiles import read_profiles
from mainstem.local.stack_folder import DEFAULT_DATA_DIRECTORY, StackFolder
from mainstem.schema_registry import DEFAULT_PORT, SchemaRegistry

REGISTRY_VARIABLE: Final = "MAINSTEM_SCHEMA_REGISTRY"


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """A registry, and the client properties for connections to it."""

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> SchemaRegistry:
        return SchemaRegistry(self.url, self.properties)


def registry_access(url: str | None, client_properties: Sequence[str] | None) -> RegistryAccess:
    """The registry at `url`, or else the one that client properties name, or else the local stack's.

    Later sources override earlier ones: the profile in use, the environment's file, `client_properties`. A
    login goes to the registry that its source names and to no other. A profile has to name one; a file that
    names none was chosen for this command.

    Raises:
        BadInput: a property is not of the form NAME=VALUE, or a file of properties cannot be read.
    """
    profile = read_profiles().current
    of_profile = {} if profile is None else registry_properties(profile.properties)
    sources = [
        of_profile if REGISTRY_URL in of_profile else {},
        registry_properties(properties_of_environment()),
        registry_properties(properties_of_options(client_properties)),
    ]
    named = [source[REGISTRY_URL] for source in sources if REGISTRY_URL in source]
    chosen = (url or (named[-1] if named else _local_registry())).rstrip("/")
    properties: dict[str, str] = {}
    for source in sources:
        if source.get(REGISTRY_URL, chosen).rstrip("/") == chosen:
            properties.update(source)
    return RegistryAccess(chosen, properties)


def _local_registry() -> str:
    """The registry of the local stack in the default folder, or else the usual port on this machine."""
    state = StackFolder(DEFAULT_DATA_DIRECTORY).running_state() or {}
    registry = state.get("schema_registry")
    return str(registry["url"]) if registry else f"http://127.0.0.1:{DEFAULT_PORT}"
