"""Every request to the brokers of one BrokerCluster; nothing is decided here.

The stock client is used wherever it has a call. Moves of replicas, and settings of all brokers, go as raw
requests of the Kafka protocol. Acts that cannot be undone require a proof (`proofs.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from mainstem.kafka.move_requests import alter_request, list_request, moves_in, refusals_in
from mainstem.kafka.setting_requests import (
    ALL_BROKERS,
    Kind,
    change_request,
    describe_request,
    file_settings_in,
)
from mainstem_operator.brokers import offset_requests, throttle_requests
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.raw_protocol import RawProtocol, accepted
from mainstem_operator.brokers.stock_client import ADMIN_TIMEOUT_SECONDS, StockClient
from mainstem_operator.brokers.topic_state import (
    GroupState,
    MoveState,
    PartitionState,
    Replicas,
    TopicPartition,
    TopicState,
)
from mainstem_operator.brokers.user_requests import UserRequests
from mainstem_operator.cluster.throttles.plan import Changes, Settings
from mainstem_operator.proofs import OffsetMove, TopicDeletion


class Brokers:
    """The brokers of one BrokerCluster, behind `bootstrap_servers`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._stock = StockClient(bootstrap_servers)
        self._raw = RawProtocol(self._stock)

    @property
    def bootstrap_servers(self) -> str:
        return self._stock.bootstrap_servers

    def connect_to(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        """Let the next request go there, with these settings of encryption and login, as librdkafka names
        them.
        """
        self._stock.connect_to(bootstrap_servers, properties)

    def users(self) -> UserRequests:
        """What asks and changes passwords, ACLs and quotas of users, over a connection of its own."""
        return UserRequests(self._stock.bootstrap_servers, self._stock.properties)

    # --- Asking ---

    async def racks(self) -> dict[int, str | None]:
        """The live brokers, each with the rack that it runs with."""
        description = await self._raw.describe_cluster()
        return {node.id: node.rack for node in description.nodes}

    async def topic_names(self) -> set[str]:
        """All topics, internal ones included."""
        metadata = await self._stock.call(lambda admin: admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS))
        return set(metadata.topics)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Those of `names` that exist."""
        unique_names = sorted(set(names))
        if not unique_names:
            return {}
        answers = await self._stock.all(
            lambda admin: admin.describe_topics(
                TopicCollection(unique_names), request_timeout=ADMIN_TIMEOUT_SECONDS
            )
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
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(set(topics))]
        if not resources:
            return {}
        answers = await self._stock.all(
            lambda admin: admin.describe_configs(resources, request_timeout=ADMIN_TIMEOUT_SECONDS)
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
        answer = await self._raw.ask_any(describe_request(Kind.BROKER, ALL_BROKERS))
        (result,) = answer.results
        return {entry.name: entry.value for entry in accepted(result).configs if entry.value is not None}

    async def file_settings(self, names: Iterable[str], brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        """What these brokers have of these settings from their files; those that are silent are left out."""
        requested_brokers, settings = set(brokers), sorted(set(names))
        description = await self._raw.describe_cluster()
        nodes = [node for node in description.nodes if node.id in requested_brokers]
        answers = await asyncio.gather(
            *(self._raw.ask(node, describe_request(Kind.BROKER, str(node.id), settings)) for node in nodes),
            return_exceptions=True,
        )
        settings_by_broker = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, Exception):  # nor does one that can't be read say anything
                continue
            if isinstance(answer, BaseException):
                raise answer
            (result,) = answer.results
            if result.error_code.value == 0:
                settings_by_broker[node.id] = file_settings_in(result)
        return settings_by_broker

    async def groups(self, names: Iterable[str]) -> dict[str, GroupState | str]:
        """Each group, or why it could not be read."""
        unique_names = sorted(set(names))
        if not unique_names:
            return {}
        described, committed = await asyncio.gather(
            self._stock.each(
                lambda admin: admin.describe_consumer_groups(
                    unique_names, request_timeout=ADMIN_TIMEOUT_SECONDS
                )
            ),
            asyncio.gather(*(self._committed(group) for group in unique_names), return_exceptions=True),
        )
        states: dict[str, GroupState | str] = {}
        for group, offsets in zip(unique_names, committed, strict=True):
            description = described[group]
            if isinstance(description, BrokersRefused) and description.code != "GROUP_ID_NOT_FOUND":
                states[group] = str(description)
            elif isinstance(offsets, BaseException):
                states[group] = str(offsets)
            elif isinstance(description, BrokersRefused):
                states[group] = GroupState(group, "DEAD", 0, *offsets)
            else:
                members = len(description.members)
                states[group] = GroupState(group, description.state.name, members, *offsets)
        return states

    async def _committed(self, group: str) -> tuple[dict[TopicPartition, int], dict[int, str]]:
        """The committed offsets of a group, and its metadata for OFFSETS_TOPIC."""
        answer = await self._stock.one(
            lambda admin: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=ADMIN_TIMEOUT_SECONDS
            )[group]
        )
        present = [item for item in answer.topic_partitions if item.error is None and item.offset >= 0]
        return (
            {
                (item.topic, item.partition): item.offset
                for item in present
                if item.topic != offset_requests.OFFSETS_TOPIC
            },
            {
                item.partition: (item.metadata or "").rstrip(offset_requests.END)
                for item in present
                if item.topic == offset_requests.OFFSETS_TOPIC
            },
        )

    async def offsets(
        self, partitions: Iterable[TopicPartition], point: OffsetSpec
    ) -> dict[TopicPartition, int]:
        """The offset of `point` in each partition that is led; -1 if no record is that young."""
        points = {KafkaTopicPartition(topic, number): point for topic, number in set(partitions)}
        if not points:
            return {}
        answers = await self._stock.each(
            lambda admin: admin.list_offsets(points, request_timeout=ADMIN_TIMEOUT_SECONDS)
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
        answer = accepted(await self._raw.ask_any(list_request(ADMIN_TIMEOUT_SECONDS)))
        return {
            key: MoveState(move.target, frozenset(move.adding) | frozenset(move.removing))
            for key, move in moves_in(answer).items()
        }

    async def throttles(self, topics: Iterable[str]) -> Settings:
        """The limits on moves of replicas: those of these topics, and of all brokers."""
        answer = await self._raw.ask_any(throttle_requests.describe_request(topics))
        for code, sentence in throttle_requests.refusals_in(answer.results).values():
            raise BrokersRefused(code, sentence)
        return throttle_requests.settings_in(answer)

    # --- Changing ---

    async def create_topics(
        self, new_topics: Mapping[str, tuple[int, int, Mapping[str, str]]]
    ) -> dict[str, BrokersRefused]:
        """Make topics with (partitions, replicas, settings), -1 for the brokers' default; the refusals."""
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
            for name, (partitions, replicas, settings) in sorted(new_topics.items())
        ]
        return await self._stock.refusals(
            lambda admin: admin.create_topics(topics, request_timeout=ADMIN_TIMEOUT_SECONDS)
        )

    async def grow_topics(self, partition_counts: Mapping[str, int]) -> dict[str, BrokersRefused]:
        """Grow topics to so many partitions; the refusals."""
        topics = [NewPartitions(name, count) for name, count in sorted(partition_counts.items())]
        return await self._stock.refusals(
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
        refused = await self._stock.refusals(
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
        answer = await self._raw.ask_any(request)
        (response,) = answer.responses
        accepted(response)

    async def delete_topic(self, proof: TopicDeletion) -> None:
        """Delete a topic; one that is gone already is fine."""
        refused = await self._stock.refusals(
            lambda admin: admin.delete_topics([proof.topic], request_timeout=ADMIN_TIMEOUT_SECONDS)
        )
        for error in refused.values():
            if error.code != "UNKNOWN_TOPIC_OR_PART":
                raise error

    async def put_offsets(self, proof: OffsetMove) -> dict[TopicPartition, str]:
        """Set offsets of a group and its record of resets, all at once; the refusals by partition.

        Raises:
            BrokersUnreachable: the group's coordinator does not answer.
            BrokersRefused: no broker is the group's coordinator now.
        """
        coordinator = accepted(await self._raw.ask_any(offset_requests.find_coordinator(proof.group)))
        request = offset_requests.commit(proof.group, proof.offsets, proof.record)
        try:
            answer = await self._raw.ask(coordinator, request, ADMIN_TIMEOUT_SECONDS)
        except OSError as error:
            text = f"The coordinator of group {proof.group} does not answer."
            raise BrokersUnreachable(text) from error
        return offset_requests.refusals_in(answer)

    async def put_throttles(self, changes: Changes) -> dict[str, str]:
        """Change limits on moves of replicas; the refusals, by topic or ALL_BROKERS."""
        answer = await self._raw.ask_any(throttle_requests.change_request(changes))
        refused = throttle_requests.refusals_in(answer.responses)
        return {where: sentence for where, (_, sentence) in refused.items()}

    async def move(self, targets: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, str]:
        """Begin moves of replicas; the refusals."""
        request = alter_request(dict(targets), ADMIN_TIMEOUT_SECONDS)
        return refusals_in(accepted(await self._raw.ask_any(request)))


def _leader(node: Any) -> int | None:
    return None if node is None or node.id < 0 else int(node.id)


def _entry(name: str, value: str | None) -> ConfigEntry:
    if value is None:
        return ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
