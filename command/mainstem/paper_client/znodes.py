"""Where consumers keep what in ZooKeeper, and how it is written (pure). Paths and formats of Kafka 0.8.

The four registries of the paper (§3.2):

- broker registry, written by brokers: `/brokers/ids/N`, ephemeral, JSON with `endpoints`
  (`PLAINTEXT://host:port`) or `host` and `port`; and `/brokers/topics/T`, JSON whose `partitions` has a key
  for each partition.
- consumer registry: `/consumers/G/ids/C`, ephemeral:
  `{"version":1,"subscription":{"T":2},"pattern":"static","timestamp":"1700000000000"}`, where 2 is the
  number of streams.
- ownership registry: `/consumers/G/owners/T/P`, ephemeral: the name of the stream that reads partition P.
- offset registry: `/consumers/G/offsets/T/P`, persistent: the offset of the next message, in decimal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from mainstem.whole_numbers import is_whole_number

BROKER_IDS: Final = "/brokers/ids"


def topic_path(topic: str) -> str:
    return f"/brokers/topics/{topic}"


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The nodes of a group for one topic."""

    group_id: str
    topic: str

    @property
    def ids(self) -> str:
        return f"/consumers/{self.group_id}/ids"

    @property
    def owners(self) -> str:
        return f"/consumers/{self.group_id}/owners/{self.topic}"

    @property
    def offsets(self) -> str:
        return f"/consumers/{self.group_id}/offsets/{self.topic}"

    def consumer(self, consumer_id: str) -> str:
        return f"{self.ids}/{consumer_id}"

    def owner(self, partition: int) -> str:
        return f"{self.owners}/{partition}"

    def offset(self, partition: int) -> str:
        return f"{self.offsets}/{partition}"


def encode_registration(topic: str, streams: int, now_ms: int) -> bytes:
    """The text of a node in the consumer registry."""
    registration = {
        "version": 1,
        "subscription": {topic: streams},
        "pattern": "static",
        "timestamp": str(now_ms),
    }
    return json.dumps(registration, separators=(",", ":")).encode()


def streams_in(registration: bytes, topic: str) -> int:
    """How many streams of `topic` a registered consumer has; 0 for one that reads other topics."""
    count = _object(registration, "subscription").get(topic, 0)
    return count if isinstance(count, int) else 0


def partitions_in(topic_node: bytes) -> frozenset[int]:
    """The partitions of a topic, from its node in the broker registry."""
    return frozenset(int(number) for number in _object(topic_node, "partitions") if is_whole_number(number))


def address_in(broker_node: bytes) -> str | None:
    """The `host:port` of a broker for clients without encryption; None if it has none."""
    try:
        broker: Any = json.loads(broker_node)
        for endpoint in broker.get("endpoints") or ():
            protocol, _, address = endpoint.partition("://")
            if protocol == "PLAINTEXT":
                return str(address)
        return f"{broker['host']}:{broker['port']}" if broker.get("host") else None
    except (ValueError, KeyError, AttributeError):
        return None


def _object(node: bytes, key: str) -> dict[str, Any]:
    """The object at `key`; empty for a text that is none of ours, for anyone may write there."""
    try:
        value = json.loads(node)[key]
    except (ValueError, KeyError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
