"""The one table of API keys: versions served, what a client needs to be allowed, the version handlers are
written against, the handler.

To add an API: write its file, add its line. Minimum versions are those of Apache Kafka 4 (KIP-896),
where clients do not need a lower one announced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_broker.api import (
    acls,
    alter_configs,
    api_versions,
    classic_groups,
    client_quotas,
    committed_offsets,
    consumer_groups,
    delete_records,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    partition_reassignments,
    produce,
    sasl,
    scram_credentials,
    topics,
    transactional_offsets,
    transactions,
    write_txn_markers,
)
from mainstem_broker.api.api_versions import AnnouncedVersions
from mainstem_broker.api.authorization import Access, Need, the_group, the_transactional_id
from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.api.large_requests import Slices
from mainstem_broker.errors import ProtocolError
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.acl import Operation, ResourceType

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
ALTER_CONFIGS, DESCRIBE_CONFIGS = Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

Prepare = Callable[[BrokerContext, Entity, RequestContext], Awaitable[Entity] | None]
PartitionsOf = Callable[[BrokerContext, Entity], Iterable[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Api:
    """`models` are the versions that the handler is written against, lowest first.

    It gets the entity of the lowest that is not below the client's. More than one is needed where later
    versions have dropped a field for another one, such as a topic's name for its id.

    `announced_min_version` may be lower than `min_version`, which is what is really served. `partitions_of`
    lists the partitions of a request that only their leader answers: a broker that does not lead
    them all first hears the cluster's latest news (see `router.py`). So does each broker before it answers
    what is `about_the_cluster`: a client may send its next request to a broker that lags behind the last one.

    `prepare` does what would hold the event loop. Where it returns something to wait for, the handler gets
    its result in place of the request, and later requests of the connection wait.

    `slices` say how large requests are cut, for each model whose requests have another array.

    `access` is what a client needs where clients are authorized; `EVERYONE` may make a request that needs
    nothing.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler
    models: tuple[int, ...]
    announced_min_version: int
    access: Access
    partitions_of: PartitionsOf | None
    about_the_cluster: bool
    prepare: Prepare | None
    slices: tuple[Slices, ...]

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
    access: Access,
    models: tuple[int, ...] = (),
    announced_min: int | None = None,
    partitions_of: PartitionsOf | None = None,
    about_the_cluster: bool = False,
    prepare: Prepare | None = None,
    slices: tuple[Slices, ...] = (),
) -> Api:
    low, high = versions
    announced = low if announced_min is None else announced_min
    return Api(
        key,
        name,
        low,
        high,
        handler,
        models or (high,),
        announced,
        access,
        partitions_of,
        about_the_cluster,
        prepare,
        slices,
    )


def _each(*needs: tuple[Operation, ResourceType]) -> Access:
    """For each resource that the request names or the answer contains."""
    return Access(each=needs)


def _cluster(
    operation: Operation,
    refuse: Callable[[Entity, ProtocolError], Body] | None = None,
    *,
    instead: Operation | None = None,
) -> Access:
    """On the cluster, for the request as a whole."""
    return Access((Need(operation, ResourceType.CLUSTER, instead=instead),), refuse=refuse)


EVERYONE: Final = Access()
READS_GROUP: Final = Access((Need(READ, GROUP, the_group),))
ALTERS_CONFIGS: Final = _each((ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP), (ALTER_CONFIGS, CLUSTER))


TOPICS: Final = ("topics", "topics")
OF_PARTITIONS: Final = Slices((TOPICS, ("partitions", "partitions")))
OF_INDEXES: Final = Slices((TOPICS, ("partition_indexes", "partitions")))
OF_COMMITS: Final = Slices((TOPICS, ("partitions", "partitions")), elements=1_000, waits_together=True)
"""Each slice is appended to the log, and waits for the replicas."""
OF_GROUPS: Final = Slices(
    (("groups", "groups"), ("topics", "topics"), ("partition_indexes", "partitions")),
    key=lambda group: (group.group_id, group.topics),
    request_bytes_min=256,
)
"""A group without topics is answered with all its offsets, so a small request may have a large answer."""


