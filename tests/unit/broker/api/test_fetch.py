from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.record_batches import read_headers
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.consumer_sessions import ConsumerSessions
from mainstem_broker.replica.partition_state import PartitionState

LONG_MS = 60_000


def request(
    offsets: Mapping[int, int],
    *,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    max_wait: int = 0,
    partition_max_bytes: int = 1 << 20,
    topic: str = "t",
    **more: Any,
) -> dict[str, Any]:
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        for index, offset in offsets.items()
    ]
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "partitions": partitions}],
        **more,
    }


def answers(body: Body) -> dict[int, Body]:
    assert body["error_code"] == 0
    (topic,) = body["responses"]
    return {answer["partition_index"]: answer for answer in topic["partitions"]}


def code(answer: Body) -> str:
    name: str = ErrorCode(answer["error_code"]).name
    return name


def offsets_in(answer: Body) -> list[tuple[int, int]]:
    """(first, last) offset of every batch in an answer."""
    records = answer["records"]
    data = records.read() if isinstance(records, FileSlice) else records
    assert sum(header.size_bytes for header in read_headers(data)) == len(data), "whole batches only"
    return [(header.base_offset, header.last_offset) for header in read_headers(data)]


@pytest.mark.parametrize("version", range(4, 13))
def test_whole_batches_are_answered_as_slices_of_a_file(broker: LocalBroker, version: int) -> None:
    broker.create("t")
    for value in (b"a", b"b"):
        broker.append("t", [value, value])
    answer = answers(run(broker.answer("Fetch", version, request({0: 1}))))[0]
    assert isinstance(answer["records"], FileSlice)
    assert offsets_in(answer) == [(0, 1), (2, 3)]
    assert (answer["high_watermark"], answer["last_stable_offset"], answer["log_start_offset"]) == (4, 4, 0)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, "offset_out_of_range"), (1, "none"), (3, "none"), (4, "offset_out_of_range")]
)
async def test_offsets_from_the_start_to_the_end_are_valid_and_no_others(
    broker: LocalBroker, offset: int, expected: str
) -> None:
    """redpanda#10799."""
    broker.create("t")
    broker.append("t", [b"a", b"b", b"c"])
    broker.partition("t").delete_records_before(1)
    answer = answers(await broker.answer("Fetch", 11, request({0: offset})))[0]
    assert code(answer) == expected
    known = (3, 1) if expected == "none" else (-1, -1)
    assert (answer["high_watermark"], answer["log_start_offset"]) == known
    assert isinstance(answer["records"], FileSlice) == (offset == 1)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(4, "fenced_leader_epoch"), (5, "none"), (6, "unknown_leader_epoch"), (-1, "none")],
)
def test_a_clients_leader_epoch_must_be_the_present_one_if_it_knows_one(
    broker: LocalBroker, epoch: int, expected: str
) -> None:
    """KIP-320."""
    broker.create("t")
    broker.set_state("t", 0, PartitionState(1, 5, (1,), 1, 1))
    requested = request({0: 0})
    requested["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
    assert code(answers(run(broker.answer("Fetch", 9, requested)))[0]) == expected


@pytest.mark.parametrize(("level", "aborted"), [(0, None), (1, ())])
def test_read_committed_gets_a_list_of_aborted_transactions_and_others_none(
    broker: LocalBroker, level: int, aborted: object
) -> None:
    broker.create("t")
    broker.append("t", [b"a"])
    answer = answers(run(broker.answer("Fetch", 11, request({0: 0}, isolation_level=level))))[0]
    assert answer["aborted_transactions"] == aborted
    assert offsets_in(answer) == [(0, 0)]


# --- Sessions ---


def test_a_request_to_make_a_session_is_answered_in_full_without_one_where_there_is_no_room(
    broker: LocalBroker,
) -> None:
    """KIP-227 lets a broker refuse by session id 0."""
    broker.context.consumer_sessions = ConsumerSessions(0)
    broker.create("t")
    broker.append("t", [b"a"])
    body = run(broker.answer("Fetch", 11, request({0: 0}, session_id=0, session_epoch=0)))
    assert body["session_id"] == 0
    assert offsets_in(answers(body)[0]) == [(0, 0)]


# --- Limits ---


async def test_the_first_batch_comes_whole_however_small_the_limits(broker: LocalBroker) -> None:
    """KIP-74; aio-libs/aiokafka#1173: other partitions give whole batches or nothing."""
    broker.create("t", (1, 1, 1))
    for index in (1, 2):
        broker.append("t", [b"x" * 500], index=index)
        broker.append("t", [b"x" * 500], index=index)

    every: list[dict[str, Any]] = [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}]
    for limits in every:
        body = await broker.answer("Fetch", 11, request({0: 0, 1: 0, 2: 0}, **limits))
        assert [offsets_in(answer) for answer in answers(body).values()] == [[], [(0, 0)], []]


