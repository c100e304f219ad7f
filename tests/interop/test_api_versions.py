"""Versions are listed as clients expect, and every listed one is understood (trap T1)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.group_requests import harmless_question
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.wire import Connection, fetch_fields, produce, produce_fields

PRODUCE, FETCH = 0, 1


def _advertised(connection: Connection) -> dict[int, range]:
    answer = connection.ask("api_versions", 0)
    return {int(key.api_key): range(key.min_version, key.max_version + 1) for key in answer.api_keys}


def test_trap_01_librdkafka_compresses_only_where_produce_0_is_listed(leader: Connection) -> None:
    """librdkafka#4956: 0 for any compression, exactly 7 for zstd, and Fetch 10 to read that."""
    advertised = _advertised(leader)

    assert {0, 3, 7, 9} <= set(advertised[PRODUCE])
    assert {4, 10, 11, 12} <= set(advertised[FETCH])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_trap_01_but_produce_below_3_is_refused(leader: Connection, topic: str, version: int) -> None:
    # acks, timeout, one topic, one partition, an empty record set: the layout of versions 0 to 2.
    name = topic.encode()
    body = (
        struct.pack(">hii", 1, 1_000, 1) + struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, 0)
    )
    leader.send_frame(struct.pack(">hhih", PRODUCE, version, 1, -1) + body)

    try:
        frame = leader.receive_frame()
    except ConnectionError:
        return
    # An answer in that version: correlation id, topics, name, partitions, index, then the error.
    (error,) = struct.unpack_from(">h", frame, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == ErrorCode.unsupported_version


def test_every_listed_version_is_understood(leader: Connection, topic: str, reference: bool) -> None:
    """Each answer decodes to its last byte in its version, so no field is shifted or missing."""
    produce(leader, topic, 0, encode_batch([Message(b"x")]))
    requests: dict[str, set[int]] = {}
    not_asked: list[tuple[int, int]] = []
    for api_key, versions in _advertised(leader).items():
        for version in versions:
            question = _question(api_key, version, topic)
            if question is None:
                not_asked.append((api_key, version))
            else:
                name, fields = question
                leader.ask(name, version, **fields)
                requests.setdefault(name, set()).add(version)

    # What clients of this decade need at least.
    assert {3, 7, 8, 9} <= requests["produce"]
    assert {4, 10, 11, 12} <= requests["fetch"]
    assert {1, 2, 4, 5, 7} <= requests["list_offsets"]
    assert {0, 1, 5, 8, 9, 12} <= requests["metadata"]
    assert requests.keys() >= {
        "api_versions", "create_topics", "delete_topics", "delete_records", "describe_configs",
        "create_partitions", "incremental_alter_configs", "describe_cluster", "find_coordinator",
        "join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "offset_fetch",
        "offset_delete", "describe_groups", "list_groups", "delete_groups", "alter_configs",
        "describe_log_dirs", "describe_client_quotas", "alter_client_quotas",
    }  # fmt: skip
    # Listed though refused, for the clients' sake; and those that name topics by id.
    by_id = {(key, version) for key, version in not_asked if key in (PRODUCE, FETCH) and version >= 13}
    refused = {(PRODUCE, 0), (PRODUCE, 1), (PRODUCE, 2)}
    untested = [pair for pair in not_asked if pair not in by_id | refused]
    assert reference or not untested, f"this test has no question for {untested}"


def _question(api_key: int, version: int, topic: str) -> tuple[str, dict[str, Any]] | None:
    """Name and fields of a harmless request; None where topics go by id, or the key is not of this list."""
    nobody = "topic-that-is-not-there"
    match api_key:
        case 0 if 3 <= version < 13:
            return "produce", produce_fields(topic, 0, encode_batch([Message(b"x")]))
        case 1 if 4 <= version < 13:
            return "fetch", fetch_fields([(topic, 0, 0)], version=version)
        case 2:
            fields: dict[str, Any] = {
                "replica_id": -1,
                "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            }
            if version >= 2:
                fields["isolation_level"] = 0
            if version >= 10:
                fields["timeout"] = 1_000
            return "list_offsets", fields
        case 3:
            fields = {"topics": [{"name": topic} | ({"topic_id": None} if version >= 10 else {})]}
            if version >= 4:
                fields["allow_auto_topic_creation"] = False
            if 8 <= version <= 10:
                fields["include_cluster_authorized_operations"] = True
            if version >= 8:
                fields["include_topic_authorized_operations"] = True
            return "metadata", fields
        case 10:
            if version >= 4:
                return "find_coordinator", {"key_type": 0, "coordinator_keys": ["group"]}
            return "find_coordinator", {"key": "group"} | ({"key_type": 0} if version >= 1 else {})
        case 17:
            return "sasl_handshake", {"mechanism": "PLAIN"}
        case 18:
            return "api_versions", (
                {"client_software_name": "x", "client_software_version": "1"} if version >= 3 else {}
            )
        case 19:
            new = {
                "name": topic,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            return "create_topics", {"topics": [new], "timeout": 1_000, "validate_only": True}
        case 20:
            if version >= 6:
                return "delete_topics", {"topics": [{"name": nobody, "topic_id": None}], "timeout": 1_000}
            return "delete_topics", {"topic_names": [nobody], "timeout": 1_000}
        case 21:
            partitions = [{"partition_index": 0, "offset": 0}]
            return "delete_records", {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1_000}
        case 22:
            fields = {"transactional_id": None, "transaction_timeout": 60_000}
            return "init_producer_id", fields | (
                {"producer_id": -1, "producer_epoch": -1} if version >= 3 else {}
            )
        case 23:
            partitions = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
            fields = {"topics": [{"topic": topic, "partitions": partitions}]}
            return "offset_for_leader_epoch", fields | ({"replica_id": -1} if version >= 3 else {})
        case 24 if version >= 4:
            nothing = {"transactional_id": "nobody", "producer_id": 1, "producer_epoch": 0, "topics": []}
            return "add_partitions_to_txn", {"transactions": [nothing | {"verify_only": True}]}
        case 24:
            return "add_partitions_to_txn", {
                "v3_and_below_transactional_id": "nobody",
                "v3_and_below_producer_id": 1,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
            }
        case 25 | 26 | 28:
            fields = {"transactional_id": "nobody", "producer_id": 1, "producer_epoch": 0}
            if api_key == 25:
                return "add_offsets_to_txn", fields | {"group_id": "group"}
            if api_key == 26:
                return "end_txn", fields | {"committed": False}
            member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
            return "txn_offset_commit", fields | {
                "group_id": "group",
                "topics": [],
                **(member if version >= 3 else {}),
            }
        case 32:
            resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
            fields = {"resources": [resource], "include_synonyms": True}
            if version >= 3:
                fields["include_documentation"] = True
            return "describe_configs", fields
        case 33:
            settings = [{"name": "retention.ms", "value": "60000"}]
            altered = {"resource_type": 2, "resource_name": topic, "configs": settings}
            return "alter_configs", {"resources": [altered], "validate_only": True}
        case 35:
            return "describe_log_dirs", {"topics": [{"topic": topic, "partitions": [0]}]}
        case 36:
            return "sasl_authenticate", {"auth_bytes": b""}
        case 37:
            grown = {"name": topic, "count": 2, "assignments": None}
            return "create_partitions", {"topics": [grown], "timeout": 1_000, "validate_only": True}
        case 43:
            fields = {"topic_partitions": [{"topic": topic, "partitions": [0]}], "timeout": 1_000}
            return "elect_leaders", fields | ({"election_type": 0} if version >= 1 else {})
        case 44:
            config = {"name": "retention.ms", "config_operation": 0, "value": "60000"}
            resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
            return "incremental_alter_configs", {"resources": [resource], "validate_only": True}
        case 45:
            cancelled = {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]}
            fields = {"topics": [cancelled], "timeout": 1_000}
            return "alter_partition_reassignments", fields | (
                {"allow_replication_factor_change": True} if version >= 1 else {}
            )
        case 46:
            requested = {"name": topic, "partition_indexes": [0]}
            return "list_partition_reassignments", {"topics": [requested], "timeout": 1_000}
        case 48:
            component = {"entity_type": "user", "match_type": 2, "match": None}
            return "describe_client_quotas", {"components": [component], "strict": False}
        case 49:
            change = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
            entry = {"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": [change]}
            return "alter_client_quotas", {"entries": [entry], "validate_only": True}
        case 27:
            return "write_txn_markers", {"markers": []}
        case 29 | 31:
            everything = {
                "resource_type_filter": 2, "resource_name_filter": nobody, "pattern_type_filter": 3,
                "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
            }  # fmt: skip
            if api_key == 29:
                return "describe_acls", everything
            return "delete_acls", {"filters": [everything]}
        case 30:
            return "create_acls", {"creations": []}
        case 50:
            return "describe_user_scram_credentials", {"users": None}
        case 51:
            deleted = {"name": "nobody", "mechanism": 1}
            return "alter_user_scram_credentials", {"deletions": [deleted], "upsertions": []}
        case 60:
            fields = {"include_cluster_authorized_operations": True}
            if version >= 1:
                fields["endpoint_type"] = 1
            if version >= 2:
                fields["include_fenced_brokers"] = False
            return "describe_cluster", fields
        case 61:
            return "describe_producers", {"topics": [{"name": topic, "partition_indexes": [0]}]}
        case 65:
            return "describe_transactions", {"transactional_ids": ["nobody"]}
        case 66:
            fields = {"state_filters": [], "producer_id_filters": []}
            return "list_transactions", fields | ({"duration_filter": -1} if version >= 1 else {})
        case 74:
            return "list_config_resources", {"resource_types": [2]} if version >= 1 else {}
        case 75:
            fields = {"topics": [{"name": topic}], "response_partition_limit": 1}
            fields["cursor"] = {"topic_name": topic, "partition_index": 0}
            return "describe_topic_partitions", fields
        case _:
            return harmless_question(api_key, version, topic)
