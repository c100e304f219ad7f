"""Topics whose replicas lie where a test puts them, and where replicas lie by now."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.wire import Connection

ANSWER_SECONDS: Final = PATIENCE_SECONDS


class Replicas:
    """Looks at a cluster, through whichever broker lives, and asks it to move replicas."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin: Any = AdminClient(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "log_level": 0,
                # Settings of a broker are requested from that broker, which may just have been killed and
                # started: the default would try it again after up to ten seconds, twice.
                "reconnect.backoff.max.ms": 200,
            }
        )

    def create(self, topic: str, *assignment: list[int], **settings: str) -> None:
        """A topic with these replicas, partition by partition."""
        new = NewTopic(topic, len(assignment), replica_assignment=list(assignment), config=settings)
        self.admin.create_topics([new], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)

    def connect(self) -> Connection:
        for address in self.cluster.brokers.values():
            try:
                return Connection(address)
            except ConnectionError:
                continue
        raise AssertionError("No broker takes connections.")

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        with self.connect() as connection:
            return connection.ask(name, version, timeout=10_000, **fields)

    def wish(self, topic: str, targets: dict[int, list[int] | None]) -> dict[int, str]:
        """Ask for a reassignment; the name of each partition's error."""
        partitions = [{"partition_index": index, "replicas": target} for index, target in targets.items()]
        answer = self.ask(
            "alter_partition_reassignments", 0, topics=[{"name": topic, "partitions": partitions}]
        )
        assert answer.error_code.name == "none"
        (response,) = answer.responses
        assert response.name == topic
        return {result.partition_index: result.error_code.name for result in response.partitions}

    def listed(self) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
        """Of each partition that is being moved: replicas, adding, removing."""
        answer = self.ask("list_partition_reassignments", 0, topics=None)
        return {
            (topic.name, partition.partition_index): (
                list(partition.replicas),
                list(partition.adding_replicas),
                list(partition.removing_replicas),
            )
            for topic in answer.topics
            for partition in topic.partitions
        }

    def elect(self, kind: int, partitions: dict[str, list[int]] | None) -> dict[tuple[str, int], str]:
        """Ask for elections; the name of each partition's error."""
        requested = None
        if partitions is not None:
            requested = [{"topic": topic, "partitions": numbers} for topic, numbers in partitions.items()]
        answer = self.ask("elect_leaders", 2, election_type=kind, topic_partitions=requested)
        assert answer.error_code.name == "none"
        return {
            (topic.topic, result.partition_id): result.error_code.name
            for topic in answer.replica_election_results
            for result in topic.partition_result
        }

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self._partition(topic, partition).leader_id)

    def replicas(self, topic: str, partition: int = 0) -> list[int]:
        return list(self._partition(topic, partition).replica_nodes)

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        return set(self._partition(topic, partition).isr_nodes)

    def _partition(self, topic: str, partition: int) -> Any:
        topics = self._metadata([{"name": topic}]).topics
        return next(result for result in topics[0].partitions if result.partition_index == partition)

    def controller(self) -> int:
        return int(self._metadata([]).controller_id)

    def _metadata(self, topics: list[dict[str, Any]]) -> Any:
        """The answer of the broker that gets all other requests: another one may know it a moment later."""
        with self.connect() as connection:
            return connection.ask("metadata", 7, topics=topics, allow_auto_topic_creation=False)

    def wait_moved(self, topic: str, partition: int, target: list[int], seconds: float = 30.0) -> None:
        """Until exactly `target` holds the partition, in sync, and no move of it is under way."""
        wait_until(
            lambda: (
                self.replicas(topic, partition) == target
                and self.in_sync(topic, partition) == set(target)
                and (topic, partition) not in self.listed()
            ),
            f"{topic}-{partition} lies on {target}",
            seconds,
        )

    def holders(self, topic: str, partition: int = 0) -> set[int]:
        """Brokers with files of the partition that are not about to be unlinked."""
        data = self.cluster.data_directory
        return {
            broker_id
            for broker_id in self.cluster.brokers
            if (data / f"broker-{broker_id}" / "data" / f"{topic}-{partition}").is_dir()
        }

    def wait_held(self, topic: str, partition: int, brokers: set[int]) -> None:
        """Until exactly these brokers have files of the partition."""
        wait_until(
            lambda: self.holders(topic, partition) == brokers,
            f"only {brokers} have files of {topic}-{partition}",
        )