def test_the_limit_of_the_request_is_shared_by_its_partitions(broker: LocalBroker) -> None:
    broker.create("t", (1, 1))
    for index in (0, 1):
        for _ in range(4):
            broker.append("t", [b"x" * 1000], index=index)
    body = run(broker.answer("Fetch", 11, request({0: 0, 1: 0}, max_bytes=6000)))
    assert [len(offsets_in(answer)) for answer in answers(body).values()] == [4, 1]


async def test_no_answer_is_larger_than_the_broker_allows(tmp_path: Path) -> None:
    """fetch.max.bytes"""
    broker = LocalBroker(tmp_path, {"fetch.max.bytes": "1024"})
    broker.create("t")
    for _ in range(3):
        broker.append("t", [b"x" * 400])
    body = await broker.answer("Fetch", 11, request({0: 0}))
    assert offsets_in(answers(body)[0]) == [(0, 0), (1, 1)]


# --- Long poll (R13) ---


async def begin(broker: LocalBroker, requested: dict[str, Any]) -> asyncio.Task[Body]:
    """A fetch that waits."""
    task = asyncio.create_task(broker.answer("Fetch", 11, requested))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def listeners(broker: LocalBroker, index: int = 0) -> int:
    return len(broker.partition("t", index)._listeners)


@pytest.mark.parametrize(("version", "error"), [(5, "not_leader_or_follower"), (6, "kafka_storage_error")])
async def test_a_failed_disk_is_reported_by_an_error_that_the_client_knows(
    broker: LocalBroker, version: int, error: str
) -> None:
    """KIP-112: KAFKA_STORAGE_ERROR is of version 6, and clients give up at an error that they do not know."""
    broker.create("t")
    broker.replicas.fail(broker.partition("t").log.directory.parent)
    assert code(answers(await broker.answer("Fetch", version, request({0: 0})))[0]) == error


@pytest.mark.parametrize(
    ("version", "compression_type", "error"),
    [(9, "zstd", "unsupported_compression_type"), (10, "zstd", "none"), (9, "lz4", "none")],
)
async def test_a_client_that_cannot_read_zstd_gets_an_error_and_no_records(
    broker: LocalBroker, version: int, compression_type: str, error: str
) -> None:
    """KIP-110, where the topic's setting is zstd; what producers compress is theirs, as in Apache Kafka."""
    broker.create("t", config={"compression.type": compression_type})
    broker.append("t", [b"x"])
    answer = answers(await broker.answer("Fetch", version, request({0: 0})))[0]
    assert code(answer) == error
    assert isinstance(answer["records"], FileSlice) == (error == "none")


async def test_an_append_wakes_a_fetch_that_waits(broker: LocalBroker) -> None:
    broker.create("t", (1, 1))

    task = await begin(broker, request({0: 0, 1: 0}, max_wait=LONG_MS))
    assert (listeners(broker, 0), listeners(broker, 1)) == (1, 1)
    broker.append("t", [b"a"], index=1)
    assert [offsets_in(answer) for answer in answers(await task).values()] == [[], [(0, 0)]]
    assert (listeners(broker, 0), listeners(broker, 1)) == (0, 0)


async def test_an_append_between_the_first_look_and_the_wait_is_not_missed(broker: LocalBroker) -> None:
    broker.create("t")

    task = asyncio.create_task(broker.answer("Fetch", 11, request({0: 0}, max_wait=LONG_MS)))
    loop = asyncio.get_running_loop()
    loop.call_soon(broker.append, "t", [b"a"])
    assert offsets_in(answers(await task)[0]) == [(0, 0)]


async def test_less_than_min_bytes_waits_for_more(broker: LocalBroker) -> None:
    broker.create("t")

    task = await begin(broker, request({0: 0}, min_bytes=600, max_wait=LONG_MS))
    broker.append("t", [b"x" * 300])
    await settle()
    assert not task.done()
    broker.append("t", [b"x" * 300])
    assert offsets_in(answers(await task)[0]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    "requested", [{"min_bytes": 0, "max_wait": LONG_MS}, {"min_bytes": 1, "max_wait": 0}]
)
def test_a_fetch_that_does_not_want_to_wait_is_answered_at_once(
    broker: LocalBroker, requested: dict[str, Any]
) -> None:
    broker.create("t")
    assert offsets_in(answers(run(broker.answer("Fetch", 11, request({0: 0}, **requested))))[0]) == []


