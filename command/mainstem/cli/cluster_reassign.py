"""`mainstem cluster reassign`: move replicas to given brokers, evenly and spread over racks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from mainstem.cli.number_options import REPLICAS_MAX, integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TopicNames,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Cluster
from mainstem.kafka.move_requests import Move
from mainstem.kafka.moves import limited_topics, moves_under_way, throttle, unthrottle, wish_for
from mainstem.kafka.reassignment_plan import Replicas, TopicPartition, plan_moves
from mainstem.whole_numbers import is_whole_number

_FOLLOW_INTERVAL_SECONDS: Final = 0.5
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_NO_COMMAS: Final = "--brokers takes broker ids with commas between, such as 1,2,3"


def reassign(
    topics: TopicNames = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="1,2,3", help="Target brokers; all live ones by default."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            **integer(1, REPLICAS_MAX),
            help="Replicas of each partition; unchanged by default.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the plan.")] = False,
    limit: Annotated[
        str | None,
        typer.Option(
            "--throttle", metavar="BYTES", help="Bytes per second and broker, at most, such as 20M."
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel moves that are under way.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait until the moves end, then remove their throttles.")
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Plan moves of replicas and show the plan; with --execute also execute it."""
    bytes_per_second = None if limit is None else bytes_of(limit)
    planning = brokers is not None or replication_factor is not None or execute
    if cancel and planning:
        raise BadInput("--cancel stands alone: leave out --brokers, --replication-factor and --execute.")
    if bytes_per_second is not None and not execute:
        raise BadInput("--throttle limits moves that begin with --execute: add it.")
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    for name in topics or []:
        cluster.topic(name)  # raises for an unknown topic, with similar names
    plan: Plan = {}
    refused: dict[TopicPartition, str] = {}
    if cancel:
        _cancel(cluster, out, topics)
    elif planning or not follow:
        plan = _plan(cluster, topics, brokers, replication_factor)
        _show(out, plan)
        if not execute:
            if plan and not out.json:
                out.say("Nothing was changed: add --execute to carry this out.")
            return
        refused = _begin(cluster, out, plan, bytes_per_second)
    if follow:
        _follow(cluster, out, topics or sorted(_topics_of(plan)))
    if refused:
        raise ClusterRefused(
            f"{len(refused):,} of {len(plan):,} partitions did not begin to move, for the reasons above."
        )


def bytes_of(text: str) -> int:
    """The bytes in `20M`, `500K`, `1G` or `12345`.

    Raises:
        BadInput: it is something else, or nothing.
    """
    size = re.fullmatch(r"([0-9]+)([KMG]?)B?", text.strip().upper())
    if size is None or int(size[1]) == 0:
        raise BadInput(f"--throttle takes bytes per second, such as 500K or 20M, not {text!r}.")
    return int(size[1]) * _UNITS[size[2]]


# --- The plan ---

Plan = dict[TopicPartition, tuple[Replicas, Replicas]]
"""Present and new replicas."""


def _plan(
    cluster: Cluster, topics: list[str] | None, brokers: str | None, replication_factor: int | None
) -> Plan:
    live = {broker.broker_id: broker.rack for broker in cluster.description().brokers}
    chosen = live if brokers is None else {broker: live.get(broker) for broker in _ids(brokers)}
    if unknown := sorted(chosen.keys() - live.keys()):
        names = ", ".join(map(str, sorted(live)))
        raise BadInput(f"There is no live broker {unknown[0]}: the live ones are {names}.")
    cluster_topics = cluster.topics()
    moving = moves_under_way(cluster)
    current = {
        (name, partition.number): moving[name, partition.number].target
        if (name, partition.number) in moving
        else tuple(partition.replicas)
        for name, topic in cluster_topics.items()
        for partition in topic.partitions
    }
    chosen_replicas = {key: replicas for key, replicas in current.items() if not topics or key[0] in topics}
    most = replication_factor or max((len(replicas) for replicas in chosen_replicas.values()), default=1)
    if most > len(chosen):
        raise BadInput(
            f"{most} replicas of a partition need as many brokers, and there are {len(chosen)}: name more"
            " with --brokers, or give a lower --replication-factor."
        )
    elsewhere = [replicas for key, replicas in current.items() if key not in chosen_replicas]
    moves = plan_moves(chosen_replicas, chosen, replication_factor, elsewhere)
    return {key: (current[key], replicas) for key, replicas in moves.items()}


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(is_whole_number(part) for part in parts):
        raise BadInput(f"{_NO_COMMAS}, not {text!r}.")
    ids = [int(part) for part in parts]
    if len(set(ids)) != len(ids):
        raise BadInput(f"{_NO_COMMAS}, each once, not {text!r}.")
    return ids


