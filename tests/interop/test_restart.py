"""A broker that starts is either not there yet or wholly there (R18)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.support.clusters import StartCluster
from tests.support.wire import Connection

RESTARTS = 3


def test_a_starting_broker_never_shows_a_cluster_without_itself(own_stack: StartCluster) -> None:
    """librdkafka takes an answer without brokers for an accident, and does not ask again for long."""
    cluster = own_stack()
    shown: list[tuple[tuple[int, ...], int]] = []
    for _ in range(RESTARTS):
        cluster.stop_broker(1)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(cluster.start_broker, 1)
            while not starting.done():
                try:
                    with Connection(cluster.brokers[1], timeout_seconds=5) as connection:
                        answer = connection.ask(
                            "metadata",
                            9,
                            topics=[],
                            allow_auto_topic_creation=False,
                            include_cluster_authorized_operations=False,
                            include_topic_authorized_operations=False,
                        )
                except OSError:
                    continue  # not there yet
                shown.append((tuple(broker.node_id for broker in answer.brokers), answer.controller_id))
            starting.result()

    assert shown
    assert set(shown) == {((1,), 1)}
