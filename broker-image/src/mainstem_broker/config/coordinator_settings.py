"""The broker's settings of both coordinators, and of `__consumer_offsets` and `__transaction_state`."""

from __future__ import annotations

from typing import Final

from mainstem_broker.config.setting import INT, INT32_MAX, LIST, LONG, STRING, Setting

COORDINATOR: Final = (
    Setting(
        "group.min.session.timeout.ms",
        INT,
        6_000,
        "Shortest session timeout that a group's member may request.",
        minimum=0,
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "Longest session timeout that a group's member may request.",
        minimum=0,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        3_000,
        "How long the first member of an empty group waits for others to join it.",
        minimum=0,
    ),
    Setting("group.max.size", INT, INT32_MAX, "Most members that a group may have.", minimum=1),
    Setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer",
        "Kinds of groups that are served: those whose members assign, and those of KIP-848.",
        choices=("classic", "consumer"),
    ),
    Setting(
        "group.consumer.max.size",
        INT,
        INT32_MAX,
        "Most members that a group of KIP-848 may have.",
        minimum=1,
    ),
    Setting(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "How groups of KIP-848 may have partitions assigned; the first is for members that name none.",
        choices=("uniform", "range"),
    ),
    Setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Which way groups may turn from one kind into the other while they have members.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets when it is made; fixed from then on.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        INT,
        3,
        "Replicas of __consumer_offsets. It is created, and groups work, once as many brokers are up.",
        minimum=1,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        "Size of the segments of __consumer_offsets when it is made.",
        minimum=14,
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        10_080,
        "How long a group's offsets are kept after it lost its last member.",
        minimum=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "How often expired offsets and groups are looked for.",
        minimum=1,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        INT,
        5_000,
        "Longest wait for the replicas before a commit is answered with an error.",
        minimum=1,
    ),
    Setting(
        "offset.metadata.max.bytes",
        INT,
        4_096,
        "Longest note that a client may leave with an offset, in characters.",
        minimum=0,
    ),
)

TRANSACTIONS: Final = (
    Setting(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        "Longest time that a producer may request for its transactions; after it, an open one is aborted.",
        minimum=1,
    ),
    Setting(
        "transactional.id.expiration.ms",
        INT,
        604_800_000,
        "How long a transactional id is kept after its last use.",
        minimum=1,
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "How often transactions that have been open for too long are looked for.",
        minimum=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        "How often transactional ids that are not used any more are looked for.",
        minimum=1,
    ),
    Setting(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "Partitions of __transaction_state when it is created; fixed from then on.",
        minimum=1,
    ),
    Setting(
        "transaction.state.log.replication.factor",
        INT,
        3,
        "Replicas of __transaction_state. It is created, and transactions work, once as many brokers are up.",
        minimum=1,
    ),
    Setting(
        "transaction.state.log.min.isr",
        INT,
        2,
        "In-sync replicas that __transaction_state needs for writes; at most its replicas count.",
        minimum=1,
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        INT,
        104_857_600,
        "Size of the segments of __transaction_state when it is created.",
        minimum=14,
    ),
)
