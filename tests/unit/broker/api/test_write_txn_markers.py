"""WriteTxnMarkers: transactions that end in partitions led here, and read_committed fetches around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker
from tests.unit.broker.api.test_fetch import answers, offsets_in, request
from tests.unit.broker.log.transactional import transactional_batch

from mainstem_broker.api import write_txn_markers
from mainstem_broker.errors import NotLeaderOrFollower
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import PartitionState

ONE, TWO = 7, 8


def send(broker: LocalBroker, producer_id: int, sequence: int = 0, index: int = 0) -> None:
    batch = transactional_batch(producer_id, sequence)
    broker.partition("t", index).write(parse_batch_header(batch), batch, NOW_MS)


def markers(
    *partitions: int, producer_id: int = ONE, commit: bool = False, topic: str = "t", **more: Any
) -> dict[str, Any]:
    topics = [{"name": topic, "partition_indexes": list(partitions)}]
    marker = {"producer_id": producer_id, "producer_epoch": 0, "transaction_result": commit, "topics": topics}
    return {"markers": [{**marker, "coordinator_epoch": 0, **more}]}


def codes(body: Body) -> list[str]:
    return [
        ErrorCode(partition["error_code"]).name
        for marker in body["markers"]
        for topic in marker["topics"]
        for partition in topic["partitions"]
    ]


def fetch(offset: int = 0, *, level: int = 1, **more: Any) -> dict[str, Any]:
    return request({0: offset}, isolation_level=level, **more)


def fetched(body: Body) -> tuple[int, list[tuple[int, int]] | None]:
    """(last stable offset, aborted transactions) of the answer."""
    (partition,) = body["responses"][0]["partitions"]
    aborted = partition["aborted_transactions"]
    return (
        partition["last_stable_offset"],
        None if aborted is None else [(one["producer_id"], one["first_offset"]) for one in aborted],
    )


@pytest.mark.parametrize("version", [1, 2])
async def test_markers_end_transactions_and_partitions_fail_one_by_one(
    broker: LocalBroker, version: int
) -> None:
    broker.create("t", (1, 2))
    send(broker, ONE)
    body = await broker.answer("WriteTxnMarkers", version, markers(0, 1, 5))
    assert codes(body) == ["none", "not_leader_or_follower", "unknown_topic_or_partition"]
    assert body["markers"][0]["producer_id"] == ONE
    assert broker.partition("t").last_stable_offset == 2


async def unreplicated_marker(broker: LocalBroker) -> asyncio.Task[Body]:
    """A request whose marker broker 2, which is in sync, has not fetched."""
    broker.create("t")
    broker.set_state("t", 0, PartitionState(1, 0, (1, 2), 1, 1))
    send(broker, ONE)
    task = asyncio.create_task(broker.answer("WriteTxnMarkers", 1, markers(0)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_marker_is_answered_when_it_is_replicated(broker: LocalBroker) -> None:
    task = await unreplicated_marker(broker)
    assert not task.done()
    broker.set_state("t", 0, PartitionState(1, 0, (1,), 1, 2))
    assert codes(await task) == ["none"]


async def test_r12_a_partition_with_a_slow_replica_does_not_hold_up_the_answer_for_others(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator sends one request at a time to a broker, over a connection that waits 30 s by default."""
    socket_timeout_s = broker.context.config.integer("replica.socket.timeout.ms") / 1000
    assert socket_timeout_s > 10 * write_txn_markers.TIMEOUT_S
    monkeypatch.setattr(write_txn_markers, "TIMEOUT_S", 0.01)
    broker.create("t", (1, 1))
    broker.set_state("t", 0, PartitionState(1, 0, (1, 2), 1, 1))
    for index in (0, 1):
        send(broker, ONE, index=index)
    assert codes(await broker.answer("WriteTxnMarkers", 1, markers(0, 1))) == ["request_timed_out", "none"]
    broker.set_state("t", 0, PartitionState(1, 0, (1,), 1, 2))
    assert codes(await broker.answer("WriteTxnMarkers", 1, markers(0))) == ["none"]
    assert broker.partition("t").log.log_end_offset == 2


