"""The paper's producer (§3): `producer.send("topic1", message_set)`."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any, Final, Literal, Self

import confluent_kafka

from mainstem.paper_client.errors import SendFailed, ZooKeeperUnreachable
from mainstem.paper_client.messages import MessageSet
from mainstem.paper_client.zookeeper import connected, registered_brokers

_DELIVERY_TIMEOUT_MS: Final = 60_000


class Producer:
    """Sends message sets to the brokers that ZooKeeper knows; a stock Kafka client below it batches them.

    Messages with a key go to the partition that the key hashes to (murmur2, as with all clients), others to
    any one (§3.2). `acks` says who must have a message before it counts as sent: all in-sync replicas, the
    leader, or nobody. For one thread.

    Raises:
        ZooKeeperUnreachable: ZooKeeper does not answer, or no broker is registered there.
    """

    def __init__(self, zookeeper_connect: str, acks: Literal["all", "1", "0"] = "all") -> None:
        with connected(zookeeper_connect) as zookeeper:
            brokers = registered_brokers(zookeeper)
        if not brokers:
            raise ZooKeeperUnreachable(
                f"ZooKeeper at {zookeeper_connect} has no broker: start one, or correct the address."
            )
        self._client: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": ",".join(brokers),
                "acks": acks,
                "enable.idempotence": acks == "all",
                "partitioner": "murmur2_random",
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "linger.ms": 1,  # a set is handed over at once; more is not to be waited for
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, topic: str, messages: MessageSet) -> None:
        """Send all messages of a set, and wait until the brokers have them.

        Raises:
            SendFailed: some were not acknowledged within a minute.
        """
        failures: Counter[str] = Counter()
        open_count = 0

        def on_delivery(error: Any, _message: Any) -> None:
            nonlocal open_count
            open_count -= 1
            if error is not None:
                failures[_reason(error)] += 1

        for message in messages:
            while True:
                try:
                    self._client.produce(topic, message.payload, message.key, on_delivery=on_delivery)
                except BufferError:
                    self._client.poll(0.1)  # the client's queue is full
                    continue
                except confluent_kafka.KafkaException as exception:  # too large, for one
                    failures[_reason(exception.args[0])] += 1
                else:
                    open_count += 1
                break
        while open_count:
            self._client.poll(0.1)
        if failures:
            reasons = "; ".join(f"{reason} ({count:,})" for reason, count in failures.items())
            raise SendFailed(
                f"{failures.total():,} of {len(messages):,} messages were not acknowledged by topic {topic}:"
                f" {reasons}."
            )

    def close(self) -> None:
        """Wait until everything is sent, also of a set that was interrupted."""
        self._client.flush()


def _reason(error: Any) -> str:
    return str(error.str()).removeprefix("Broker: ").removeprefix("Local: ")
