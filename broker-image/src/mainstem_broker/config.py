"""Every setting of broker and topics in one table, under Kafka's names, and the typed views of it.

Lives here: names, types, defaults, bounds, which may change while the broker runs, and why a default
differs from Kafka's where it does. Must not: reading of files or ZooKeeper (that is `__main__` and
`cluster`). Values arrive as text, as in `server.properties` and in ZooKeeper, and are checked once.

A topic setting falls back to its broker setting (`retention.ms` to `log.retention.ms`, and that to
`log.retention.minutes` and `.hours`), as in Kafka's configuration reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Final, Literal

from mainstem_broker.errors import InvalidSetting

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1


class SettingType(Enum):
    """Kafka's configuration types, with the number that DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


Value = bool | int | float | str
Dynamic = Literal["read-only", "cluster-wide"]
"""Whether it may change while brokers run: for one of them, and for all at once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `minimum` and `maximum` are inclusive; `fallbacks` are (broker setting, factor).

    `pattern` is a regular expression that the whole value of a text or list has to match.
    """

    name: str
    type: SettingType
    default: Value | None
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    dynamic: Dynamic = "read-only"
    fallbacks: tuple[tuple[str, int], ...] = ()

    def parse(self, text: str) -> Value:
        """The checked value of `text`.

        Raises:
            InvalidSetting: it is not of this type, outside the bounds, or not of the form asked for.
        """
        text = text.strip()
        value: Value
        try:
            match self.type:
                case SettingType.BOOLEAN:
                    if text.lower() not in ("true", "false"):
                        raise ValueError
                    value = text.lower() == "true"
                case SettingType.INT | SettingType.LONG:
                    value = int(text)
                    limit = INT32_MAX if self.type is SettingType.INT else INT64_MAX
                    if not -limit - 1 <= value <= limit:
                        raise ValueError
                case SettingType.DOUBLE:
                    value = float(text)
                    if not isfinite(value):
                        raise ValueError
                case SettingType.STRING:
                    value = text
                case SettingType.LIST:
                    value = ",".join(item.strip() for item in text.split(","))
        except ValueError:
            raise InvalidSetting(
                f"Invalid value {text!r} for {self.name}: it must be of type {self.type.name.lower()}."
            ) from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise InvalidSetting(
                    f"Invalid value {text} for {self.name}: it must be at least {self.minimum:g}."
                )
            if self.maximum is not None and value > self.maximum:
                raise InvalidSetting(
                    f"Invalid value {text} for {self.name}: it must be at most {self.maximum:g}."
                )
        if self.pattern is not None and not re.fullmatch(self.pattern, str(value)):
            raise InvalidSetting(f"Invalid value {text!r} for {self.name}: it must match {self.pattern}.")
        if self.choices:
            given = str(value).split(",") if self.type is SettingType.LIST else [text]
            if any(item not in self.choices for item in given):
                raise InvalidSetting(
                    f"Invalid value {text!r} for {self.name}: it must be one of {', '.join(self.choices)}."
                )
        return value

    def text(self, value: Value | None) -> str | None:
        """`value` as Kafka prints it."""
        if value is None:
            return None
        return str(value).lower() if isinstance(value, bool) else str(value)


def _table(*settings: Setting) -> Mapping[str, Setting]:
    return {setting.name: setting for setting in settings}


