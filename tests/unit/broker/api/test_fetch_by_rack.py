"""Consumers read from the nearest replica (KIP-392)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker
from tests.unit.broker.replica.replicas import LIFE, state_of

from mainstem_broker.api.fetch import partitions_of
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.config.broker_settings import RACK_AWARE_REPLICA_SELECTOR
from mainstem_broker.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.batches import split_batches
from mainstem_broker.protocol.fetch_codec import FetchPartition, FetchTopic
from mainstem_broker.protocol.wire import Body

EPOCH = 4
TOPIC_ID = UUID(int=7)


def broker_in(directory: Path, leader: int, selector: str = RACK_AWARE_REPLICA_SELECTOR) -> LocalBroker:
    """Broker 1, whose rack is rack1, holds t-0 with broker 2 in rack2."""
    broker = LocalBroker(directory, {"replica.selector.class": selector} if selector else {})
    broker.set_live(1, 2, 3)
    broker.view.set_topic(TopicAssignment("t", TOPIC_ID, {0: (1, 2)}), {})
    broker.set_state("t", 0, state_of(leader, EPOCH, (1, 2), EPOCH))
    return broker


async def fetch(
    broker: LocalBroker, rack: str, offset: int = 0, version: int = 17, epoch: int = -1, wait_ms: int = 0
) -> Body:
    position = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": epoch,
    }
    topic: dict[str, Any] = {"partitions": [position]}
    topic |= {"topic": "t"} if version < 13 else {"topic_id": TOPIC_ID}
    request = {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic], "rack_id": rack}
    return await broker.answer("Fetch", version, request)


def answer_of(body: Body) -> Body:
    (topic,) = body["responses"]
    (answer,) = topic["partitions"]
    result: Body = answer
    return result


def offsets_of(answer: Body) -> list[int]:
    records = answer["records"]
    content = records.read() if isinstance(records, FileSlice) else bytes(records or b"")
    return [header.base_offset for header, _ in split_batches(content)]


def followed_up_to(broker: LocalBroker, offset: int, start: int = 0) -> None:
    """Broker 2 has fetched everything before `offset`."""
    broker.partition("t").read_as_follower(
        *(2, LIFE, offset, -1, 0),
        leader_epoch=EPOCH,
        min_one_batch=False,
        now_ms=NOW_MS,
        log_start_offset=start,
    )


def replicate(broker: LocalBroker, first: int, count: int, high_watermark: int) -> None:
    """Broker 1, a follower, gets records from its leader."""
    broker.partition("t").append_from_leader(
        b"".join(
            encode_batch([Message(b"x")], base_offset=first + number, leader_epoch=EPOCH)
            for number in range(count)
        ),
        leader_epoch=EPOCH,
        high_watermark=high_watermark,
        log_start_offset=0,
        now_ms=NOW_MS,
    )


# --- The leader ---


@pytest.mark.parametrize("version", [11, 12, 17])
async def test_the_leader_sends_a_consumer_to_the_follower_in_its_rack(tmp_path: Path, version: int) -> None:
    broker = broker_in(tmp_path, leader=1)
    broker.append("t", [b"a"])
    followed_up_to(broker, 1)
    answer = answer_of(await fetch(broker, "rack2", version=version, wait_ms=5_000))
    assert (answer["error_code"], answer["preferred_read_replica"]) == (0, 2)
    assert (answer["high_watermark"], offsets_of(answer)) == (1, [])


@pytest.mark.parametrize("rack", ["rack1", "rack3", "elsewhere", ""])
async def test_consumers_of_other_racks_are_served_by_the_leader(tmp_path: Path, rack: str) -> None:
    broker = broker_in(tmp_path, leader=1)
    broker.append("t", [b"a"])
    followed_up_to(broker, 1)
    answer = answer_of(await fetch(broker, rack))
    assert (answer.get("preferred_read_replica", -1), offsets_of(answer)) == (-1, [0])


@pytest.mark.parametrize("selector", ["", "org.apache.kafka.common.replica.LeaderSelector"])
async def test_without_the_setting_leaders_serve_everyone(tmp_path: Path, selector: str) -> None:
    broker = broker_in(tmp_path, leader=1, selector=selector)
    broker.append("t", [b"a"])
    followed_up_to(broker, 1)
    answer = answer_of(await fetch(broker, "rack2"))
    assert (answer.get("preferred_read_replica", -1), offsets_of(answer)) == (-1, [0])


@pytest.mark.parametrize(
    ("follower_end", "follower_start", "isr", "live"),
    [
        pytest.param(0, 0, (1, 2), (1, 2, 3), id="it does not have the offset yet"),
        pytest.param(2, 2, (1, 2), (1, 2, 3), id="it does not have the offset any more"),
        pytest.param(2, 0, (1,), (1, 2, 3), id="it is not in sync"),
        pytest.param(2, 0, (1, 2), (1, 3), id="its broker is dead"),
    ],
)
async def test_no_consumer_is_sent_to_a_follower_that_cannot_serve_it(
    tmp_path: Path, follower_end: int, follower_start: int, isr: tuple[int, ...], live: tuple[int, ...]
) -> None:
    broker = broker_in(tmp_path, leader=1)
    for value in (b"a", b"b"):
        broker.append("t", [value])
    followed_up_to(broker, 2)
    if isr != (1, 2):
        broker.set_state("t", 0, state_of(1, EPOCH, isr, EPOCH + 1))
    broker.set_live(*live)
    followed_up_to(broker, follower_end, follower_start)
    answer = answer_of(await fetch(broker, "rack2", offset=1))
    assert (answer.get("preferred_read_replica", -1), offsets_of(answer)) == (-1, [1])


async def test_a_leader_that_may_not_serve_sends_nobody_anywhere(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=1)
    followed_up_to(broker, 0)
    broker.replicas.lease.end()
    answer = answer_of(await fetch(broker, "rack2"))
    assert answer["error_code"] == NotLeaderOrFollower.code


# --- A follower ---


async def test_a_follower_serves_what_it_knows_to_be_replicated(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=2)
    replicate(broker, 0, 3, high_watermark=2)
    answer = answer_of(await fetch(broker, "rack1", epoch=EPOCH))
    assert (answer["error_code"], answer["high_watermark"], offsets_of(answer)) == (0, 2, [0, 1])
    answer = answer_of(await fetch(broker, "rack1", offset=2))
    assert (answer["error_code"], offsets_of(answer)) == (0, []), "it has the record, which may be lost yet"


async def test_a_consumer_that_is_ahead_of_a_follower_goes_back_to_the_leader(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=2)
    replicate(broker, 0, 1, high_watermark=1)
    assert answer_of(await fetch(broker, "rack1", offset=2))["error_code"] == OffsetOutOfRange.code


async def test_a_consumer_that_waits_at_a_follower_hears_of_the_next_record(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=2)
    waiting = asyncio.ensure_future(fetch(broker, "rack1", wait_ms=10_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    replicate(broker, 0, 1, high_watermark=0)
    await settle()
    assert not waiting.done()
    replicate(broker, 1, 1, high_watermark=1)
    assert offsets_of(answer_of(await waiting)) == [0]


async def test_a_consumer_that_waits_at_a_follower_hears_that_it_is_elected(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=2)
    waiting = asyncio.ensure_future(fetch(broker, "rack1", epoch=EPOCH, wait_ms=10_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.set_state("t", 0, state_of(1, EPOCH + 1, (1, 2), EPOCH + 1))
    assert answer_of(await waiting)["error_code"] == FencedLeaderEpoch.code


@pytest.mark.parametrize(
    ("epoch", "error"), [(EPOCH - 1, FencedLeaderEpoch.code), (EPOCH + 1, UnknownLeaderEpoch.code)]
)
async def test_a_follower_checks_the_epoch_that_the_consumer_knows(
    tmp_path: Path, epoch: int, error: int
) -> None:
    broker = broker_in(tmp_path, leader=2)
    assert answer_of(await fetch(broker, "rack1", epoch=epoch))["error_code"] == error


@pytest.mark.parametrize(("rack", "selector"), [("", RACK_AWARE_REPLICA_SELECTOR), ("rack1", "")])
async def test_a_follower_serves_only_those_that_a_leader_has_sent(
    tmp_path: Path, rack: str, selector: str
) -> None:
    broker = broker_in(tmp_path, leader=2, selector=selector)
    replicate(broker, 0, 1, high_watermark=1)
    assert answer_of(await fetch(broker, rack))["error_code"] == NotLeaderOrFollower.code


async def test_a_replica_that_is_elected_and_cannot_serve_is_no_follower(tmp_path: Path) -> None:
    broker = broker_in(tmp_path, leader=1)
    broker.append("t", [b"a"])
    broker.replicas.lease.end()
    assert answer_of(await fetch(broker, "rack1"))["error_code"] == NotLeaderOrFollower.code


@pytest.mark.parametrize(
    ("rack", "epoch", "is_held"),
    [("rack1", -1, False), ("rack1", EPOCH, False), ("rack1", EPOCH + 1, True), ("", -1, True)],
)
def test_a_fetch_from_a_follower_waits_for_no_news_unless_the_consumer_knows_more(
    tmp_path: Path, rack: str, epoch: int, is_held: bool
) -> None:
    broker = broker_in(tmp_path, leader=2)

    class Request:
        rack_id = rack
        topics = (FetchTopic(TOPIC_ID, [FetchPartition(0, epoch, 0, -1, -1, 100)]),)

    assert bool(list(partitions_of(broker.context, Request()))) == is_held
