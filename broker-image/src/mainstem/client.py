"""The cluster as the command sees it: its only module that builds Kafka clients and reads their errors.

Every failure of librdkafka leaves here as a `CommandError` whose sentence says what to do.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable, CommandError
from mainstem.output import program_name

DEFAULT_BOOTSTRAP_SERVERS: Final = "127.0.0.1:9092"
_CONNECT_TIMEOUT_SECONDS: Final = 1.0
_METADATA_TIMEOUT_SECONDS: Final = 3.0
ADMIN_TIMEOUT_SECONDS: Final = 30.0
_QUESTION_TIMEOUT_SECONDS: Final = 5.0  # to a broker that is down and may be back in a moment
# librdkafka's own codes, which confluent_kafka publishes under names that begin with an underscore.
ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001
MESSAGE_TIMED_OUT: Final = KafkaError._MSG_TIMED_OUT  # noqa: SLF001
_NOBODY_ANSWERED: Final = frozenset(
    {ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}  # noqa: SLF001
)
_LEADER_CHANGES: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # librdkafka asks with the epoch of the metadata it has; to ask for a topic renews that.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # it leads since a moment ago (KIP-207)
        KafkaError._NOENT,  # noqa: SLF001  # librdkafka's word when none of the partitions has a leader
    }
)
_HINTS: Final = {
    MESSAGE_TIMED_OUT: "the partition's leader did not take it in time, so see whether its broker is up",
    KafkaError.TOPIC_ALREADY_EXISTS: "add --if-not-exists to accept the one there, or choose another name",
    KafkaError.INVALID_REPLICATION_FACTOR: "there can be no more replicas than brokers",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask for access to the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "ask for access to the cluster",
    KafkaError.MSG_SIZE_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    KafkaError.NOT_ENOUGH_REPLICAS: "too few replicas are in sync for the topic's min.insync.replicas",
}

Offsets = dict[int, int | None]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as metadata tells it; `leader` is None while there is none."""

    number: int
    leader: int | None
    replicas: list[int]
    in_sync_replicas: list[int]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: list[Partition]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition.number) for partition in self.partitions]


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class Description:
    """Who is in the cluster; `controller_id` is None while nobody is known to be controller."""

    cluster_id: str
    controller_id: int | None
    brokers: list[Broker]


