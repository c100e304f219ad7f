"""Dynamic settings of Apache Kafka 4.4 that brokers accept and that have no effect here.

What sets them, on all clusters alike, then works without changes. Not here: those whose effect somebody would
miss, such as `cordoned.log.dirs` or `metric.reporters`; they are refused as unknown.
"""

from __future__ import annotations

from typing import Final

from mainstem_broker.config.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT64_MAX,
    LONG,
    STRING,
    Setting,
    SettingType,
    Value,
    accepted,
)

_TIERED: Final = "Of remote storage (KIP-405), which there is none of."


def _dynamic(
    name: str, type_: SettingType, default: Value, documentation: str, *, minimum: float | None = None
) -> Setting:
    return accepted(Setting(name, type_, default, documentation, minimum=minimum, dynamic="cluster-wide"))


WITHOUT_EFFECT: Final = (
    _dynamic(
        "background.threads", INT, 10, "Threads for background work; the broker has an event loop.", minimum=1
    ),
    _dynamic(
        "num.io.threads", INT, 8, "Threads that serve requests; the broker has an event loop.", minimum=1
    ),
    _dynamic(
        "num.network.threads",
        INT,
        3,
        "Threads that read from and write to connections; the broker has an event loop.",
        minimum=1,
    ),
    _dynamic(
        "num.replica.fetchers",
        INT,
        1,
        "Threads that fetch from each leader; the broker has one connection to each.",
        minimum=1,
    ),
    _dynamic(
        "log.cleaner.threads",
        INT,
        1,
        "Threads that compact; the broker compacts one log at a time.",
        minimum=0,
    ),
    _dynamic(
        "log.cleaner.io.buffer.size", INT, 524_288, "Buffers for reads and writes of compaction.", minimum=0
    ),
    _dynamic("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, "Filling of the table of keys in compaction."),
    _dynamic(
        "group.coordinator.cached.buffer.max.bytes",
        INT,
        1_048_588,
        "Buffers that the group coordinator keeps.",
        minimum=524_288,
    ),
    _dynamic(
        "group.consumer.assignment.interval.ms",
        INT,
        1_000,
        "Shortest time between two assignments of a group of KIP-848; here there is none.",
        minimum=0,
    ),
    _dynamic(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        "Whether transactions are verified before they write (KIP-890); the broker always does so.",
    ),
    _dynamic(
        "errors.deadletterqueue.auto.create.topics.enable",
        BOOLEAN,
        False,
        "Whether dead letter topics of share groups are created, which there are none of.",
    ),
    _dynamic(
        "errors.deadletterqueue.topic.name.prefix",
        STRING,
        "dlq.",
        "How names of dead letter topics of share groups begin, which there are none of.",
    ),
    _dynamic(
        "group.share.assignment.interval.ms",
        INT,
        1_000,
        "Shortest time between two assignments of a share group, which there are none of.",
        minimum=0,
    ),
    _dynamic(
        "share.coordinator.cached.buffer.max.bytes",
        INT,
        1_048_588,
        "Buffers that the share coordinator keeps, which there are none of.",
        minimum=524_288,
    ),
    _dynamic(
        "group.streams.assignment.interval.ms",
        INT,
        1_000,
        "Shortest time between two assignments of a streams group (KIP-1071), which there are none of.",
        minimum=0,
    ),
    _dynamic(
        "follower.fetch.last.tiered.offset.enable",
        BOOLEAN,
        False,
        _TIERED,
    ),
    _dynamic(
        "remote.fetch.max.wait.ms",
        INT,
        500,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.list.offsets.request.timeout.ms",
        LONG,
        30_000,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.index.file.cache.total.size.bytes",
        LONG,
        1_073_741_824,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.manager.copier.thread.pool.size",
        INT,
        10,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.manager.copy.max.bytes.per.second",
        LONG,
        INT64_MAX,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.manager.expiration.thread.pool.size",
        INT,
        10,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.manager.fetch.max.bytes.per.second",
        LONG,
        INT64_MAX,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.manager.follower.thread.pool.size",
        INT,
        2,
        _TIERED,
        minimum=1,
    ),
    _dynamic(
        "remote.log.reader.threads",
        INT,
        10,
        _TIERED,
        minimum=1,
    ),
)
