"""Idempotent producers over the wire: what is sent again is stored once, at its first offset (R11)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.clusters import SharedCluster, StartCluster, partition_directory
from tests.support.command_line import mainstem
from tests.support.idempotence import (
    broker_at,
    init_producer_id,
    remembered,
    replicated_topic,
    sequence_batch,
)
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until
from tests.support.wire import Connection, list_offset, produce

# --- Ids ---


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own_from_every_broker(
    local_stack: SharedCluster, version: int
) -> None:
    answers = []
    for address in local_stack.brokers.values():
        with Connection(address) as connection:
            answers += [init_producer_id(connection, version) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == len(answers)


# --- Sequence numbers ---


def test_a_partition_tells_which_producers_it_remembers(leader: Connection, topic: str) -> None:
    producer_id = init_producer_id(leader).producer_id
    produce(leader, topic, 0, sequence_batch(producer_id, 0, 3))
    produce(leader, topic, 0, sequence_batch(producer_id, 0, 4, epoch=1))
    (result,) = remembered(leader, topic)
    assert (result.producer_id, result.producer_epoch, result.last_sequence) == (producer_id, 1, 3)
    assert (result.coordinator_epoch, result.current_txn_start_offset) == (-1, -1)
    answer = leader.ask("describe_producers", 0, topics=[{"name": "there-is-none", "partition_indexes": [7]}])
    assert answer.topics[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_r11_a_restarted_broker_recognises_what_it_had(own_stack: StartCluster, how: str) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic(config={"internal.segment.bytes": "2000"})
        with Connection(cluster.brokers[1]) as connection:
            producer_id = init_producer_id(connection).producer_id
            for number in range(40):
                produce(connection, topic, 0, sequence_batch(producer_id, number * 5, 5))
        (cluster.stop_broker if how == "stop" else cluster.kill_broker)(1)
        cluster.start_broker(1)
        with Connection(cluster.brokers[1]) as connection:
            # After a crash it is elected anew, a moment after it serves.
            wait_until(
                lambda: list_offset(connection, topic, 0, -1).error_code == ErrorCode.none, "it leads again"
            )
            for start in range(175, 200, 5):  # all that may have been in flight
                again = produce(connection, topic, 0, sequence_batch(producer_id, start, 5), acks=-1)
                assert (again.error_code, again.base_offset) == (ErrorCode.none, start)
            gap = produce(connection, topic, 0, sequence_batch(producer_id, 201))
            assert gap.error_code == ErrorCode.out_of_order_sequence_number
            new = produce(connection, topic, 0, sequence_batch(producer_id, 200))
            assert (new.error_code, new.base_offset) == (ErrorCode.none, 200)
            fresh = init_producer_id(connection)
            assert fresh.error_code == ErrorCode.none
            assert fresh.producer_id != producer_id


def test_the_command_shows_what_a_stopped_broker_remembered(own_stack: StartCluster) -> None:
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        with Connection(cluster.brokers[1]) as connection:
            for sequence in (0, 4):
                produce(connection, topic, 0, sequence_batch(9, sequence, 4, epoch=2))
        cluster.stop_broker(1)
        (snapshot,) = partition_directory(cluster, topic).glob("*.snapshot")
        shown = json.loads(mainstem("log", "dump", snapshot, "-o", "json").stdout)
        assert (shown["producer_id"], shown["producer_epoch"]) == (9, 2)
        assert (shown["first_sequence"], shown["last_sequence"], shown["last_offset"]) == (4, 7, 7)
        assert "First sequence" in mainstem("log", "dump", snapshot).stdout.decode()
        cluster.start_broker(1)


def test_r11_a_new_leader_recognises_what_the_old_one_acknowledged(own_stack: StartCluster) -> None:
    cluster = own_stack(3)
    with TopicFactory(cluster) as new_topic:
        topic = replicated_topic(new_topic, 3)
        old_leader = new_topic.leader_address(topic)
        with Connection(old_leader) as connection:
            producer_id = init_producer_id(connection).producer_id
            for number in range(8):
                answer = produce(connection, topic, 0, sequence_batch(producer_id, number * 3, 3), acks=-1)
                assert answer.error_code == ErrorCode.none
        dead = broker_at(cluster, old_leader)
        cluster.kill_broker(dead)

        def sent_again() -> Any:
            for broker, address in cluster.brokers.items():
                if broker != dead:
                    with Connection(address) as connection:
                        batch = sequence_batch(producer_id, 21, 3)
                        answer = produce(connection, topic, 0, batch, acks=-1)
                        if answer.error_code == ErrorCode.none:
                            return address, answer
            return None

        new_leader, answer = wait_until(sent_again, "another broker leads", 30)
        assert answer.base_offset == 21
        with Connection(new_leader) as connection:
            fourth = produce(connection, topic, 0, sequence_batch(producer_id, 9, 3), acks=-1)
            assert (fourth.error_code, fourth.base_offset) == (ErrorCode.none, 9)
            new = produce(connection, topic, 0, sequence_batch(producer_id, 24), acks=-1)
            assert (new.error_code, new.base_offset) == (ErrorCode.none, 24)
