"""Consumer groups as resources: lag, limits and resets (R26)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.e2e.installation import RESYNC_SECONDS, Installation, wait_until

RECORDS = 120
PARTITIONS = 6
AFTER_RESYNC = 3 * RESYNC_SECONDS


@pytest.fixture
def group(mainstem: Installation) -> Iterator[str]:
    name = f"group-{uuid4().hex[:8]}"
    yield name
    mainstem.delete("consumergroup", name)


def test_e20_the_reported_lag_is_that_of_the_brokers(mainstem: Installation, topic: str, group: str) -> None:
    fill(mainstem, topic)
    commit(mainstem, topic, group, 5)
    mainstem.apply("ConsumerGroup", group, maxLag=10)
    reported = mainstem.until("consumergroup", group, "WithinSLO", "False", "LagTooGreat")
    assert (
        f"{RECORDS - 5 * PARTITIONS} records are not consumed yet, and 10 are allowed." in reported["message"]
    )
    status = mainstem.status("consumergroup", group)
    assert status["totalLag"] == RECORDS - 5 * PARTITIONS
    assert {item["committed"] for item in status["partitions"]} == {5}
    commit(mainstem, topic, group, RECORDS // PARTITIONS)
    mainstem.until("consumergroup", group, "WithinSLO", seconds=AFTER_RESYNC)
    assert mainstem.status("consumergroup", group)["totalLag"] == 0


def test_e21_an_idle_group_is_reset_once_for_each_request(
    mainstem: Installation, topic: str, group: str
) -> None:
    """Every way a reset can say where to, and undo; applied again, or after a commit, nothing is repeated."""
    fill(mainstem, topic)
    each = RECORDS // PARTITIONS
    commit(mainstem, topic, group, 7)
    mainstem.apply("ConsumerGroup", group)
    mainstem.until("consumergroup", group, "Ready")
    wishes: list[tuple[dict[str, Any], int]] = [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, each),
        ({"to": "shift", "shiftBy": -3}, each - 3),
        ({"to": "offset", "offset": 9}, 9),
        ({"to": "datetime", "datetime": "2020-01-01T00:00:00Z"}, 0),
        ({"to": "undo"}, 9),
    ]
    for number, (wish, expected) in enumerate(wishes):
        reset(mainstem, group, f"request-{number}", **wish)
        assert committed(mainstem, topic, group) == {expected}, wish
    commit(mainstem, topic, group, 11)
    reset(mainstem, group, "request-5", to="undo")
    mainstem.annotate("consumergroup", group, "look", "now")
    wait_until(
        lambda: mainstem.status("consumergroup", group)["totalLag"] == RECORDS - 11 * PARTITIONS,
        "the group is looked at again",
    )
    assert committed(mainstem, topic, group) == {11}


def test_e17_a_paused_group_is_not_reset_and_can_be_deleted(
    mainstem: Installation, topic: str, group: str
) -> None:
    fill(mainstem, topic)
    commit(mainstem, topic, group, 7)
    mainstem.apply("ConsumerGroup", group)
    mainstem.until("consumergroup", group, "Ready")
    mainstem.annotate("consumergroup", group, "pause-reconciliation", "true")
    mainstem.until("consumergroup", group, "Paused")
    mainstem.apply("ConsumerGroup", group, reset={"requestId": "paused", "to": "earliest"})
    wait_until(lambda: not mainstem.behind(), "the edit is seen")
    assert committed(mainstem, topic, group) == {7}
    mainstem.annotate("consumergroup", group, "pause-reconciliation", None)
    mainstem.until("consumergroup", group, "ResetPending", "False", "Done")
    assert committed(mainstem, topic, group) == {0}
    mainstem.annotate("consumergroup", group, "pause-reconciliation", "true")
    mainstem.until("consumergroup", group, "Paused")
    mainstem.delete("consumergroup", group)
    assert committed(mainstem, topic, group) == {0}


def reset(mainstem: Installation, group: str, request: str, **wish: Any) -> None:
    """Ask for a reset and wait until it is done."""
    mainstem.apply("ConsumerGroup", group, reset={"requestId": request, **wish})
    mainstem.until("consumergroup", group, "ResetPending", "False", "Done")
    wait_until(
        lambda: mainstem.status("consumergroup", group)["lastReset"]["requestId"] == request, "the reset"
    )


def fill(mainstem: Installation, topic: str) -> None:
    """The same number of records in each partition."""
    producer = Producer({"bootstrap.servers": mainstem.outside, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def settings(mainstem: Installation, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": mainstem.outside,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


def commit(mainstem: Installation, topic: str, group: str, offset: int) -> None:
    """Commit the same offset of every partition, as a group without members."""
    consumer = Consumer(settings(mainstem, group))
    consumer.commit(
        offsets=[TopicPartition(topic, number, offset) for number in range(PARTITIONS)], asynchronous=False
    )
    consumer.close()


def committed(mainstem: Installation, topic: str, group: str) -> set[int]:
    consumer = Consumer(settings(mainstem, group))
    result = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=30)
    consumer.close()
    return {item.offset for item in result}
