"""`mainstem cluster status`: brokers, topics with missing replicas, and replica moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import typer

from mainstem.cli.fitted_table import Column
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    connect,
)
from mainstem.cli.output import Output, OutputFormat, facts, table
from mainstem.errors import CommandError
from mainstem.kafka.client import Cluster, Partition, Topic
from mainstem.kafka.move_requests import Move
from mainstem.kafka.moves import moves_under_way
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.routed_requests import ask_any
from mainstem.kafka.setting_requests import Kind, describe_request

UNHEALTHY_EXIT_CODE: Final = 3
"""Not 1, which means that the cluster could not be reached."""
_ROWS_SHOWN: Final = 20
_MIN_IN_SYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class UnhealthyPartition:
    """A partition without a leader, or with replicas that are not in sync."""

    topic: str
    partition: Partition

    @property
    def offline(self) -> bool:
        return self.partition.leader is None

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition.number,
            "state": "offline" if self.offline else "under-replicated",
            "leader": self.partition.leader,
            "replicas": self.partition.replicas,
            "in_sync_replicas": self.partition.in_sync_replicas,
        }


def status(
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show brokers, topics with missing replicas, and replica moves. Exits with 3 if replicas are missing.

    `mainstem topic describe TOPIC` shows the partitions of one topic.
    """
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    description, topics, moves = cluster.description(), cluster.topics(), moves_under_way(cluster)
    live = {broker.broker_id for broker in description.brokers}
    brokers = _broker_rows(topics, live)
    for broker in description.brokers:
        brokers[broker.broker_id] |= {"address": f"{broker.host}:{broker.port}", "rack": broker.rack}
    unhealthy = unhealthy_partitions(topics.values(), moves)
    min_in_sync = _min_in_sync(cluster, sorted({item.topic for item in unhealthy}))
    outage = _outage(cluster)
    healthy = not unhealthy and description.controller_id is not None and outage is None
    value = {
        "cluster_id": description.cluster_id,
        "controller": description.controller_id,
        "healthy": healthy,
        "zookeeper_outage": outage,
        "brokers": list(brokers.values()),
        "topics": topic_rows(topics, unhealthy, min_in_sync),
        "offline": [item.row() for item in unhealthy if item.offline],
        "under_replicated": [item.row() for item in unhealthy if not item.offline],
        "moves": [_move_row(move, topics) for move in moves.values()],
    }
    out.result(value, *status_tables(value))
    if not healthy:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _broker_rows(topics: Mapping[str, Topic], live: set[int]) -> dict[int, dict[str, Any]]:
    """All brokers that are registered or that hold replicas of a partition."""
    partitions = [partition for topic in topics.values() for partition in topic.partitions]
    broker_ids = live.union(*(partition.replicas for partition in partitions))
    return {
        broker: {
            "broker": broker,
            "state": "up" if broker in live else "down",
            "address": None,
            "rack": None,
            "leads": sum(partition.leader == broker for partition in partitions),
            "replicas": sum(broker in partition.replicas for partition in partitions),
            "in_sync": sum(broker in partition.in_sync_replicas for partition in partitions),
        }
        for broker in sorted(broker_ids)
    }


def unhealthy_partitions(
    topics: Iterable[Topic], moves: Mapping[TopicPartition, Move]
) -> list[UnhealthyPartition]:
    """The partitions without a leader or with replicas that are not in sync.

    The new replicas of a move do not count: they may take time to catch up.
    """
    result = []
    for topic in topics:
        for partition in topic.partitions:
            move = moves.get((topic.name, partition.number))
            required = set(partition.replicas) if move is None else set(move.origin)
            if partition.leader is None or not required <= set(partition.in_sync_replicas):
                result.append(UnhealthyPartition(topic.name, partition))
    return result


def topic_rows(
    topics: Mapping[str, Topic],
    unhealthy: Iterable[UnhealthyPartition],
    min_in_sync: Mapping[str, int],
) -> list[dict[str, Any]]:
    """One row for each topic with unhealthy partitions; the topics that refuse most come first.

    `below_minimum` counts partitions with fewer in-sync replicas than min.insync.replicas, which refuse
    records with acks=all. It is None for topics that `min_in_sync` does not name.
    """
    by_topic: dict[str, list[UnhealthyPartition]] = {}
    for item in unhealthy:
        by_topic.setdefault(item.topic, []).append(item)
    rows = []
    for name, topic_partitions in by_topic.items():
        minimum = min_in_sync.get(name)
        in_sync_counts = [len(item.partition.in_sync_replicas) for item in topic_partitions]
        rows.append(
            {
                "topic": name,
                "partitions": len(topics[name].partitions),
                "offline": sum(item.offline for item in topic_partitions),
                "under_replicated": sum(not item.offline for item in topic_partitions),
                "min_insync_replicas": minimum,
                "below_minimum": None
                if minimum is None
                else sum(count < minimum for count in in_sync_counts),
            }
        )
    return sorted(rows, key=lambda row: (-row["offline"], -(row["below_minimum"] or 0), row["topic"]))


