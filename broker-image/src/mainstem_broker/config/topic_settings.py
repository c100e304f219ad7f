"""The settings of topics, and the broker settings that they fall back to.

A topic setting falls back to its broker setting (`retention.ms` to `log.retention.ms`, and that to
`log.retention.minutes` and `.hours`), as in Kafka's configuration reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_broker.config.setting import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    INT64_MAX,
    LIST,
    LONG,
    MINUTE_MS,
    STRING,
    Setting,
    accepted,
    table,
)
from mainstem_broker.errors import InvalidSetting

_THROTTLED_REPLICAS: Final = r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*"

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = table(
    Setting(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old segments: deleted, compacted by key, or both; empty: they stay (KIP-1161).",
        choices=("delete", "compact"),
        may_be_empty=True,
        fallbacks=(("log.cleanup.policy", 1),),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        -1,
        "Level with which the broker compresses by gzip, where compression.type makes it; -1 is gzip's own.",
        choices=("-1", *map(str, range(1, 10))),
        fallbacks=(("compression.gzip.level", 1),),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        9,
        "Level with which the broker compresses by lz4: 9 is the fastest, others are slower the higher they"
        " are; above 10 as 10.",
        minimum=1,
        maximum=17,
        fallbacks=(("compression.lz4.level", 1),),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "Codec to store batches with; `producer` keeps them as they came.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        fallbacks=(("compression.type", 1),),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        3,
        "Level with which the broker compresses by zstd; high ones take seconds of a core for a large batch.",
        minimum=-131_072,
        maximum=22,
        fallbacks=(("compression.zstd.level", 1),),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        86_400_000,
        "How long tombstones and transaction markers outlive compaction.",
        minimum=0,
        fallbacks=(("log.cleaner.delete.retention.ms", 1),),
    ),
    accepted(
        Setting(
            "errors.deadletterqueue.group.enable",
            BOOLEAN,
            False,
            "Whether the topic takes dead letters of share groups, which there are none of.",
        )
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "How long a deleted segment's file stays before it is unlinked.",
        minimum=0,
        fallbacks=(("log.segment.delete.delay.ms", 1),),
    ),
    Setting(
        "flush.messages",
        LONG,
        INT64_MAX,
        "Messages after which the log is synced; the kernel decides by default.",
        minimum=1,
        fallbacks=(("log.flush.interval.messages", 1),),
    ),
    Setting(
        "flush.ms",
        LONG,
        INT64_MAX,
        "Time after which the log is synced; the kernel decides by default.",
        minimum=0,
        fallbacks=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "Replicas whose fetching is throttled while not in sync: partition:broker,... or * for all.",
        pattern=_THROTTLED_REPLICAS,
    ),
    Setting(
        "index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        minimum=0,
        fallbacks=(("log.index.interval.bytes", 1),),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "Replicas that send to followers not in sync only throttled: partition:broker,... or * for all.",
        pattern=_THROTTLED_REPLICAS,
    ),
    Setting(
        "local.retention.bytes",
        LONG,
        -2,
        "Size kept on local disks beside remote storage, which there is none of; -2 is retention.bytes.",
        minimum=-2,
        fallbacks=(("log.local.retention.bytes", 1),),
    ),
    Setting(
        "local.retention.ms",
        LONG,
        -2,
        "Age kept on local disks beside remote storage, which there is none of; -2 is retention.ms.",
        minimum=-2,
        fallbacks=(("log.local.retention.ms", 1),),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        INT64_MAX,
        "Longest time a record stays out of reach of compaction.",
        minimum=1,
        fallbacks=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    accepted(
        Setting(
            "max.decompressed.message.bytes",
            INT,
            2_147_483_639,
            "A broker opens no batch that inflates to over 32 MiB.",
            minimum=1,
            maximum=2_147_483_639,
            fallbacks=(("max.decompressed.message.bytes", 1),),
        )
    ),
    Setting(
        "max.message.bytes",
        INT,
        1_048_588,
        "Largest record batch accepted, after compression.",
        minimum=0,
        fallbacks=(("message.max.bytes", 1),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "How far timestamps may lie ahead of the broker's clock (KIP-1030).",
        minimum=0,
        fallbacks=(("log.message.timestamp.after.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        INT64_MAX,
        "How far timestamps may lie behind the broker's clock.",
        minimum=0,
        fallbacks=(("log.message.timestamp.before.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        fallbacks=(("log.message.timestamp.type", 1),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Share of uncleaned log that makes compaction worth its cost.",
        minimum=0,
        maximum=1,
        fallbacks=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Time a record is safe from compaction.",
        minimum=0,
        fallbacks=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "In-sync replicas without which acks=all is refused.",
        minimum=1,
        fallbacks=(("min.insync.replicas", 1),),
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        False,
        "Whether a new segment's file is allocated in full at once.",
        fallbacks=(("log.preallocate", 1),),
    ),
    Setting(
        "remote.copy.lag.bytes",
        LONG,
        -1,
        "Size that is not copied to remote storage yet, which there is none of.",
        minimum=-1,
        fallbacks=(("log.remote.copy.lag.bytes", 1),),
    ),
    Setting(
        "remote.copy.lag.ms",
        LONG,
        0,
        "Age before which segments are not copied to remote storage, which there is none of.",
        minimum=-1,
        fallbacks=(("log.remote.copy.lag.ms", 1),),
    ),
    Setting(
        "remote.log.copy.disable",
        BOOLEAN,
        False,
        "Whether segments stop being copied to remote storage, which there is none of.",
    ),
    Setting(
        "remote.log.delete.on.disable",
        BOOLEAN,
        False,
        "Whether the end of remote storage, which there is none of, deletes what is there.",
    ),
    Setting(
        "remote.storage.enable",
        BOOLEAN,
        False,
        "Whether old segments move to remote storage (KIP-405), which there is none of.",
        choices=("false",),
    ),
    Setting(
        "retention.bytes",
        LONG,
        -1,
        "Size of a partition past which its oldest segments go; -1 is no bound.",
        fallbacks=(("log.retention.bytes", 1),),
    ),
    Setting(
        "retention.ms",
        LONG,
        604_800_000,
        "Age past which segments go; -1 keeps them for ever.",
        minimum=-1,
        fallbacks=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ),
    ),
    Setting(
        "segment.bytes",
        INT,
        1_073_741_824,
        "Size at which a segment is closed and the next begun.",
        minimum=14,
        new_minimum=1_048_576,  # KIP-1030
        fallbacks=(("log.segment.bytes", 1),),
    ),
    Setting(
        "segment.index.bytes",
        INT,
        10_485_760,
        "Largest size of each of a segment's indexes.",
        minimum=4,
        fallbacks=(("log.index.size.max.bytes", 1),),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        0,
        "Random part taken off segment.ms, so that partitions do not roll at once.",
        minimum=0,
        fallbacks=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    ),
    Setting(
        "segment.ms",
        LONG,
        604_800_000,
        "Age at which a segment is closed though it is not full.",
        minimum=1,
        fallbacks=(("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica outside the in-sync set may lead, losing records.",
        fallbacks=(("unclean.leader.election.enable", 1),),
    ),
)


INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
_INTERNAL_TOPIC_SETTINGS: Final[Mapping[str, Setting]] = table(
    Setting(
        INTERNAL_SEGMENT_BYTES,
        INT,
        None,
        "Counts in place of segment.bytes, for tests that need small segments.",
        minimum=14,
    ),
)
"""Those that can be set, and that DescribeConfigs and the reference leave out, as in Kafka."""


KEEPING_RECORDS: Final[Mapping[str, str]] = {
    "cleanup.policy": "",
    "delete.retention.ms": str(INT64_MAX),
    "min.compaction.lag.ms": str(INT64_MAX),
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "unclean.leader.election.enable": "false",
}
"""What stands in for a stored value that cannot be read, where the default could cost records."""
KEEPING_RECORDS_BY_BROKERS: Final[Mapping[str, str]] = {
    TOPIC_SETTINGS[name].fallbacks[0][0]: text for name, text in KEEPING_RECORDS.items()
}


def broker_defaults_of_topics() -> Iterator[Setting]:
    """The broker settings that topics fall back to, one per fallback.

    The default of several is that of the last, in its unit: log.retention.hours is 168, and
    log.retention.ms is nothing, as in Kafka.
    """
    for setting in TOPIC_SETTINGS.values():
        for name, factor in setting.fallbacks:
            is_last = (name, factor) == setting.fallbacks[-1]
            default = setting.default
            yield Setting(
                name,
                setting.type,
                None if not is_last else default if factor == 1 else int(default or 0) // factor,
                setting.documentation,
                minimum=setting.minimum,
                maximum=setting.maximum,
                new_minimum=setting.new_minimum,
                choices=setting.choices,
                may_be_empty=setting.may_be_empty,
                dynamic="cluster-wide" if factor == 1 else "read-only",
            )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings with every fallback resolved. Units are those of the names."""

    cleanup_policy: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    errors_deadletterqueue_group_enable: bool
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: str
    index_interval_bytes: int
    leader_replication_throttled_replicas: str
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_decompressed_message_bytes: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_copy_lag_bytes: int
    remote_copy_lag_ms: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")

    @property
    def roll_ms(self) -> int:
        """The largest age of a segment that is appended to: one that is not sealed cannot be compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy.split(",")

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def check_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raise InvalidSetting for the first name that is no topic setting or value that does not fit."""
    for name, text in overrides.items():
        topic_setting(name).parse(text)


def topic_setting(name: str) -> Setting:
    """The topic setting of that name, also one that is not shown. Raises InvalidSetting if there is none."""
    setting = TOPIC_SETTINGS.get(name) or _INTERNAL_TOPIC_SETTINGS.get(name)
    if setting is None:
        raise InvalidSetting(f"Unknown topic config name: {name}.")
    return setting
