from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker, run

from mainstem_broker.api.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_REMOTE, MAX_TIMESTAMP
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.partition_state import PartitionState

NOT_FOUND = (-1, -1, -1)


def by_time(
    partitions: dict[int, int], topic: str = "t", epoch: int = -1, version: int = 9
) -> dict[str, Any]:
    requests: list[dict[str, Any]] = [
        {"partition_index": index, "timestamp": timestamp} for index, timestamp in partitions.items()
    ]
    if version >= 4:
        for item in requests:
            item["current_leader_epoch"] = epoch
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": requests}]}


def found(body: Body) -> dict[int, tuple[int, int, int] | str]:
    """(offset, timestamp, leader epoch) per partition, or the name of its error."""
    (topic,) = body["topics"]
    return {
        answer["partition_index"]: ErrorCode(answer["error_code"]).name
        if answer["error_code"]
        else (answer["offset"], answer["timestamp"], answer["leader_epoch"])
        for answer in topic["partitions"]
    }


@pytest.fixture
def filled(broker: LocalBroker) -> LocalBroker:
    """t-0 has offsets 0 to 2 of epoch 0 and 3 to 5 of epoch 4, a second apart; the last is of 2500 ms."""
    broker.create("t", (1, 2))
    for epoch, offsets in ((0, range(3)), (4, range(3, 6))):
        if epoch:
            broker.set_state("t", 0, PartitionState(1, epoch, (1,), 1, 1))
        for offset in offsets:
            broker.append("t", [b"x"], timestamp_ms=2500 if offset == 5 else offset * 1000)
    return broker


async def find(broker: LocalBroker, timestamp: int, version: int = 9) -> tuple[int, int, int] | str:
    body = await broker.answer("ListOffsets", version, by_time({0: timestamp}, version=version))
    return found(body)[0]


@pytest.mark.parametrize(
    ("timestamp", "answer"),
    [
        (LATEST, (6, -1, 4)),
        (EARLIEST, (0, -1, 0)),
        (EARLIEST_LOCAL, (0, -1, 0)),
        (LATEST_REMOTE, NOT_FOUND),
        (MAX_TIMESTAMP, (4, 4000, 4)),
        (0, (0, 0, 0)),
        (1, (1, 1000, 0)),
        (2000, (2, 2000, 0)),
        (2001, (3, 3000, 4)),
        (4000, (4, 4000, 4)),
        (4001, NOT_FOUND),
        (-6, "unsupported_version"),
        (-7, "unsupported_version"),
    ],
)
def test_an_offset_is_found_with_the_time_and_epoch_of_its_record(
    filled: LocalBroker, timestamp: int, answer: tuple[int, int, int]
) -> None:
    """That nothing is found is no error (redpanda#4308); the epoch is the record's, not the present one."""
    assert run(find(filled, timestamp)) == answer


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_REMOTE, 9)]
)
def test_a_special_timestamp_is_refused_in_versions_before_its_own(
    filled: LocalBroker, timestamp: int, first_version: int
) -> None:
    """Apache Kafka 4.4 answers so."""
    for version in range(1, first_version):
        assert run(find(filled, timestamp, version)) == "unsupported_version"
    assert run(find(filled, timestamp, first_version)) != "unsupported_version"


async def test_an_empty_log_starts_and_ends_at_the_same_offset(broker: LocalBroker) -> None:
    broker.create("t")

    assert await find(broker, LATEST) == (0, -1, 0)
    assert await find(broker, EARLIEST) == (0, -1, 0)
    assert await find(broker, MAX_TIMESTAMP) == NOT_FOUND
    assert await find(broker, 0) == NOT_FOUND


async def test_nothing_below_the_logs_start_is_found(filled: LocalBroker) -> None:
    """redpanda#18599."""

    filled.partition("t").delete_records_before(4)
    assert await find(filled, EARLIEST) == (4, -1, 4)
    assert await find(filled, 0) == (4, 4000, 4)


def test_a_record_time_is_found_inside_its_batch(broker: LocalBroker) -> None:
    broker.create("t")
    times = [Message(b"x", None, (), NOW_MS + delta) for delta in (0, 50, 20, 90)]
    append_batch(broker.partition("t"), encode_batch(times), acks=1, produce_version=9, now_ms=NOW_MS)
    assert run(find(broker, NOW_MS + 51)) == (3, NOW_MS + 90, 0)


@pytest.mark.parametrize(("epoch", "error"), [(3, "fenced_leader_epoch"), (5, "unknown_leader_epoch")])
def test_a_lookup_under_another_leader_epoch_is_refused(filled: LocalBroker, epoch: int, error: str) -> None:
    assert found(run(filled.answer("ListOffsets", 9, by_time({0: LATEST}, epoch=epoch)))) == {0: error}


@pytest.mark.parametrize("timestamp", [LATEST, 0])
@pytest.mark.parametrize(("version", "error"), [(4, "leader_not_available"), (5, "offset_not_available")])
async def test_a_new_leader_without_a_high_watermark_says_so_by_an_error_that_the_client_knows(
    broker: LocalBroker, timestamp: int, version: int, error: str
) -> None:
    """KIP-207: OFFSET_NOT_AVAILABLE is of version 5. Clients give up at an error that they do not know."""
    broker.view.set_topic(TopicAssignment("t", uuid4(), {0: (1, 2)}), {})
    broker.set_state("t", 0, PartitionState(1, 0, (1, 2), 1))
    broker.append("t", [b"x"])
    broker.set_state("t", 0, PartitionState(2, 1, (1, 2), 1, 1))
    broker.set_state("t", 0, PartitionState(1, 2, (1, 2), 1, 2))
    assert await find(broker, timestamp, version) == error


# --- OffsetForLeaderEpoch ---


async def end_of(broker: LocalBroker, version: int, epoch: int, current: int = -1, index: int = 0) -> Any:
    requested = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    request = {"topics": [{"topic": "t", "partitions": [requested]}]}
    body = await broker.answer("OffsetForLeaderEpoch", version, request)
    (answer,) = body["topics"][0]["partitions"]
    if answer["error_code"]:
        return ErrorCode(answer["error_code"]).name
    return answer["leader_epoch"], answer["end_offset"]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_leader_epoch_ends_where_the_next_begins(filled: LocalBroker, version: int) -> None:
    assert await end_of(filled, version, 0) == (0, 3)
    assert await end_of(filled, version, 2) == (0, 3), "the floor of an epoch without records"
    assert await end_of(filled, version, 4) == (4, 6)
    assert await end_of(filled, version, 5) == (-1, -1)
    assert await end_of(filled, version, 4, current=3) == "fenced_leader_epoch"
    assert await end_of(filled, version, 4, index=1) == "not_leader_or_follower"
    assert await end_of(filled, version, 4, index=8) == "unknown_topic_or_partition"


async def test_trap_14_an_epoch_below_the_first_that_is_known_ends_where_that_begins(
    broker: LocalBroker,
) -> None:
    """redpanda#9264: not at -1, which makes a client begin anew."""
    broker.create("t")
    broker.set_state("t", 0, PartitionState(1, 3, (1,), 1, partition_epoch=1))
    broker.append("t", [b"a", b"b"])

    assert await end_of(broker, 4, 1) == (1, 0)
    assert await end_of(broker, 4, 3) == (3, 2)
