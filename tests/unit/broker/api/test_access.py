"""Every API key with principals that have no rights, rights to something else, and the rights that the table
states (R38). A key that is added to the table without its access does not pass the type checker; one without
a request here fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker, batch, run
from tests.unit.broker.api.test_api_table import sample

from mainstem_broker.api.api_table import APIS, EVERYONE, Api
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.wire import Body
from mainstem_broker.security.acl import (
    CLUSTER_NAME,
    IMPLYING,
    OPERATIONS_ON,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
    Rule,
)
from mainstem_broker.security.principals import Principal

AUTHORIZER: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin",
}
ALICE: Final = Principal("alice")
ADMIN: Final = Principal("admin")
TOPIC_ID: Final = UUID(int=7)
REFUSALS: Final = {
    "topic_authorization_failed",
    "group_authorization_failed",
    "cluster_authorization_failed",
    "transactional_id_authorization_failed",
    "unknown_topic_id",  # of a topic that the client may not see
}
NAMES: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: "t",
    ResourceType.GROUP: "g",
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: "x",
}

_PARTITION: Final = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}
_MEMBER: Final = {"group_id": "g", "member_id": "m", "generation_id": 1}
_DESCRIBED: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_CREATED: Final = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:mallory",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
_SETTING: Final = {"name": "retention.ms", "value": "1"}
_RESOURCES: Final = [{"resource_type": kind, "resource_name": name} for kind, name in ((2, "t"), (4, ""))]

REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Produce": {
        "acks": 1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"secret"])}]}],
    },
    "Fetch": {
        "max_bytes": 1000,
        "topics": [
            {
                "topic_id": TOPIC_ID,
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
            }
        ],
    },
    "ListOffsets": {"topics": [_PARTITION]},
    "Metadata": {"topics": [{"name": "t"}]},
    "OffsetCommit": {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    "OffsetFetch": {
        "groups": [{"group_id": "g", "topics": [{"topic_id": TOPIC_ID, "partition_indexes": [0]}]}]
    },
    "FindCoordinator": {"key_type": 0, "coordinator_keys": ["g"]},
    "JoinGroup": {"group_id": "g", "protocol_type": "consumer"},
    "Heartbeat": _MEMBER,
    "LeaveGroup": {"group_id": "g", "members": [{"member_id": "m"}]},
    "SyncGroup": _MEMBER,
    "DescribeGroups": {"groups": ["g"]},
    "ListGroups": {},
    "SaslHandshake": {"mechanism": "PLAIN"},
    "ApiVersions": {"client_software_name": "kafka", "client_software_version": "4.4.0"},
    "CreateTopics": {
        "topics": [
            {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        ]
    },
    "DeleteTopics": {"topics": [{"name": "t", "topic_id": None}]},
    "DeleteRecords": {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]},
    "InitProducerId": {"transactional_id": None},
    "OffsetForLeaderEpoch": {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    "WriteTxnMarkers": {
        "markers": [
            {
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": True,
                "topics": [{"name": "t", "partition_indexes": [0]}],
                "coordinator_epoch": 0,
            }
        ]
    },
    "AddPartitionsToTxn": {
        "transactions": [
            {
                "transactional_id": "x",
                "producer_id": 1000,
                "producer_epoch": 0,
                "verify_only": False,
                "topics": [{"name": "t", "partitions": [0]}],
            }
        ]
    },
    "AddOffsetsToTxn": {"transactional_id": "x", "group_id": "g", "producer_id": 1, "producer_epoch": 0},
    "EndTxn": {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "committed": True},
    "TxnOffsetCommit": {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": 1,
        "producer_epoch": 0,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    "DescribeTransactions": {"transactional_ids": ["x"]},
    "ListTransactions": {"state_filters": [], "producer_id_filters": []},
    "DescribeAcls": _DESCRIBED,
    "CreateAcls": {"creations": [_CREATED]},
    "DeleteAcls": {"filters": [_DESCRIBED]},
    "DescribeConfigs": {"resources": _RESOURCES},
    "AlterConfigs": {"resources": [{**resource, "configs": [_SETTING]} for resource in _RESOURCES]},
    "DescribeLogDirs": {"topics": None},
    "SaslAuthenticate": {"auth_bytes": b""},
    "CreatePartitions": {"topics": [{"name": "t", "count": 3}]},
    "DeleteGroups": {"groups_names": ["g"]},
    "ElectLeaders": {"topic_partitions": [{"topic": "t", "partitions": [0]}]},
    "IncrementalAlterConfigs": {
        "resources": [
            {**resource, "configs": [{**_SETTING, "config_operation": 0}]} for resource in _RESOURCES
        ]
    },
    "AlterPartitionReassignments": {
        "timeout": 1_000,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}],
    },
    "ListPartitionReassignments": {"topics": None},
    "OffsetDelete": {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
    "DescribeClientQuotas": {"components": [], "strict": False},
    "AlterClientQuotas": {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "u"}],
                "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
            }
        ]
    },
    "DescribeUserScramCredentials": {"users": None},
    "AlterUserScramCredentials": {
        "deletions": [],
        "upsertions": [
            {
                "name": "u",
                "mechanism": 1,
                "iterations": 4096,
                "salt": b"s",
                "salted_password": b"p" * 32,
            }
        ],
    },
    "DescribeCluster": {},
    "DescribeProducers": {"topics": [{"name": "t", "partition_indexes": [0]}]},
    "ConsumerGroupHeartbeat": {
        "group_id": "g",
        "member_id": "m",
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    },
    "ConsumerGroupDescribe": {"group_ids": ["g"]},
    "ListConfigResources": {"resource_types": []},
    "DescribeTopicPartitions": {"topics": [{"name": "t"}]},
}
"""A request for each API about the topic `t`, the group `g` and the cluster."""
ADD_BY_A_PRODUCER: Final = {
    "v3_and_below_transactional_id": "x",
    "v3_and_below_producer_id": 1000,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
}
"""AddPartitionsToTxn up to version 3; later versions are for brokers."""

CLUSTER_OPERATIONS: Final = frozenset(OPERATIONS_ON[ResourceType.CLUSTER])
ALSO_ENOUGH: Final[Mapping[str, set[Operation]]] = {
    "CreateTopics": {Operation.CREATE},
    "DeleteTopics": {Operation.DELETE},  # which only a rule for all operations gives
    "InitProducerId": {Operation.IDEMPOTENT_WRITE},
    "ListGroups": {Operation.DESCRIBE},
    "OffsetForLeaderEpoch": {Operation.CLUSTER_ACTION},
    "WriteTxnMarkers": {Operation.ALTER},
}
"""Rights to the cluster that stand for those to each topic or group, or for another one to the cluster."""
IN_KAFKA: Final = """
    Produce                       WRITE TRANSACTIONAL_ID, WRITE TOPIC
    Fetch                         READ TOPIC
    ListOffsets                   DESCRIBE TOPIC
    Metadata                      DESCRIBE TOPIC
    OffsetCommit                  READ GROUP, READ TOPIC
    OffsetFetch                   DESCRIBE GROUP, DESCRIBE TOPIC
    FindCoordinator               DESCRIBE GROUP, DESCRIBE TRANSACTIONAL_ID
    JoinGroup                     READ GROUP
    Heartbeat                     READ GROUP
    LeaveGroup                    READ GROUP
    SyncGroup                     READ GROUP
    DescribeGroups                DESCRIBE GROUP
    ListGroups                    DESCRIBE GROUP
    CreateTopics                  CREATE TOPIC
    DeleteTopics                  DELETE TOPIC
    DeleteRecords                 DELETE TOPIC
    InitProducerId                WRITE TRANSACTIONAL_ID, WRITE TOPIC
    OffsetForLeaderEpoch          DESCRIBE TOPIC
    AddPartitionsToTxn            WRITE TRANSACTIONAL_ID, WRITE TOPIC, CLUSTER_ACTION CLUSTER
    AddOffsetsToTxn               WRITE TRANSACTIONAL_ID, READ GROUP
    EndTxn                        WRITE TRANSACTIONAL_ID
    WriteTxnMarkers               CLUSTER_ACTION CLUSTER
    TxnOffsetCommit               WRITE TRANSACTIONAL_ID, READ GROUP, READ TOPIC
    DescribeAcls                  DESCRIBE CLUSTER
    CreateAcls                    ALTER CLUSTER
    DeleteAcls                    ALTER CLUSTER
    DescribeConfigs               DESCRIBE_CONFIGS TOPIC, DESCRIBE_CONFIGS GROUP, DESCRIBE_CONFIGS CLUSTER
    AlterConfigs                  ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP, ALTER_CONFIGS CLUSTER
    DescribeLogDirs               DESCRIBE CLUSTER
    CreatePartitions              ALTER TOPIC
    DeleteGroups                  DELETE GROUP
    ElectLeaders                  ALTER CLUSTER
    IncrementalAlterConfigs       ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP, ALTER_CONFIGS CLUSTER
    AlterPartitionReassignments   ALTER CLUSTER
    ListPartitionReassignments    DESCRIBE CLUSTER
    OffsetDelete                  DELETE GROUP, READ TOPIC
    DescribeClientQuotas          DESCRIBE_CONFIGS CLUSTER
    AlterClientQuotas             ALTER_CONFIGS CLUSTER
    DescribeUserScramCredentials  DESCRIBE CLUSTER
    AlterUserScramCredentials     ALTER CLUSTER
    DescribeProducers             READ TOPIC
    DescribeTransactions          DESCRIBE TRANSACTIONAL_ID, DESCRIBE TOPIC
    ListTransactions              DESCRIBE TRANSACTIONAL_ID
    ConsumerGroupHeartbeat        READ GROUP, DESCRIBE TOPIC
    ConsumerGroupDescribe         DESCRIBE GROUP, DESCRIBE TOPIC
    ListConfigResources           DESCRIBE_CONFIGS CLUSTER
    DescribeTopicPartitions       DESCRIBE TOPIC