def _itself(element: Any) -> Any:
    return element


def _announced_versions() -> Iterator[AnnouncedVersions]:
    for api in APIS.values():
        yield AnnouncedVersions(api.key, api.announced_min_version, api.max_version)


APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        _api(
            0,
            "Produce",
            (3, 12),
            produce.handle,
            access=_each((WRITE, TOPIC), (WRITE, TRANSACTIONAL_ID)),
            announced_min=0,
            partitions_of=produce.partitions_of,
            prepare=produce.prepare,
        ),
        _api(
            1,
            "Fetch",
            (4, 17),
            fetch.handle,
            access=_each((READ, TOPIC)),
            models=(12, 17),
            partitions_of=fetch.partitions_of,
        ),
        _api(
            2,
            "ListOffsets",
            (1, 9),
            list_offsets.handle_list_offsets,
            access=_each((DESCRIBE, TOPIC)),
            partitions_of=list_offsets.requested_partitions,
            slices=(OF_PARTITIONS,),
        ),
        _api(
            3,
            "Metadata",
            (0, 12),
            metadata.handle,
            access=_each((DESCRIBE, TOPIC)),
            models=(10, 12),
            slices=(Slices((TOPICS,), key=metadata.topic_key),),
        ),
        _api(
            8,
            "OffsetCommit",
            (2, 10),
            committed_offsets.handle_commit,
            access=Access((Need(READ, GROUP, the_group),), ((READ, TOPIC),), committed_offsets.refuse_commit),
            models=(4, 9, 10),
            partitions_of=classic_groups.partitions_of,
            slices=(OF_COMMITS,),
        ),
        _api(
            9,
            "OffsetFetch",
            (1, 10),
            committed_offsets.handle_fetch,
            access=_each((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
            models=(7, 9, 10),
            partitions_of=committed_offsets.fetched_groups,
            slices=(OF_GROUPS, OF_INDEXES),
        ),
        _api(
            10,
            "FindCoordinator",
            (0, 6),
            find_coordinator.handle,
            access=_each((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID)),
            models=(3, 6),
            slices=(Slices((("coordinator_keys", "coordinators"),)),),
        ),
        _api(
            11,
            "JoinGroup",
            (0, 9),
            classic_groups.handle_join,
            access=READS_GROUP,
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            12,
            "Heartbeat",
            (0, 4),
            classic_groups.handle_heartbeat,
            access=READS_GROUP,
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            13,
            "LeaveGroup",
            (0, 5),
            classic_groups.handle_leave,
            access=READS_GROUP,
            models=(2, 5),
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            14,
            "SyncGroup",
            (0, 5),
            classic_groups.handle_sync,
            access=READS_GROUP,
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            15,
            "DescribeGroups",
            (0, 6),
            classic_groups.handle_describe,
            access=_each((DESCRIBE, GROUP)),
            partitions_of=classic_groups.described_groups,
            slices=(Slices((("groups", "groups"),), key=_itself, request_bytes_min=256),),
        ),
        _api(16, "ListGroups", (0, 5), classic_groups.handle_list, access=_each((DESCRIBE, GROUP))),
        _api(17, "SaslHandshake", (0, 1), sasl.handle_handshake, access=EVERYONE),
        _api(18, "ApiVersions", (0, 4), api_versions.handler_of(_announced_versions), access=EVERYONE),
        _api(
            19,
            "CreateTopics",
            (2, 7),
            topics.handle_create_topics,
            access=_each((CREATE, TOPIC)),
            about_the_cluster=True,
        ),
        _api(
            20,
            "DeleteTopics",
            (1, 6),
            topics.handle_delete_topics,
            access=_each((DELETE, TOPIC)),
            models=(5, 6),
            about_the_cluster=True,
        ),
        _api(
            21,
            "DeleteRecords",
            (0, 2),
            delete_records.handle,
            access=_each((DELETE, TOPIC)),
            partitions_of=list_offsets.requested_partitions,
        ),
        _api(
            22,
            "InitProducerId",
            (0, 5),
            init_producer_id.handle,
            access=_each((WRITE, TOPIC), (WRITE, TRANSACTIONAL_ID)),
            partitions_of=init_producer_id.partitions_of,
        ),
        _api(
            23,
            "OffsetForLeaderEpoch",
            (2, 4),
            list_offsets.handle_offset_for_leader_epoch,
            access=_each((DESCRIBE, TOPIC)),
            partitions_of=list_offsets.partitions_of_epoch_request,
            slices=(OF_PARTITIONS,),
        ),
        _api(
            24,
            "AddPartitionsToTxn",
            (0, 5),
            transactions.handle_add_partitions,
            access=_each((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC), (Operation.CLUSTER_ACTION, CLUSTER)),
            models=(3, 5),
            partitions_of=transactions.added_ids,
        ),
        _api(
            25,
            "AddOffsetsToTxn",
            (0, 4),
            transactions.handle_add_offsets,
            access=Access(
                (Need(WRITE, TRANSACTIONAL_ID, the_transactional_id), Need(READ, GROUP, the_group))
            ),
            partitions_of=transactions.partitions_of,
        ),
        _api(
            26,
            "EndTxn",
            (0, 5),
            transactions.handle_end,
            access=Access((Need(WRITE, TRANSACTIONAL_ID, the_transactional_id),)),
            partitions_of=transactions.partitions_of,
        ),
        _api(
            27,
            "WriteTxnMarkers",
            (1, 2),
            write_txn_markers.handle,
            access=_cluster(Operation.CLUSTER_ACTION, write_txn_markers.refuse, instead=ALTER),
            partitions_of=write_txn_markers.partitions_of,
        ),
        _api(
            28,
            "TxnOffsetCommit",
            (0, 5),
            transactional_offsets.handle,
            access=Access(
                (Need(WRITE, TRANSACTIONAL_ID, the_transactional_id), Need(READ, GROUP, the_group)),
                ((READ, TOPIC),),
                committed_offsets.refuse_commit,
            ),
            models=(2, 5),
            partitions_of=classic_groups.partitions_of,
            slices=(OF_COMMITS,),
        ),
        _api(
            29,
            "DescribeAcls",
            (1, 3),
            acls.handle_describe,
            access=_cluster(DESCRIBE),
            about_the_cluster=True,
        ),
        _api(30, "CreateAcls", (1, 3), acls.handle_create, access=_cluster(ALTER, acls.refuse_create)),
        _api(
            31,
            "DeleteAcls",
            (1, 3),
            acls.handle_delete,
            access=_cluster(ALTER, acls.refuse_delete),
            about_the_cluster=True,
        ),
        _api(
            32,
            "DescribeConfigs",
            (1, 4),
            describe_configs.handle_describe,
            access=_each((DESCRIBE_CONFIGS, TOPIC), (DESCRIBE_CONFIGS, GROUP), (DESCRIBE_CONFIGS, CLUSTER)),
            about_the_cluster=True,
            slices=(Slices((("resources", "results"),), elements=8, key=_itself, request_bytes_min=256),),
        ),
        _api(
            33,
            "AlterConfigs",
            (0, 2),
            alter_configs.handle_alter,
            access=ALTERS_CONFIGS,
            about_the_cluster=True,
        ),
        _api(35, "DescribeLogDirs", (1, 4), describe_log_dirs.handle, access=_cluster(DESCRIBE)),
        _api(36, "SaslAuthenticate", (0, 2), sasl.handle_authenticate, access=EVERYONE),
        _api(
            37,
            "CreatePartitions",
            (0, 3),
            topics.handle_create_partitions,
            access=_each((ALTER, TOPIC)),
            about_the_cluster=True,
        ),
        _api(
            42,
            "DeleteGroups",
            (0, 2),
            classic_groups.handle_delete,
            access=_each((DELETE, GROUP)),
            partitions_of=classic_groups.deleted_groups,
        ),
        _api(
            43,
            "ElectLeaders",
            (0, 2),
            elect_leaders.handle,
            access=_cluster(ALTER, elect_leaders.refuse),
            about_the_cluster=True,
        ),
        _api(
            44,
            "IncrementalAlterConfigs",
            (0, 1),
            alter_configs.handle_incremental_alter,
            access=ALTERS_CONFIGS,
            about_the_cluster=True,
        ),
        _api(
            45,
            "AlterPartitionReassignments",
            (0, 1),
            partition_reassignments.handle_alter,
            access=_cluster(ALTER),
            about_the_cluster=True,
        ),
        _api(
            46,
            "ListPartitionReassignments",
            (0, 0),
            partition_reassignments.handle_list,
            access=_cluster(DESCRIBE),
            about_the_cluster=True,
        ),
        _api(
            47,
            "OffsetDelete",
            (0, 0),
            committed_offsets.handle_delete,
            access=Access((Need(DELETE, GROUP, the_group),), ((READ, TOPIC),)),
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            48,
            "DescribeClientQuotas",
            (0, 1),
            client_quotas.handle_describe,
            access=_cluster(DESCRIBE_CONFIGS),
            about_the_cluster=True,
        ),
        _api(
            49,
            "AlterClientQuotas",
            (0, 1),
            client_quotas.handle_alter,
            access=_cluster(ALTER_CONFIGS, client_quotas.refuse_alter),
            about_the_cluster=True,
        ),
        _api(
            50,
            "DescribeUserScramCredentials",
            (0, 0),
            scram_credentials.handle_describe,
            access=_cluster(DESCRIBE),
            about_the_cluster=True,
        ),
        _api(
            51,
            "AlterUserScramCredentials",
            (0, 0),
            scram_credentials.handle_alter,
            access=_cluster(ALTER, scram_credentials.refuse_alter),
            about_the_cluster=True,
        ),
        _api(60, "DescribeCluster", (0, 1), metadata.handle_describe_cluster, access=EVERYONE),
        _api(
            61,
            "DescribeProducers",
            (0, 0),
            describe_producers.handle,
            access=_each((READ, TOPIC)),
            partitions_of=describe_producers.partitions_of,
            slices=(OF_INDEXES,),
        ),
        _api(
            65,
            "DescribeTransactions",
            (0, 0),
            describe_transactions.handle_describe,
            access=_each((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
            partitions_of=describe_transactions.described_ids,
            slices=(
                Slices((("transactional_ids", "transaction_states"),), key=_itself, request_bytes_min=256),
            ),
        ),
        _api(
            66,
            "ListTransactions",
            (0, 1),
            describe_transactions.handle_list,
            access=_each((DESCRIBE, TRANSACTIONAL_ID)),
        ),
        _api(
            68,
            "ConsumerGroupHeartbeat",
            (0, 1),
            consumer_groups.handle_heartbeat,
            access=Access((Need(READ, GROUP, the_group),), ((DESCRIBE, TOPIC),)),
            partitions_of=classic_groups.partitions_of,
        ),
        _api(
            69,
            "ConsumerGroupDescribe",
            (0, 1),
            consumer_groups.handle_describe,
            access=_each((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
            partitions_of=classic_groups.named_groups,
            slices=(Slices((("group_ids", "groups"),), key=_itself, request_bytes_min=256),),
        ),
        _api(
            74,
            "ListConfigResources",
            (0, 1),
            describe_configs.handle_list,
            access=_cluster(DESCRIBE_CONFIGS),
            about_the_cluster=True,
        ),
        _api(
            75,
            "DescribeTopicPartitions",
            (0, 0),
            describe_topic_partitions.handle,
            access=_each((DESCRIBE, TOPIC)),
            about_the_cluster=True,
        ),
    )
}