async def test_a_leader_that_resigns_says_so_to_the_coordinator(broker: LocalBroker) -> None:
    task = await unreplicated_marker(broker)
    broker.set_state("t", 0, PartitionState(2, 1, (1, 2), 1, 2))
    (partition,) = (await task)["markers"][0]["topics"][0]["partitions"]
    assert partition["error_code"] == NotLeaderOrFollower.code


# --- Readers ---


async def test_r11_read_committed_ends_before_an_open_transaction(broker: LocalBroker) -> None:
    broker.create("t")
    broker.append("t", [b"a"])
    send(broker, ONE)
    broker.append("t", [b"b"])
    for level, read in ((0, [(0, 0), (1, 1), (2, 2)]), (1, [(0, 0)])):
        answer = answers(await broker.answer("Fetch", 11, fetch(level=level)))[0]
        assert (answer["last_stable_offset"], answer["high_watermark"]) == (1, 3)
        assert offsets_in(answer) == read


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_the_answer_lists_the_aborted_transactions_of_its_range(
    broker: LocalBroker, version: int
) -> None:
    broker.create("t")
    for producer_id in (ONE, TWO):
        send(broker, producer_id)
    for producer_id in (TWO, ONE):
        await broker.answer("WriteTxnMarkers", 1, markers(0, producer_id=producer_id))
    send(broker, ONE, 1)
    await broker.answer("WriteTxnMarkers", 1, markers(0, commit=True))
    assert fetched(await broker.answer("Fetch", version, fetch())) == (6, [(ONE, 0), (TWO, 1)])
    assert fetched(await broker.answer("Fetch", version, fetch(3))) == (6, [(ONE, 0)])
    assert fetched(await broker.answer("Fetch", version, fetch(4))) == (6, [])


async def test_a_waiting_fetch_wakes_when_the_stable_offset_moves_and_lists_the_abort(
    broker: LocalBroker,
) -> None:
    broker.create("t")
    send(broker, ONE)
    task = asyncio.create_task(broker.answer("Fetch", 11, fetch(max_wait=60_000)))
    await asyncio.sleep(0)
    send(broker, ONE, 1)
    await settle()
    assert not task.done()
    await broker.answer("WriteTxnMarkers", 1, markers(0))
    assert fetched(await task) == (3, [(ONE, 0)])


async def test_min_bytes_count_only_what_may_be_read(broker: LocalBroker) -> None:
    broker.create("t")
    broker.append("t", [b"a"])
    send(broker, ONE)
    task = asyncio.create_task(broker.answer("Fetch", 11, fetch(min_bytes=100, max_wait=60_000)))
    await settle()
    assert not task.done()
    await broker.answer("WriteTxnMarkers", 1, markers(0, commit=True))
    assert fetched(await task) == (3, [])


async def test_list_offsets_answers_the_stable_offset_to_read_committed(broker: LocalBroker) -> None:
    broker.create("t")
    broker.append("t", [b"a"])
    send(broker, ONE)

    async def offset(level: int, timestamp: int) -> int:
        item = {"partition_index": 0, "timestamp": timestamp}
        topics = [{"name": "t", "partitions": [item]}]
        asked = {"replica_id": -1, "isolation_level": level, "topics": topics}
        body = await broker.answer("ListOffsets", 7, asked)
        (answer,) = body["topics"][0]["partitions"]
        return int(answer["offset"])

    assert [await offset(level, -1) for level in (0, 1)] == [2, 1]
    broker.append("t", [b"b"], timestamp_ms=NOW_MS + 5)
    assert [await offset(level, NOW_MS + 5) for level in (0, 1)] == [2, -1]
