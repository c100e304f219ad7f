"""Every request to brokers and to ZooKeeper servers; nothing is decided here.

The stock client does what it has a call for, in threads, since it blocks; moves of replicas and what is set
for all brokers go by bare requests; how a broker is comes from its HTTP port. What can't be taken back asks
for a proof (`proofs.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiohttp
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from mainstem.bare_request import ask, reason_of
from mainstem.move_requests import alter_request, list_request, moves_in, refusals_in
from mainstem.setting_requests import (
    ALL_BROKERS,
    Kind,
    change_request,
    describe_request,
    file_settings_in,
)
from mainstem_operator import throttle_requests
from mainstem_operator.observed import BrokerReport, report_of
from mainstem_operator.plan_throttles import Changes, Settings
from mainstem_operator.proofs import OffsetMove, TopicDeletion
from mainstem_operator.topic_state import (
    GroupState,
    MoveState,
    PartitionState,
    Replicas,
    TopicPartition,
    TopicState,
)

ADMIN_TIMEOUT_SECONDS: Final = 30.0
_STATUS_TIMEOUT_SECONDS: Final = 3.0
_CLIENT_ID: Final = "mainstem-operator"


class BrokersRefused(Exception):
    """A broker answered and said no; `code` is the name of Kafka's error, `str()` its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BrokersUnreachable(Exception):
    """No broker answered."""


