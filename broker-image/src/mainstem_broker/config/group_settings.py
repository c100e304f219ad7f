"""The settings of groups, and the broker's bounds for them.

Those of groups whose assignor is the broker's (KIP-848) count. Share groups (KIP-932) and streams groups
(KIP-1071) are not served; their settings are accepted and described, so that scripts for Apache Kafka work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_broker.config.setting import BOOLEAN, INT, LIST, STRING, Setting, accepted, table


def _of_unserved(family: str, groups: str) -> Iterator[Setting]:
    """What the groups of a family have in common with those of KIP-848."""
    interval = f"group.{family}.assignment.interval.ms"
    yield accepted(
        Setting(
            f"{family}.assignment.interval.ms",
            INT,
            1_000,
            f"Shortest time between two assignments of {groups}.",
            minimum=0,
            fallbacks=((interval, 1),),
        )
    )
    yield accepted(
        Setting(f"{family}.heartbeat.interval.ms", INT, 5_000, f"Heartbeat interval of {groups}.", minimum=1)
    )
    yield accepted(
        Setting(f"{family}.session.timeout.ms", INT, 45_000, f"Session timeout of {groups}.", minimum=1)
    )


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
    accepted(
        Setting(
            "consumer.assignment.interval.ms",
            INT,
            1_000,
            "Shortest time between two assignments of a group of KIP-848; here there is none.",
            minimum=0,
            fallbacks=(("group.consumer.assignment.interval.ms", 1),),
        )
    ),
    *_of_unserved("share", "a share group"),
    accepted(
        Setting(
            "share.auto.offset.reset",
            STRING,
            "latest",
            "Where a share group begins: latest, earliest, or by_duration: and an ISO 8601 duration.",
            pattern=r"latest|earliest"
            r"|by_duration:P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]{1,9})?S)?)?",
        )
    ),
    accepted(
        Setting(
            "share.delivery.count.limit",
            INT,
            5,
            "How often a share group delivers a record at most.",
            minimum=2,
        )
    ),
    accepted(
        Setting(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            "Whether a share group reads records of open and aborted transactions.",
            choices=("read_committed", "read_uncommitted"),
        )
    ),
    accepted(
        Setting(
            "share.partition.max.record.locks",
            INT,
            2_000,
            "How many records of a partition a share group may hold.",
            minimum=100,
        )
    ),
    accepted(
        Setting(
            "share.record.lock.duration.ms",
            INT,
            30_000,
            "How long a consumer of a share group holds a record.",
            minimum=1_000,
        )
    ),
    accepted(
        Setting(
            "share.renew.acknowledge.enable",
            BOOLEAN,
            True,
            "Whether consumers of a share group may hold records longer.",
        )
    ),
    accepted(
        Setting(
            "errors.deadletterqueue.copy.record.enable",
            BOOLEAN,
            False,
            "Whether dead letters of a share group contain the record.",
        )
    ),
    accepted(
        Setting(
            "errors.deadletterqueue.topic.name",
            STRING,
            "",
            "The topic of a share group's dead letters.",
            pattern=r"(?!__).*",
        )
    ),
    *_of_unserved("streams", "a streams group"),
    accepted(Setting("streams.assignor.name", STRING, None, "The assignor of a streams group.")),
    accepted(
        Setting(
            "streams.initial.rebalance.delay.ms",
            INT,
            3_000,
            "How long a new streams group waits for more members.",
            minimum=0,
        )
    ),
    accepted(
        Setting(
            "streams.num.standby.replicas", INT, 0, "Standby replicas of a streams group's tasks.", minimum=0
        )
    ),
    accepted(
        Setting(
            "streams.rack.aware.assignment.tags",
            LIST,
            "",
            "Tags over which a streams group spreads its standby replicas.",
        )
    ),
)

BOUNDS_OF_ACCEPTED: Final[Mapping[str, tuple[int, int]]] = {
    "consumer.assignment.interval.ms": (0, 15_000),
    "share.assignment.interval.ms": (0, 15_000),
    "share.delivery.count.limit": (2, 10),
    "share.heartbeat.interval.ms": (5_000, 15_000),
    "share.partition.max.record.locks": (100, 4_000),
    "share.record.lock.duration.ms": (15_000, 60_000),
    "share.session.timeout.ms": (45_000, 60_000),
    "streams.assignment.interval.ms": (0, 15_000),
    "streams.heartbeat.interval.ms": (5_000, 15_000),
    "streams.num.standby.replicas": (0, 2),
    "streams.session.timeout.ms": (45_000, 60_000),
}
"""Least and greatest value that a group may set, of settings without effect.

They are the defaults of Kafka's broker settings `group.FAMILY.min.*` and `max.*`, which brokers here do not
have.
"""


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