def _show(out: Output, plan: Plan) -> None:
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "from": list(before),
            "to": list(after),
            "copies_to": [broker for broker in after if broker not in before],
        }
        for (topic, partition), (before, after) in sorted(plan.items())
    ]
    if not rows and not out.json:
        out.done("Nothing has to move: replicas and leaders lie as they should.")
        return
    columns = [
        Column("Topic", "topic"),
        Column("Partition", "partition"),
        Column("From", "from"),
        Column("To", "to"),
        Column("Copies to", "copies_to"),
    ]
    out.result(rows, table("", columns, rows))
    copies = sum(len(set(after) - set(before)) for before, after in plan.values())
    leaders = sum(before[0] != after[0] for before, after in plan.values())
    out.say(
        f"{_count(len(rows), 'partition')} to change, {_count(copies, 'copy', 'copies')} to make, "
        f"{_count(leaders, 'preferred leader')} to change."
    )


# --- Carrying it out ---


def _begin(
    cluster: Cluster, out: Output, plan: Plan, bytes_per_second: int | None
) -> dict[TopicPartition, str]:
    """Begin the moves of the plan; returns those that are refused, with the reasons.

    Raises:
        ClusterRefused: none began; their limits are removed.
    """
    if not plan:
        return {}
    try:
        if bytes_per_second is not None:
            throttle(cluster, plan, moves_under_way(cluster), bytes_per_second)
        refused = wish_for(cluster, {key: after for key, (_, after) in plan.items()})
    except ClusterRefused:
        if bytes_per_second is not None:
            _remove_unused_limits(cluster, _topics_of(plan))
        raise
    _tell_refusals(out, refused)
    if bytes_per_second is not None:
        _remove_unused_limits(cluster, _topics_of(plan) - _topics_of(plan.keys() - refused.keys()))
    if len(refused) == len(plan):
        raise ClusterRefused("Nothing is moved, for the reasons above.")
    out.done(f"{_count(len(plan) - len(refused), 'partition')} began to move.")
    if bytes_per_second is not None:
        out.warn(
            f"each broker sends and fetches at most {bytes_per_second:,} bytes a second for this, until"
            " `mainstem cluster reassign TOPIC... --follow` has seen the end for these topics."
        )
    return refused


def _cancel(cluster: Cluster, out: Output, topics: list[str] | None) -> None:
    moves = _chosen(moves_under_way(cluster), topics)
    refused = wish_for(cluster, dict.fromkeys(moves)) if moves else {}
    _tell_refusals(out, refused)
    cancelled = {key: move for key, move in moves.items() if key not in refused}
    if cancelled or not moves:
        out.done(f"{_count(len(cancelled), 'move')} cancelled." if moves else "No replicas are being moved.")
    unthrottle(cluster, (set(topics or ()) | _topics_of(cancelled)) - _topics_of(refused))
    if out.json:
        out.result([_json(move) for move in cancelled.values()])
    if refused:
        raise ClusterRefused(
            f"{len(refused):,} of {len(moves):,} moves were not cancelled, for the reasons above."
        )


def _tell_refusals(out: Output, refused: dict[TopicPartition, str]) -> None:
    for (topic, partition), reason in sorted(refused.items()):
        out.problem(f"{topic}-{partition}: {reason}")


def _follow(cluster: Cluster, out: Output, topics: list[str] | None) -> None:
    """Wait until no move is left of those that are under way now, then remove the limits of their topics.

    The limits of `topics` are removed also if their moves ended before. Without topics, limits that no move
    needs stay, as it is unknown for what they were set.
    """
    waiting = _chosen(moves_under_way(cluster), topics)
    total = len(waiting)
    ending = set(topics or _topics_of(waiting))
    with out.progress("Moving", total, "partitions") as advance:
        while waiting:
            time.sleep(_FOLLOW_INTERVAL_SECONDS)
            left = _chosen(moves_under_way(cluster), topics)
            advance(len(waiting) - len(waiting.keys() & left.keys()))
            waiting = {key: left[key] for key in waiting.keys() & left.keys()}
    _remove_unused_limits(cluster, ending)
    out.done(f"{_count(total, 'partition')} moved." if total else "No replicas are being moved.")
    if not ending and (limited := limited_topics(cluster, cluster.topics())):
        out.warn(
            f"moves are still limited for {_count(len(limited), 'topic')}, such as {limited[0]}: name topics"
            " before --follow to remove their limits."
        )


def _remove_unused_limits(cluster: Cluster, topics: set[str]) -> None:
    """Remove the limits of those topics of which nothing moves: other runs may have begun moves of them."""
    unthrottle(cluster, topics - _topics_of(moves_under_way(cluster)))


def _topics_of(partitions: Iterable[TopicPartition]) -> set[str]:
    return {topic for topic, _ in partitions}


def _chosen(moves: dict[TopicPartition, Move], topics: list[str] | None) -> dict[TopicPartition, Move]:
    return {key: move for key, move in moves.items() if not topics or key[0] in topics}


def _json(move: Move) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": list(move.origin),
        "to": list(move.target),
    }


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