class Brokers:
    """The brokers of one Cluster, behind `bootstrap_servers`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin: AdminClient | None = None

    # --- Asking ---

    async def racks(self) -> dict[int, str | None]:
        """The live brokers, each with the rack that it runs with."""
        found = await self._one(lambda admin: admin.describe_cluster(request_timeout=ADMIN_TIMEOUT_SECONDS))
        return {node.id: node.rack for node in found.nodes}

    async def topic_names(self) -> set[str]:
        """All topics, internal ones included."""
        metadata = await self._call(lambda admin: admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS))
        return set(metadata.topics)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Those of `names` that exist."""
        asked = sorted(set(names))
        if not asked:
            return {}
        answers = await self._all(
            lambda admin: admin.describe_topics(TopicCollection(asked), request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        return {
            name: TopicState(
                name,
                str(answer.topic_id),
                {
                    partition.id: PartitionState(
                        _leader(partition.leader),
                        tuple(node.id for node in partition.replicas),
                        frozenset(node.id for node in partition.isr),
                    )
                    for partition in answer.partitions
                },
            )
            for name, answer in answers.items()
            if not isinstance(answer, BrokersRefused)
        }

    async def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that each topic has of its own, defaults left out."""
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(set(topics))]
        if not asked:
            return {}
        answers = await self._all(
            lambda admin: admin.describe_configs(asked, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        return {
            resource.name: {
                name: entry.value
                for name, entry in answer.items()
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
            }
            for resource, answer in answers.items()
            if not isinstance(answer, BrokersRefused)
        }

    async def default_settings(self) -> dict[str, str]:
        """What is set for all brokers at once, while they run (KIP-226)."""
        answer = await self._ask_any(describe_request(Kind.BROKER, ALL_BROKERS))
        (result,) = answer.results
        return {found.name: found.value for found in _taken(result).configs if found.value is not None}

    async def file_settings(self, names: Iterable[str], brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        """What these brokers have of these settings from their files; those that are silent are left out."""
        wanted, settings = set(brokers), sorted(set(names))
        found = await self._one(lambda admin: admin.describe_cluster(request_timeout=ADMIN_TIMEOUT_SECONDS))
        nodes = [node for node in found.nodes if node.id in wanted]
        answers = await asyncio.gather(
            *(
                self._ask(
                    node, describe_request(Kind.BROKER, str(node.id), settings), _STATUS_TIMEOUT_SECONDS
                )
                for node in nodes
            ),
            return_exceptions=True,
        )
        told = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, Exception):  # nor does one that can't be read say anything
                continue
            if isinstance(answer, BaseException):
                raise answer
            (result,) = answer.results
            if result.error_code.value == 0:
                told[node.id] = file_settings_in(result)
        return told

    async def groups(self, names: Iterable[str]) -> dict[str, GroupState | str]:
        """Each group, or why it is not told."""
        asked = sorted(set(names))
        if not asked:
            return {}
        described, committed = await asyncio.gather(
            self._each(
                lambda admin: admin.describe_consumer_groups(asked, request_timeout=ADMIN_TIMEOUT_SECONDS)
            ),
            asyncio.gather(*(self._committed(group) for group in asked), return_exceptions=True),
        )
        found: dict[str, GroupState | str] = {}
        for group, offsets in zip(asked, committed, strict=True):
            description = described[group]
            if isinstance(description, BrokersRefused) and description.code != "GROUP_ID_NOT_FOUND":
                found[group] = str(description)
            elif isinstance(offsets, BaseException):
                found[group] = str(offsets)
            elif isinstance(description, BrokersRefused):
                found[group] = GroupState(group, "DEAD", 0, offsets)
            else:
                found[group] = GroupState(group, description.state.name, len(description.members), offsets)
        return found

    async def _committed(self, group: str) -> dict[TopicPartition, int]:
        answer = await self._one(
            lambda admin: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=ADMIN_TIMEOUT_SECONDS
            )[group]
        )
        return {
            (item.topic, item.partition): item.offset
            for item in answer.topic_partitions
            if item.error is None and item.offset >= 0
        }

    async def offsets(
        self, partitions: Iterable[TopicPartition], point: OffsetSpec
    ) -> dict[TopicPartition, int]:
        """The offset of `point` in each partition that is led; -1 if no record is that young."""
        asked = {KafkaTopicPartition(topic, number): point for topic, number in set(partitions)}
        if not asked:
            return {}
        answers = await self._each(
            lambda admin: admin.list_offsets(asked, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        return {
            (item.topic, item.partition): answer.offset
            for item, answer in answers.items()
            if not isinstance(answer, BrokersRefused) and answer.offset >= -1
        }

    async def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.offsets(partitions, OffsetSpec.earliest())

    async def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.offsets(partitions, OffsetSpec.latest())

    async def since(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset of this time or later; -1 if there is none."""
        return await self.offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))

    async def moves(self) -> dict[TopicPartition, MoveState]:
        """The moves of replicas under way."""
        answer = _taken(await self._ask_any(list_request(ADMIN_TIMEOUT_SECONDS)))
        return {
            key: MoveState(move.target, frozenset(move.adding) | frozenset(move.removing))
            for key, move in moves_in(answer).items()
        }

    async def throttles(self, topics: Iterable[str]) -> Settings:
        """The limits on moves of replicas: those of these topics, and of all brokers."""
        answer = await self._ask_any(throttle_requests.describe_request(topics))
        for code, sentence in throttle_requests.refusals_in(answer.results).values():
            raise BrokersRefused(code, sentence)
        return throttle_requests.settings_in(answer)

    # --- Changing ---

    async def create_topics(
        self, wanted: Mapping[str, tuple[int, int, Mapping[str, str]]]
    ) -> dict[str, BrokersRefused]:
        """Make topics with (partitions, replicas, settings), -1 for the brokers' default; the refusals."""
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
            for name, (partitions, replicas, settings) in sorted(wanted.items())
        ]
        return await self._refusals(
            lambda admin: admin.create_topics(topics, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )

    async def grow_topics(self, wanted: Mapping[str, int]) -> dict[str, BrokersRefused]:
        """Grow topics to so many partitions; the refusals."""
        topics = [NewPartitions(name, count) for name, count in sorted(wanted.items())]
        return await self._refusals(
            lambda admin: admin.create_partitions(topics, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )

    async def alter_topics(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, BrokersRefused]:
        """Set settings of topics, or, with None, take them back; the refusals."""
        resources = [
            ConfigResource(
                ConfigResource.Type.TOPIC,
                topic,
                incremental_configs=[_entry(name, value) for name, value in sorted(settings.items())],
            )
            for topic, settings in sorted(changes.items())
        ]
        refused = await self._refusals(
            lambda admin: admin.incremental_alter_configs(resources, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        return {getattr(resource, "name", resource): error for resource, error in refused.items()}

    async def change_default_settings(self, changes: Mapping[str, str | None]) -> None:
        """Set settings for all brokers at once, or, with None, take them back: all of them or none."""
        await self._change_default_settings(changes, validate_only=False)

    async def check_default_settings(self, changes: Mapping[str, str]) -> None:
        """Ask whether brokers would take these settings for all of them, and change nothing."""
        await self._change_default_settings(changes, validate_only=True)

    async def _change_default_settings(
        self, changes: Mapping[str, str | None], *, validate_only: bool
    ) -> None:
        request = change_request(Kind.BROKER, ALL_BROKERS, changes, validate_only=validate_only)
        answer = await self._ask_any(request)
        (response,) = answer.responses
        _taken(response)

    async def delete_topic(self, proof: TopicDeletion) -> None:
        """Delete a topic; one that is gone already is fine."""
        refused = await self._refusals(
            lambda admin: admin.delete_topics([proof.topic], request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        for error in refused.values():
            if error.code != "UNKNOWN_TOPIC_OR_PART":
                raise error

    async def put_offsets(self, proof: OffsetMove) -> dict[TopicPartition, str]:
        """Put the offsets of a group; the refusals by partition."""
        partitions = [
            KafkaTopicPartition(topic, partition, offset)
            for (topic, partition), offset in sorted(proof.offsets.items())
        ]
        answer = await self._one(
            lambda admin: admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(proof.group, partitions)], request_timeout=ADMIN_TIMEOUT_SECONDS
            )[proof.group]
        )
        return {
            (item.topic, item.partition): str(item.error.str())
            for item in answer.topic_partitions
            if item.error is not None
        }

    async def put_throttles(self, changes: Changes) -> dict[str, str]:
        """Change limits on moves of replicas; the refusals, by topic or ALL_BROKERS."""
        answer = await self._ask_any(throttle_requests.change_request(changes))
        refused = throttle_requests.refusals_in(answer.responses)
        return {where: sentence for where, (_, sentence) in refused.items()}

    async def move(self, targets: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, str]:
        """Begin moves of replicas; the refusals."""
        request = alter_request(dict(targets), ADMIN_TIMEOUT_SECONDS)
        return refusals_in(_taken(await self._ask_any(request)))

    # --- One request ---

    async def _ask_any(self, request: Any) -> Any:
        """What the controller answers to a bare request, or, if it doesn't, any other broker."""
        found = await self._one(lambda admin: admin.describe_cluster(request_timeout=ADMIN_TIMEOUT_SECONDS))
        controller = None if found.controller is None else found.controller.id
        nodes = sorted(found.nodes, key=lambda node: node.id != controller)
        for node in nodes:
            try:
                return await self._ask(node, request, ADMIN_TIMEOUT_SECONDS)
            except OSError:
                continue
        raise BrokersUnreachable(f"No broker of {self.bootstrap_servers} answered.")

    async def _ask(self, node: Any, request: Any, timeout_seconds: float) -> Any:
        """What one broker answers to a bare request; OSError if it doesn't."""
        return await asyncio.to_thread(
            ask, (node.host, node.port), request, client_id=_CLIENT_ID, timeout_seconds=timeout_seconds
        )

    async def _call(self, action: Any) -> Any:
        """The result of one call of the client, made in a thread."""

        def run() -> Any:
            if self._admin is None:
                self._admin = AdminClient(
                    {"bootstrap.servers": self.bootstrap_servers, "client.id": _CLIENT_ID, "log_level": 0}
                )
            return action(self._admin)

        try:
            return await asyncio.to_thread(run)
        except KafkaException as exception:
            raise _error_of(exception, self.bootstrap_servers) from exception

    async def _one(self, action: Any) -> Any:
        """What the future that `action` gives holds in the end."""
        return await self._call(lambda admin: action(admin).result())

    async def _each(self, action: Any) -> dict[Any, Any]:
        """What each of the futures holds, a refusal being one."""
        bootstrap_servers = self.bootstrap_servers

        def run(admin: AdminClient) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key, future in action(admin).items():
                try:
                    found[key] = future.result()
                except KafkaException as exception:
                    error = _error_of(exception, bootstrap_servers)
                    if isinstance(error, BrokersUnreachable):
                        raise error from exception
                    found[key] = error
            return found

        result: dict[Any, Any] = await self._call(run)
        return result

    async def _all(self, action: Any) -> dict[Any, Any]:
        """As `_each`; a refusal for any other reason than an unknown topic is raised."""
        found = await self._each(action)
        for answer in found.values():
            if isinstance(answer, BrokersRefused) and answer.code != "UNKNOWN_TOPIC_OR_PART":
                raise answer
        return found

    async def _refusals(self, action: Any) -> dict[Any, BrokersRefused]:
        found = await self._each(action)
        return {key: answer for key, answer in found.items() if isinstance(answer, BrokersRefused)}


def _taken(answer: Any) -> Any:
    """An answer to a bare request, or to a part of one, that is no refusal."""
    if answer.error_code.value != 0:
        raise BrokersRefused(answer.error_code.name.upper(), reason_of(answer))
    return answer


def _leader(node: Any) -> int | None:
    return None if node is None or node.id < 0 else int(node.id)


def _entry(name: str, value: str | None) -> ConfigEntry:
    if value is None:
        return ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


_NOBODY_ANSWERED: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  # librdkafka's own codes are published so
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    }
)


def _error_of(exception: KafkaException, bootstrap_servers: str) -> BrokersRefused | BrokersUnreachable:
    error: KafkaError = exception.args[0]
    if error.code() in _NOBODY_ANSWERED:
        return BrokersUnreachable(f"No broker of {bootstrap_servers} answered.")
    text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ")
    return BrokersRefused(error.name(), f"{text.rstrip('.')}.")


class Health:
    """How single brokers and ZooKeeper servers are, asked of themselves."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def report(self, host: str, port: int) -> BrokerReport | None:
        """What the broker's /status says; None if it does not answer, or nothing that makes sense."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_STATUS_TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(f"http://{host}:{port}/status") as answer:
                return report_of(await answer.json(content_type=None))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return None

    async def zookeeper_mode(self, host: str, port: int) -> str | None:
        """leader, follower or standalone; None if the server does not serve."""
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(b"srvr")
                    answer = await reader.read(65_536)
                    while not reader.at_eof() and b"Mode:" not in answer:
                        answer += await reader.read(65_536)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None