async def test_limits_that_are_reached_below_min_bytes_end_the_wait(broker: LocalBroker) -> None:
    """fetch.min.bytes equal to max.partition.fetch.bytes: whole batches stay a little below both."""
    broker.create("t")
    for _ in range(10):
        broker.append("t", [b"x" * 400])

    body = await broker.answer(
        "Fetch", 11, request({0: 0}, min_bytes=1000, partition_max_bytes=1000, max_wait=LONG_MS)
    )
    assert offsets_in(answers(body)[0]) == [(0, 0), (1, 1)]


async def test_more_than_max_bytes_is_never_waited_for(broker: LocalBroker) -> None:
    broker.create("t")
    broker.append("t", [b"x" * 400])

    body = await broker.answer(
        "Fetch", 11, request({0: 0}, min_bytes=1 << 30, max_bytes=300, max_wait=LONG_MS)
    )
    assert offsets_in(answers(body)[0]) == [(0, 0)]


async def test_a_partition_that_ceases_to_be_led_here_is_reported_at_once(broker: LocalBroker) -> None:
    broker.create("t", (1, 1))

    task = await begin(broker, request({0: 0, 1: 0}, max_wait=LONG_MS))
    broker.set_state("t", 1, PartitionState(2, 1, (1, 2), 1, 1))
    assert [code(answer) for answer in answers(await task).values()] == ["none", "not_leader_or_follower"]
    assert listeners(broker, 0) == 0


async def test_a_topic_made_anew_while_a_fetch_waits_is_not_read_as_the_old_one(broker: LocalBroker) -> None:
    broker.create("t")
    broker.append("t", [b"old"] * 5)

    task = await begin(broker, request({0: 5}, max_wait=LONG_MS))
    broker.delete("t")
    broker.create("t")
    assert code(answers(await task)[0]) == "offset_out_of_range"


async def test_a_cancelled_fetch_leaves_no_listener(broker: LocalBroker) -> None:
    broker.create("t")

    task = await begin(broker, request({0: 0}, max_wait=LONG_MS))
    assert listeners(broker) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert listeners(broker) == 0


# --- Sessions (KIP-227) ---


@pytest.mark.parametrize("version", [7, 11, 12])
async def test_a_consumer_with_a_session_names_and_is_answered_only_what_has_changed(
    broker: LocalBroker, version: int
) -> None:
    broker.create("s", (1, 1))
    broker.append("s", [b"a"], index=0)

    def fetch(positions: dict[int, int], **session: int) -> dict[str, Any]:
        named = request(positions, topic="s", **session)
        return named if positions else {**named, "topics": []}

    body = await broker.answer("Fetch", version, fetch({0: 0, 1: 0}, session_id=0, session_epoch=0))
    session_id = body["session_id"]
    assert session_id > 0
    assert [one["partition_index"] for one in body["responses"][0]["partitions"]] == [0, 1]

    body = await broker.answer("Fetch", version, fetch({0: 1}, session_id=session_id, session_epoch=1))
    assert (body["error_code"], body["session_id"], list(body["responses"])) == (0, session_id, [])

    broker.append("s", [b"b"], index=1)
    body = await broker.answer("Fetch", version, fetch({}, session_id=session_id, session_epoch=2))
    (topic,) = body["responses"]
    assert [one["partition_index"] for one in topic["partitions"]] == [1]

    body = await broker.answer("Fetch", version, fetch({}, session_id=session_id, session_epoch=2))
    assert ErrorCode(body["error_code"]).name == "invalid_fetch_session_epoch"
    body = await broker.answer("Fetch", version, fetch({0: 1}, session_id=session_id, session_epoch=-1))
    assert body["session_id"] == 0
    assert len(broker.context.consumer_sessions) == 0
    body = await broker.answer("Fetch", version, fetch({}, session_id=session_id, session_epoch=3))
    assert ErrorCode(body["error_code"]).name == "fetch_session_id_not_found"


async def test_a_fetch_in_a_session_waits_for_partitions_that_it_does_not_name(broker: LocalBroker) -> None:
    broker.create("s", (1, 1))
    first = request({0: 0, 1: 0}, topic="s", session_id=0, session_epoch=0)
    session_id = (await broker.answer("Fetch", 12, first))["session_id"]
    later = request({}, max_wait=5_000, session_id=session_id, session_epoch=1) | {"topics": []}
    waiting = asyncio.ensure_future(broker.answer("Fetch", 12, later))
    await settle()
    assert not waiting.done()
    broker.append("s", [b"a"], index=1)
    (topic,) = (await waiting)["responses"]
    assert [one["partition_index"] for one in topic["partitions"]] == [1]
