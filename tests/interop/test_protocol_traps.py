"""What other brokers got wrong and clients stumbled over; `trap_NN` are the numbers of our list of them.

Raw requests, because a stock client hides such a fault until it meets the one release that does not.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster, StartCluster
from tests.support.group_requests import coordinator_address, join_fields
from tests.support.idempotence import init_producer_id, sequence_batch
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    encode_request,
    fetch,
    fetch_fields,
    list_offset,
    produce,
    produce_fields,
    request,
)

T: Final = 1_700_000_000_000


# Fetch


def test_trap_04_no_preferred_replica_and_no_leader_hint_are_minus_1(leader: Connection, topic: str) -> None:
    """nisshi#62: without the field every later one is shifted; 0 would name broker 0."""
    for version in (11, 12):
        answer = leader.ask("fetch", version, **fetch_fields([(topic, 0, 0)], version=version, max_wait_ms=0))
        partition = answer.responses[0].partitions[0]
        assert partition.preferred_read_replica == -1
        if version == 12:
            assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (-1, -1)
            assert partition.diverging_epoch.end_offset == -1


def test_trap_16_the_end_of_the_log_is_in_range(leader: Connection, topic: str) -> None:
    """redpanda#10799: out of range is below the start or beyond the end, not at the end."""
    produce(leader, topic, 0, encode_batch([Message(b"x")]))

    assert fetch(leader, topic, 0, 1, max_wait_ms=0).error_code == ErrorCode.none
    assert fetch(leader, topic, 0, 2, max_wait_ms=0).error_code == ErrorCode.offset_out_of_range


def test_trap_17_the_first_batch_comes_whole_however_large(leader: Connection, topic: str) -> None:
    """KIP-74: or a reader whose limit is smaller than a message would never get on."""
    produce(leader, topic, 0, encode_batch([Message(b"x" * 50_000)]))

    for limits in (
        {"partition_max_bytes": 10},
        {"max_bytes": 10},
        {"partition_max_bytes": 10, "max_bytes": 10},
    ):
        assert len(list(read_headers(fetch(leader, topic, 0, 0, **limits).records))) == 1


def test_trap_17_answers_hold_whole_batches_only(reference: bool, leader: Connection, topic: str) -> None:
    """aiokafka#1173 skips a record where a later partition's batch is cut."""
    if reference:
        pytest.skip("Apache Kafka cuts the last batch, and clients must bear it")
    size = len(encode_batch([Message(b"x" * 1_000)]))
    for _ in range(10):
        produce(leader, topic, 0, encode_batch([Message(b"x" * 1_000)]))

    for limit in (1, size - 1, size, size + 1, 3 * size, 3 * size + 500, 100 * size):
        records = fetch(leader, topic, 0, 0, partition_max_bytes=limit).records
        whole = sum(header.size_bytes for header in read_headers(records))
        assert whole == len(records), f"with partition_max_bytes={limit} the last batch is cut"
        assert whole <= max(limit, size)


def test_trap_17_later_partitions_send_whole_batches_or_nothing(
    reference: bool, new_topic: TopicFactory
) -> None:
    if reference:
        pytest.skip("Apache Kafka cuts the last batch, and clients must bear it")
    topic = new_topic(partitions=9)
    address, partitions = new_topic.partitions_together(topic)
    assert len(partitions) >= 3
    size = len(encode_batch([Message(b"x" * 1_000)]))
    positions = [(topic, partition, 0) for partition in partitions]
    with Connection(address) as leader:
        for partition in partitions:
            for _ in range(4):
                produce(leader, topic, partition, encode_batch([Message(b"x" * 1_000)]))
        for limit in (1, size, size * 5, size * 5 + 300):
            answer = leader.ask("fetch", 12, **fetch_fields(positions, max_bytes=limit))
            got = [part.records or b"" for response in answer.responses for part in response.partitions]
            for records in got:
                assert sum(header.size_bytes for header in read_headers(records)) == len(records)
            assert size <= sum(map(len, got)) <= max(limit, size)


