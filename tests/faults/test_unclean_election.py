"""No in-sync replica is left: the partition waits for one, or, if configured so, goes on without (R19)."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest
from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.workload import read_all
from tests.support.messages import Message
from tests.support.stock_clients import Confluent
from tests.support.waiting import wait_until

BOTH_HAVE: Final = 100
ONE_HAS: Final = 50
WAITING_S: Final = 2.0


@pytest.mark.parametrize("unclean", [False, True], ids=["off", "on"])
def test_the_last_in_sync_replica_is_waited_for_unless_unclean_election_is_on(
    plain_cluster: FaultCluster, unclean: bool
) -> None:
    cluster = plain_cluster
    controller = cluster.controller()
    leader, follower = (broker_id for broker_id in BROKERS if broker_id != controller)
    settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": str(unclean).lower()}
    topic = cluster.create_topic((leader, follower), 1, settings)
    _produce(cluster, topic, BOTH_HAVE)
    cluster.kill(follower)
    wait_until(
        lambda: _in_sync(cluster, topic, controller) == {leader}, "the follower is out of the in-sync set"
    )
    _produce(cluster, topic, ONE_HAS)
    cluster.kill(leader)
    cluster.start(follower)

    if unclean:
        wait_until(lambda: cluster.leaders(topic, controller) == {follower}, "the follower is elected")
        assert _records(cluster, topic) == BOTH_HAVE
        _produce(cluster, topic, 1)
        warning = _logged(cluster, follower, "leading though not in sync", topic)
        assert warning["from_offset"] == BOTH_HAVE
    else:
        waited_until_s = time.monotonic() + WAITING_S
        while time.monotonic() < waited_until_s:
            assert follower not in cluster.leaders(topic, controller), "a replica that is not in sync leads"

    cluster.start(leader)
    cluster.wait_until_whole(topic)
    if unclean:
        assert _records(cluster, topic) == BOTH_HAVE + 1
        loss = _logged(cluster, leader, "records lost to an unclean election", topic)
        assert (loss["from_offset"], loss["to_offset"]) == (BOTH_HAVE, BOTH_HAVE + ONE_HAS - 1)
    else:
        assert cluster.leaders(topic, controller) == {leader}
        assert _records(cluster, topic) == BOTH_HAVE + ONE_HAS
    cluster.delete_topic(topic)


def _produce(cluster: FaultCluster, topic: str, count: int) -> None:
    Confluent().produce(cluster.bootstrap_servers, topic, [Message(b"a value")] * count)


def _in_sync(cluster: FaultCluster, topic: str, requested: int) -> set[int]:
    return set(cluster.partitions_of(topic, requested)[0].isr_nodes)


def _records(cluster: FaultCluster, topic: str) -> int:
    return len(read_all(cluster.bootstrap_servers, topic, 0))


def _logged(cluster: FaultCluster, broker_id: int, event: str, topic: str) -> dict[str, Any]:
    """The line about a topic that a broker logged since its start."""

    def find() -> dict[str, Any] | None:
        lines = [json.loads(line) for line in cluster.stack.broker_log_lines(broker_id, 1_000) if line]
        results = [
            line
            for line in lines
            if line["event"].startswith(event) and line.get("partition", "").startswith(topic)
        ]
        return results[0] if results else None

    line = wait_until(find, f"broker {broker_id} logs {event!r}")
    assert line is not None
    return line
