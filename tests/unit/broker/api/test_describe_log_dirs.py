from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.protocol.wire import Body


def directory(broker: LocalBroker, topics: list[tuple[str, list[int]]] | None, version: int = 4) -> Body:
    """What is told of the only data directory."""
    requests: dict[str, Any] = {
        "topics": topics and [{"topic": name, "partitions": indexes} for name, indexes in topics]
    }
    answer = run(broker.answer("DescribeLogDirs", version, requests))
    assert answer["error_code"] == 0
    (result,) = answer["results"]
    assert result["log_dir"] == str(broker.replicas.logs.directories[0])
    return result  # type: ignore[no-any-return]  # bodies hold anything


def sizes(result: Body) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], one["partition_index"]): one["partition_size"]
        for topic in result["topics"]
        for one in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(1, 5))
def test_a_directory_tells_the_sizes_of_what_lies_in_it_and_of_its_disk(
    broker: LocalBroker, version: int
) -> None:
    broker.create("t", [1, 1])
    broker.append("t", [b"x" * 1_000], index=1)
    result = directory(broker, None, version)
    log = broker.partition("t", 1).log
    assert sizes(result) == {("t", 0): 0, ("t", 1): log.size_bytes}
    assert result["error_code"] == 0
    assert 0 < result["usable_bytes"] < result["total_bytes"]
    (topic,) = result["topics"]
    assert {(one["offset_lag"], one["is_future_key"]) for one in topic["partitions"]} == {(0, False)}


def test_only_the_partitions_asked_for_are_reported(broker: LocalBroker) -> None:
    broker.create("t", [1, 1])
    broker.create("u")
    assert sizes(directory(broker, [("t", [1, 7]), ("nowhere", [0])])) == {("t", 1): 0}


def test_a_failed_directory_is_named_with_its_error(broker: LocalBroker) -> None:
    broker.create("t")
    broker.replicas.fail(broker.replicas.logs.directories[0])
    result = directory(broker, None)
    assert ErrorCode(result["error_code"]).name == "kafka_storage_error"
    assert (result["topics"], result["total_bytes"], result["usable_bytes"]) == ([], -1, -1)