"""
"""What KafkaApis, ControllerApis, AclApis, ConfigHelper and DescribeTopicPartitionsRequestHandler of Apache
Kafka 4.4.0 ask their authorizer for, without `ALSO_ENOUGH` and what only fills fields of an answer in."""
FILTERED: Final = frozenset(("ListGroups", "ListTransactions"))
"""APIs that answer without an error, and leave out what the client may not see."""


@pytest.fixture
def secured(tmp_path: Path) -> LocalBroker:
    """A broker with an authorizer, whose client is `User:alice`; nobody has rights."""
    return broker_with(tmp_path, AUTHORIZER)


@pytest.fixture
def dry(tmp_path: Path) -> LocalBroker:
    """The same with a dry run of the authorizer."""
    return broker_with(tmp_path, {**AUTHORIZER, "authorizer.dry.run": "true"})


@pytest.fixture
async def coordinating(secured: LocalBroker) -> AsyncIterator[None]:
    """`secured` coordinates all groups."""
    secured.create(OFFSETS_TOPIC)
    shards = secured.context.groups.shards
    shards.follow(0)
    await shards.loading(0)
    yield
    await shards.stop()


def broker_with(folder: Path, settings: Mapping[str, str]) -> LocalBroker:
    broker = LocalBroker(folder, settings)
    broker.create("t", topic_id=TOPIC_ID)
    broker.append("t", [b"stored"])
    broker.principal = ALICE
    return broker


def allow(broker: LocalBroker, operation: Operation, kind: ResourceType, name: str) -> None:
    pattern = ResourcePattern(kind, name)
    present = broker.view.acls.get(pattern, frozenset())
    rule = Rule("User:alice", "*", operation, Permission.ALLOW)
    broker.set_rules(pattern, present | {rule})


def operations_of(api: Api) -> set[tuple[Operation, ResourceType]]:
    return {(need.operation, need.resource) for need in api.access.whole} | set(api.access.each)


def errors_in(value: Any) -> Iterator[str]:
    """The names of all errors in an answer."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name.endswith("error_code"):
                if item != 0:
                    yield ErrorCode(item).name
            else:
                yield from errors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from errors_in(item)


