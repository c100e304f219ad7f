"""Names, partitions, settings and limits that do not exist or make no sense get their protocol error."""

from __future__ import annotations

import re
from typing import Final

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.wire import (
    Connection,
    fetch,
    fetch_fields,
    list_offset,
    produce,
)

pytestmark = pytest.mark.usefixtures("unharmed")

GOOD: Final = encode_batch([Message(b"good", b"key"), Message(b"better", b"key")])


BAD_NAMES: Final = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "x" * 250,
    "größe",
    "a b",
    "a\x00b",
    "a\nb",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_an_invalid_topic_name_is_refused_everywhere(
    local_stack: Cluster, leader_address: str, name: str
) -> None:
    before = sorted(path for path in local_stack.data_directory.rglob("*") if path.is_dir())
    with Connection(leader_address) as connection:
        metadata = connection.ask(
            "metadata",
            9,
            topics=[{"name": name}],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert metadata.topics[0].error_code == ErrorCode.invalid_topic_exception
        created = connection.ask(
            "create_topics",
            5,
            topics=[
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            ],
            timeout=30_000,
            validate_only=False,
        )
        assert created.topics[0].error_code == ErrorCode.invalid_topic_exception
        refused = {ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception}
        assert produce(connection, name, 0, GOOD).error_code in refused
        assert fetch(connection, name, 0, 0).error_code in refused
        assert list_offset(connection, name, 0, -1).error_code in refused
        deleted = connection.ask("delete_topics", 5, topic_names=[name], timeout=1_000)
        assert deleted.responses[0].error_code in refused
    after = sorted(path for path in local_stack.data_directory.rglob("*") if path.is_dir())
    assert [
        path for path in after if path not in before and not re.search(r"topic-|/zookeeper/", str(path))
    ] == []


@pytest.mark.parametrize("min_bytes", [-1, 0, 2**31 - 1])
@pytest.mark.parametrize("max_bytes", [-1, -(2**31), 0, 1, 2**31 - 1])
def test_fetch_limits_of_any_size_are_harmless(
    leader_address: str, topic: str, min_bytes: int, max_bytes: int
) -> None:
    with Connection(leader_address) as connection:
        produce(connection, topic, 0, GOOD)
        limits = {"min_bytes": min_bytes, "max_bytes": max_bytes, "partition_max_bytes": max_bytes}
        answer = connection.ask("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=100, **limits))
        if max_bytes >= 0:
            assert answer.responses[0].partitions[0].error_code == ErrorCode.none