_B, _S, _I, _L, _D, _T = (
    SettingType.BOOLEAN,
    SettingType.STRING,
    SettingType.INT,
    SettingType.LONG,
    SettingType.DOUBLE,
    SettingType.LIST,
)
_THROTTLED_REPLICAS: Final = r"|\*|\d+:\d+(,\d+:\d+)*"
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = _table(
    Setting(
        "cleanup.policy",
        _T,
        "delete",
        "What happens to old segments: deleted, compacted by key, or both.",
        choices=("delete", "compact"),
        fallbacks=(("log.cleanup.policy", 1),),
    ),
    Setting(
        "compression.type",
        _S,
        "producer",
        "Codec to store batches with; `producer` keeps them as they came.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        fallbacks=(("compression.type", 1),),
    ),
    Setting(
        "delete.retention.ms",
        _L,
        86_400_000,
        "How long tombstones and transaction markers outlive compaction.",
        minimum=0,
        fallbacks=(("log.cleaner.delete.retention.ms", 1),),
    ),
    Setting(
        "file.delete.delay.ms",
        _L,
        60_000,
        "How long a deleted segment's file stays before it is unlinked.",
        minimum=0,
        fallbacks=(("log.segment.delete.delay.ms", 1),),
    ),
    Setting(
        "flush.messages",
        _L,
        INT64_MAX,
        "Messages after which the log is synced; the kernel decides by default.",
        minimum=1,
        fallbacks=(("log.flush.interval.messages", 1),),
    ),
    Setting(
        "flush.ms",
        _L,
        INT64_MAX,
        "Time after which the log is synced; the kernel decides by default.",
        minimum=0,
        fallbacks=(("log.flush.interval.ms", 1),),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        _T,
        "",
        "Replicas whose fetching is throttled while not in sync: partition:broker,... or * for all.",
        pattern=_THROTTLED_REPLICAS,
    ),
    Setting(
        "index.interval.bytes",
        _I,
        4096,
        "Bytes of log between two entries of its indexes.",
        minimum=0,
        fallbacks=(("log.index.interval.bytes", 1),),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        _T,
        "",
        "Replicas that send to followers not in sync only throttled: partition:broker,... or * for all.",
        pattern=_THROTTLED_REPLICAS,
    ),
    Setting(
        "max.compaction.lag.ms",
        _L,
        INT64_MAX,
        "Longest time a record stays out of reach of compaction.",
        minimum=1,
        fallbacks=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    Setting(
        "max.message.bytes",
        _I,
        1_048_588,
        "Largest record batch accepted, after compression.",
        minimum=0,
        fallbacks=(("message.max.bytes", 1),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        _L,
        INT64_MAX,
        "How far timestamps may lie ahead of the broker's clock.",
        minimum=0,
        fallbacks=(("log.message.timestamp.after.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        _L,
        INT64_MAX,
        "How far timestamps may lie behind the broker's clock.",
        minimum=0,
        fallbacks=(("log.message.timestamp.before.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.type",
        _S,
        "CreateTime",
        "Whose clock stamps records: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        fallbacks=(("log.message.timestamp.type", 1),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        _D,
        0.5,
        "Share of uncleaned log that makes compaction worth its cost.",
        minimum=0,
        maximum=1,
        fallbacks=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    Setting(
        "min.compaction.lag.ms",
        _L,
        0,
        "Time a record is safe from compaction.",
        minimum=0,
        fallbacks=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    Setting(
        "min.insync.replicas",
        _I,
        1,
        "In-sync replicas without which acks=all is refused.",
        minimum=1,
        fallbacks=(("min.insync.replicas", 1),),
    ),
    Setting(
        "preallocate",
        _B,
        False,
        "Whether a new segment's file is allocated in full at once.",
        fallbacks=(("log.preallocate", 1),),
    ),
    Setting(
        "retention.bytes",
        _L,
        -1,
        "Size of a partition past which its oldest segments go; -1 is no bound.",
        fallbacks=(("log.retention.bytes", 1),),
    ),
    Setting(
        "retention.ms",
        _L,
        604_800_000,
        "Age past which segments go; -1 keeps them for ever.",
        minimum=-1,
        fallbacks=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", _MINUTE_MS),
            ("log.retention.hours", _HOUR_MS),
        ),
    ),
    Setting(
        "segment.bytes",
        _I,
        1_073_741_824,
        "Size at which a segment is closed and the next begun.",
        minimum=14,
        fallbacks=(("log.segment.bytes", 1),),
    ),
    Setting(
        "segment.index.bytes",
        _I,
        10_485_760,
        "Largest size of each of a segment's indexes.",
        minimum=4,
        fallbacks=(("log.index.size.max.bytes", 1),),
    ),
    Setting(
        "segment.jitter.ms",
        _L,
        0,
        "Random part taken off segment.ms, so that partitions do not roll at once.",
        minimum=0,
        fallbacks=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    ),
    Setting(
        "segment.ms",
        _L,
        604_800_000,
        "Age at which a segment is closed though it is not full.",
        minimum=1,
        fallbacks=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    ),
    Setting(
        "unclean.leader.election.enable",
        _B,
        False,
        "Whether a replica outside the in-sync set may lead, losing records.",
        fallbacks=(("unclean.leader.election.enable", 1),),
    ),
)


def _broker_side_of_topic_settings() -> Iterator[Setting]:
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
                choices=setting.choices,
                dynamic="cluster-wide" if factor == 1 else "read-only",
            )


GROUP_SETTINGS: Final[Mapping[str, Setting]] = _table(
    Setting(
        "consumer.heartbeat.interval.ms",
        _I,
        5_000,
        "How often members send heartbeats, in a group whose assignor is the broker's (KIP-848).",
        minimum=1,
        fallbacks=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Setting(
        "consumer.session.timeout.ms",
        _I,
        45_000,
        "Silence after which a member is taken out of a group whose assignor is the broker's (KIP-848).",
        minimum=1,
        fallbacks=(("group.consumer.session.timeout.ms", 1),),
    ),
)


def _bounds_of_group_settings() -> Iterator[Setting]:
    """What a group that does not say uses, and between what a group may choose: Kafka's defaults."""
    for name, default, low, high, what in (
        ("heartbeat.interval.ms", 5_000, 5_000, 15_000, "Heartbeat interval"),
        ("session.timeout.ms", 45_000, 45_000, 60_000, "Session timeout"),
    ):
        groups = "groups whose assignor is the broker's (KIP-848)"
        yield Setting(f"group.consumer.{name}", _I, default, f"{what} of {groups}.", minimum=1)
        yield Setting(
            f"group.consumer.min.{name}", _I, low, f"Shortest {what.lower()} of {groups}.", minimum=1
        )
        yield Setting(
            f"group.consumer.max.{name}", _I, high, f"Longest {what.lower()} of {groups}.", minimum=1
        )


BROKER_SETTINGS: Final[Mapping[str, Setting]] = _table(
    Setting(
        "broker.id", _I, None, "This broker's number, unique in the cluster and kept for its life.", minimum=0
    ),
    Setting("broker.rack", _S, None, "The failure domain that replicas are spread over."),
    Setting(
        "listeners",
        _T,
        "PLAINTEXT://:9092",
        "Addresses to listen on, as NAME://host:port; an empty host means all interfaces.",
    ),
    Setting(
        "advertised.listeners",
        _T,
        None,
        "Addresses that clients are told to use; those of `listeners` if unset.",
    ),
    Setting(
        "listener.security.protocol.map",
        _T,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Which security protocol each listener name stands for.",
    ),
    Setting(
        "inter.broker.listener.name", _S, "PLAINTEXT", "Listener through which brokers talk to each other."
    ),
    Setting(
        "http.port",
        _I,
        0,
        "Port of the HTTP server with /livez, /readyz, /status and /metrics, on all interfaces; 0 is none.",
        minimum=0,
        maximum=65535,
    ),
    Setting("zookeeper.connect", _S, None, "ZooKeeper servers as host:port,host:port/chroot."),
    Setting(
        "zookeeper.session.timeout.ms",
        _I,
        18_000,
        "Silence after which ZooKeeper takes a broker for dead; at most its maxSessionTimeout (20 ticks).",
        minimum=1,
    ),
    Setting(
        "zookeeper.connection.timeout.ms", _I, 18_000, "Longest wait for ZooKeeper at start-up.", minimum=1
    ),
    Setting("log.dirs", _T, "/tmp/mainstem-logs", "Folders that hold partitions, comma separated."),
    Setting("num.partitions", _I, 1, "Partitions of a topic that does not say.", minimum=1),
    Setting("default.replication.factor", _I, 1, "Replicas of a topic that does not say.", minimum=1),
    Setting(
        "replica.lag.time.max.ms",
        _L,
        30_000,
        "Time after which a follower that does not keep up leaves the in-sync set.",
        minimum=1,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        _I,
        500,
        "Longest time that a follower's fetch waits at the leader for records.",
        minimum=0,
    ),
    Setting(
        "replica.fetch.max.bytes",
        _I,
        1_048_576,
        "Most bytes of one partition that a follower asks for.",
        minimum=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        _I,
        10_485_760,
        "Most bytes that one fetch of a follower asks for.",
        minimum=0,
    ),
    Setting(
        "replica.socket.timeout.ms",
        _I,
        30_000,
        "Time after which a broker that does not answer another one is given up.",
        minimum=1,
    ),
    Setting(
        "leader.replication.throttled.rate",
        _L,
        INT64_MAX,
        "Bytes per second sent to throttled followers that are not in sync.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "follower.replication.throttled.rate",
        _L,
        INT64_MAX,
        "Bytes per second fetched for throttled replicas that are not in sync.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        _B,
        True,
        "Whether leaders move back to preferred replicas by themselves.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        _L,
        300,
        "How often the controller looks whether leaders should move back.",
        minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _I,
        10,
        "Share of the partitions a broker is preferred for that it may not lead before they move back.",
        minimum=0,
    ),
    Setting("controlled.shutdown.enable", _B, True, "Whether leaders move away before a broker stops."),
    Setting("auto.create.topics.enable", _B, True, "Whether asking for an unknown topic creates it."),
    Setting("delete.topic.enable", _B, True, "Whether topics may be deleted."),
    Setting(
        "socket.request.max.bytes",
        _I,
        104_857_600,
        "Largest request accepted; a larger one closes its connection.",
        minimum=1,
    ),
    Setting(
        "socket.send.buffer.bytes",
        _I,
        -1,
        "SO_SNDBUF; -1 leaves it to the kernel, which Kafka's 100 KiB would keep from growing it.",
        minimum=-1,
    ),
    Setting(
        "socket.receive.buffer.bytes",
        _I,
        -1,
        "SO_RCVBUF; -1 leaves it to the kernel, which Kafka's 100 KiB would keep from growing it.",
        minimum=-1,
    ),
    Setting("socket.listen.backlog.size", _I, 50, "Connections that may wait to be accepted.", minimum=1),
    Setting(
        "connections.max.idle.ms", _L, 600_000, "Idle time after which a connection is closed.", minimum=-1
    ),
    Setting(
        "max.connections",
        _I,
        INT32_MAX,
        "Open connections beyond which new ones are refused.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting("quota.window.num", _I, 11, "Windows over which what a client takes is averaged.", minimum=1),
    Setting("quota.window.size.seconds", _I, 1, "Length of each of these windows.", minimum=1),
    Setting(
        "max.request.partition.size.limit",
        _I,
        2_000,
        "Most partitions that one DescribeTopicPartitions answers.",
        minimum=1,
    ),
    Setting("fetch.max.bytes", _I, 57_671_680, "Most bytes that one fetch answers.", minimum=1024),
    Setting(
        "log.retention.check.interval.ms",
        _L,
        300_000,
        "How often retention looks for segments to drop.",
        minimum=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        _I,
        60_000,
        "How often recovery points are written down.",
        minimum=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _I,
        60_000,
        "How often log start offsets are written down.",
        minimum=0,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _L,
        5_000,
        "How often high watermarks are written down.",
        minimum=1,
    ),
    Setting(
        "producer.id.expiration.ms",
        _I,
        86_400_000,
        "Time without a batch after which a partition forgets an idempotent producer.",
        minimum=1,
        dynamic="cluster-wide",
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        _I,
        600_000,
        "How often partitions look for producers to forget.",
        minimum=1,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        _I,
        2,
        "Threads that recover logs at start-up, per folder.",
        minimum=1,
        dynamic="cluster-wide",
    ),
    Setting(
        "group.min.session.timeout.ms",
        _I,
        6_000,
        "Shortest session that a group's member may ask for.",
        minimum=0,
    ),
    Setting(
        "group.max.session.timeout.ms",
        _I,
        1_800_000,
        "Longest session that a group's member may ask for.",
        minimum=0,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        _I,
        3_000,
        "How long the first member of an empty group waits for others to join it.",
        minimum=0,
    ),
    Setting("group.max.size", _I, INT32_MAX, "Most members that a group may have.", minimum=1),
    Setting(
        "group.coordinator.rebalance.protocols",
        _T,
        "classic,consumer",
        "Kinds of groups that are served: those whose members assign, and those of KIP-848.",
        choices=("classic", "consumer"),
    ),
    Setting(
        "group.consumer.max.size",
        _I,
        INT32_MAX,
        "Most members that a group of KIP-848 may have.",
        minimum=1,
    ),
    Setting(
        "group.consumer.assignors",
        _T,
        "uniform,range",
        "How groups of KIP-848 may have partitions assigned; the first is for members that name none.",
        choices=("uniform", "range"),
    ),
    Setting(
        "group.consumer.migration.policy",
        _S,
        "bidirectional",
        "Which way groups may turn from one kind into the other while they have members.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    Setting(
        "offsets.topic.num.partitions",
        _I,
        50,
        "Partitions of __consumer_offsets when it is made; fixed from then on.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        _I,
        3,
        "Replicas of __consumer_offsets when it is made; as many as there are brokers where those are fewer.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        _I,
        104_857_600,
        "Size of the segments of __consumer_offsets when it is made.",
        minimum=14,
    ),
    Setting(
        "offsets.retention.minutes",
        _I,
        10_080,
        "How long a group's offsets are kept after it lost its last member.",
        minimum=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        _L,
        600_000,
        "How often expired offsets and groups are looked for.",
        minimum=1,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        _I,
        5_000,
        "Longest wait for the replicas before a commit is answered with an error.",
        minimum=1,
    ),
    Setting(
        "offset.metadata.max.bytes",
        _I,
        4_096,
        "Longest note that a client may leave with an offset, in characters.",
        minimum=0,
    ),
    *_bounds_of_group_settings(),
    *_broker_side_of_topic_settings(),
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings with every fallback resolved. Units are those of the names."""

    cleanup_policy: str
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: str
    index_interval_bytes: int
    leader_replication_throttled_replicas: str
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
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
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy.split(",")

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of a group whose assignor is the broker's (KIP-848), with every fallback resolved."""

    heartbeat_interval_ms: int
    session_timeout_ms: int


class Source(Enum):
    """Where an effective value comes from, with DescribeConfigs' number (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


def check_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raise InvalidSetting for the first name that is no topic setting or value that does not fit."""
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise InvalidSetting(f"Unknown topic config name: {name}.")
        setting.parse(text)


def readable_settings(
    layer: Mapping[str, str], before: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What brokers can take of a dynamic layer; and of the rest, what is wrong with each.

    Args:
        before: the layer as it was taken last: what it had in place of a wrong value goes on to hold.
    """
    taken, wrong = {}, []
    for name, text in layer.items():
        setting = BROKER_SETTINGS.get(name)
        try:
            if setting is not None and setting.dynamic != "read-only":
                setting.parse(text)
            taken[name] = text
        except InvalidSetting as error:
            wrong.append(str(error))
            if name in before:
                taken[name] = before[name]
    return taken, wrong


class BrokerConfig:
    """A broker's settings: the file's (static), and the dynamic ones that ZooKeeper adds.

    Immutable: `with_dynamic` answers a new one. `values` holds every known setting's parsed value. What
    the dynamic layers say of read-only settings does not count.
    """

    def __init__(
        self,
        static: Mapping[str, str],
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> None:
        """Check and take the settings.

        Raises:
            InvalidSetting: a known setting's value does not fit, or a required one is missing.
                Unknown names are kept aside in `unknown`, as Kafka only warns of them.
        """
        self.static = dict(static)
        self.dynamic = dict(dynamic or {})
        self.dynamic_default = dict(dynamic_default or {})
        self.unknown = sorted(name for name in self.static if name not in BROKER_SETTINGS)
        self.values: dict[str, Value | None] = {}
        for name, setting in BROKER_SETTINGS.items():
            text, _ = self._text_and_source(name)
            self.values[name] = setting.default if text is None else setting.parse(text)
        for name in ("broker.id", "zookeeper.connect"):
            if self.values[name] is None:
                raise InvalidSetting(f"The setting {name} is missing: add it to the properties file.")

    def layers(self, *names: str) -> Iterator[tuple[str, str, Source]]:
        """(name, text, source) of each place where one of these broker settings is set, the one that
        counts first; the default last."""
        for source, layer in (
            (Source.DYNAMIC_BROKER, self.dynamic),
            (Source.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (Source.STATIC_BROKER, self.static),
        ):
            for name in names:
                is_dynamic = BROKER_SETTINGS[name].dynamic != "read-only"
                if name in layer and (is_dynamic or source is Source.STATIC_BROKER):
                    yield name, layer[name], source
        for name in names:
            default = BROKER_SETTINGS[name].text(BROKER_SETTINGS[name].default)
            if default is not None:
                yield name, default, Source.DEFAULT

    def _text_and_source(self, name: str) -> tuple[str | None, Source]:
        _, text, source = next(self.layers(name), ("", None, Source.DEFAULT))
        return (None if source is Source.DEFAULT else text), source

    def source(self, name: str) -> Source:
        """Where the value of the broker setting `name` comes from."""
        return self._text_and_source(name)[1]

    def with_dynamic(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]) -> BrokerConfig:
        return BrokerConfig(self.static, dynamic, dynamic_default)

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        return self.values[name] is True

    def string(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def optional_string(self, name: str) -> str | None:
        value = self.values[name]
        return value if isinstance(value, str) else None

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> tuple[Value | None, Source]:
        """The effective value of topic setting `name` and where it comes from."""
        if name in overrides:
            return TOPIC_SETTINGS[name].parse(overrides[name]), Source.TOPIC
        return self._fallback(TOPIC_SETTINGS[name])

    def group_value(self, name: str, overrides: Mapping[str, str]) -> tuple[Value | None, Source]:
        """The effective value of group setting `name` and where it comes from."""
        if name in overrides:
            return GROUP_SETTINGS[name].parse(overrides[name]), Source.GROUP
        return self._fallback(GROUP_SETTINGS[name])

    def _fallback(self, setting: Setting) -> tuple[Value | None, Source]:
        for fallback, factor in setting.fallbacks:
            text, source = self._text_and_source(fallback)
            if text is not None:
                value = BROKER_SETTINGS[fallback].parse(text)
                if isinstance(value, int) and factor != 1 and value > 0:  # -1 is "no bound" in every unit
                    value *= factor
                return value, source
        return setting.default, Source.DEFAULT

    def check_group_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raise InvalidSetting for the first that is no group setting or does not fit."""
        for name, text in overrides.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise InvalidSetting(f"Unknown group config name: {name}.")
            value = setting.parse(text)
            assert isinstance(value, int)
            for bound in ("min", "max"):
                bound_name = f"group.consumer.{bound}.{name.removeprefix('consumer.')}"
                limit = self.integer(bound_name)
                if (value < limit) if bound == "min" else (value > limit):
                    comparison = "at least" if bound == "min" else "at most"
                    raise InvalidSetting(
                        f"Invalid value {text} for {name}: it must be {comparison} {bound_name} = {limit}."
                    )
        group = self.group(overrides)
        if group.session_timeout_ms <= group.heartbeat_interval_ms:
            raise InvalidSetting(
                f"consumer.session.timeout.ms ({group.session_timeout_ms}) must be more than"
                f" consumer.heartbeat.interval.ms ({group.heartbeat_interval_ms})."
            )

    def group(self, overrides: Mapping[str, str]) -> GroupConfig:
        """All settings of a group that overrides these. Raises InvalidSetting for what cannot be read."""
        values = [self.group_value(name, overrides)[0] for name in sorted(GROUP_SETTINGS)]
        heartbeat_interval_ms, session_timeout_ms = (int(value or 0) for value in values)
        return GroupConfig(heartbeat_interval_ms, session_timeout_ms)

    def topic(self, overrides: Mapping[str, str]) -> TopicConfig:
        """All settings of a topic that overrides these.

        Raises:
            InvalidSetting: as `check_topic_overrides`.
        """
        check_topic_overrides(overrides)
        values = {name.replace(".", "_"): self.topic_value(name, overrides)[0] for name in TOPIC_SETTINGS}
        return TopicConfig(**values)  # type: ignore[arg-type]  # the tests hold fields and table equal


def parse_properties(text: str) -> dict[str, str]:
    """Read a `.properties` file: `name=value` lines; `#` and `!` begin comments; later lines win.

    Raises:
        InvalidSetting: a line without `=`; the message names the line.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise InvalidSetting(f"Line {number} is not of the form name=value: {stripped!r}.")
        properties[name.strip()] = value.strip()
    return properties