def _min_in_sync(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """The setting min.insync.replicas of each of these topics, as far as it can be read."""
    requests = [describe_request(Kind.TOPIC, name, [_MIN_IN_SYNC]) for name in topics]
    if not requests:
        return {}
    request = replace(requests[0], resources=tuple(single.resources[0] for single in requests))
    try:
        answer = ask_any(cluster, request)
    except CommandError:
        return {}  # the state of the partitions is worth showing without it
    return {
        result.resource_name: int(config.value)
        for result in answer.results
        for config in result.configs
        if config.name == _MIN_IN_SYNC and config.value is not None
    }


def _outage(cluster: Cluster) -> str | None:
    """What a broker says of ZooKeeper, if that is away."""
    from kio.schema.describe_cluster.v0.request import DescribeClusterRequest

    try:
        answer = ask_any(cluster, DescribeClusterRequest(include_cluster_authorized_operations=False))
    except CommandError:
        return None
    return None if answer.error_message is None else str(answer.error_message)


def _move_row(move: Move, topics: Mapping[str, Topic]) -> dict[str, Any]:
    topic = topics.get(move.topic)
    partitions = [] if topic is None else topic.partitions
    in_sync = next((p.in_sync_replicas for p in partitions if p.number == move.partition), [])
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": list(move.origin),
        "to": list(move.target),
        "waits_for": [broker for broker in move.target if broker not in in_sync],
    }


def status_tables(value: Mapping[str, Any]) -> list[Any]:
    """The status as tables. `value` is the JSON result."""
    shown: list[Any] = [
        facts(
            {
                "Cluster": value["cluster_id"],
                "Controller": value["controller"],
                "State": _state_text(value),
            }
        ),
        table(
            "",
            [
                Column("Broker", "broker"),
                Column("State", "state"),
                Column("Address", "address"),
                Column("Rack", "rack"),
                Column("Leads", "leads"),
                Column("Replicas", "replicas"),
                Column("In sync", "in_sync"),
            ],
            value["brokers"],
        ),
    ]
    if value["zookeeper_outage"]:
        shown.append(
            f"{value['zookeeper_outage']} Leaders serve on. Elections, topics, settings and moves wait."
        )
    if value["topics"]:
        columns = [
            Column("Topic", "topic"),
            Column("Partitions", "partitions"),
            Column("Offline", "offline"),
            Column("Not in sync", "under_replicated"),
            Column("Below minimum", "below_minimum"),
            Column("Minimum in sync", "min_insync_replicas"),
        ]
        shown += _first_rows("Topics with missing replicas", columns, value["topics"])
        if any(row["below_minimum"] for row in value["topics"]):
            shown.append("Partitions below min.insync.replicas refuse records with acks=all.")
    if value["moves"]:
        columns = [
            Column("Topic", "topic"),
            Column("Partition", "partition"),
            Column("From", "from"),
            Column("To", "to"),
            Column("Waits for", "waits_for"),
        ]
        shown += _first_rows("Replica moves", columns, value["moves"])
    return shown


def _state_text(value: Mapping[str, Any]) -> str:
    offline, under_replicated = len(value["offline"]), len(value["under_replicated"])
    below_minimum = sum(row["below_minimum"] or 0 for row in value["topics"])
    problems = [f"{offline:,} partition{'s' * (offline != 1)} offline"] * bool(offline)
    problems += [f"{under_replicated:,} under-replicated"] * bool(under_replicated)
    problems += [f"{below_minimum:,} below min.insync.replicas"] * bool(below_minimum)
    problems += ["no controller"] * (value["controller"] is None)
    problems += ["ZooKeeper unreachable"] * (value["zookeeper_outage"] is not None)
    moves = [f"{len(value['moves'])} moving"] * bool(value["moves"])
    return ", ".join([*(problems or ["ok"]), *moves])


def _first_rows(title: str, columns: list[Column], rows: list[dict[str, Any]]) -> list[Any]:
    shown: list[Any] = ["", table(title, columns, rows[:_ROWS_SHOWN])]
    more = len(rows) - _ROWS_SHOWN
    return [*shown, f"... and {more:,} more; --output json shows all."] if more > 0 else shown
