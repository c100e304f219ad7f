"""The layout of the cluster in ZooKeeper: paths and JSON, nothing that talks to it.

The layout is that of Apache Kafka 3.9 in ZooKeeper mode, so that people and scripts that know
`zookeeper-shell` find what they expect (R18). States carry keys of ours (`elr`, `incarnations`,
`assignment_version`), which others ignore. These nodes are ours alone:

- `/mainstem/changes/change_NNNNNNNNNN`: the feed of changes that every broker follows by one watch;
  each entry names or carries what changed (`Change`). The controller trims it.
- `/mainstem/incarnations/N`: the incarnations of broker N. The node's version is the number of the present
  one and grows with each registration; the text names the last one that began after an unclean stop.
- `/mainstem/offline/N`, ephemeral: the replicas of broker N whose data directory failed.
- `/brokers/topics/T/partitions/P/claim_N`: how far the log of broker N reaches, written when all who might
  lead P have come back from unclean stops.
- `/mainstem/scram_secret`: 32 random bytes, of which the answers to logins of users that do not exist are
  derived (`security/scram_decoys.py`). Who can read it can tell which users exist; so can who reads
  `/config/users`.
- `/mainstem/restores`: how often a broker has noticed that the tree was restored from an older backup, and
  the controller epoch up to which states may be from such a backup. Absent before the first time.
- `/mainstem/deleted_topics/ID`: a deleted topic whose files some broker still has to remove; the
  brokers strike themselves off, the last one removes the node.

Decoding raises NewerFormat if a node names a later version than this one writes, and ValueError, KeyError,
TypeError or AttributeError if it is no such node.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from mainstem_broker.errors import NewerFormat
from mainstem_broker.replica.partition_state import PartitionState

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER_ID: Final = "/cluster/id"
DELETE_TOPICS: Final = "/admin/delete_topics"
TOPIC_CONFIGS: Final = "/config/topics"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
CHANGES: Final = "/mainstem/changes"
INCARNATIONS: Final = "/mainstem/incarnations"
OFFLINE: Final = "/mainstem/offline"
CHANGE_PREFIX: Final = CHANGES + "/change_"
DELETED_TOPICS: Final = "/mainstem/deleted_topics"
RESTORES: Final = "/mainstem/restores"
SCRAM_SECRET: Final = "/mainstem/scram_secret"

STATES_PER_MULTI: Final = 300
"""A multi must stay below ZooKeeper's `jute.maxbuffer` of 1 MiB; a state takes about 500 bytes in it."""