class Cluster:
    """The brokers behind `bootstrap_servers` (`host:port,host:port`). Nothing connects before it is used."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @cached_property
    def admin(self) -> AdminClient:
        """An administration client.

        Raises:
            ClusterUnreachable: no address accepts a connection.
        """
        check_reachable(self.bootstrap_servers)
        return AdminClient(self._settings())

    def producer(self, settings: Mapping[str, object], on_trouble: Callable[[str], None]) -> Producer:
        """A producer; `on_trouble` is told when no broker can be reached for the moment."""
        # A topic that is deleted meanwhile stays deleted: asking for it would have it made anew.
        return Producer({**self._settings(on_trouble), "allow.auto.create.topics": False, **settings})

    def consumer(self, settings: Mapping[str, object], on_trouble: Callable[[str], None]) -> Consumer:
        """A consumer for `assign`, which belongs to no group unless `settings` name one."""
        return Consumer(
            {
                **self._settings(on_trouble),
                "group.id": "mainstem-command",  # librdkafka wants one; nothing is committed to it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                # How long a partition pauses when 100,000 records of it lie ready; 1 s by default.
                "fetch.queue.backoff.ms": 10,
                **settings,
            }
        )

    def description(self) -> Description:
        """The live brokers and the controller.

        Raises:
            ClusterUnreachable: nobody answered.
        """
        future = self.admin.describe_cluster(request_timeout=_QUESTION_TIMEOUT_SECONDS)
        found = self.result(future, "Asking for the brokers failed")
        nodes = sorted(found.nodes, key=lambda node: node.id)
        return Description(
            found.cluster_id or "",
            None if found.controller is None else found.controller.id,
            [Broker(node.id, node.host, node.port, node.rack) for node in nodes],
        )

    def topics(self) -> dict[str, Topic]:
        """All topics by name.

        Raises:
            ClusterUnreachable: nobody answered.
        """
        # All of them and not one: asking for one by its name may create it.
        try:
            metadata = self.admin.list_topics(timeout=_METADATA_TIMEOUT_SECONDS)
        except KafkaException as exception:
            raise self.refusal(exception, "Asking for the topics failed") from exception
        return {
            name: Topic(
                name,
                [
                    Partition(
                        number,
                        partition.leader if partition.leader >= 0 else None,
                        list(partition.replicas),
                        list(partition.isrs),
                    )
                    for number, partition in sorted(found.partitions.items())
                ],
            )
            for name, found in sorted(metadata.topics.items())
        }

    def topic(self, name: str) -> Topic:
        """The topic `name`.

        Raises:
            BadInput: there is none; the message names similar ones.
            ClusterUnreachable: nobody answered.
        """
        topics = self.topics()
        if name in topics:
            return topics[name]
        near = difflib.get_close_matches(name, topics, n=3)
        if near:
            raise BadInput(f"There is no topic {name}: did you mean {' or '.join(near)}?")
        raise BadInput(f"There is no topic {name}: create it with `mainstem topic create {name}`.")

    def offsets(self, partitions: Iterable[TopicPartition], *points: OffsetSpec) -> list[Offsets]:
        """For each point the offset of every partition there, by the partition's number.

        The partitions are of one topic and have leaders. An offset is -1 if no record is that young, and None
        if the leader does not answer, or is being changed.

        Raises:
            ClusterUnreachable, ClusterRefused: the first failure of another kind.
        """
        asked = list(partitions)
        if not asked:
            return [{} for _ in points]
        answers = [
            self.admin.list_offsets(dict.fromkeys(asked, point), request_timeout=_QUESTION_TIMEOUT_SECONDS)
            for point in points
        ]
        return [
            {partition.partition: self._offset(partition, future) for partition, future in answer.items()}
            for answer in answers
        ]

    def _offset(self, partition: TopicPartition, future: Any) -> int | None:
        try:
            offset: int = future.result().offset
        except KafkaException as exception:
            if exception.args[0].code() in _LEADER_CHANGES:
                return None
            doing = f"Asking for the offsets of partition {partition.partition} failed"
            raise self.refusal(exception, doing) from exception
        return None if offset == OFFSET_INVALID else offset  # librdkafka's word for no answer from the leader

    def topic_settings(self, name: str) -> dict[str, Any] | None:
        """All settings of a topic, as confluent_kafka's ConfigEntry by name.

        None when the controller does not answer: librdkafka asks no other broker.
        """
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        answers = self.admin.describe_configs([resource], request_timeout=_QUESTION_TIMEOUT_SECONDS)
        try:
            settings: dict[str, Any] = self.result(answers[resource], f"The settings of {name} are not told")
        except ClusterUnreachable:
            return None
        return settings

    def result(self, future: Any, doing: str) -> Any:
        """What an administration request answers.

        Raises:
            ClusterUnreachable, ClusterRefused: as the broker said, after `doing`.
        """
        try:
            return future.result()
        except KafkaException as exception:
            raise self.refusal(exception, doing) from exception

    def refusal(self, exception: KafkaException, doing: str) -> CommandError:
        """The error to raise for `exception`."""
        error: KafkaError = exception.args[0]
        if error.code() in _NOBODY_ANSWERED:
            return ClusterUnreachable(
                f"No broker at {self.bootstrap_servers} answered in time: is it a Kafka-protocol broker, and "
                "is it up?"
            )
        return ClusterRefused(f"{doing}: {sentence_of(error)}")

    def _settings(self, on_trouble: Callable[[str], None] | None = None) -> dict[str, object]:
        told = False

        def on_error(error: KafkaError) -> None:
            nonlocal told
            if on_trouble is not None and error.code() == ALL_BROKERS_DOWN and not told:
                told = True
                on_trouble(f"no broker of {self.bootstrap_servers} answers; trying again")

        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "mainstem",
            "error_cb": on_error,
            "log_level": 0,  # librdkafka logs to stderr what we say in sentences
            "socket.connection.setup.timeout.ms": 3000,
            "reconnect.backoff.max.ms": 1000,  # the default of 10 s is for fleets, not for one person
        }


def sentence_of(error: KafkaError) -> str:
    """What the broker or the client said, with what to do about it where we know."""
    text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")
    if text.endswith(": "):  # the broker gave no words for it
        text += error.name().replace("_", " ").lower()
    hint = _HINTS.get(error.code())
    return f"{text}: {hint}." if hint else f"{text}."


def check_reachable(bootstrap_servers: str) -> None:
    """Connect to one of the addresses and leave again: finds in milliseconds what clients retry for long.

    Raises:
        BadInput: an address is not host:port.
        ClusterUnreachable: none accepts a connection; the message has each one's reason.
    """
    reasons: list[str] = []
    for host, port in addresses_of(bootstrap_servers):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_SECONDS).close()
        except TimeoutError:
            reasons.append("no answer")
        except OSError as error:
            reasons.append((error.strerror or str(error)).lower())
        else:
            return
    raise ClusterUnreachable(
        f"No broker listens at {bootstrap_servers} ({', '.join(dict.fromkeys(reasons))}): start a local "
        f"stack with `{program_name()} up`, or give the address of your cluster with --bootstrap-servers."
    )


def addresses_of(bootstrap_servers: str) -> list[tuple[str, int]]:
    """The hosts and ports of `host:port,[v6]:port`.

    Raises:
        BadInput: one of them is not of that form.
    """
    addresses: list[tuple[str, int]] = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65_536):
            raise BadInput(f"{part.strip()!r} is not an address of the form host:port.")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