def answer(broker: LocalBroker, api: Api) -> Body:
    return run(broker.answer(api.name, api.max_version, REQUESTS[api.name]))


def state_of(broker: LocalBroker) -> object:
    """What a request may have changed."""
    view = broker.view
    topics = {name: (topic.assignment, topic.config) for name, topic in view.topics.items()}
    replica = broker.replicas.find("t", 0)
    acls = {pattern: rules for pattern, rules in view.acls.items() if rules}
    return (
        topics,
        dict(view.entity_configs),
        dict(view.broker_configs),
        acls,
        None if replica is None else (replica.log.log_start_offset, replica.log.log_end_offset),
    )


def test_every_api_has_a_request_here_and_states_what_it_needs() -> None:
    assert REQUESTS.keys() == {api.name for api in APIS.values()}
    assert {api.name for api in APIS.values() if api.access is EVERYONE} == {
        "ApiVersions",
        "DescribeCluster",  # says no more than each answer to Metadata
        "SaslAuthenticate",
        "SaslHandshake",
    }
    for api in APIS.values():
        for operation, kind in operations_of(api):
            assert operation in OPERATIONS_ON[kind], api.name


def test_each_api_needs_what_it_needs_in_kafka() -> None:
    in_kafka = {}
    for line in IN_KAFKA.strip().splitlines():
        name, needs = line.split(maxsplit=1)
        pairs = (need.split() for need in needs.split(", "))
        in_kafka[name] = {(Operation[operation], ResourceType[kind]) for operation, kind in pairs}
    assert in_kafka == {api.name: operations_of(api) for api in APIS.values() if api.access is not EVERYONE}


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (name, operation)
        for name, operations in ALSO_ENOUGH.items()
        for operation in sorted({*operations, Operation.ALL})
    ],
)
def test_a_right_to_the_cluster_is_enough_where_it_is_in_kafka(
    secured: LocalBroker, name: str, operation: Operation
) -> None:
    secured.principal = ADMIN
    (api,) = (api for api in APIS.values() if api.name == name)
    if operation is not Operation.DELETE:  # of the cluster there is none, so no rule says it
        allow(secured, operation, ResourceType.CLUSTER, CLUSTER_NAME)
        secured.principal = ALICE
    assert not set(errors_in(answer(secured, api))) & REFUSALS