def test_a_fetch_session_is_kept_or_openly_refused(leader: Connection, topic: str) -> None:
    """KIP-227: answering session id 0 says that there is none; an id that was given out must then work."""
    produce(leader, topic, 0, encode_batch([Message(b"x")]))
    first = leader.ask("fetch", 12, **fetch_fields([(topic, 0, 0)], session_epoch=0))
    assert first.error_code == ErrorCode.none
    assert list(read_headers(first.responses[0].partitions[0].records))

    fields = fetch_fields([(topic, 0, 1)], session_id=first.session_id, session_epoch=1, max_wait_ms=0)
    if first.session_id == 0:
        fields = fetch_fields([(topic, 0, 1)], session_epoch=0, max_wait_ms=0)
    assert leader.ask("fetch", 12, **fields).error_code == ErrorCode.none


def test_an_unknown_fetch_session_is_refused(leader: Connection, topic: str) -> None:
    answer = leader.ask("fetch", 12, **fetch_fields([(topic, 0, 0)], session_id=123_456, session_epoch=5))

    assert answer.error_code == ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize(
    ("epoch", "error"), [(7, ErrorCode.unknown_leader_epoch), (-1, ErrorCode.none), (0, ErrorCode.none)]
)
def test_a_leader_epoch_from_the_future_is_refused(
    leader: Connection, topic: str, epoch: int, error: ErrorCode
) -> None:
    fields: Any = fetch_fields([(topic, 0, 0)], max_wait_ms=0)
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch

    assert leader.ask("fetch", 12, **fields).responses[0].partitions[0].error_code == error


# Produce


def test_trap_08_a_batch_without_its_greatest_time_is_found_by_time(leader: Connection, topic: str) -> None:
    """redpanda#25200: some producers leave it unset; time queries and retention need it."""
    messages = [Message(b"a", timestamp_ms=T), Message(b"b", timestamp_ms=T + 500)]
    answer = produce(leader, topic, 0, encode_batch(messages, max_timestamp=-1))
    assert answer.error_code == ErrorCode.none

    assert list_offset(leader, topic, 0, T + 1).offset == 1
    (header,) = read_headers(fetch(leader, topic, 0, 0).records)
    assert header.max_timestamp == T + 500


def test_trap_08_the_leader_epoch_is_the_brokers(leader: Connection, topic: str) -> None:
    """franz-go#1229: Sarama sends 0, others -1; what is stored is what the leader knows."""
    for epoch in (-1, 0, 5, 2**31 - 1):
        answer = produce(leader, topic, 0, encode_batch([Message(b"x")], leader_epoch=epoch))
        assert answer.error_code == ErrorCode.none

    headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert [header.partition_leader_epoch for header in headers] == [0, 0, 0, 0]
    assert [header.base_offset for header in headers] == [0, 1, 2, 3]


def test_trap_19_offsets_are_dense_and_latest_is_the_next(leader: Connection, topic: str) -> None:
    for count in (3, 1, 5):
        produce(leader, topic, 0, encode_batch([Message(b"x")] * count))

    headers = list(read_headers(fetch(leader, topic, 0, 0).records))
    assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 2), (3, 3), (4, 8)]
    assert list_offset(leader, topic, 0, -1).offset == 9


def test_trap_33_no_acknowledgement_means_no_answer_and_no_delay(leader: Connection, topic: str) -> None:
    """With acks=0 the next answer on the connection is that of the next request."""
    for _ in range(20):
        leader.send(
            "produce", 9, answered=False, **produce_fields(topic, 0, encode_batch([Message(b"x")]), acks=0)
        )
    answer = produce(leader, topic, 0, encode_batch([Message(b"y")]))

    assert answer.base_offset == 20


def test_trap_33_an_error_without_acknowledgement_closes_the_connection(
    leader: Connection, topic: str
) -> None:
    """The producer has no other way to learn that its leader has moved."""
    fields = produce_fields("no-such-topic", 0, encode_batch([Message(b"x")]), acks=0)
    leader.send("produce", 9, answered=False, **fields)

    assert leader.is_closed_by_broker()


def test_trap_33_answers_keep_the_order_of_requests(leader: Connection, topic: str) -> None:
    for _ in range(10):
        leader.send("produce", 9, **produce_fields(topic, 0, encode_batch([Message(b"x")]), acks=-1))
        leader.send("fetch", 12, **fetch_fields([(topic, 0, 0)]))
        leader.send("api_versions", 0)
    for number in range(10):
        assert leader.receive().responses[0].partition_responses[0].base_offset == number
        assert leader.receive().responses[0].partitions[0].high_watermark >= number
        assert leader.receive().api_keys


