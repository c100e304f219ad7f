"""Two or all of three brokers killed at once: writes are refused, nothing is lost, and service comes back.

min.insync.replicas is 2, so with one replica left acks=all is NOT_ENOUGH_REPLICAS (R19, R22).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest
from kio.schema.errors import ErrorCode
from tests.faults.checker import REFUSED
from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.results import Result, result_of
from tests.faults.trial import PARTITIONS, WARM_UP_MESSAGES, settle_and_judge
from tests.faults.workload import Workload
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.waiting import let_pass, wait_until
from tests.support.wire import Connection, produce

REFUSAL_S_MAX: Final = 0.1  # of a request; measured: 7 ms; a timeout would be seconds
REFUSED_FROM_S_MAX: Final = 3.0  # after the kill, as long as a new leader may take
ALONE_S: Final = 2.0
RETURN_S_MAX: Final = 5.0  # a broker's start, its catching up, and a client's next attempt
# Three brokers start at once here. Seen on two cores: 1.9 to 4.3 s in seven runs, 6.9 s beside other work.
# The old sessions would end after 18 s.
ALL_RETURN_S_MAX: Final = 9.0


@pytest.mark.parametrize("survivor", ["controller", "follower"])
def test_writes_are_refused_at_once_and_resume_when_one_broker_returns(
    plain_cluster: FaultCluster, results: list[Result], survivor: str
) -> None:
    cluster = plain_cluster
    controller = cluster.controller()
    leader, follower = (broker_id for broker_id in BROKERS if broker_id != controller)
    left, other = (controller, follower) if survivor == "controller" else (follower, controller)
    topic = cluster.create_topic((leader, follower, controller), PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        struck_s = load.note(f"kill -9 of {leader} and {other}")
        try:
            cluster.kill(leader)
            cluster.kill(other)
            wait_until(_refuses(cluster, left, topic), "the last broker refuses", REFUSED_FROM_S_MAX)
            refused_from_s = time.monotonic() - struck_s
            asked_s = time.monotonic()
            assert _refuses(cluster, left, topic)()
            refusal_s = time.monotonic() - asked_s
            from_s = time.monotonic()
            let_pass(ALONE_S, "nothing must be acknowledged in this time")
            late = [event for event in load.history.acknowledged if from_s < event.at_s < from_s + ALONE_S]
            assert not late, f"acknowledged by one replica of the two that are required: {late[0]}"
        finally:
            returned_s = load.note(f"start of {other}")
            cluster.start(other)
        load.wait_for_acknowledgements(returned_s, 30.0)
        cluster.start(leader)
        ended_s = settle_and_judge(cluster, load, topic)

    history = load.history
    back_s = max(history.first_acknowledgement_after_s(returned_s).values())
    results.append(
        result_of(
            history,
            "kill -9 of two of three",
            f"{survivor} left",
            struck_s,
            ended_s,
            f"refused from {refused_from_s:.2f} s on, in {refusal_s * 1000:.0f} ms;"
            f" back {back_s:.2f} s after one was started",
        )
    )
    assert any(event.error in REFUSED for event in history.failed), "no client received NOT_ENOUGH_REPLICAS"
    assert refusal_s < REFUSAL_S_MAX
    assert back_s < RETURN_S_MAX


def test_a_cluster_that_crashed_serves_again_long_before_its_old_sessions_end(
    plain_cluster: FaultCluster, results: list[Result]
) -> None:
    """The controller comes back first, so that its listening again hides its death from the others."""
    cluster = plain_cluster
    controller = cluster.controller()
    others = [broker_id for broker_id in BROKERS if broker_id != controller]
    topic = cluster.create_topic((*others, controller), PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        struck_s = load.note("kill -9 of all")
        for broker_id in BROKERS:
            cluster.kill(broker_id)
        for broker_id in (controller, *others):
            cluster.start(broker_id)
        started_s = time.monotonic()
        load.wait_for_acknowledgements(started_s, 30.0)
        ended_s = settle_and_judge(cluster, load, topic)
    history = load.history
    back_s = max(history.first_acknowledgement_after_s(started_s).values())
    results.append(
        result_of(
            history, "kill -9 of all", "", struck_s, ended_s, f"back {back_s:.2f} s after all were started"
        )
    )
    assert back_s < ALL_RETURN_S_MAX


def _refuses(cluster: FaultCluster, broker_id: int, topic: str) -> Callable[[], bool]:
    """Whether a broker answers acks=all with NOT_ENOUGH_REPLICAS for every partition of a topic.

    The record is one that the checker would find if it were stored.
    """
    batch = encode_batch([Message(b"refused")])

    def ask() -> bool:
        with Connection(f"127.0.0.1:{cluster.stack.broker_port(broker_id)}") as connection:
            return all(
                produce(connection, topic, partition, batch, acks=-1).error_code
                == ErrorCode.not_enough_replicas
                for partition in range(PARTITIONS)
            )

    return ask