def test_the_record_of_a_deletion_names_the_topic_where_a_rule_does(secured: LocalBroker) -> None:
    """Also of a super user, who may do everything to the cluster as well."""
    secured.principal = ADMIN
    with capture_logs() as logs:
        assert not list(errors_in(run(secured.answer("DeleteTopics", 6, REQUESTS["DeleteTopics"]))))
    assert [log["resource"] for log in logs if log.get("operation") == "Delete"] == ["Topic:t"]


def test_who_may_do_everything_to_the_cluster_deletes_topics_by_name_and_by_id(secured: LocalBroker) -> None:
    """As ControllerApis of Kafka, which asks for DELETE of the cluster first."""
    request = REQUESTS["DeleteTopics"]
    by_id = {"topics": [{"name": None, "topic_id": TOPIC_ID}]}
    assert list(errors_in(run(secured.answer("DeleteTopics", 6, request)))) == ["topic_authorization_failed"]
    assert list(errors_in(run(secured.answer("DeleteTopics", 6, by_id)))) == ["unknown_topic_id"]
    allow(secured, Operation.ALL, ResourceType.CLUSTER, CLUSTER_NAME)
    assert not list(errors_in(run(secured.answer("DeleteTopics", 6, by_id))))
    assert "t" not in secured.view.topics
    secured.create("t")
    assert not list(errors_in(run(secured.answer("DeleteTopics", 6, request))))


LIMITED: Final = [
    pytest.param(api, id=api.name)
    for api in APIS.values()
    if api.access is not EVERYONE and api.name not in FILTERED
]


@pytest.mark.parametrize("api", LIMITED)
@pytest.mark.parametrize("rights", ["none", "to something else", "other operations"])
def test_without_the_right_a_request_is_refused_and_changes_nothing(
    secured: LocalBroker, api: Api, rights: str
) -> None:
    needed = operations_of(api)
    if rights == "to something else":
        if api.name == "InitProducerId":
            return  # the right to write to any topic is what it needs
        for operation, kind in needed:
            if kind is not ResourceType.CLUSTER:
                allow(secured, operation, kind, "other")
        for operation in CLUSTER_OPERATIONS - ALSO_ENOUGH.get(api.name, set()):
            if not any(operation is one or operation in IMPLYING.get(one, ()) for one, _ in needed):
                allow(secured, operation, ResourceType.CLUSTER, CLUSTER_NAME)
    if rights == "other operations":
        allow(secured, Operation.CREATE_TOKENS, ResourceType.TOPIC, "t")
        allow(secured, Operation.CREATE_TOKENS, ResourceType.GROUP, "g")
    before = state_of(secured)
    errors = list(errors_in(answer(secured, api)))
    assert errors, api.name
    assert set(errors) <= REFUSALS, api.name
    assert state_of(secured) == before


