"""Groups while brokers are killed: members go on, committed offsets never go back (R14, R15, R22)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster, StartCluster
from tests.support.committed_offsets import CommittedOffsets
from tests.support.group_members import Member, share_evenly
from tests.support.group_requests import coordinator_address
from tests.support.load import Load
from tests.support.waiting import wait_until

PARTITIONS = 6
LOAD_PER_SECOND = 1_000  # the members, beside other tests, read more than that
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "8",
}


def replicated_topic(cluster: Cluster) -> str:
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = f"topic-{uuid4().hex[:12]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=60)[topic].result(60)
    return topic


def broker_at(cluster: Cluster, address: str) -> int:
    return next(broker for broker, at in cluster.brokers.items() if at == address)


@pytest.mark.parametrize(
    ("kind", "protocol"), [("confluent", "classic"), ("aiokafka", "classic"), ("confluent", "consumer")]
)
def test_a_group_outlives_the_broker_that_coordinates_it(
    kind: str, protocol: str, own_stack: StartCluster, group: str
) -> None:
    how: dict[str, Any] = {"protocol": protocol, "session_ms": 10_000}
    cluster = own_stack(3, SETTINGS)
    topic = replicated_topic(cluster)
    address = coordinator_address(cluster.brokers[1], group)
    watch = CommittedOffsets(cluster, group, topic, PARTITIONS)
    with ExitStack() as started:
        members = [
            started.enter_context(Member(kind, cluster.bootstrap_servers, group, topic, **how))
            for _ in range(2)
        ]
        share_evenly(members, PARTITIONS)
        load = started.enter_context(
            Load(cluster.bootstrap_servers, topic, PARTITIONS, "load", "all", LOAD_PER_SECOND)
        )
        started.enter_context(watch.watched())
        load.resume()
        wait_until(lambda: all(one.told("committed") for one in members), "both commit")
        events = [list(one.events) for one in members]
        cluster.kill_broker(broker_at(cluster, address))
        counts = [len(one.told("committed")) for one in members]
        wait_until(
            lambda: all(
                len(one.told("committed")) > count + 5 for one, count in zip(members, counts, strict=True)
            ),
            "both commit again, at another coordinator",
        )
        assert coordinator_address(load_address(cluster, address), group) != address
        load.pause()
        expected = load.acknowledged_places()
        wait_until(
            lambda: expected <= {record for one in members for record in tuple(one.records)},
            "every acknowledged record was processed",
        )
        if kind == "confluent":
            # The next coordinator knows the members: nobody has to join anew.
            for one, before in zip(members, events, strict=True):
                moves = {"assigned", "revoked", "lost"}
                assert [event for event in one.events[len(before) :] if moves & event.keys()] == []
        wait_until(lambda: watch.times_answered > 10, "the watcher was answered often enough to notice")
    assert watch.times_answered > 10
    assert watch.went_back == []


def load_address(cluster: Cluster, but: str) -> str:
    return next(address for address in cluster.brokers.values() if address != but)
