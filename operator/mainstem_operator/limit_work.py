"""Bringing the limit on moves of replicas about: `plan_moves` decides, this asks brokers and sets."""

from __future__ import annotations

from collections.abc import Collection

from mainstem_operator.admin import Brokers
from mainstem_operator.plan_moves import plan_limit


async def bring_about_limit(
    brokers: Brokers, bytes_per_second: int | None, about_to_move: Collection[str] = ()
) -> None:
    """Have moves of replicas keep to the limit (None: there is none), and nothing else be limited.

    The brokers' own rates are left where they are afterwards: they mean nothing without topics that ask.

    Args:
        about_to_move: topics whose moves begin next.

    Raises:
        BrokersUnreachable, BrokersRefused: see `Brokers`.
    """
    moving = {topic for topic, _ in await brokers.moves()} | set(about_to_move)
    if bytes_per_second is not None and moving:
        await brokers.limit_moves(bytes_per_second)
    looked_at = moving if bytes_per_second is None else await brokers.topic_names()
    changes = plan_limit(bytes_per_second is not None, moving, await brokers.settings(looked_at))
    if changes:
        await brokers.alter_topics(changes)
