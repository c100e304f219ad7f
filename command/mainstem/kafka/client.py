"""The cluster as the command sees it: its only module that builds Kafka clients and reads their errors.

Every failure of librdkafka leaves here as a `CommandError` whose sentence says what to do.
"""

from __future__ import annotations

import difflib
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable, CommandError, program_name
from mainstem.whole_numbers import is_whole_number

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
        # librdkafka sends the leader epoch that it has cached; the next metadata request renews it.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # it leads since a moment ago (KIP-207)
        KafkaError._NOENT,  # noqa: SLF001  # librdkafka's code when none of the partitions has a leader
    }
)
_HINTS: Final = {
    MESSAGE_TIMED_OUT: "the partition's leader did not take it in time, so see whether its broker is up",
    KafkaError.TOPIC_ALREADY_EXISTS: "add --if-not-exists to accept the existing one, or choose another name",
    KafkaError.INVALID_REPLICATION_FACTOR: "a topic cannot have more replicas than there are brokers",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "request access to the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "request access to the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "request access to the cluster",
    KafkaError.SECURITY_DISABLED: "set authorizer.class.name in each broker's file, and restart them",
    KafkaError.MSG_SIZE_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    KafkaError.NOT_ENOUGH_REPLICAS: "too few replicas are in sync for the topic's min.insync.replicas",
}

# ApiVersions v0 (key 18) with correlation id 1 and no client id, behind its length.
_API_VERSIONS_REQUEST: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_SILENT: Final = "connects"
"""What is known of an address that accepts a connection, and does not answer."""

