"""Commits of more partitions than one slice has wait for the replicas as a small one does (R10, R40)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.offset_commit.v9.request import OffsetCommitRequest, OffsetCommitRequestTopic
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.api.test_large_requests import Caller, frame_of
from tests.unit.broker.api.test_produce import fetched_by_follower, replicated
from tests.unit.broker.server.peers import until
from tests.unit.broker.server.test_router import response

from mainstem_broker.api.api_table import OF_COMMITS
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.large_requests import SlicedAnswer, answer_in_slices
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.wire import Body
from mainstem_broker.server.connection import Connection, Hold
from mainstem_broker.server.router import Router

SLICES = 4
COUNT = SLICES * OF_COMMITS.elements
OFFSET_COMMIT, TXN_OFFSET_COMMIT = 8, 28
REQUESTS: dict[int, tuple[int, dict[str, Any]]] = {
    OFFSET_COMMIT: (9, {"group_id": "g", "generation_id_or_member_epoch": -1}),
    TXN_OFFSET_COMMIT: (
        5,
        {
            "transactional_id": "id",
            "group_id": "g",
            "producer_id": 7,
            "producer_epoch": 0,
            "generation_id": -1,
        },
    ),
}


@pytest.mark.parametrize("key", REQUESTS)
async def test_all_slices_but_the_first_wait_for_the_replicas_together(broker: LocalBroker, key: int) -> None:
    broker.create("t", (2,) * COUNT)  # led elsewhere
    replicated(broker, OFFSETS_TOPIC)
    shards = broker.context.groups.shards
    shards.follow(0)
    await shards.loading(0)
    log = broker.partition(OFFSETS_TOPIC).log
    answering = asyncio.ensure_future(answer_of(broker, key))

    await until(lambda: log.log_end_offset > 0)
    first_end = log.log_end_offset
    assert first_end < OF_COMMITS.elements
    fetched_by_follower(broker, OFFSETS_TOPIC, first_end)
    await until(lambda: log.log_end_offset == COUNT)
    assert not answering.done()
    fetched_by_follower(broker, OFFSETS_TOPIC, COUNT)

    codes = [
        (partition.partition_index, partition.error_code.value)
        for topic in (await answering).topics
        for partition in topic.partitions
    ]
    assert codes == [(index, 0) for index in range(COUNT)]
    verified = broker.context.verifier.requested  # type: ignore[attr-defined]  # of the played one
    assert len(verified) == (key == TXN_OFFSET_COMMIT)
    await shards.stop()


async def answer_of(broker: LocalBroker, key: int) -> Any:
    """What the client reads of the answer to a commit for all partitions of "t"."""
    version, values = REQUESTS[key]
    partitions = [{"partition_index": index, "committed_offset": 5} for index in range(COUNT)]
    frame = frame_of(key, version, {**values, "topics": [{"name": "t", "partitions": partitions}]})
    held: Any = Router(broker.context, "PLAINTEXT", {}).handle(
        cast(Connection, Caller()), memoryview(frame).toreadonly()
    )
    while isinstance(held, Hold):
        await held.ready
        held = held.then()
    return response(key, version, held)


async def test_all_slices_share_one_timeout() -> None:
    """It counts from when the request began, however long earlier slices have waited."""
    deadlines_s: list[float] = []

    def handler(_broker: BrokerContext, request: Any, context: RequestContext) -> Body:
        deadlines_s.append(context.deadline_s(5_000))
        return {"topics": [{"name": topic.name, "partitions": []} for topic in request.topics]}

    loop = asyncio.get_running_loop()
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(name=str(number), partitions=()) for number in range(COUNT + 1)
        ),
    )
    begun_s = loop.time()
    context = RequestContext(9, "client", "127.0.0.1:1", "PLAINTEXT")
    broker = cast(BrokerContext, SimpleNamespace())
    answer = answer_in_slices(OF_COMMITS, cast(Any, handler), broker, cast(Any, request), context)
    assert isinstance(answer, SlicedAnswer)
    body = await answer.body
    assert body is not None
    assert [topic["name"] for topic in body["topics"]] == [str(number) for number in range(COUNT + 1)]
    assert len(deadlines_s) == SLICES + 1
    assert set(deadlines_s) == {deadlines_s[0]}
    assert begun_s <= deadlines_s[0] - 5 <= loop.time()