Right = tuple[Operation, ResourceType]
_GROUP: Final[Right] = (Operation.READ, ResourceType.GROUP)
_GROUP_DESCRIBED: Final[Right] = (Operation.DESCRIBE, ResourceType.GROUP)
_GROUP_DELETED: Final[Right] = (Operation.DELETE, ResourceType.GROUP)
_TRANSACTION: Final[Right] = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
_READ: Final[Right] = (Operation.READ, ResourceType.TOPIC)
_WRITE: Final[Right] = (Operation.WRITE, ResourceType.TOPIC)
_TOPIC_DESCRIBED: Final[Right] = (Operation.DESCRIBE, ResourceType.TOPIC)
JOINT: Final[Sequence[tuple[str, int, Mapping[str, Any], set[Right]]]] = (
    ("Produce", 11, {**REQUESTS["Produce"], "transactional_id": "x"}, {_WRITE, _TRANSACTION}),
    ("OffsetCommit", 10, REQUESTS["OffsetCommit"], {_GROUP, _READ}),
    ("OffsetFetch", 10, REQUESTS["OffsetFetch"], {_GROUP_DESCRIBED, _TOPIC_DESCRIBED}),
    ("AddPartitionsToTxn", 3, ADD_BY_A_PRODUCER, {_TRANSACTION, _WRITE}),
    ("AddOffsetsToTxn", 4, REQUESTS["AddOffsetsToTxn"], {_TRANSACTION, _GROUP}),
    ("TxnOffsetCommit", 5, REQUESTS["TxnOffsetCommit"], {_TRANSACTION, _GROUP, _READ}),
    ("OffsetDelete", 0, REQUESTS["OffsetDelete"], {_GROUP_DELETED, _READ}),
    ("ConsumerGroupHeartbeat", 1, REQUESTS["ConsumerGroupHeartbeat"], {_GROUP, _TOPIC_DESCRIBED}),
)
"""Requests that need several rights together: API, version, request, rights."""


@pytest.mark.usefixtures("coordinating")
@pytest.mark.parametrize(
    ("case", "missing"),
    [
        pytest.param(case, missing, id=f"{case[0]} without {missing[0].name} of a {missing[1].name}")
        for case in JOINT
        for missing in sorted(case[3])
    ],
)
async def test_each_of_the_rights_that_a_request_needs_together_is_asked_for(
    secured: LocalBroker, case: tuple[str, int, Mapping[str, Any], set[Right]], missing: Right
) -> None:
    name, version, request, needed = case
    secured.principal = ADMIN
    assert not list(errors_in(await secured.answer("OffsetCommit", 10, REQUESTS["OffsetCommit"])))
    secured.principal = ALICE
    for operation, kind in needed - {missing}:
        allow(secured, operation, kind, NAMES[kind])
    assert set(errors_in(await secured.answer(name, version, request))) & REFUSALS
    allow(secured, *missing, NAMES[missing[1]])
    assert not set(errors_in(await secured.answer(name, version, request))) & REFUSALS


@pytest.mark.parametrize("operation", [Operation.CLUSTER_ACTION, Operation.ALTER])
def test_who_may_alter_the_cluster_ends_hanging_transactions(
    secured: LocalBroker, operation: Operation
) -> None:
    """KIP-1037: kafka-transactions abort, without the right to act as a broker."""
    allow(secured, operation, ResourceType.CLUSTER, CLUSTER_NAME)
    body = run(secured.answer("WriteTxnMarkers", 1, REQUESTS["WriteTxnMarkers"]))
    assert not set(errors_in(body)) & REFUSALS


CHANGING: Final = (
    "Produce",
    "DeleteTopics",
    "DeleteRecords",
    "CreateAcls",
    "AlterConfigs",
    "CreatePartitions",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "AlterClientQuotas",
    "AlterUserScramCredentials",
)
"""APIs whose requests change what `state_of` shows, which has no groups and no transactions."""


@pytest.mark.parametrize("api", [api for api in LIMITED if api.id in CHANGING])
def test_the_requests_that_change_nothing_without_the_right_change_something_with_it(
    secured: LocalBroker, api: Api
) -> None:
    secured.principal = ADMIN
    before = state_of(secured)
    answer(secured, api)
    assert state_of(secured) != before


@pytest.mark.parametrize("api", [pytest.param(api, id=api.name) for api in APIS.values()])
def test_with_the_right_a_request_is_not_refused(secured: LocalBroker, api: Api) -> None:
    for operation, kind in operations_of(api):
        allow(secured, operation, kind, NAMES[kind])
    assert not set(errors_in(answer(secured, api))) & REFUSALS


