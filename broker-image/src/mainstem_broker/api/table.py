"""The one table of API keys: versions served, the version handlers are written against, the handler.

To add an API: write its file, add its line. Minimum versions are those of Apache Kafka 4 (KIP-896),
where clients do not need a lower one announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_broker.api import (
    api_versions,
    commits,
    config_changes,
    configs,
    consumer_groups,
    described_producers,
    elections,
    fetch,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producer_ids,
    quotas,
    reassignments,
    scram_credentials,
    topic_partitions,
    topics,
)
from mainstem_broker.api.context import BrokerContext, Handler
from mainstem_broker.protocol.wire import Entity

PartitionsOf = Callable[[BrokerContext, Entity], Iterable[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Api:
    """`models` are the versions that the handler is written against, lowest first.

    It gets the entity of the lowest that is not below the client's. More than one is needed where later
    versions have dropped a field for another one, such as a topic's name for its id.

    `announced_min_version` may be lower than `min_version`, which is what is really served. `partitions_of`
    tells which partitions a request is about that only their leader answers: a broker that does not lead
    them all first hears the cluster's latest news (see `router.py`). So does each broker before it answers
    what is `about_the_cluster`: any of them may be asked, also one that lags behind the one asked before.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler
    models: tuple[int, ...]
    announced_min_version: int
    partitions_of: PartitionsOf | None
    about_the_cluster: bool

    def model_for(self, version: int) -> int:
        for model in self.models:
            if model >= version:
                return model
        raise AssertionError(f"The models of {self.name} end below {version}, which is served.")


def _api(
    key: int,
    name: str,
    versions: tuple[int, int],
    handler: Handler,
    *,
    models: tuple[int, ...] = (),
    announced_min: int | None = None,
    partitions_of: PartitionsOf | None = None,
    about_the_cluster: bool = False,
) -> Api:
    low, high = versions
    announced = low if announced_min is None else announced_min
    return Api(key, name, low, high, handler, models or (high,), announced, partitions_of, about_the_cluster)


APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        _api(0, "Produce", (3, 11), produce.handle, announced_min=0, partitions_of=produce.partitions_of),
        _api(1, "Fetch", (4, 17), fetch.handle, models=(12, 17), partitions_of=fetch.partitions_of),
        _api(2, "ListOffsets", (1, 9), offsets.handle_list_offsets, partitions_of=offsets.listed_partitions),
        _api(3, "Metadata", (0, 12), metadata.handle),
        _api(
            8,
            "OffsetCommit",
            (2, 10),
            commits.handle_commit,
            models=(4, 9, 10),
            partitions_of=groups.partitions_of,
        ),
        _api(
            9,
            "OffsetFetch",
            (1, 10),
            commits.handle_fetch,
            models=(7, 9, 10),
            partitions_of=commits.fetched_groups,
        ),
        _api(10, "FindCoordinator", (0, 6), groups.handle_find_coordinator, models=(3, 6)),
        _api(11, "JoinGroup", (0, 9), groups.handle_join, partitions_of=groups.partitions_of),
        _api(12, "Heartbeat", (0, 4), groups.handle_heartbeat, partitions_of=groups.partitions_of),
        _api(
            13, "LeaveGroup", (0, 5), groups.handle_leave, models=(2, 5), partitions_of=groups.partitions_of
        ),
        _api(14, "SyncGroup", (0, 5), groups.handle_sync, partitions_of=groups.partitions_of),
        _api(15, "DescribeGroups", (0, 6), groups.handle_describe, partitions_of=groups.described_groups),
        _api(16, "ListGroups", (0, 5), groups.handle_list),
        _api(18, "ApiVersions", (0, 4), api_versions.handle),
        _api(19, "CreateTopics", (2, 7), topics.handle_create_topics, about_the_cluster=True),
        _api(20, "DeleteTopics", (1, 6), topics.handle_delete_topics, models=(5, 6), about_the_cluster=True),
        _api(
            21, "DeleteRecords", (0, 2), topics.handle_delete_records, partitions_of=offsets.listed_partitions
        ),
        _api(22, "InitProducerId", (0, 5), producer_ids.handle),
        _api(
            23,
            "OffsetForLeaderEpoch",
            (2, 4),
            offsets.handle_offset_for_leader_epoch,
            partitions_of=offsets.asked_partitions,
        ),
        _api(32, "DescribeConfigs", (1, 4), configs.handle_describe, about_the_cluster=True),
        _api(33, "AlterConfigs", (0, 2), config_changes.handle_alter, about_the_cluster=True),
        _api(35, "DescribeLogDirs", (1, 4), log_dirs.handle),
        _api(37, "CreatePartitions", (0, 3), topics.handle_create_partitions, about_the_cluster=True),
        _api(42, "DeleteGroups", (0, 2), groups.handle_delete, partitions_of=groups.deleted_groups),
        _api(43, "ElectLeaders", (0, 2), elections.handle, about_the_cluster=True),
        _api(
            44,
            "IncrementalAlterConfigs",
            (0, 1),
            config_changes.handle_incremental_alter,
            about_the_cluster=True,
        ),
        _api(45, "AlterPartitionReassignments", (0, 1), reassignments.handle_alter, about_the_cluster=True),
        _api(46, "ListPartitionReassignments", (0, 0), reassignments.handle_list, about_the_cluster=True),
        _api(47, "OffsetDelete", (0, 0), commits.handle_delete, partitions_of=groups.partitions_of),
        _api(48, "DescribeClientQuotas", (0, 1), quotas.handle_describe, about_the_cluster=True),
        _api(49, "AlterClientQuotas", (0, 1), quotas.handle_alter, about_the_cluster=True),
        _api(50, "DescribeUserScramCredentials", (0, 0), scram_credentials.handle),
        _api(60, "DescribeCluster", (0, 1), metadata.handle_describe_cluster),
        _api(
            61,
            "DescribeProducers",
            (0, 0),
            described_producers.handle,
            partitions_of=described_producers.partitions_of,
        ),
        _api(
            68,
            "ConsumerGroupHeartbeat",
            (0, 1),
            consumer_groups.handle_heartbeat,
            partitions_of=groups.partitions_of,
        ),
        _api(
            69,
            "ConsumerGroupDescribe",
            (0, 1),
            consumer_groups.handle_describe,
            partitions_of=groups.named_groups,
        ),
        _api(74, "ListConfigResources", (0, 1), configs.handle_list, about_the_cluster=True),
        _api(75, "DescribeTopicPartitions", (0, 0), topic_partitions.handle, about_the_cluster=True),
    )
}
