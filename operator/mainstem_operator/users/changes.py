"""Changing what brokers keep of a user: ACLs and quotas first, and its password last.

So a new user can log in only when all that it is denied is denied. When a user is removed its password goes
first.
"""

from __future__ import annotations

from mainstem_operator.brokers.user_requests import UserRequests
from mainstem_operator.users.plan import UserPlan


async def carry_out(requests: UserRequests, user: str, plan: UserPlan, password: str | None) -> None:
    """Change what the plan says on the brokers. It may be done again from the start after any step.

    Raises:
        BrokersRefused, BrokersUnreachable: the first step that fails.
    """
    if plan.delete_password:
        await requests.delete_password(user)
    # What is denied is never allowed in between.
    if denied := {rule for rule in plan.add if not rule.allows}:
        await requests.add_acls(user, denied)
    if no_longer_allowed := {rule for rule in plan.remove if rule.allows}:
        await requests.remove_acls(user, no_longer_allowed)
    if allowed := plan.add - denied:
        await requests.add_acls(user, allowed)
    if no_longer_denied := plan.remove - no_longer_allowed:
        await requests.remove_acls(user, no_longer_denied)
    if plan.quotas:
        await requests.change_quotas(user, plan.quotas)
    if plan.set_password and password is not None:
        await requests.set_password(user, password)
