"""Profiles: named clusters, each with bootstrap servers and client properties, in one file per user.

The file is `mainstem/profiles.json` under XDG_CONFIG_HOME (`~/.config` by default):

    {"used": "prod", "profiles": {"prod": {"bootstrap_servers": "a:9092", "properties": {"name": "value"}}}}

`used` is null while no profile is in use. The file may hold passwords, so that only its owner may read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mainstem.errors import BadInput


@dataclass(frozen=True, slots=True)
class Profile:
    """One cluster; `properties` are settings of librdkafka."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles by name, and the name of the one in use."""

    used: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def current(self) -> Profile | None:
        return None if self.used is None else self.profiles.get(self.used)

    def with_profile(self, name: str, profile: Profile) -> Profiles:
        return replace(self, profiles={**self.profiles, name: profile})

    def without(self, name: str) -> Profiles:
        """All but `name`, which is no longer in use.

        Raises:
            BadInput: there is no such profile.
        """
        self.require(name)
        rest = {other: profile for other, profile in self.profiles.items() if other != name}
        return Profiles(None if self.used == name else self.used, rest)

    def using(self, name: str | None) -> Profiles:
        """The same profiles with `name` in use, or none.

        Raises:
            BadInput: there is no such profile.
        """
        if name is not None:
            self.require(name)
        return replace(self, used=name)

    def require(self, name: str) -> Profile:
        """The profile `name`.

        Raises:
            BadInput: there is no such profile.
        """
        if name not in self.profiles:
            existing = ", ".join(sorted(self.profiles)) or "none"
            raise BadInput(
                f"There is no profile {name} (existing ones: {existing}): create it with "
                f"`mainstem profile create {name} --bootstrap-servers HOST:PORT`."
            )
        return self.profiles[name]


def profiles_path() -> Path:
    """Where the profiles of this user are."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "mainstem" / "profiles.json"


def read_profiles() -> Profiles:
    """The profiles of this user; none if there is no file.

    Raises:
        BadInput: the file cannot be read.
    """
    path = profiles_path()
    try:
        stored = json.loads(path.read_text())
        profiles = {name: Profile(**fields) for name, fields in stored["profiles"].items()}
        return Profiles(stored["used"], profiles)
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} cannot be read as profiles ({error}): repair or delete it.") from error


def change_profiles(change: Callable[[Profiles], Profiles]) -> None:
    """Store what `change` makes of the profiles of this user, readable only by this user.

    Commands that run at the same time take turns, so that none undoes the change of another.

    Raises:
        BadInput: the file cannot be read, or `change` raises it; the file is as before.
        OSError: the file cannot be written.
    """
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name("profiles.lock").open("a") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        profiles = change(read_profiles())
        temporary = path.with_name(path.name + ".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(profiles), indent=2) + "\n")
        temporary.replace(path)
