"""Who leads the partitions of a topic, and getting there: metadata, connections, and trying again.

A leader that moved or went away is looked up again and asked again for `retry_ms`. Must not live here: what a
leader is asked for (`fetch`).
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem_loader.errors import (
    BrokerUnreachableError,
    LoaderError,
    SettingsError,
    TopicRecreatedError,
    TopicUnknownError,
)
from mainstem_loader.kafka.client_security import ClientProperties
from mainstem_loader.kafka.connection import METADATA, BrokerConnection, build
from mainstem_loader.whole_numbers import is_whole_number

# A topic that was just made is not known to every broker at once.
UNKNOWN_TOPIC_PATIENCE_MS: Final = 2_000
# Before the first answer a wrong address is likelier than a broker that is about to come back.
FIRST_ANSWER_PATIENCE_MS: Final = 3_000
RETRY_PAUSE_MS: Final = 100

NO_LEADER: Final = -1
FORBIDDEN: Final = frozenset({ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Where the brokers are and how long to wait for them."""

    bootstrap_servers: str
    request_timeout_ms: int = 30_000
    retry_ms: int = 30_000
    client_properties: ClientProperties = field(default_factory=dict, repr=False)
    """Encryption and login, see `client_security`."""


class TryAgainError(Exception):
    """The answer may be another one once the leader is looked up again."""


