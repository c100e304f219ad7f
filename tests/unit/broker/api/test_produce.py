from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker, batch, run
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.partition_state import PartitionState


def request(partitions: dict[int, bytes | None], acks: int = -1, topic: str = "t") -> dict[str, Any]:
    data = [{"index": index, "records": records} for index, records in partitions.items()]
    return {"acks": acks, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": data}]}


def answers(body: Body) -> dict[int, Body]:
    (topic,) = body["responses"]
    return {answer["index"]: answer for answer in topic["partition_responses"]}


def codes(body: Body) -> dict[int, str]:
    return {index: ErrorCode(answer["error_code"]).name for index, answer in answers(body).items()}


@pytest.mark.parametrize("version", range(3, 12))
@pytest.mark.parametrize("acks", [1, -1])
async def test_batches_get_the_next_offsets(broker: LocalBroker, version: int, acks: int) -> None:
    broker.create("t", (1, 1))
    broker.append("t", [b"earlier"], index=1)
    body = await broker.answer("Produce", version, request({0: batch([b"a", b"b"]), 1: batch([b"c"])}, acks))
    assert codes(body) == {0: "none", 1: "none"}
    assert [answer["base_offset"] for answer in answers(body).values()] == [0, 1]
    assert [answer["log_append_time"] for answer in answers(body).values()] == [-1, -1]
    assert broker.partition("t", 0).high_watermark == 2


async def test_partitions_fail_one_by_one(broker: LocalBroker) -> None:
    broker.create("t", (1, 2, 1, 1, 1))
    damaged = bytearray(batch([b"a"]))
    damaged[-1] ^= 1
    body = await broker.answer(
        "Produce",
        9,
        request(
            {
                0: batch([b"fine"]),
                1: batch([b"led elsewhere"]),
                2: bytes(damaged),
                3: None,
                4: batch([b"x"]) + batch([b"y"]),
                7: batch([b"no such partition"]),
            }
        ),
    )
    assert codes(body) == {
        0: "none",
        1: "not_leader_or_follower",
        2: "corrupt_message",
        3: "invalid_record",
        4: "invalid_record",
        7: "unknown_topic_or_partition",
    }
    assert answers(body)[1]["base_offset"] == -1
    assert "t-1" in answers(body)[1]["error_message"]
    assert broker.partition("t", 0).high_watermark == 1
    assert broker.partition("t", 2).high_watermark == 0


@pytest.mark.parametrize(("version", "error"), [(3, "not_leader_or_follower"), (4, "kafka_storage_error")])
async def test_a_failed_disk_is_reported_by_an_error_that_the_client_knows(
    broker: LocalBroker, version: int, error: str
) -> None:
    """KIP-112: KAFKA_STORAGE_ERROR is of version 4, and clients give up at an error that they do not know."""
    broker.create("t")
    broker.replicas.fail(broker.partition("t").log.directory.parent)
    assert codes(await broker.answer("Produce", version, request({0: batch([b"a"])}))) == {0: error}


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_may_be_only_none_one_or_all(broker: LocalBroker, acks: int) -> None:
    broker.create("t", (1, 1))
    body = run(broker.answer("Produce", 9, request({0: batch([b"a"]), 1: batch([b"a"])}, acks)))
    assert codes(body) == {0: "invalid_required_acks", 1: "invalid_required_acks"}
    assert f"acks is {acks}" in answers(body)[0]["error_message"]
    assert broker.partition("t").high_watermark == 0


def test_a_failure_with_acks_0_closes_the_connection_after_the_others_were_written(
    broker: LocalBroker,
) -> None:
    """All that such a client can notice (franz-go kfake d990b5f8)."""
    broker.create("t", (2, 1))
    with pytest.raises(InvalidRequestBytes, match=r"acks=0 failed, so its connection is closed: .*t-0"):
        run(broker.answer_or_none("Produce", 9, request({0: batch([b"a"]), 1: batch([b"b"])}, acks=0)))
    assert broker.partition("t", 1).high_watermark == 1


async def test_all_records_that_break_a_rule_are_named(broker: LocalBroker) -> None:
    """KIP-467: version 8 on; earlier ones get the code alone."""
    broker.create("t", config={"cleanup.policy": "compact"})
    without_key = encode_batch(
        [Message(b"0", None, (), NOW_MS), Message(b"1", b"key", (), NOW_MS), Message(b"2", None, (), NOW_MS)]
    )

    for version in (7, 8):
        body = await broker.answer("Produce", version, request({0: without_key}))
        assert codes(body) == {0: "invalid_record"}
    assert [error["batch_index"] for error in answers(body)[0]["record_errors"]] == [0, 2]
    assert answers(body)[0]["error_message"]


def test_the_brokers_clock_stamps_records_where_the_topic_asks_for_it(broker: LocalBroker) -> None:
    broker.create("t", config={"message.timestamp.type": "LogAppendTime"})
    before = broker.context.now_ms()
    body = run(broker.answer("Produce", 9, request({0: batch([b"a"], timestamp_ms=5)})))
    assert before <= answers(body)[0]["log_append_time"] <= broker.context.now_ms()


# --- Waiting for replicas (R10, R22) ---


def replicated(broker: LocalBroker, topic: str) -> None:
    """A topic with one partition, led here; broker 2 is in sync as well."""
    broker.view.set_topic(TopicAssignment(topic, uuid4(), {0: (1, 2)}), {})
    broker.set_state(topic, 0, PartitionState(1, 0, (1, 2), 1))


def fetched_by_follower(broker: LocalBroker, topic: str, offset: int) -> None:
    broker.partition(topic).read_as_follower(
        2, 0, offset, 0, 1000, leader_epoch=0, min_one_batch=True, now_ms=NOW_MS
    )


@pytest.mark.parametrize("acks", [0, 1])
async def test_only_acks_all_waits_for_replicas(broker: LocalBroker, acks: int) -> None:
    replicated(broker, "t")
    body = await broker.answer_or_none("Produce", 9, request({0: batch([b"a"])}, acks))
    assert (body is None) == (acks == 0)
    assert broker.partition("t").high_watermark == 0


async def test_acks_all_is_answered_when_the_in_sync_replicas_have_the_records(broker: LocalBroker) -> None:
    replicated(broker, "t")
    answering = asyncio.create_task(broker.answer("Produce", 9, request({0: batch([b"a", b"b"])})))
    await until(lambda: broker.partition("t").log.log_end_offset == 2)
    fetched_by_follower(broker, "t", 1)
    await asyncio.sleep(0)
    assert not answering.done()
    fetched_by_follower(broker, "t", 2)
    body = await answering
    assert codes(body) == {0: "none"}
    assert answers(body)[0]["base_offset"] == 0


async def test_acks_all_is_refused_when_the_time_is_over_and_nobody_waits_on(broker: LocalBroker) -> None:
    replicated(broker, "t")
    body = await broker.answer("Produce", 9, {**request({0: batch([b"a"])}), "timeout": 10})
    assert codes(body) == {0: "request_timed_out"}
    assert not broker.partition("t").acknowledgements
    assert broker.partition("t").log.log_end_offset == 1, "it may still be replicated"


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
async def test_clients_do_not_write_to_what_brokers_keep_for_themselves(
    broker: LocalBroker, topic: str
) -> None:
    """Apache Kafka's tools may, by the name that their admin client has."""
    broker.create(topic)

    requested = request({0: batch([b"a"])}, topic=topic)
    assert codes(await broker.answer("Produce", 9, requested)) == {0: "invalid_topic_exception"}
    assert broker.partition(topic).log.log_end_offset == 0
    broker.client_id = "__admin_client"
    assert codes(await broker.answer("Produce", 9, requested)) == {0: "none"}
