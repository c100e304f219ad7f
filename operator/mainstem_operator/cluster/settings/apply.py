"""Bringing the brokers' settings about while they run: asks them, lets `plan_settings` decide, puts.

Knows no Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.cluster.settings.plan import SettingsPlan, plan_refused
from mainstem_operator.snapshot import Snapshot

_WRONG_SETTING: Final = ("INVALID_CONFIG", "INVALID_REQUEST")
"""Brokers refuse with the second what they do not change while they run."""


async def observe_settings(
    brokers: Brokers, snapshot: Snapshot, plan_for: Callable[[Mapping[str, str] | None], SettingsPlan]
) -> SettingsPlan:
    """What is to be done, and whether brokers would take it.

    Args:
        plan_for: the plan, where these are the defaults of all brokers.
    """
    plan = plan_for(None)
    new = plan.changes
    if not snapshot.reachable:
        # Where not even a process runs, brokers may need the files to get so far.
        untested = plan.untested and bool(snapshot.reports)
        return replace(plan, waiting="No broker is ready and answers.", untested=untested)
    try:
        plan = plan_for(await brokers.default_settings())
        if new:
            await brokers.check_default_settings(new)
            plan = replace(plan, untested=False)
        if plan.changes and plan.changes != new:
            await brokers.check_default_settings(plan.changes)
    except BrokersRefused as error:
        if error.code in _WRONG_SETTING:
            return plan_refused(plan, str(error))
        return replace(plan, waiting=str(error))  # there was no controller just then, or ZooKeeper was silent
    except BrokersUnreachable as error:
        return replace(plan, waiting=str(error))
    return plan


async def put_settings(brokers: Brokers, plan: SettingsPlan) -> SettingsPlan:
    """Put all that is to be changed, or, if it is refused, which brokers did not do before, nothing."""
    try:
        await brokers.change_default_settings(plan.changes)
    except (BrokersRefused, BrokersUnreachable) as error:
        return replace(plan, waiting=str(error))
    return replace(plan, sent=True)


async def ask_files(
    brokers: Brokers, leaving: Collection[str], indices: Collection[int]
) -> Mapping[int, Mapping[str, str]]:
    """What each of these brokers has of the settings from its file; those that don't answer are left out."""
    try:
        return await brokers.file_settings(leaving, indices)
    except (BrokersRefused, BrokersUnreachable):
        return {}


async def take_back_settings(brokers: Brokers, plan: SettingsPlan) -> SettingsPlan:
    """Take back what is leaving; what is left to do.

    What had a default stays noted until the next look has asked the brokers once more: one whose container
    ended after it was asked may have started with a file that Kubernetes had not renewed yet.
    """
    there = tuple(name for name in plan.leaving if name not in plan.gone)
    left = replace(plan, leaving=there, managed=tuple(name for name in plan.managed if name not in plan.gone))
    if not there:
        return left
    try:
        await brokers.change_default_settings(dict.fromkeys(there))
    except (BrokersRefused, BrokersUnreachable) as error:
        return replace(left, waiting=str(error))
    return replace(left, sent=True)
