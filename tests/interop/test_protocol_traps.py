"""What other brokers got wrong and clients stumbled over; `trap_NN` are the numbers of our list of them.

Raw requests, because a stock client hides such a fault until it meets the one release that does not.
"""

from __future__ import annotations

import struct

from tests.support.clusters import SharedCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    encode_request,
    fetch,
    fetch_fields,
    produce,
    produce_fields,
    request,
)


def test_trap_17_the_first_batch_comes_whole_however_large(leader: Connection, topic: str) -> None:
    """KIP-74: or a reader whose limit is smaller than a message would never get on."""
    produce(leader, topic, 0, encode_batch([Message(b"x" * 50_000)]))

    for limits in (
        {"partition_max_bytes": 10},
        {"max_bytes": 10},
        {"partition_max_bytes": 10, "max_bytes": 10},
    ):
        assert len(list(read_headers(fetch(leader, topic, 0, 0, **limits).records))) == 1


def test_trap_33_answers_keep_the_order_of_requests(leader: Connection, topic: str) -> None:
    for _ in range(10):
        leader.send("produce", 9, **produce_fields(topic, 0, encode_batch([Message(b"x")]), acks=-1))
        leader.send("fetch", 12, **fetch_fields([(topic, 0, 0)]))
        leader.send("api_versions", 0)
    for number in range(10):
        assert leader.receive().responses[0].partition_responses[0].base_offset == number
        assert leader.receive().responses[0].partitions[0].high_watermark >= number
        assert leader.receive().api_keys


def test_trap_40_a_client_id_has_no_meaning(
    local_stack: SharedCluster, topic: str, new_topic: TopicFactory
) -> None:
    fields = produce_fields(topic, 0, encode_batch([Message(b"x")]))
    with Connection(new_topic.leader_address(topic)) as connection:
        for number, client_id in enumerate([None, "", "a=b,c=d", "x" * 10_000, "größe\x00", "../.."]):
            connection.send_frame(encode_request(request("produce", 9, **fields), number, client_id))
            assert connection.receive_frame()[:4] == struct.pack(">i", number)