def test_zstd_needs_produce_7_and_fetch_10(leader: Connection, topic: str) -> None:
    """KIP-110: an older request cannot know the codec, so it is refused with its own error."""
    batch = encode_batch(
        [Message(b"x")], attributes=4, records=b"(\xb5/\xfd\x04\x00A\x00\x00x\x00\x00\x00\x00"
    )
    assert produce(leader, topic, 0, batch, version=6).error_code == ErrorCode.unsupported_compression_type


def test_a_compacted_topic_takes_no_records_without_a_key(new_topic: TopicFactory) -> None:
    """INVALID_RECORD, from version 8 on with the position of the first such record at least."""
    topic = new_topic(config={"cleanup.policy": "compact"})
    with Connection(new_topic.leader_address(topic)) as leader:
        answer = produce(
            leader, topic, 0, encode_batch([Message(b"x", b"key"), Message(b"y"), Message(b"z")])
        )
        assert answer.error_code == ErrorCode.invalid_record
        assert min(error.batch_index for error in answer.record_errors) == 1
        assert produce(leader, topic, 0, encode_batch([Message(b"x", b"key")])).base_offset == 0


def test_a_time_too_far_ahead_is_refused(new_topic: TopicFactory) -> None:
    topic = new_topic(config={"message.timestamp.after.max.ms": "60000"})
    ahead = int(time.time() * 1000) + 3_600_000
    with Connection(new_topic.leader_address(topic)) as leader:
        answer = produce(leader, topic, 0, encode_batch([Message(b"x", timestamp_ms=ahead)]))
    assert answer.error_code == ErrorCode.invalid_timestamp


# ListOffsets and Metadata


def test_trap_13_a_found_offset_has_the_epoch_of_its_record(own_stack: StartCluster) -> None:
    """kfake 06e62e6d: not the current one."""
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        with Connection(cluster.brokers[1]) as leader:
            produce(leader, topic, 0, encode_batch([Message(b"old", timestamp_ms=T)]))
        cluster.stop_broker(1)
        cluster.start_broker(1)
        with Connection(cluster.brokers[1]) as leader:
            produce(leader, topic, 0, encode_batch([Message(b"new", timestamp_ms=T + 10)]))
            epochs = [
                header.partition_leader_epoch for header in read_headers(fetch(leader, topic, 0, 0).records)
            ]
            assert list_offset(leader, topic, 0, T).leader_epoch == epochs[0]
            assert list_offset(leader, topic, 0, T + 5).leader_epoch == epochs[1]