PERSISTENT_PATHS: Final = (
    BROKER_IDS,
    TOPICS,
    DELETE_TOPICS,
    TOPIC_CONFIGS,
    "/config/brokers",
    "/config/clients",
    "/config/users",
    "/config/groups",
    "/config/ips",
    "/consumers",
    "/kafka-acl",
    "/kafka-acl-extended/prefixed",
    CHANGES,
    INCARNATIONS,
    OFFLINE,
    DELETED_TOPICS,
    PRODUCER_ID_BLOCK,
)  # fmt: skip


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def claim_path(topic: str, partition: int, broker_id: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/claim_{broker_id}"


def incarnation_path(broker_id: int) -> str:
    return f"{INCARNATIONS}/{broker_id}"


def offline_path(broker_id: int) -> str:
    return f"{OFFLINE}/{broker_id}"


def deletion_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


REGISTRATION_VERSION: Final = 5
ASSIGNMENT_VERSION: Final = 3
STATE_VERSION: Final = 1
CHANGE_VERSION: Final = 1
_OTHERS_VERSION: Final = 1


def require_version(body: Mapping[str, Any], highest: int) -> None:
    """Check that this broker reads the format of a node. One that does not name it has the present format.

    Raises:
        NewerFormat: it does not: a later version may give the same keys another meaning.
    """
    version = int(body.get("version", highest))
    if version > highest:
        raise NewerFormat(f"its format has version {version}, and this broker reads up to {highest}")


def _load(data: bytes, highest: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data)
    require_version(body, highest)
    return body


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener of a broker, as it is advertised to clients."""

    listener: str
    security_protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/N`. `epoch` is the node's czxid: it grows each time the broker registers.

    `incarnation` is the number of its present one, and `last_unclean` that of the last one that began
    without a clean stop before it; both from `/mainstem/incarnations/N`. `first_incarnation` is the first one
    of the broker's present process, if that has had several sessions (a key of ours). `leaving` says that it
    is about to stop and hands its leaderships over (a key of ours, which others ignore). `offline` are the
    partitions whose replica it cannot serve, by topic id and number, from `/mainstem/offline/N`.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    epoch: int = -1
    incarnation: int = 0
    last_unclean: int = 0
    leaving: bool = False
    first_incarnation: int | None = None
    offline: frozenset[tuple[UUID, int]] = frozenset()

    def holds(self, incarnation: int) -> bool:
        """Whether what was given to `incarnation` is the present process's, which may outlive sessions."""
        first = self.incarnation if self.first_incarnation is None else self.first_incarnation
        return first <= incarnation <= self.incarnation

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    def encode(self, timestamp_ms: int) -> bytes:
        first = self.endpoints[0]
        body: dict[str, Any] = {
            "version": REGISTRATION_VERSION,
            "host": first.host,
            "port": first.port,
            "jmx_port": -1,
            "timestamp": str(timestamp_ms),
            "endpoints": [_url(endpoint) for endpoint in self.endpoints],
            "listener_security_protocol_map": {e.listener: e.security_protocol for e in self.endpoints},
            "features": {},
        }
        if self.rack is not None:
            body["rack"] = self.rack
        if self.leaving:
            body["leaving"] = True
        if self.first_incarnation is not None:
            body["first_incarnation"] = self.first_incarnation
        return _dump(body)

    @classmethod
    def decode(cls, broker_id: int, data: bytes, epoch: int) -> BrokerRegistration:
        body = _load(data, REGISTRATION_VERSION)
        protocols = body["listener_security_protocol_map"]
        endpoints = []
        for text in body["endpoints"]:
            listener, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            endpoints.append(Endpoint(listener, protocols[listener], host.strip("[]"), int(port)))
        return cls(
            broker_id,
            tuple(endpoints),
            body.get("rack"),
            epoch,
            leaving=bool(body.get("leaving", False)),
            first_incarnation=body.get("first_incarnation"),
        )


def _url(endpoint: Endpoint) -> str:
    """As Kafka writes it, and tools read it: an IPv6 address has brackets."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/T`: which brokers hold which partition. `version` is the node's."""

    topic: str
    topic_id: UUID
    replicas: Mapping[int, tuple[int, ...]]
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    version: int = 0

    def encode(self) -> bytes:
        def by_partition(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
            return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}

        return _dump(
            {
                "version": ASSIGNMENT_VERSION,
                "partitions": by_partition(self.replicas),
                "adding_replicas": by_partition(self.adding_replicas),
                "removing_replicas": by_partition(self.removing_replicas),
                "topic_id": encode_uuid(self.topic_id),
            }
        )

    @classmethod
    def decode(cls, topic: str, data: bytes, version: int) -> TopicAssignment:
        body = _load(data, ASSIGNMENT_VERSION)

        def by_partition(name: str) -> dict[int, tuple[int, ...]]:
            return {int(partition): tuple(ids) for partition, ids in body.get(name, {}).items()}

        return cls(
            topic,
            decode_uuid(body["topic_id"]),
            by_partition("partitions"),
            by_partition("adding_replicas"),
            by_partition("removing_replicas"),
            version,
        )


def _state_body(state: PartitionState) -> dict[str, Any]:
    body: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": STATE_VERSION,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovering:
        body["leader_recovery_state"] = 1
    if state.elr:
        body["elr"] = list(state.elr)
    if state.assignment_version:
        body["assignment_version"] = state.assignment_version
    if state.incarnations:
        body["incarnations"] = {
            str(broker): incarnation for broker, incarnation in state.incarnations.items()
        }
    return body


def encode_state(state: PartitionState) -> bytes:
    """`/brokers/topics/T/partitions/P/state`; its node's version is the partition epoch."""
    return _dump(_state_body(state))


def decode_state(data: bytes, version: int) -> PartitionState:
    return _state_of(json.loads(data), version)


def _state_of(body: Mapping[str, Any], version: int) -> PartitionState:
    require_version(body, STATE_VERSION)
    return PartitionState(
        leader=body["leader"],
        leader_epoch=body["leader_epoch"],
        isr=tuple(body["isr"]),
        controller_epoch=body["controller_epoch"],
        partition_epoch=version,
        recovering=body.get("leader_recovery_state", 0) == 1,
        elr=tuple(body.get("elr", ())),
        incarnations={
            int(broker): incarnation for broker, incarnation in body.get("incarnations", {}).items()
        },
        assignment_version=body.get("assignment_version", 0),
    )


def encode_incarnation(last_unclean: int) -> bytes:
    return _dump({"version": 1, "last_unclean": last_unclean})


def decode_incarnation(data: bytes) -> int:
    return int(_load(data, _OTHERS_VERSION)["last_unclean"])


def encode_offline(partitions: Iterable[tuple[UUID, int]]) -> bytes:
    """`/mainstem/offline/N`."""
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(encode_uuid(topic_id), []).append(partition)
    return _dump({"version": 1, "partitions": by_topic})


def decode_offline(data: bytes) -> frozenset[tuple[UUID, int]]:
    by_topic = _load(data, _OTHERS_VERSION)["partitions"]
    return frozenset((decode_uuid(text), index) for text, indexes in by_topic.items() for index in indexes)


NO_LOG: Final = -1
"""In a claim, in place of epoch and offset: the broker has no log of the partition."""


@dataclass(frozen=True, slots=True)
class Claim:
    """How far a broker's log of a partition reaches, in the incarnation in which it looked."""

    broker_id: int
    incarnation: int
    last_epoch: int
    log_end_offset: int

    @property
    def has_log(self) -> bool:
        return self.log_end_offset != NO_LOG

    def encode(self) -> bytes:
        return _dump(
            {
                "version": 1,
                "incarnation": self.incarnation,
                "last_epoch": self.last_epoch,
                "log_end_offset": self.log_end_offset,
            }
        )

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> Claim:
        body = _load(data, _OTHERS_VERSION)
        return cls(broker_id, body["incarnation"], body["last_epoch"], body["log_end_offset"])


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _dump(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
    )


def decode_controller(data: bytes) -> int:
    return int(json.loads(data)["brokerid"])


def encode_config(config: Mapping[str, str]) -> bytes:
    """`/config/ENTITY_TYPE/ENTITY`."""
    return _dump({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(data: bytes) -> dict[str, str]:
    if not data:  # `/config/users/U`, made for a node below it
        return {}
    config = _load(data, _OTHERS_VERSION).get("config", {})
    return {str(name): str(value) for name, value in config.items()}


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(json.loads(data)["id"])


def encode_producer_id_block(broker_id: int, ids: range) -> bytes:
    """The newest block of producer ids, given to a broker; Kafka writes the numbers as text."""
    start, end = str(ids[0]), str(ids[-1])
    return _dump({"version": 1, "broker": broker_id, "block_start": start, "block_end": end})


def decode_producer_id_block(data: bytes) -> range:
    """The ids of the newest block; the empty one at 0 before any was given."""
    if not data:
        return range(0)
    body = _load(data, _OTHERS_VERSION)
    return range(int(body["block_start"]), int(body["block_end"]) + 1)


@dataclass(frozen=True, slots=True)
class Restores:
    """`/mainstem/restores`: their number, and the controller epoch at the last one."""

    count: int = 0
    controller_epoch: int = -1

    def encode(self) -> bytes:
        return _dump({"version": 1, "count": self.count, "controller_epoch": self.controller_epoch})

    @classmethod
    def decode(cls, data: bytes) -> Restores:
        body = _load(data, _OTHERS_VERSION)
        return cls(body["count"], body["controller_epoch"])


def encode_deleted_topic(topic: str, brokers: frozenset[int]) -> bytes:
    """`/mainstem/deleted_topics/ID`: who still has files of it."""
    return _dump({"version": 1, "topic": topic, "brokers": sorted(brokers)})


def decode_deleted_topic(data: bytes) -> tuple[str, frozenset[int]]:
    body = _load(data, _OTHERS_VERSION)
    return body["topic"], frozenset(body["brokers"])


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the feed. Partition states are carried, with their versions; the rest is only named.

    States and deletions name their topic by its id: a broker that reads an entry late may already know
    another topic of the same name.
    """

    states: tuple[tuple[UUID, int, PartitionState], ...] = ()
    claims: tuple[tuple[str, int], ...] = ()
    """Partitions of which someone claimed how far its log reaches."""
    brokers: tuple[int, ...] = ()
    """Brokers whose registration changed; those that come and go are noticed by a watch."""
    topics: tuple[str, ...] = ()
    """Topics whose assignment appeared or changed."""
    deleted: tuple[tuple[str, UUID], ...] = ()
    configs: tuple[str, ...] = ()
    """Entities whose configuration changed, as in `config_path`."""
    acls: tuple[str, ...] = ()
    """Paths of rules that changed (`acl_znodes.py`)."""
    deletions: tuple[UUID, ...] = ()
    """Topics whose deletion was requested."""
    elections: tuple[tuple[UUID, int, int], ...] = ()
    """Elections that somebody asks for: topic, partition, kind as in the protocol."""

    def encode(self) -> bytes:
        return _dump(
            {
                "version": CHANGE_VERSION,
                "states": [
                    [encode_uuid(topic_id), partition, state.partition_epoch, _state_body(state)]
                    for topic_id, partition, state in self.states
                ],
                "claims": [list(claim) for claim in self.claims],
                "brokers": list(self.brokers),
                "topics": list(self.topics),
                "deleted": [[topic, encode_uuid(topic_id)] for topic, topic_id in self.deleted],
                "configs": list(self.configs),
                "acls": list(self.acls),
                "deletions": [encode_uuid(topic_id) for topic_id in self.deletions],
                "elections": [
                    [encode_uuid(topic_id), partition, kind] for topic_id, partition, kind in self.elections
                ],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Change:
        body = _load(data, CHANGE_VERSION)
        return cls(
            states=tuple(
                (decode_uuid(topic_id), partition, _state_of(state, version))
                for topic_id, partition, version, state in body["states"]
            ),
            claims=tuple((topic, partition) for topic, partition in body["claims"]),
            brokers=tuple(body["brokers"]),
            topics=tuple(body["topics"]),
            deleted=tuple((topic, decode_uuid(text)) for topic, text in body["deleted"]),
            configs=tuple(body["configs"]),
            acls=tuple(body.get("acls", ())),
            deletions=tuple(decode_uuid(text) for text in body["deletions"]),
            elections=tuple(
                (decode_uuid(topic_id), partition, kind)
                for topic_id, partition, kind in body.get("elections", ())
            ),
        )


def change_number(name: str) -> int:
    """The number of a feed entry, from its node's name."""
    return int(name.rpartition("_")[2])


def encode_uuid(value: UUID) -> str:
    """Kafka's text form of an id: URL-safe base64 of its 16 bytes, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