@pytest.mark.parametrize("api", LIMITED)
def test_every_refusal_is_in_the_audit_log(secured: LocalBroker, api: Api) -> None:
    with capture_logs() as lines:
        answer(secured, api)
    denied = [line for line in lines if line["event"] == "audit"]
    assert denied
    for line in denied:
        assert line["category"] == line["outcome"] == "denied"
        assert (line["principal"], line["host"], line["client_id"]) == ("User:alice", "127.0.0.1", "client")
        assert line["rule"] in ("no rule is about the resource", "no rule allows it")
        assert line["resource"]
        assert line["operation"]


@pytest.mark.parametrize(
    "version",
    [
        pytest.param((api, v), id=f"{api.name}-v{v}")
        for api in APIS.values()
        for v in range(api.min_version, api.max_version + 1)
    ],
)
def test_the_refusal_of_every_version_is_in_its_schema(
    secured: LocalBroker, version: tuple[Api, int]
) -> None:
    api, number = version
    run(secured.answer(api.name, number, sample(api.name, number)))


# --- What must not be revealed ---


@pytest.mark.parametrize("api", LIMITED)
def test_in_a_dry_run_nothing_is_refused_and_what_would_be_is_in_the_audit_log(
    dry: LocalBroker, api: Api
) -> None:
    with capture_logs() as lines:
        assert not set(errors_in(answer(dry, api))) & REFUSALS
    recorded = [line for line in lines if line["event"] == "audit" and line["category"] == "denied"]
    assert recorded
    for line in recorded:
        assert line["outcome"] == "allowed"
        assert line["rule"] in ("dry run: no rule is about the resource", "dry run: no rule allows it")


@pytest.mark.parametrize("api", LIMITED)
def test_in_a_dry_run_what_a_rule_allows_is_not_recorded_as_denied(dry: LocalBroker, api: Api) -> None:
    for operation, kind in operations_of(api):
        allow(dry, operation, kind, NAMES[kind])
    with capture_logs() as lines:
        answer(dry, api)
    assert [line for line in lines if line["event"] == "audit" and line["category"] == "denied"] == []


def test_metadata_leaves_out_what_a_client_may_not_see(secured: LocalBroker) -> None:
    secured.create("mine")
    allow(secured, Operation.WRITE, ResourceType.TOPIC, "mine")
    body = run(secured.answer("Metadata", 12, {"topics": None}))
    assert [(topic["name"], topic["error_code"]) for topic in body["topics"]] == [("mine", 0)]


def test_metadata_answers_the_same_for_a_hidden_topic_and_for_none(secured: LocalBroker) -> None:
    def asked(name: str) -> Body:
        body = run(secured.answer("Metadata", 12, {"topics": [{"name": name}]}))
        (topic,) = body["topics"]
        return {key: value for key, value in topic.items() if key != "name"}

    def asked_by_id(topic_id: UUID) -> Body:
        body = run(secured.answer("Metadata", 12, {"topics": [{"topic_id": topic_id, "name": None}]}))
        (topic,) = body["topics"]
        return {key: value for key, value in topic.items() if key != "topic_id"}

    assert asked("t") == asked("there-is-none")
    assert asked("t")["error_code"] == ErrorCode.topic_authorization_failed
    assert asked_by_id(TOPIC_ID) == asked_by_id(UUID(int=8))
    assert asked_by_id(TOPIC_ID)["error_code"] == ErrorCode.unknown_topic_id
    assert "there-is-none" not in secured.view.topics


def test_metadata_creates_no_topic_for_a_client_that_may_only_describe_it(secured: LocalBroker) -> None:
    allow(secured, Operation.DESCRIBE, ResourceType.TOPIC, "new")
    body = run(secured.answer("Metadata", 12, {"topics": [{"name": "new"}]}))
    assert body["topics"][0]["error_code"] == ErrorCode.topic_authorization_failed
    assert "new" not in secured.view.topics
    allow(secured, Operation.CREATE, ResourceType.TOPIC, "new")
    run(secured.answer("Metadata", 12, {"topics": [{"name": "new"}]}))
    assert "new" in secured.view.topics


def test_the_partitions_of_hidden_topics_are_not_listed(secured: LocalBroker) -> None:
    secured.create("mine")
    allow(secured, Operation.DESCRIBE, ResourceType.TOPIC, "mine")
    body = run(secured.answer("DescribeTopicPartitions", 0, {"topics": []}))
    assert [topic["name"] for topic in body["topics"]] == ["mine"]