def test_trap_26_a_created_topic_is_led_when_the_answer_comes(local_stack: Cluster, reference: bool) -> None:
    """redpanda#1256: in metadata of every broker, with leaders that take records at once."""
    if reference:
        pytest.skip("Apache Kafka answers before its brokers know")
    any_broker = next(iter(local_stack.brokers.values()))
    for _ in range(10):
        topic = f"topic-{time.time_ns()}"
        with Connection(any_broker) as connection:
            created = connection.ask(
                "create_topics",
                5,
                topics=[
                    {
                        "name": topic,
                        "num_partitions": 3,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                timeout=30_000,
                validate_only=False,
            )
            assert created.topics[0].error_code == ErrorCode.none
        for address in local_stack.brokers.values():
            with Connection(address) as connection:
                described = _metadata(connection, topic)
            assert described.error_code == ErrorCode.none, f"{address} does not know {topic}"
            assert all(partition.error_code == ErrorCode.none for partition in described.partitions)
            for partition in described.partitions:
                with Connection(local_stack.brokers[partition.leader_id]) as leader:
                    answer = produce(leader, topic, partition.partition_index, encode_batch([Message(b"x")]))
                    assert answer.error_code == ErrorCode.none
        with Connection(any_broker) as connection:
            connection.ask("delete_topics", 5, topic_names=[topic], timeout=30_000)


def _metadata(connection: Connection, topic: str, *, create: bool = False) -> Any:
    answer = connection.ask(
        "metadata",
        9,
        topics=[{"name": topic}],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return answer.topics[0]


def test_trap_38_metadata_never_shows_a_topic_without_partitions_as_good(local_stack: Cluster) -> None:
    """franz-go: error 0 with no partitions makes clients report success for what they never sent."""
    for number in range(20):
        topic = f"topic-{time.time_ns()}-{number}"
        addresses = list(local_stack.brokers.values())
        with Connection(addresses[number % len(addresses)]) as connection:
            deadline = time.monotonic() + 10
            while True:
                described = _metadata(connection, topic, create=True)
                if described.error_code == ErrorCode.none:
                    break
                # While it is being made, only errors that clients retry on (broker facts, auto-creation).
                assert described.error_code in (
                    ErrorCode.leader_not_available,
                    ErrorCode.unknown_topic_or_partition,
                )
                assert time.monotonic() < deadline
            assert described.partitions
            connection.ask("delete_topics", 5, topic_names=[topic], timeout=30_000)


def test_metadata_of_no_topics_and_of_all_topics(
    leader: Connection, topic: str, local_stack: Cluster
) -> None:
    """An empty list asks for none, a null one for all (version 0 asks for all with an empty list)."""
    options = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    none = leader.ask("metadata", 9, topics=[], **options)
    everything = leader.ask("metadata", 9, topics=None, **options)
    oldest = leader.ask("metadata", 0, topics=[])

    assert none.topics == ()
    assert {broker.node_id: f"{broker.host}:{broker.port}" for broker in none.brokers} == local_stack.brokers
    assert topic in {described.name for described in everything.topics}
    assert topic in {described.name for described in oldest.topics}


def test_trap_40_a_client_id_has_no_meaning(
    local_stack: Cluster, topic: str, new_topic: TopicFactory
) -> None:
    fields = produce_fields(topic, 0, encode_batch([Message(b"x")]))
    with Connection(new_topic.leader_address(topic)) as connection:
        for number, client_id in enumerate([None, "", "a=b,c=d", "x" * 10_000, "größe\x00", "../.."]):
            connection.send_frame(encode_request(request("produce", 9, **fields), number, client_id))
            assert connection.receive_frame()[:4] == struct.pack(">i", number)


# Producers and members


def test_trap_06_a_producer_that_is_not_known_may_begin_anywhere(leader: Connection, topic: str) -> None:
    """redpanda#22670: its state may be gone; and it may have raised its epoch by itself (KIP-360)."""
    producer_id = init_producer_id(leader).producer_id
    batch = sequence_batch(producer_id, 17)
    # Once the answer requests it again, in case that something before it is on its way.
    assert produce(leader, topic, 0, batch).error_code == ErrorCode.not_leader_or_follower
    assert produce(leader, topic, 0, batch).base_offset == 0
    assert produce(leader, topic, 0, sequence_batch(producer_id, 0, epoch=1)).base_offset == 1


@pytest.mark.parametrize("version", [1, 3, 4, 9])
def test_trap_30_only_from_version_4_on_a_member_must_join_by_its_id(
    group_stack: Cluster, group: str, version: int
) -> None:
    """kafka-go#1435: clients of before KIP-394 do not know that error."""
    with Connection(coordinator_address(group_stack.brokers[1], group)) as coordinator:
        joined = coordinator.ask("join_group", version, **join_fields(group, "", version))
    assert (joined.error_code == ErrorCode.member_id_required) == (version >= 4)


def test_trap_31_a_member_that_was_given_an_id_and_never_joins_holds_up_others_for_its_session_at_most(
    group_stack: Cluster, group: str
) -> None:
    """librdkafka#5569."""
    address = coordinator_address(group_stack.brokers[1], group)
    with Connection(address) as gone, Connection(address) as coordinator:
        fields = join_fields(group, "", 5, session_ms=1_000)
        assert gone.ask("join_group", 5, **fields).error_code == ErrorCode.member_id_required
        member_id = coordinator.ask("join_group", 5, **fields).member_id
        begun = time.monotonic()
        joined = coordinator.ask("join_group", 5, **join_fields(group, member_id, 5, session_ms=5_000))
        assert (joined.error_code, len(joined.members)) == (ErrorCode.none, 1)
        assert time.monotonic() - begun < 5
