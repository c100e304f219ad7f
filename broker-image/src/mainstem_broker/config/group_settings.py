"""The settings of groups whose assignor is the broker's (KIP-848), and the broker's bounds for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_broker.config.setting import INT, Setting, table

GROUP_SETTINGS: Final[Mapping[str, Setting]] = table(
    Setting(
        "consumer.heartbeat.interval.ms",
        INT,
        5_000,
        "How often members send heartbeats, in a group whose assignor is the broker's (KIP-848).",
        minimum=1,
        fallbacks=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Setting(
        "consumer.session.timeout.ms",
        INT,
        45_000,
        "Silence after which a member is taken out of a group whose assignor is the broker's (KIP-848).",
        minimum=1,
        fallbacks=(("group.consumer.session.timeout.ms", 1),),
    ),
)


def broker_bounds_of_groups() -> Iterator[Setting]:
    """What a group that does not say uses, and between what a group may choose: Kafka's defaults."""
    for name, default, low, high, what in (
        ("heartbeat.interval.ms", 5_000, 5_000, 15_000, "Heartbeat interval"),
        ("session.timeout.ms", 45_000, 45_000, 60_000, "Session timeout"),
    ):
        groups = "groups whose assignor is the broker's (KIP-848)"
        yield Setting(f"group.consumer.{name}", INT, default, f"{what} of {groups}.", minimum=1)
        yield Setting(
            f"group.consumer.min.{name}", INT, low, f"Shortest {what.lower()} of {groups}.", minimum=1
        )
        yield Setting(
            f"group.consumer.max.{name}", INT, high, f"Longest {what.lower()} of {groups}.", minimum=1
        )


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of a group whose assignor is the broker's (KIP-848), with every fallback resolved."""

    heartbeat_interval_ms: int
    session_timeout_ms: int