def test_a_topic_that_is_visible_and_may_not_be_read_says_so(secured: LocalBroker) -> None:
    allow(secured, Operation.DESCRIBE, ResourceType.TOPIC, "t")
    errors = list(errors_in(answer(secured, APIS[1])))
    assert errors == ["topic_authorization_failed"]


def test_of_several_topics_only_the_allowed_ones_are_read(secured: LocalBroker) -> None:
    secured.create("mine", topic_id=UUID(int=9))
    secured.append("mine", [b"a"])
    allow(secured, Operation.READ, ResourceType.TOPIC, "mine")
    (topic,) = REQUESTS["Fetch"]["topics"]
    topics = [topic, {**topic, "topic_id": UUID(int=9)}]
    body = run(secured.answer("Fetch", 17, {**REQUESTS["Fetch"], "topics": topics}))
    hidden, mine = (response["partitions"][0] for response in body["responses"])
    assert (hidden["error_code"], hidden["records"]) == (ErrorCode.unknown_topic_id, b"")
    assert mine["error_code"] == 0
    assert mine["records"].size_bytes > 0


async def test_a_right_that_is_taken_back_while_a_fetch_waits_is_lost_for_its_answer(
    secured: LocalBroker,
) -> None:
    allow(secured, Operation.READ, ResourceType.TOPIC, "t")
    position = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
    topics = [{"topic_id": TOPIC_ID, "partitions": [position]}]
    asked = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1000, "topics": topics}
    waiting = asyncio.create_task(secured.answer("Fetch", 17, asked))
    await settle()
    assert not waiting.done()
    secured.set_rules(ResourcePattern(ResourceType.TOPIC, "t"), ())
    secured.append("t", [b"secret"])
    assert list(errors_in(await waiting)) == ["unknown_topic_id"]


