"""Produces numbered records with acks=all and reads them back: `round_trip.py BOOTSTRAP TOPIC FIRST END`.

Runs in a pod and on the machine outside alike, so it imports nothing of the project. A topic that is not
there is made with three replicas. Prints one line of JSON: how many records were acknowledged, and how many
of all numbers below END are in the topic. Exit code 0 when neither lacks any.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
REPLICAS = 3
READ_SECONDS_MAX = 60.0


def make_topic(bootstrap: str, topic: str) -> None:
    """Make the topic unless it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        made = admin.create_topics([NewTopic(topic, PARTITIONS, REPLICAS)], operation_timeout=30)
        made[topic].result()


def produce(bootstrap: str, topic: str, values: list[str]) -> set[str]:
    """Send `values` and return those that were acknowledged by all in-sync replicas."""
    acknowledged: set[str] = set()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.add((message.value() or b"").decode())

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value=value.encode(), key=value.encode(), on_delivery=delivered)
        producer.poll(0)
    producer.flush(60)
    return acknowledged


def consume(bootstrap: str, topic: str, expected: set[str]) -> set[str]:
    """Read the topic from its start until `wanted` was seen or time is up; returns what was seen of it."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"round-trip-{time.time_ns()}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    seen: set[str] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while not expected <= seen and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1):
            if message.error() is None:
                seen.add((message.value() or b"").decode())
    consumer.close()
    return seen & expected


def main(bootstrap: str, topic: str, first: str, end: str) -> int:
    make_topic(bootstrap, topic)
    values = [str(number) for number in range(int(first), int(end))]
    acknowledged = produce(bootstrap, topic, values)
    read = consume(bootstrap, topic, {str(number) for number in range(int(end))})
    sys.stdout.write(json.dumps({"acknowledged": len(acknowledged), "read": len(read)}) + "\n")
    return 0 if len(acknowledged) == len(values) and len(read) == int(end) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
