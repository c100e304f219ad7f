from __future__ import annotations

from tests.unit.broker.api.brokers import NOW_MS, LocalBroker
from tests.unit.broker.api.test_write_txn_markers import ONE, TWO, markers, send

from mainstem_broker.errors import InvalidTopic, UnknownTopicOrPartition
from mainstem_broker.protocol.wire import Body


async def test_a_partition_tells_which_producers_it_remembers(broker: LocalBroker) -> None:
    """KIP-664"""
    broker.create("t")

    async def described() -> list[Body]:
        topics = [{"name": "t", "partition_indexes": [0, 0]}]
        (topic,) = (await broker.answer("DescribeProducers", 0, {"topics": topics}))["topics"]
        (partition,) = topic["partitions"]
        assert (partition["partition_index"], partition["error_code"]) == (0, 0)
        producers: list[Body] = partition["active_producers"]
        return producers

    assert await described() == []
    send(broker, ONE)
    send(broker, TWO)
    send(broker, TWO, 1)
    open_since_0 = {
        "producer_id": ONE,
        "producer_epoch": 0,
        "last_sequence": 0,
        "last_timestamp": NOW_MS,
        "coordinator_epoch": -1,
        "current_txn_start_offset": 0,
    }
    open_since_1 = {**open_since_0, "producer_id": TWO, "last_sequence": 1, "current_txn_start_offset": 1}
    assert await described() == [open_since_0, open_since_1]
    await broker.answer("WriteTxnMarkers", 1, markers(0))
    ended, still_open = await described()
    assert (ended["coordinator_epoch"], ended["current_txn_start_offset"]) == (0, -1)
    assert still_open == open_since_1


async def test_a_name_that_no_topic_can_have_differs_from_one_that_no_topic_has(
    broker: LocalBroker,
) -> None:
    """As in Apache Kafka 4.4."""
    topics = [{"name": name, "partition_indexes": [0]} for name in ("no name", "nowhere")]
    body = await broker.answer("DescribeProducers", 0, {"topics": topics})
    codes = [topic["partitions"][0]["error_code"] for topic in body["topics"]]
    assert codes == [InvalidTopic.code, UnknownTopicOrPartition.code]
