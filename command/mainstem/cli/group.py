"""`mainstem group`: list, describe, reset-offsets, delete."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from confluent_kafka.admin import OffsetSpec

from mainstem.cli.group_reset import reset_offsets
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    Confirmed,
    GroupNames,
    OutputChoice,
    complete_topics,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, facts, table
from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Cluster
from mainstem.kafka.groups import (
    Group,
    committed,
    delete_group,
    describe_groups,
    forget_offsets,
    list_groups,
    unknown_group,
    why_not_at_rest,
)
from mainstem.kafka.offset_reset import choose_partitions
from mainstem.kafka.offsets import log_ends
from mainstem.kafka.reassignment_plan import TopicPartition

app = typer.Typer(no_args_is_help=True, help="Show consumer groups, reset their offsets, delete them.")
app.command("reset-offsets")(reset_offsets)


@app.command("list")
def list_all(
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the groups."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    listed, troubles = list_groups(cluster)
    for trouble in troubles:
        out.warn(f"some groups may be missing here: {trouble}")
    if not listed and not out.json:
        out.say("There are no groups yet: `mainstem consume TOPIC --group NAME` makes one.")
        return
    described = {group.name: group for group in describe_groups(cluster, listed)}
    rows = [
        {
            "group": one.name,
            "state": one.state,
            "type": one.kind,
            "members": len(described[one.name].members),
            "coordinator": None if (node := described[one.name].coordinator) is None else node.broker_id,
        }
        for one in listed.values()
    ]
    columns = [
        Column("Group", "group"),
        Column("State", "state"),
        Column("Type", "type"),
        Column("Members", "members"),
        Column("Coordinator", "coordinator"),
    ]
    out.result(rows, table("", columns, rows))


@app.command()
def describe(
    groups: GroupNames,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show members with their partitions, committed offsets, and the lag behind the ends."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    values, shown = [], []
    for group in describe_groups(cluster, dict.fromkeys(groups)):
        offsets = committed(cluster, group.name)
        if group.state == "dead" and not offsets:
            raise unknown_group(cluster, group.name)
        given = {key for member in group.members for key in member.partitions}
        ends = log_ends(cluster, offsets.keys() | given, OffsetSpec.latest())
        rows = _partition_rows(group, offsets, {key: start_and_end[0] for key, start_and_end in ends.items()})
        values.append(_value(group, rows))
        shown += _tables(group, rows)
    out.result(values[0] if len(values) == 1 else values, *shown)


def _partition_rows(
    group: Group, offsets: dict[TopicPartition, int], ends: dict[TopicPartition, int | None]
) -> list[dict[str, Any]]:
    owners = {key: member for member in group.members for key in member.partitions}
    rows = []
    for key in sorted(offsets.keys() | owners.keys()):
        topic, partition = key
        offset, end, owner = offsets.get(key), ends.get(key), owners.get(key)
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": None if owner is None else owner.label,
                "member_id": None if owner is None else owner.member_id,
            }
        )
    return rows


def _value(group: Group, rows: list[dict[str, Any]]) -> dict[str, Any]:
    coordinator = group.coordinator
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "group": group.name,
        "state": group.state,
        "type": group.kind,
        "assignor": group.assignor or None,
        "coordinator": None
        if coordinator is None
        else {"broker": coordinator.broker_id, "address": f"{coordinator.host}:{coordinator.port}"},
        "lag": sum(lags) if lags else None,
        "partitions_without_lag": len(rows) - len(lags),
        "partitions": rows,
        "members": [
            {
                "member": member.label,
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": _by_topic(member.partitions),
            }
            for member in group.members
        ],
    }


def _tables(group: Group, rows: list[dict[str, Any]]) -> list[Any]:
    value = _value(group, rows)
    headline = {
        "Group": group.name,
        "State": group.state,
        "Type": group.kind + (f", {group.assignor} assignor" if group.assignor else ""),
        "Coordinator": value["coordinator"] and "broker {broker} at {address}".format(**value["coordinator"]),
        "Lag": _lag_text(value["lag"], value["partitions_without_lag"]),
    }
    shown: list[Any] = [facts(headline)]
    if rows:
        total = {"topic": "all", "partition": None, "committed": None, "end": None, "lag": value["lag"]}
        columns = [
            Column("Topic", "topic"),
            Column("Partition", "partition"),
            Column("Committed", "committed"),
            Column("End", "end"),
            Column("Lag", "lag"),
            Column("Member", "member"),
        ]
        shown_rows = [*rows, total | {"member": None}] if len(rows) > 1 else rows
        shown.append(table("", columns, shown_rows, total_row=True))
    if group.members:
        members = [member | {"reads": _words(member["partitions"])} for member in value["members"]]
        columns = [
            Column("Member", "member"),
            Column("Client", "client_id"),
            Column("Host", "host"),
            Column("Reads", "reads"),
        ]
        shown.append(table("", columns, members))
    else:
        shown.append("No members.")
    return shown


def _lag_text(lag: int | None, unknown: int) -> str:
    """The lag of a group; `unknown` counts partitions without a committed offset, or without a leader."""
    if lag is None:
        return "unknown, as no partition has a committed offset and a leader that answers"
    if not unknown:
        return f"{lag:,}"
    return f"{lag:,}, without {unknown:,} partition{'s' * (unknown != 1)} of which it is unknown"


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    partitions_by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        partitions_by_topic.setdefault(topic, []).append(number)
    return partitions_by_topic


def _words(partitions: dict[str, list[int]]) -> str:
    """As --topic of reset-offsets and delete takes them."""
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in partitions.items()) or "-"


@app.command()
def delete(
    groups: GroupNames,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1]",
            help="Delete only the offsets of this topic, or of some of its partitions; may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    yes: Confirmed = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete groups with all their offsets, or only their offsets of some topics."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    for group in describe_groups(cluster, dict.fromkeys(groups)):
        if group.state == "dead" and not committed(cluster, group.name):
            raise unknown_group(cluster, group.name)
        if not topic and not group.at_rest:
            raise ClusterRefused(why_not_at_rest(group))
    names = ", ".join(groups)
    what = f"the offsets of {names} for {', '.join(topic)}" if topic else f"{names} with all offsets"
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"Deleting {what} needs --yes without a terminal.")
        typer.confirm(f"Delete {what} for good?", abort=True, err=True)
    if topic:
        _forget(cluster, out, groups, topic)
        return
    for name in dict.fromkeys(groups):
        delete_group(cluster, name)
        out.done(f"Deleted group {name}.")
    if out.json:
        out.result({"deleted": groups})


def _forget(cluster: Cluster, out: Output, groups: list[str], topics: list[str]) -> None:
    deleted, kept = [], 0
    for name in groups:
        offsets = committed(cluster, name)
        chosen = [
            key for key in choose_partitions(cluster, topics, offsets, known_only=True) if key in offsets
        ]
        if not chosen:
            out.done(f"Group {name} has committed nothing for {', '.join(topics)}.")
            continue
        refused = forget_offsets(cluster, name, chosen)
        for (topic, number), reason in sorted(refused.items()):
            out.problem(f"{topic}-{number}: {reason}")
        gone = [key for key in chosen if key not in refused]
        kept += len(refused)
        deleted += [{"group": name, "topic": topic, "partition": number} for topic, number in gone]
        if gone:
            out.done(f"Deleted {len(gone):,} offset{'s' * (len(gone) != 1)} of group {name}.")
    if out.json:
        out.result({"deleted": deleted})
    if kept:
        raise ClusterRefused(
            f"{kept:,} offset{'s were' if kept != 1 else ' was'} not deleted, for the reasons above."
        )