class TopicLeaders:
    """A topic's leaders and the connections to them; a context manager.

    Args:
        brokers: see there.
        topic: its name.
        topic_id: when given, a topic of that name with another id is refused.

    Raises (all methods):
        BrokerUnreachableError, TopicUnknownError, TopicRecreatedError, UnsupportedBrokerError
    """

    def __init__(self, brokers: BrokerSettings, topic: str, topic_id: str | None = None) -> None:
        self.topic = topic
        self._brokers = brokers
        self._bootstrap = parse_bootstrap_servers(brokers.bootstrap_servers)
        self._topic_id = topic_id
        # All set by every look-up of metadata.
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leader_of: dict[int, int] = {}
        self._epoch_of: dict[int, int] = {}
        self.topic_uuid: UUID | None = None
        self._connections: dict[tuple[str, int], BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for connection in self._connections.values():
                stack.callback(connection.close)
            self._connections.clear()

    @property
    def topic_id(self) -> str:
        """The topic's id as Kafka's tools print it; from a broker that has no ids, `name:` and the topic's
        name.
        """
        if self._topic_id is None:
            self.find()
        assert self._topic_id is not None
        return self._topic_id

    @property
    def partitions(self) -> list[int]:
        """All partitions, as of the last look-up."""
        return sorted(self._leader_of)

    def leader_of(self, partition: int) -> int:
        """The broker that leads a partition, as of the last look-up; `NO_LEADER` for none."""
        return self._leader_of.get(partition, NO_LEADER)

    def epoch_of(self, partition: int) -> int:
        """The leader epoch of a partition, as of the last look-up; -1 if the broker does not say.

        A request that carries it is refused by a broker that was leader before or is leader since
        (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; KIP-320).
        """
        return self._epoch_of.get(partition, -1)

    def ask(self, partition: int, request: Callable[[BrokerConnection], T]) -> T:
        """Ask a partition's leader, wherever it is, until it answers or the time is up.

        Args:
            partition: its number.
            request: asks over a connection; raises TryAgainError for an answer that will pass.
        """
        if not self._leader_of:
            self.find()
        patience = _Patience(self._brokers.retry_ms)
        while True:
            leader = self.leader_of(partition)
            try:
                return request(self.connect(leader))
            except (OSError, TryAgainError) as error:
                self.hang_up(leader)
                patience.wait_or_raise(self._unreachable(partition, error))
                self.find()

    def connect(self, leader: int) -> BrokerConnection:
        """A connection to a broker. Raises OSError, or TryAgainError if there is no such broker."""
        if leader not in self._addresses:
            raise TryAgainError("it has no leader")
        return self._connection(self._addresses[leader])

    def hang_up(self, leader: int) -> None:
        """Forget a connection that failed."""
        connection = self._connections.pop(self._addresses.get(leader, ("", 0)), None)
        if connection is not None:
            connection.close()

    def find(self) -> None:
        """Ask any broker for the topic's id and leaders, until one knows them."""
        has_leaders = bool(self._leader_of)
        patience = _Patience(self._brokers.retry_ms if has_leaders else FIRST_ANSWER_PATIENCE_MS)
        unknown: _Patience | None = None
        while True:
            failure: Exception | None = None
            for address in [*self._addresses.values(), *self._bootstrap]:
                try:
                    if self._learn(self._connection(address)):
                        return
                    # From the first answer on: to connect to a busy broker may take longer than this.
                    unknown = unknown or _Patience(min(UNKNOWN_TOPIC_PATIENCE_MS, self._brokers.retry_ms))
                    unknown.wait_or_raise(
                        TopicUnknownError(
                            f"There is no topic {self.topic} at {self._brokers.bootstrap_servers}; create"
                            " it, or correct the name."
                        )
                    )
                except OSError as error:
                    failure = error
                    if (connection := self._connections.pop(address, None)) is not None:
                        connection.close()
            if failure is not None:
                patience.wait_or_raise(
                    BrokerUnreachableError(
                        f"No broker answers at {self._brokers.bootstrap_servers} ({failure}); start the"
                        " cluster, or correct the bootstrap servers."
                    )
                )

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        if address not in self._connections:
            self._connections[address] = BrokerConnection(
                *address, self._brokers.request_timeout_ms, self._brokers.client_properties
            )
        return self._connections[address]

    def _learn(self, connection: BrokerConnection) -> bool:
        """Take over the topic's metadata; False if this broker does not know the topic."""
        schema = connection.schema(METADATA)
        response = connection.call(
            METADATA,
            topics=(build(schema.MetadataRequestTopic, topic_id=None, name=self.topic),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        (topic,) = response.topics
        if topic.error_code is ErrorCode.invalid_topic_exception:
            raise SettingsError(
                f"{self.topic!r} cannot be the name of a topic; use letters, digits, dots, dashes and"
                " underscores."
            )
        if topic.error_code in FORBIDDEN:
            raise forbidden(self.topic)
        if topic.error_code is not ErrorCode.none or not topic.partitions:
            return False
        topic_id = _text_of_id(getattr(topic, "topic_id", None), self.topic)
        if self._topic_id not in (None, topic_id):
            raise TopicRecreatedError(
                f"Topic {self.topic} was deleted and created anew while it was being loaded (id"
                f" {self._topic_id}, now {topic_id}); load again, and its new records are added to the"
                " table."
            )
        self._topic_id = topic_id
        self.topic_uuid = getattr(topic, "topic_id", None)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._leader_of = {partition.partition_index: partition.leader_id for partition in topic.partitions}
        self._epoch_of = {
            partition.partition_index: getattr(partition, "leader_epoch", -1)
            for partition in topic.partitions
        }
        return True

    def _unreachable(self, partition: int, error: Exception) -> LoaderError:
        return BrokerUnreachableError(
            f"Partition {partition} of topic {self.topic} could not be read for"
            f" {self._brokers.retry_ms / 1000:g} s ({error}); bring its leader back, then load again."
        )


class _Patience:
    """Pauses between tries until the time is up."""

    def __init__(self, patience_ms: int) -> None:
        self._deadline_s = time.monotonic() + patience_ms / 1000

    def wait_or_raise(self, error: LoaderError) -> None:
        if time.monotonic() >= self._deadline_s:
            raise error
        time.sleep(RETRY_PAUSE_MS / 1000)


def forbidden(topic: str) -> LoaderError:
    """What is said when a broker refuses a topic."""
    return TopicUnknownError(f"Topic {topic} may not be read without authorization; ask for READ on it.")


def _text_of_id(topic_id: UUID | None, topic: str) -> str:
    if topic_id is None or not topic_id.int:
        return f"name:{topic}"
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_names(brokers: BrokerSettings) -> list[str]:
    """The names of all topics except internal ones, in order, as the first broker that answers knows them.

    Raises:
        BrokerUnreachableError: none does.
    """
    failure: OSError | None = None
    for address in parse_bootstrap_servers(brokers.bootstrap_servers):
        try:
            with BrokerConnection(
                *address, brokers.request_timeout_ms, brokers.client_properties
            ) as connection:
                response = connection.call(
                    METADATA,
                    topics=None,
                    allow_auto_topic_creation=False,
                    include_cluster_authorized_operations=False,
                    include_topic_authorized_operations=False,
                )
        except OSError as error:
            failure = error
            continue
        return sorted(topic.name for topic in response.topics if not topic.is_internal)
    raise BrokerUnreachableError(
        f"No broker answers at {brokers.bootstrap_servers} ({failure}); start the cluster, or correct the"
        " bootstrap servers."
    )


def parse_bootstrap_servers(text: str) -> list[tuple[str, int]]:
    """The addresses in `host:port,host:port`.

    Raises:
        SettingsError: it is not of that form.
    """
    addresses: list[tuple[str, int]] = []
    for server in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = server.rpartition(":")
        if not host or not is_whole_number(port) or not 0 < int(port) < 65536:
            raise SettingsError(
                f"{server!r} is not a bootstrap server; write host:port, several with commas."
            )
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise SettingsError("No bootstrap server is given; write host:port, several with commas.")
    return addresses
