"""Names of the entities that have settings in ZooKeeper, as paths below `/config`. Pure.

In scope: topics, brokers, users, clients and groups as paths, and back. Out of scope: all other paths, and
what is written there (`znodes`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from mainstem_broker.quota import client_quotas
from mainstem_broker.quota.client_quotas import QuotaEntity

DEFAULT_ENTITY: Final = client_quotas.DEFAULT
"""The name of the entity whose settings apply to all others of its kind."""


def config_path(entity: str) -> str:
    """The path of an entity such as `topics/T`, `brokers/N`, `users/U/clients/C` or `groups/G`."""
    return f"/config/{entity}"


def escaped(name: str) -> str:
    """The name of a client, user or group as that of a znode, as Kafka's Sanitizer writes it.

    Names of dots only, which ZooKeeper refuses, are escaped too.
    """
    return quote(name, safe="").replace("~", "%7E") if name.strip(".") else name.replace(".", "%2E")


def quota_path(entity: QuotaEntity) -> str:
    """The path of an entity's quotas, below `/config`."""
    parts = (("users", entity.user), ("clients", entity.client_id))
    return "/".join(
        f"{folder}/{name if name == DEFAULT_ENTITY else escaped(name)}"
        for folder, name in parts
        if name is not None
    )


def quota_entity(path: str) -> QuotaEntity | None:
    """The entity whose quotas are at `path` below `/config`; None for other paths."""
    match path.split("/"):
        case ["clients", client_id]:
            return QuotaEntity(None, unquote(client_id))
        case ["users", user]:
            return QuotaEntity(unquote(user), None)
        case ["users", user, "clients", client_id]:
            return QuotaEntity(unquote(user), unquote(client_id))
    return None


def user_path(user: str) -> str:
    """The path of a user's settings, below `/config`: quotas and SCRAM credentials."""
    return f"users/{escaped(user)}"


def group_path(group_id: str) -> str:
    """The path of a group's settings, below `/config`."""
    return f"groups/{escaped(group_id)}"


def group_of(path: str) -> str | None:
    """The group whose settings are at `path` below `/config`; None for other paths."""
    folder, _, name = path.partition("/")
    return unquote(name) if folder == "groups" else None
