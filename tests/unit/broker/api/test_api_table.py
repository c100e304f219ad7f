from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.api.brokers import LocalBroker, batch, make, read_by_client, run
from tests.unit.broker.protocol.schema_strategies import REQUESTS, request_schema

from mainstem_broker import api
from mainstem_broker.api.api_table import APIS, Api

TOPIC_ID = UUID(int=7)

SAMPLES: dict[str, dict[str, Any]] = {
    "ApiVersions": {"client_software_name": "kafka", "client_software_version": "4.4.0"},
    "Produce": {
        "acks": 1,
        "topic_data": [
            {"name": "t", "partition_data": [{"index": i, "records": batch([b"a"])} for i in (0, 1)]}
        ],
    },
    "Fetch": {
        "max_bytes": 1000,
        "topics": [
            {
                "topic": "t",
                "partitions": [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 1} for i in (0, 1)],
            }
        ],
    },
    "ListOffsets": {
        "topics": [{"name": "t", "partitions": [{"partition_index": i, "timestamp": -1} for i in (0, 1)]}]
    },
    "Metadata": {"topics": [{"name": "t"}, {"name": "a b"}]},
    "CreateTopics": {
        "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            for name in ("new", "t")
        ]
    },
    "DeleteRecords": {
        "topics": [{"name": "t", "partitions": [{"partition_index": i, "offset": 0} for i in (0, 1)]}]
    },
    "OffsetForLeaderEpoch": {
        "topics": [{"topic": "t", "partitions": [{"partition": i, "leader_epoch": 0} for i in (0, 1)]}]
    },
    "DescribeConfigs": {
        "resources": [
            {"resource_type": kind, "resource_name": name}
            for kind, name in ((2, "t"), (4, "1"), (4, ""), (2, "x"))
        ]
    },
    "DescribeProducers": {"topics": [{"name": "t", "partition_indexes": [0, 1]}]},
    "CreatePartitions": {"topics": [{"name": name, "count": 3} for name in ("t", "x")]},
    "IncrementalAlterConfigs": {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": name,
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}],
            }
            for name in ("t", "x")
        ]
    },
}
"""Requests that make each handler answer a success and a failure, where it can fail."""


def sample(name: str, version: int) -> dict[str, Any]:
    if name == "DeleteTopics":
        if version >= 6:
            return {"topics": [{"name": topic, "topic_id": None} for topic in ("t", "x")]}
        return {"topic_names": ["t", "x"]}
    if name == "FindCoordinator":
        return {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
    if name == "Fetch" and version >= 13:
        (topic,) = SAMPLES["Fetch"]["topics"]
        by_id = {"topic_id": TOPIC_ID, "partitions": topic["partitions"]}
        return {**SAMPLES["Fetch"], "topics": [by_id]}
    if name == "ApiVersions" and version < 3:
        return {}
    return SAMPLES.get(name, {})


@pytest.mark.parametrize(
    ("key", "version"), [pytest.param(k, v, id=f"{APIS[k].name}-v{v}") for k, v in REQUESTS]
)
def test_every_version_of_every_api_answers_in_its_schema(
    broker: LocalBroker, key: int, version: int
) -> None:
    """With only fields that the schema knows, success and failure: see `LocalBroker.answer`."""
    broker.create("t", (1, 2), topic_id=TOPIC_ID)
    body = run(broker.answer(APIS[key].name, version, sample(APIS[key].name, version)))
    assert read_by_client(key, version, body) is not None


def test_the_versions_served_all_have_schemas() -> None:
    for served in APIS.values():
        assert served.announced_min_version <= served.min_version <= served.max_version
        assert list(served.models) == sorted(set(served.models))
        assert served.models[-1] == served.max_version
        for version in range(served.min_version, served.max_version + 1):
            assert request_schema(served.key, version).__api_key__ == served.key


def test_the_range_of_every_api_covers_the_clients_that_have_to_be_served() -> None:
    """What librdkafka 2, aiokafka, kafka-python and Java 2.1 to 4 need between them (KIP-896)."""
    needed = {0: (3, 9), 1: (4, 11), 2: (1, 7), 3: (0, 12), 18: (0, 3), 19: (2, 4), 20: (1, 4), 21: (0, 2)}
    needed |= {23: (2, 4), 32: (1, 4), 37: (0, 3), 44: (0, 1), 60: (0, 0)}
    for key, (low, high) in needed.items():
        assert APIS[key].min_version <= low, APIS[key].name
        assert APIS[key].max_version >= high, APIS[key].name


@pytest.mark.parametrize(
    "name", ["Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch", "DescribeProducers"]
)
def test_requests_about_partitions_say_which(name: str, broker: LocalBroker) -> None:
    (served,) = (served for served in APIS.values() if served.name == name)
    assert served.partitions_of is not None
    broker.create("t", (1, 2), topic_id=TOPIC_ID)
    for model in served.models:
        request = make(request_schema(served.key, model), sample(name, model))
        assert list(served.partitions_of(broker.context, request)) == [("t", 0), ("t", 1)]


def test_each_api_file_says_on_top_which_versions_it_serves() -> None:
    texts = {path.stem: path.read_text().split('"""')[1] for path in Path(api.__path__[0]).glob("*.py")}
    for served in APIS.values():
        documented = re.sub(r"\s+", " ", texts[served.handler.__module__.rpartition(".")[2]])
        low, high = served.min_version, served.max_version
        ranges = {f"{low} to {high}", f"{low} and {high}"}
        pattern = rf"{served.name} \((?:key )?{served.key}(?:, versions| ,|,)? ?(\d+ (?:to|and) \d+)\)"
        result = re.search(pattern, documented) or re.search(
            rf"{served.name} \(key {served.key}\), versions (\d+ (?:to|and) \d+)", documented
        )
        assert result, served.name
        assert result[1] in ranges, served.name


# --- ApiVersions ---


def test_produce_is_announced_from_version_0_on(broker: LocalBroker) -> None:
    """librdkafka up to 2.11.0 does not compress for brokers that lack Produce 0 (librdkafka#4956)."""
    body = run(broker.answer("ApiVersions", 3, sample("ApiVersions", 3)))
    (announced,) = (item for item in body["api_keys"] if item["api_key"] == 0)
    assert (announced["min_version"], APIS[0].min_version) == (0, 3)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_handler_that_names_its_request_names_that_of_its_latest_model(api: Api) -> None:
    """The type checker sees only the names of kio's classes, so nothing else compares them."""
    name = inspect.get_annotations(api.handler).get("request", "Entity")
    if name == "Entity":
        return
    schema = request_schema(api.key, api.models[-1])
    assert name == schema.__name__
    source = inspect.getsource(sys.modules[api.handler.__module__])
    assert re.search(rf"from {re.escape(schema.__module__)} import (\([^)]*|[^\n]*)\b{name}\b", source)