Offsets = dict[int, int | None]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as metadata describes it; `leader` is None while there is none."""

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
    """The live brokers of a cluster; `controller_id` is None while no controller is elected."""

    cluster_id: str
    controller_id: int | None
    brokers: list[Broker]


class Cluster:
    """The brokers behind `bootstrap_servers` (`host:port,host:port`). Nothing connects before it is used.

    `properties` are settings of librdkafka. They override the defaults of this class, and not what a command
    sets by an option or relies on.
    """

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str] | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.properties = dict(properties or {})

    @cached_property
    def admin(self) -> AdminClient:
        """An administration client.

        Raises:
            BadInput: the client does not accept a property.
            ClusterUnreachable: no address accepts a connection, or no broker answers.
        """
        return _built(AdminClient, self._settings())

    def producer(
        self,
        settings: Mapping[str, object],
        on_trouble: Callable[[str], None],
        defaults: Mapping[str, object] | None = None,
    ) -> Producer:
        """A producer with `settings`, and with `defaults` where no property overrides them.

        `on_trouble` receives a sentence when no broker can be reached.
        """
        return _built(
            Producer,
            {
                **(defaults or {}),
                **self._settings(on_trouble),
                # A request for a topic that was deleted meanwhile would create it again.
                "allow.auto.create.topics": False,
                **settings,
            },
        )

    def consumer(self, settings: Mapping[str, object], on_trouble: Callable[[str], None]) -> Consumer:
        """A consumer for `assign`, which belongs to no group unless `settings` name one."""
        return _built(
            Consumer,
            {
                "group.id": "mainstem-command",  # librdkafka requires one; nothing is committed to it
                "check.crcs": True,
                # How long a partition pauses when 100,000 records of it are queued; 1 s by default.
                "fetch.queue.backoff.ms": 10,
                **self._settings(on_trouble),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                **settings,
            },
        )

    def description(self) -> Description:
        """The live brokers and the controller.

        Raises:
            ClusterUnreachable: no broker answered.
        """
        future = self.admin.describe_cluster(request_timeout=_QUESTION_TIMEOUT_SECONDS)
        description = self.result(future, "Asking for the brokers failed")
        nodes = sorted(description.nodes, key=lambda node: node.id)
        return Description(
            description.cluster_id or "",
            None if description.controller is None else description.controller.id,
            [Broker(node.id, node.host, node.port, node.rack) for node in nodes],
        )

    def topics(self) -> dict[str, Topic]:
        """All topics by name.

        Raises:
            ClusterUnreachable: no broker answered.
        """
        # All topics: a request for one by its name may create it.
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
                    for number, partition in sorted(topic_metadata.partitions.items())
                ],
            )
            for name, topic_metadata in sorted(metadata.topics.items())
        }

    def topic(self, name: str) -> Topic:
        """The topic `name`.

        Raises:
            BadInput: there is none; the message names similar ones.
            ClusterUnreachable: no broker answered.
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
        requested = list(partitions)
        if not requested:
            return [{} for _ in points]
        answers = [
            self.admin.list_offsets(
                dict.fromkeys(requested, point), request_timeout=_QUESTION_TIMEOUT_SECONDS
            )
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
        return None if offset == OFFSET_INVALID else offset  # librdkafka's code for no answer from the leader

    def why_not_writable(self, name: str) -> str | None:
        """Why some partitions of a topic accept no records with acks=all; None if all do, or it is
        unknown."""
        try:
            topic = self.topic(name)
        except CommandError:
            return None
        for partition in topic.partitions:
            if partition.leader is None:
                return f"partition {partition.number} has no leader: see `mainstem cluster status`"
        setting = (self.topic_settings(name) or {}).get("min.insync.replicas")
        required = 1 if setting is None or setting.value is None else int(setting.value)
        for partition in topic.partitions:
            # A partition with fewer replicas than that needs all of them, as in Apache Kafka.
            if len(partition.in_sync_replicas) < min(required, len(partition.replicas)):
                return (
                    f"partition {partition.number} has {len(partition.in_sync_replicas)} in-sync replicas of "
                    f"{len(partition.replicas)}, and min.insync.replicas of the topic is {required}: "
                    "start the missing brokers (`mainstem cluster status`), or lower it with `mainstem "
                    f"config set --topic {name} min.insync.replicas=N`"
                )
        return None

    def topic_settings(self, name: str) -> dict[str, Any] | None:
        """All settings of a topic, as confluent_kafka's ConfigEntry by name.

        None when the controller does not answer: librdkafka sends this request to no other broker.
        """
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        answers = self.admin.describe_configs([resource], request_timeout=_QUESTION_TIMEOUT_SECONDS)
        try:
            settings: dict[str, Any] = self.result(
                answers[resource], f"The settings of {name} could not be read"
            )
        except ClusterUnreachable:
            return None
        return settings

    def result(self, future: Any, doing: str) -> Any:
        """The result of an administration request.

        Raises:
            ClusterUnreachable, ClusterRefused: the request failed; the message begins with `doing`.
        """
        try:
            return future.result()
        except KafkaException as exception:
            raise self.refusal(exception, doing) from exception

    def refusal(self, exception: KafkaException, doing: str) -> CommandError:
        """The error to raise for `exception`."""
        error: KafkaError = exception.args[0]
        if error.code() in _NOBODY_ANSWERED:
            return _no_answer(self.bootstrap_servers, self.properties)
        return ClusterRefused(f"{doing}: {sentence_of(error)}")

    def client_settings(self) -> dict[str, object]:
        """Settings with which another client of librdkafka reaches the same cluster."""
        return {"bootstrap.servers": self._answering_servers, "log_level": 0, **self.properties}

    def _settings(self, on_trouble: Callable[[str], None] | None = None) -> dict[str, object]:
        reported = False

        def on_error(error: KafkaError) -> None:
            nonlocal reported
            if on_trouble is not None and error.code() == ALL_BROKERS_DOWN and not reported:
                reported = True
                on_trouble(f"no broker of {self.bootstrap_servers} answers; trying again")

        return {
            "bootstrap.servers": self._answering_servers,
            "client.id": "mainstem",
            "error_cb": on_error,
            "log_level": 0,  # librdkafka's log lines on stderr would repeat the sentences that we print
            "socket.connection.setup.timeout.ms": 3000,
            "reconnect.backoff.max.ms": 1000,  # the default of 10 s is meant for fleets of clients
            **self.properties,
        }

    @cached_property
    def _answering_servers(self) -> str:
        """The bootstrap servers that answer now: librdkafka would wait seconds for one that is frozen.

        Raises:
            BadInput: an address is not host:port.
            ClusterUnreachable: none of them accepts a connection, or answers.
        """
        return ",".join(answering_servers(self.bootstrap_servers, self.properties))


def _built(build: Any, settings: dict[str, object]) -> Any:
    """A client of librdkafka.

    Raises:
        BadInput: it does not accept a setting; those set here are valid, so that it is one of the user.
    """
    if settings.get("group.id") == "":  # confluent_kafka would end the process by a failed assertion
        raise BadInput("The name of a group (group.id) must not be empty.")
    try:
        return build(settings)
    except KafkaException as exception:
        raise BadInput(
            f"The Kafka client does not accept a property: {sentence_of(exception.args[0])} See -X and "
            "`mainstem profile list`."
        ) from exception


def sentence_of(error: KafkaError) -> str:
    """The text of an error, with advice where there is some."""
    text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")
    if text.endswith(": "):  # the broker gave no words for it
        text += error.name().replace("_", " ").lower()
    hint = _HINTS.get(error.code())
    return f"{text}: {hint}." if hint else f"{text}."


def answering_servers(bootstrap_servers: str, properties: Mapping[str, str] | None = None) -> list[str]:
    """The addresses that answer a request; with a security protocol, those that accept a connection.

    This takes milliseconds, unless no address answers. Clients retry an address that is down for long, and
    wait for one that is frozen as long as for the slowest request.

    Raises:
        BadInput: an address is not host:port.
        ClusterUnreachable: none accepts a connection, or answers; the message has the reason.
    """
    addresses = addresses_of(bootstrap_servers)
    properties = properties or {}
    # Only a plaintext listener understands the request.
    asks = properties.get("security.protocol", "plaintext").lower() == "plaintext"
    texts = [part.strip() for part in bootstrap_servers.split(",")]
    began = time.monotonic()
    for answer_timeout_s in (_CONNECT_TIMEOUT_SECONDS, _QUESTION_TIMEOUT_SECONDS) if asks else (None,):
        with ThreadPoolExecutor(len(addresses)) as pool:
            states = list(pool.map(partial(_probe, answer_timeout_s=answer_timeout_s), addresses))
        if chosen := [text for text, state in zip(texts, states, strict=True) if state == "answers"]:
            return chosen
        if _SILENT not in states:
            break
        # What forwards to a broker that is just starting closes connections at once.
        time.sleep(max(0.0, began + _CONNECT_TIMEOUT_SECONDS - time.monotonic()))
    if _SILENT in states:
        raise _no_answer(bootstrap_servers, properties)
    raise ClusterUnreachable(
        f"No broker listens at {bootstrap_servers} ({', '.join(dict.fromkeys(states))}): start a local "
        f"stack with `{program_name()} up`, or give the address of your cluster with --bootstrap-servers."
    )


def _no_answer(bootstrap_servers: str, properties: Mapping[str, str]) -> ClusterUnreachable:
    return ClusterUnreachable(
        f"No broker at {bootstrap_servers} (--bootstrap-servers) answered in time: is it a Kafka-protocol"
        " broker, is it up, and is the client property security.protocol"
        f" ({properties.get('security.protocol', 'plaintext')}) that of its listener?"
    )


def _probe(address: tuple[str, int], answer_timeout_s: float | None) -> str:
    """`answers`, `_SILENT`, or why there is no connection; without a timeout a connection is an answer."""
    try:
        with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_SECONDS) as connection:
            if answer_timeout_s is None:
                return "answers"
            try:
                connection.settimeout(answer_timeout_s)
                connection.sendall(_API_VERSIONS_REQUEST)
                return "answers" if connection.recv(1) else _SILENT
            except OSError:
                return _SILENT  # the kernel accepts connections also for a process that is frozen
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def addresses_of(bootstrap_servers: str) -> list[tuple[str, int]]:
    """The hosts and ports of `host:port,[v6]:port`.

    Raises:
        BadInput: one of them is not of that form.
    """
    addresses: list[tuple[str, int]] = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and is_whole_number(port) and 0 < int(port) < 65_536):
            raise BadInput(f"{part.strip()!r} is not an address of the form host:port.")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