@pytest.mark.usefixtures("coordinating")
@pytest.mark.parametrize(
    ("name", "version", "request_fields"),
    [
        ("Metadata", 12, {"topics": [{"topic_id": TOPIC_ID, "name": None}]}),
        ("DeleteTopics", 6, {"topics": [{"name": None, "topic_id": TOPIC_ID}]}),
        ("OffsetCommit", 10, REQUESTS["OffsetCommit"]),
        ("OffsetFetch", 10, REQUESTS["OffsetFetch"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_request_for_a_hidden_topic_by_its_id_is_in_the_audit_log(
    secured: LocalBroker, name: str, version: int, request_fields: Mapping[str, Any]
) -> None:
    """R38: the client is answered as if there were no such topic, so the record is the only trace."""
    allow(secured, Operation.ALL, ResourceType.GROUP, "g")
    with capture_logs() as lines:
        assert list(errors_in(await secured.answer(name, version, request_fields))) == ["unknown_topic_id"]
    assert ("denied", "Describe", "Topic:t") in [
        (line["category"], line["operation"], line["resource"]) for line in lines if line["event"] == "audit"
    ]


@pytest.mark.parametrize(
    ("name", "resource", "change"),
    [
        ("AlterUserScramCredentials", "User:u", "SCRAM-SHA-256"),
        ("AlterClientQuotas", "user:u", "producer_byte_rate=1"),
    ],
)
def test_a_change_of_a_user_names_the_user_in_the_audit_log_and_no_secret(
    secured: LocalBroker, name: str, resource: str, change: str
) -> None:
    """R38"""
    secured.principal = ADMIN
    (api,) = (api for api in APIS.values() if api.name == name)
    with capture_logs() as lines:
        answer(secured, api)
    records = [line for line in lines if line["event"] == "audit" and line["resource"] == resource]
    assert [(record["outcome"], record["rule"]) for record in records] == [("set", change)]
    assert all(record["principal"] == "User:admin" for record in records)
    assert "pppp" not in str(lines)


@pytest.mark.usefixtures("coordinating")
async def test_a_regular_expression_of_a_group_finds_only_topics_that_the_client_may_describe(
    secured: LocalBroker,
) -> None:
    """R38: the answer to a heartbeat has ids and partitions, also after ACLs change."""
    mine = secured.create("pay-mine")
    hidden = secured.create("pay-hidden")
    allow(secured, Operation.READ, ResourceType.GROUP, "g")
    allow(secured, Operation.DESCRIBE, ResourceType.TOPIC, "pay-mine")
    request: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    joining = {"rebalance_timeout": 1_000, "subscribed_topic_regex": "pay-.*", "topic_partitions": []}

    async def heartbeat(epoch: int, **more: Any) -> tuple[int, set[UUID] | None]:
        body = await secured.answer("ConsumerGroupHeartbeat", 1, {**request, "member_epoch": epoch, **more})
        assert body["error_code"] == 0
        assignment = body["assignment"]
        topics = None if assignment is None else assignment["topic_partitions"]
        return body["member_epoch"], None if topics is None else {topic["topic_id"] for topic in topics}

    assert await heartbeat(0, subscribed_topic_names=None, **joining) == (1, {mine})
    unchanged = {"subscribed_topic_names": None, "topic_partitions": None}
    assert await heartbeat(1, **unchanged) == (1, None)
    allow(secured, Operation.DESCRIBE, ResourceType.TOPIC, "pay-hidden")
    assert await heartbeat(1, **unchanged) == (2, {mine, hidden})
    secured.set_rules(ResourcePattern(ResourceType.TOPIC, "pay-hidden"), ())
    assert await heartbeat(2, **unchanged) == (2, {mine})


# --- Requests of brokers ---


def test_only_a_broker_may_replicate(secured: LocalBroker) -> None:
    allow(secured, Operation.ALL, ResourceType.TOPIC, "t")
    request = {**REQUESTS["Fetch"], "replica_state": {"replica_id": 2, "replica_epoch": 1}}
    refused = run(secured.answer("Fetch", 17, request))
    assert refused["error_code"] == ErrorCode.cluster_authorization_failed
    assert refused["responses"] == ()
    allow(secured, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert run(secured.answer("Fetch", 17, request))["error_code"] == 0


def test_only_a_broker_that_calls_itself_the_admin_client_may_write_internal_topics(
    secured: LocalBroker,
) -> None:
    secured.create("__consumer_offsets")
    allow(secured, Operation.ALL, ResourceType.TOPIC, "__consumer_offsets")
    data = {"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": batch([b"a"])}]}

    def produce() -> list[str]:
        return list(errors_in(run(secured.answer("Produce", 9, {"acks": 1, "topic_data": [data]}))))

    assert produce() == ["invalid_topic_exception"]
    secured.client_id = "__admin_client"
    assert produce() == ["topic_authorization_failed"]
    allow(secured, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert produce() == []


# --- Authorized operations ---


@pytest.mark.parametrize(("name", "version"), [("Metadata", 10), ("DescribeCluster", 1)])
def test_the_operations_on_the_cluster_are_those_that_are_allowed(
    secured: LocalBroker, name: str, version: int
) -> None:
    asked = {"include_cluster_authorized_operations": True}
    field = "cluster_authorized_operations"
    assert run(secured.answer(name, version, asked))[field] == 0
    allow(secured, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    expected = 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    assert run(secured.answer(name, version, asked))[field] == expected
    assert field not in run(secured.answer(name, version, {}))


def test_the_operations_on_topics_and_groups_are_those_that_are_allowed(secured: LocalBroker) -> None:
    allow(secured, Operation.WRITE, ResourceType.TOPIC, "t")
    allow(secured, Operation.READ, ResourceType.GROUP, "g")
    request = {"topics": [{"name": "t"}], "include_topic_authorized_operations": True}
    (topic,) = run(secured.answer("Metadata", 12, request))["topics"]
    assert topic["topic_authorized_operations"] == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    request = {"topics": [{"name": "t"}]}
    (topic,) = run(secured.answer("DescribeTopicPartitions", 0, request))["topics"]
    assert topic["topic_authorized_operations"] == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    request = {"groups": ["g"], "include_authorized_operations": True}
    (group,) = run(secured.answer("DescribeGroups", 5, request))["groups"]
    assert group["authorized_operations"] == 1 << Operation.READ | 1 << Operation.DESCRIBE


def test_without_an_authorizer_all_operations_are_allowed(broker: LocalBroker) -> None:
    body = run(broker.answer("DescribeCluster", 1, {"include_cluster_authorized_operations": True}))
    expected = sum(1 << operation for operation in OPERATIONS_ON[ResourceType.CLUSTER])
    assert body["cluster_authorized_operations"] == expected
