"""What brokers have of users, played."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mainstem_operator.api.users import AclRule
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable


class OperatorEnded(Exception):
    """For tests that end the operator at a step."""


class PlayedUsers:
    """`refuses` names users of whom everything is refused; `acls_refusal` is why no ACLs are shown."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}
        self.rules: dict[str, set[AclRule]] = {}
        self.limits: dict[str, dict[str, float]] = {}
        self.refuses: set[str] = set()
        self.acls_refusal = ""
        self.reachable = True
        self.changes: list[str] = []
        self.ends_after: int | None = None

    async def with_password(self) -> set[str]:
        if not self.reachable:
            raise BrokersUnreachable("No broker answered.")
        return set(self.passwords)

    async def acls(self) -> dict[str, frozenset[AclRule]]:
        if self.acls_refusal:
            raise BrokersRefused("REFUSED", self.acls_refusal)
        return {user: frozenset(rules) for user, rules in self.rules.items() if rules}

    async def quotas(self) -> dict[str, dict[str, float]]:
        return {user: dict(result) for user, result in self.limits.items()}

    def _changed(self, user: str, what: str) -> None:
        if user in self.refuses:
            raise BrokersRefused("REFUSED", f"{user} is refused.")
        if self.ends_after is not None:
            if self.ends_after == 0:
                raise OperatorEnded
            self.ends_after -= 1
        self.changes.append(what)

    async def set_password(self, user: str, password: str) -> None:
        self._changed(user, "password")
        self.passwords[user] = password

    async def delete_password(self, user: str) -> None:
        self._changed(user, "no password")
        del self.passwords[user]

    async def add_acls(self, user: str, rules: Collection[AclRule]) -> None:
        self._changed(user, "allow" if all(rule.allows for rule in rules) else "deny")
        self.rules.setdefault(user, set()).update(rules)

    async def remove_acls(self, user: str, rules: Collection[AclRule]) -> None:
        self._changed(user, "remove")
        self.rules[user] -= set(rules)

    async def change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        self._changed(user, "quotas")
        results = {**self.limits.get(user, {}), **changes}
        self.limits[user] = {name: value for name, value in results.items() if value is not None}
