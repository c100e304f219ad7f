"""The settings of a broker, in groups of what they concern, and the table of all of them.

A default that differs from Kafka's says why. A setting without `dynamic` is read at the start only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.config.accepted_settings import WITHOUT_EFFECT
from mainstem_broker.config.coordinator_settings import COORDINATOR, TRANSACTIONS
from mainstem_broker.config.group_settings import broker_bounds_of_groups
from mainstem_broker.config.security_settings import INTER_BROKER, LISTENER_SETTINGS
from mainstem_broker.config.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT32_MAX,
    INT64_MAX,
    LIST,
    LONG,
    STRING,
    Setting,
    table,
)
from mainstem_broker.config.topic_settings import broker_defaults_of_topics

RACK_AWARE_REPLICA_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
"""As Apache Kafka names them: operators know these values."""

_LIMIT_OF_HOST: Final = r"\s*[][0-9A-Za-z_.:-]+:[0-9]+\s*"

CLUSTER: Final = (
    Setting(
        "broker.id",
        INT,
        None,
        "This broker's number, unique in the cluster and immutable.",
        minimum=0,
    ),
    Setting("broker.rack", STRING, None, "The failure domain that replicas are spread over."),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "Where consumers that name their rack read from: without it, from leaders (KIP-392).",
        choices=(RACK_AWARE_REPLICA_SELECTOR, LEADER_SELECTOR),
    ),
    Setting("zookeeper.connect", STRING, None, "ZooKeeper servers as host:port,host:port/chroot."),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        18_000,
        "Silence after which ZooKeeper takes a broker for dead; at most its maxSessionTimeout (20 ticks).",
        minimum=1,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        -1,
        "Longest wait for ZooKeeper at start-up; -1 waits for as long as it takes, and logs that.",
        minimum=-1,
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether leaders move back to preferred replicas by themselves.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often the controller looks whether leaders should move back.",
        minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "Share of the partitions a broker is preferred for that it may not lead before they move back.",
        minimum=0,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a broker gives up its leaderships before a stop.",
    ),
    Setting("auto.create.topics.enable", BOOLEAN, True, "Whether requests for unknown topics create them."),
    Setting("delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted."),
)

NETWORK: Final = (
    Setting(
        "listeners",
        LIST,
        "PLAINTEXT://:9092",
        "Addresses to listen on, as NAME://host:port; an empty host means all interfaces, of IPv4 and IPv6.",
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "Addresses that are advertised to clients; those of `listeners` if unset.",
    ),
    Setting(
        "listener.security.protocol.map",
        LIST,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Which security protocol each listener name stands for.",
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "Listener through which brokers talk to each other; that of security.inter.broker.protocol if unset.",
    ),
    Setting(
        "http.port",
        INT,
        0,
        "Port of the HTTP server with /livez, /readyz, /status and /metrics, on all interfaces; 0 is none.",
        minimum=0,
        maximum=65535,
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        "Largest request accepted; a larger one closes its connection.",
        minimum=1,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        -1,
        "Bytes of requests in memory above which large requests are received one at a time; -1: any.",
        minimum=-1,
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        -1,
        "SO_SNDBUF; -1 leaves it to the kernel, which Kafka's 100 KiB would keep from growing it.",
        minimum=-1,
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        "SO_RCVBUF; -1 leaves it to the kernel, which Kafka's 100 KiB would keep from growing it.",
        minimum=-1,
    ),
    Setting("socket.listen.backlog.size", INT, 50, "Connections that may wait to be accepted.", minimum=1),
    Setting(
        "connections.max.idle.ms", LONG, 600_000, "Idle time after which a connection is closed.", minimum=-1
    ),
    Setting(
        "max.connections",
        INT,
        INT32_MAX,
        "Open connections beyond which new ones are refused.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        INT32_MAX,
        "Open connections of one address beyond which new ones are refused.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Limits of single addresses or hosts in place of max.connections.per.ip: HOST:COUNT,HOST:COUNT. The"
        " addresses of a host are looked up once.",
        pattern=rf"({_LIMIT_OF_HOST}(,{_LIMIT_OF_HOST})*)?",
        dynamic="cluster-wide",
    ),
    Setting(
        "max.connection.creation.rate",
        INT,
        INT32_MAX,
        "New connections in a second; more wait until they are accepted.",
        minimum=1,
        dynamic="cluster-wide",
    ),
    Setting("quota.window.num", INT, 11, "Windows over which what a client takes is averaged.", minimum=1),
    Setting("quota.window.size.seconds", INT, 1, "Length of each of these windows.", minimum=1),
    Setting(
        "controller.quota.window.num",
        INT,
        11,
        "Windows whose share of controller_mutation_rate an idle client may take at once (KIP-599).",
        minimum=1,
    ),
    Setting("controller.quota.window.size.seconds", INT, 1, "Length of each of these windows.", minimum=1),
    Setting(
        "max.request.partition.size.limit",
        INT,
        2_000,
        "Largest number of partitions in one response to DescribeTopicPartitions.",
        minimum=1,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1_000,
        "Most fetch sessions of consumers (KIP-227); more consumers are answered without one.",
        minimum=0,
    ),
    Setting("fetch.max.bytes", INT, 57_671_680, "Largest response to one fetch, in bytes.", minimum=1024),
)

AUTHORIZATION: Final = (
    Setting(
        "authorizer.class.name",
        STRING,
        None,
        "Turns authorization by ACLs on; without it every client may do everything.",
        choices=(
            "kafka.security.authorizer.AclAuthorizer",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
    ),
    Setting(
        "super.users",
        STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:admin;User:CN=broker,O=Example.",
        pattern=r"(\s*[^:;\s]+:[^;]+(;|$))*\s*",
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        False,
        "Whether every client may use the resources that no ACL is about.",
    ),
    Setting(
        "authorizer.dry.run",
        BOOLEAN,
        False,
        "Whether what ACLs deny is only recorded in the audit log, and allowed. Not a setting of Kafka.",
    ),
    Setting(
        "audit.log.categories",
        LIST,
        "denied,administration",
        "What the audit log contains: refused operations and logins, allowed changes, all logins; or none.",
        choices=("denied", "administration", "authentication", "none"),
        dynamic="cluster-wide",
    ),
    Setting(
        "audit.log.topic",
        STRING,
        None,
        "Topic that also gets the audit log, as records in JSON. It has to be created. None if unset.",
        pattern=r"(?!__)[A-Za-z0-9._-]{1,249}",  # a record in an internal topic would break it
    ),
)

REPLICATION: Final = (
    Setting("num.partitions", INT, 1, "Default number of partitions of a topic.", minimum=1),
    Setting("default.replication.factor", INT, 1, "Default number of replicas of a partition.", minimum=1),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "Time after which a follower that does not keep up leaves the in-sync set.",
        minimum=1,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "Longest time that a follower's fetch waits at the leader for records.",
        minimum=0,
    ),
    Setting(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "Largest number of bytes of one partition that a follower requests.",
        minimum=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Largest number of bytes that one fetch of a follower requests.",
        minimum=0,
    ),
    Setting(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "Time after which a broker that does not answer another one is given up.",
        minimum=1,
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        INT64_MAX,
        "Bytes per second sent to throttled followers that are not in sync.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        INT64_MAX,
        "Bytes per second fetched for throttled replicas that are not in sync.",
        minimum=0,
        dynamic="cluster-wide",
    ),
)

LOGS: Final = (
    Setting(
        "log.dirs", LIST, None, "Folders that hold partitions, comma separated; those of log.dir if unset."
    ),
    Setting("log.dir", LIST, "/tmp/mainstem-logs", "Folders that hold partitions, where log.dirs is unset."),
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "How often retention looks for segments to drop.",
        minimum=1,
    ),
    Setting(
        "log.cleaner.enable",
        BOOLEAN,
        True,
        "Whether logs with cleanup.policy=compact are compacted.",
    ),
    Setting(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        "How long compaction rests when no log is due.",
        minimum=0,
        dynamic="cluster-wide",
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        "Memory for the keys of one compaction, in bytes: 16 for each key, of which three quarters are used.",
        minimum=1_048_576,
        dynamic="cluster-wide",
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        "Most bytes that compaction reads and writes in a second.",
        minimum=1,
        dynamic="cluster-wide",
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often recovery points are written down.",
        minimum=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often log start offsets are written down.",
        minimum=0,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5_000,
        "How often high watermarks are written down.",
        minimum=1,
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "Time without a batch after which a partition forgets an idempotent producer.",
        minimum=1,
        dynamic="cluster-wide",
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        INT,
        600_000,
        "How often partitions look for producers to forget.",
        minimum=1,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Threads that recover logs at start-up, per folder.",
        minimum=1,
        dynamic="cluster-wide",
    ),
)

BROKER_SETTINGS: Final[Mapping[str, Setting]] = table(
    *CLUSTER,
    *NETWORK,
    *INTER_BROKER,
    *LISTENER_SETTINGS.values(),
    *AUTHORIZATION,
    *REPLICATION,
    *LOGS,
    *COORDINATOR,
    *TRANSACTIONS,
    *broker_bounds_of_groups(),
    *broker_defaults_of_topics(),
    *WITHOUT_EFFECT,
)
