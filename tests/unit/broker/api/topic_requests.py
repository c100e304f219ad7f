"""Requests that create, grow and delete topics, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.protocol.wire import Body


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    if assignments is not None:
        partitions = replicas = -1
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in (assignments or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


async def create(
    broker: LocalBroker,
    *topics: dict[str, Any],
    timeout_ms: int = 20,
    validate_only: bool = False,
    version: int = 7,
) -> Body:
    request = {"topics": topics, "timeout": timeout_ms, "validate_only": validate_only}
    return await broker.answer("CreateTopics", version, request)


def results(body: Body) -> list[tuple[str, str]]:
    return [(result["name"], ErrorCode(result["error_code"]).name) for result in body["topics"]]


def refusal(broker: LocalBroker, requested: dict[str, Any]) -> tuple[str, str]:
    """(error, message) of a topic that must be refused, with nothing created."""
    before = dict(broker.view.topics)
    body = run(create(broker, requested))
    assert broker.view.topics == before
    (result,) = body["topics"]
    return ErrorCode(result["error_code"]).name, result["error_message"] or ""


async def delete(
    broker: LocalBroker, requested: list[Any], version: int, timeout_ms: int = 20
) -> list[tuple[Any, str]]:
    field = "topics" if version >= 6 else "topic_names"
    body = await broker.answer("DeleteTopics", version, {field: requested, "timeout": timeout_ms})
    return [(result["name"], ErrorCode(result["error_code"]).name) for result in body["responses"]]


async def grow(
    broker: LocalBroker,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
    *,
    version: int = 3,
    validate_only: bool = False,
) -> tuple[str, str]:
    manual = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
    request = {
        "topics": [{"name": name, "count": count, "assignments": manual}],
        "timeout": 20,
        "validate_only": validate_only,
    }
    (result,) = (await broker.answer("CreatePartitions", version, request))["results"]
    assert result["name"] == name
    return ErrorCode(result["error_code"]).name, result.get("error_message") or ""
