"""Requests about users: their passwords, ACLs and quotas, for all users at once where that can be."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from mainstem.errors import ClusterUnreachable, CommandError
from mainstem.kafka.acls import Acl, AclFilter, add_acls, list_acls, remove_acls
from mainstem.kafka.client import Cluster
from mainstem.kafka.quotas import Client, change_quotas, read_quotas_of_users
from mainstem.kafka.users import ITERATIONS, Credential, delete_credentials, list_credentials, set_password
from mainstem_operator.api.users import AclRule
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable

_MECHANISM: Final = "SCRAM-SHA-512"
_USER: Final = "User:"


class UserRequests:
    """Connects when it is first used; for one look, since keys and addresses change."""

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        self._cluster = Cluster(bootstrap_servers, properties)

    # --- Asking ---

    async def with_password(self) -> set[str]:
        """The users that can log in by a password."""
        credentials = await self._call(lambda: list_credentials(self._cluster))
        return {credential.user for credential in credentials if credential.mechanism == _MECHANISM}

    async def acls(self) -> dict[str, frozenset[AclRule]]:
        """The ACLs of each user that has some."""
        rules: defaultdict[str, set[AclRule]] = defaultdict(set)
        for acl in await self._call(lambda: list_acls(self._cluster, AclFilter())):
            if acl.principal.startswith(_USER):
                rules[acl.principal.removeprefix(_USER)].add(
                    AclRule(acl.resource, acl.name, acl.is_prefix, acl.operation, acl.allows, acl.host)
                )
        return {user: frozenset(user_rules) for user, user_rules in rules.items()}

    async def quotas(self) -> dict[str, dict[str, float]]:
        """The quotas of each user that has some of its own."""
        quotas_by_user: dict[str, dict[str, float]] = await self._call(
            lambda: read_quotas_of_users(self._cluster)
        )
        return quotas_by_user

    # --- Changing ---

    async def set_password(self, user: str, password: str) -> None:
        """Create the user's credential, or replace it."""
        await self._call(lambda: set_password(self._cluster, user, _MECHANISM, password.encode(), ITERATIONS))

    async def delete_password(self, user: str) -> None:
        """Delete the user's credential, which must exist."""
        credential = Credential(user, _MECHANISM, ITERATIONS)
        await self._call(lambda: delete_credentials(self._cluster, [credential]))

    async def add_acls(self, user: str, rules: Collection[AclRule]) -> None:
        await self._call(lambda: add_acls(self._cluster, [_acl(user, rule) for rule in sorted(rules)]))

    async def remove_acls(self, user: str, rules: Collection[AclRule]) -> None:
        await self._call(lambda: remove_acls(self._cluster, [_acl(user, rule) for rule in sorted(rules)]))

    async def change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        """Set quotas, or with None take them back."""
        await self._call(lambda: change_quotas(self._cluster, Client(user=user), changes))

    async def _call(self, function: Callable[[], Any]) -> Any:
        """The result of a function that blocks, called in a thread.

        Raises:
            BrokersUnreachable: no broker answered.
            BrokersRefused: a broker answered with an error.
        """
        try:
            return await asyncio.to_thread(function)
        except ClusterUnreachable as error:
            raise BrokersUnreachable(str(error)) from error
        except CommandError as error:
            raise BrokersRefused("REFUSED", str(error)) from error


def _acl(user: str, rule: AclRule) -> Acl:
    return Acl(
        rule.resource,
        rule.name,
        rule.is_prefix,
        f"{_USER}{user}",
        rule.operation,
        rule.allows,
        rule.host,
    )
