"""`mainstem cluster status`: who is there, what lacks replicas, what is being moved."""

from __future__ import annotations

from typing import Any, Final

import typer

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster, Partition, Topic
from mainstem.move_requests import Move
from mainstem.moves import moves_under_way
from mainstem.options import BootstrapServers, OutputChoice
from mainstem.output import Column, Output, OutputFormat, facts, table
from mainstem.reassignment_plan import TopicPartition

UNHEALTHY_EXIT_CODE: Final = 3
"""Not 1, which says that the cluster could not be asked."""
_ROWS_SHOWN: Final = 20


def status(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show brokers, partitions that lack something, and moves. Exits with 3 if something lacks."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    description, topics, moves = cluster.description(), cluster.topics(), moves_under_way(cluster)
    live = {broker.broker_id for broker in description.brokers}
    brokers = _broker_rows(topics, live)
    for broker in description.brokers:
        brokers[broker.broker_id] |= {"address": f"{broker.host}:{broker.port}", "rack": broker.rack}
    lacking = [
        row
        for topic in topics.values()
        for partition in topic.partitions
        if (row := _lacking(topic.name, partition, moves)) is not None
    ]
    healthy = not lacking and description.controller_id is not None
    value = {
        "cluster_id": description.cluster_id,
        "controller": description.controller_id,
        "healthy": healthy,
        "brokers": list(brokers.values()),
        "offline": [row for row in lacking if row["state"] == "offline"],
        "under_replicated": [row for row in lacking if row["state"] != "offline"],
        "moves": [_move_row(move, topics) for move in moves.values()],
    }
    out.result(value, *_tables(value, lacking))
    if not healthy:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _broker_rows(topics: dict[str, Topic], live: set[int]) -> dict[int, dict[str, Any]]:
    """All brokers that live or that partitions name."""
    partitions = [partition for topic in topics.values() for partition in topic.partitions]
    known = live.union(*(partition.replicas for partition in partitions))
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
        for broker in sorted(known)
    }


def _lacking(topic: str, partition: Partition, moves: dict[TopicPartition, Move]) -> dict[str, Any] | None:
    """What to tell of a partition that is not as it should be. New replicas may take their time."""
    move = moves.get((topic, partition.number))
    wanted = set(partition.replicas) if move is None else set(move.origin)
    if partition.leader is None:
        state = "offline"
    elif not wanted <= set(partition.in_sync_replicas):
        state = "under-replicated"
    else:
        return None
    return {
        "topic": topic,
        "partition": partition.number,
        "state": state,
        "leader": partition.leader,
        "replicas": partition.replicas,
        "in_sync_replicas": partition.in_sync_replicas,
    }


def _move_row(move: Move, topics: dict[str, Topic]) -> dict[str, Any]:
    found = topics.get(move.topic)
    partitions = [] if found is None else found.partitions
    in_sync = next((p.in_sync_replicas for p in partitions if p.number == move.partition), [])
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": list(move.origin),
        "to": list(move.target),
        "waits_for": [broker for broker in move.target if broker not in in_sync],
    }


def _tables(value: dict[str, Any], lacking: list[dict[str, Any]]) -> list[Any]:
    offline, behind = len(value["offline"]), len(value["under_replicated"])
    parts = [f"{offline:,} partition{'s' * (offline != 1)} offline"] * bool(offline)
    parts += [f"{behind:,} under-replicated"] * bool(behind)
    parts += ["no controller"] * (value["controller"] is None)
    parts += [f"{len(value['moves'])} being moved"] * bool(value["moves"])
    headline = {
        "Cluster": value["cluster_id"],
        "Controller": value["controller"],
        "State": ", ".join(parts if lacking or value["controller"] is None else ["ok", *parts]),
    }
    shown: list[Any] = [
        facts(headline),
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
    partition = [Column("Topic", "topic"), Column("Partition", "partition")]
    if lacking:
        columns = [
            *partition,
            Column("State", "state"),
            Column("Leader", "leader"),
            Column("Replicas", "replicas"),
            Column("In sync", "in_sync_replicas"),
        ]
        shown += _first_rows("Partitions that lack replicas", columns, lacking)
    if value["moves"]:
        columns = [
            *partition,
            Column("From", "from"),
            Column("To", "to"),
            Column("Waits for", "waits_for"),
        ]
        shown += _first_rows("Being moved", columns, value["moves"])
    return shown


def _first_rows(title: str, columns: list[Column], rows: list[dict[str, Any]]) -> list[Any]:
    shown = [table(title, columns, rows[:_ROWS_SHOWN])]
    more = len(rows) - _ROWS_SHOWN
    return [*shown, f"... and {more:,} more; --output json shows all."] if more > 0 else shown
