"""`mainstem group reset-offsets`: where a group is to go on; the plan itself is `offset_reset.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from confluent_kafka.admin import OffsetSpec

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster
from mainstem.errors import BadInput, ClusterRefused
from mainstem.groups import Group, commit_for, committed, describe_groups, log_ends, unknown_group
from mainstem.offset_reset import (
    AsCommitted,
    Bounds,
    Change,
    Listed,
    Shift,
    Target,
    csv_of,
    offsets_in,
    parse_topic_choice,
    plan_reset,
)
from mainstem.options import BootstrapServers, OutputChoice, complete_groups, complete_topics
from mainstem.output import Column, Output, OutputFormat, table
from mainstem.reassignment_plan import TopicPartition
from mainstem.start_point import Kind, StartPoint, parse_start

_NOTES_MAX: Final = 5
_WHERE: Final = "--to WHERE, --shift-by N or --from-file FILE"


def reset_offsets(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_groups)
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, the last so many of each partition (-10), a date or "
            "date-time, a time ago (10m, 2h, 1d), or current.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="So many records on; back, if it is negative."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="To the offsets in a file that --export wrote."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1]",
            help="A topic, or some of its partitions; may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All that the group has committed offsets of.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")] = False,
    export: Annotated[
        bool,
        typer.Option("--export", help="Show the plan as a file for --from-file: topic,partition,offset."),
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Set where a group goes on reading; shows the plan, and does it with --execute.

    The group must have no members then.
    """
    out = Output(output)
    target = _target(to, shift_by, from_file, group)
    if bool(topic) == all_topics and not (isinstance(target, Listed) and not topic):
        raise BadInput("Say which offsets: either --topic TOPIC (may be repeated) or --all-topics.")
    if export and out.json:
        raise BadInput("--export writes its own format: leave out --output json.")
    cluster = Cluster(bootstrap_servers)
    (found,) = describe_groups(cluster, [group])
    if execute and not found.at_rest:
        raise ClusterRefused(has_members(found))
    offsets = committed(cluster, group)
    if found.state == "dead" and not offsets and all_topics:
        raise unknown_group(cluster, group)
    if isinstance(target, Listed) and not topic:
        chosen = sorted(target.offsets)
    else:
        chosen = choose_partitions(cluster, topic, offsets)
    changes = plan_reset(target, _bounds(cluster, chosen, target), offsets)
    if not changes and not (out.json or export):
        out.done(f"There is nothing to set: group {group} has committed nothing for these partitions.")
        return
    _show(out, changes, export)
    if not execute:
        _tell_dry_run(out, found, changes, export)
        return
    _carry_out(cluster, out, group, changes)


def _target(to: str | None, shift_by: int | None, from_file: Path | None, group: str) -> Target:
    if [to, shift_by, from_file].count(None) != 2:
        raise BadInput(f"Say where to, in one way: {_WHERE}.")
    if shift_by is not None:
        return Shift(shift_by)
    if from_file is not None:
        try:
            return Listed(offsets_in(from_file.read_text(), group))
        except OSError as error:
            raise BadInput(f"{from_file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{from_file} cannot be read: it is no text.") from error
        except BadInput as error:
            raise BadInput(f"{from_file} cannot be used: {error}.") from error
    assert to is not None
    if to == "current":
        return AsCommitted()
    return parse_start(to, int(time.time() * 1000), "--to")


def choose_partitions(
    cluster: Cluster,
    topics: Iterable[str] | None,
    offsets: Iterable[TopicPartition],
    *,
    known_only: bool = False,
) -> list[TopicPartition]:
    """The partitions that `--topic` texts name; without any, those of `offsets`.

    With `known_only`, a topic need not be there any more if `offsets` has it.

    Raises:
        BadInput: there is no such topic or partition, or nothing is chosen.
    """
    known = sorted(set(offsets))
    if topics is None:
        if not known:
            raise BadInput("The group has committed nothing yet: name topics with --topic.")
        return known
    chosen: set[TopicPartition] = set()
    for text in topics:
        name, numbers = parse_topic_choice(text)
        if known_only and any(topic == name for topic, _ in known):
            there = [number for topic, number in known if topic == name]
            chosen |= {(name, number) for number in (there if numbers is None else numbers)}
            continue
        there = [partition.number for partition in cluster.topic(name).partitions]
        for number in there if numbers is None else numbers:
            if number not in there:
                raise BadInput(f"Topic {name} has partitions 0 to {len(there) - 1}, not {number}.")
            chosen.add((name, number))
    return sorted(chosen)


def _bounds(cluster: Cluster, chosen: list[TopicPartition], target: Target) -> dict[TopicPartition, Bounds]:
    points = [OffsetSpec.earliest(), OffsetSpec.latest()]
    if isinstance(target, StartPoint) and target.kind is Kind.TIME:
        points.append(OffsetSpec.for_timestamp(target.number))
    found = log_ends(cluster, chosen, *points)
    bounds: dict[TopicPartition, Bounds] = {}
    for topic, number in chosen:
        if (topic, number) not in found:
            raise BadInput(f"There is no partition {number} of {topic}: leave it out.")
        earliest, latest, *at_time = found[topic, number]
        if earliest is None or latest is None or None in at_time:
            raise ClusterRefused(
                f"Partition {number} of {topic} has no leader that answers: start the broker that holds it, "
                "or name other partitions with --topic."
            )
        at = at_time[0] if at_time else None
        bounds[topic, number] = Bounds(earliest, latest, None if at is None or at < 0 else at)
    return bounds


def _show(out: Output, changes: list[Change], export: bool) -> None:
    if export:
        sys.stdout.write(csv_of(changes))
        sys.stdout.flush()
    else:
        rows: list[dict[str, Any]] = [
            asdict(change)
            | {"by": None if change.before is None else change.after - change.before}
            | {"lag": change.latest - change.after}
            for change in changes
        ]
        columns = [
            Column("Topic", "topic"),
            Column("Partition", "partition"),
            Column("Before", "before"),
            Column("After", "after"),
            Column("By", "by"),
            Column("Lag then", "lag"),
        ]
        out.result(rows, table("", columns, rows))
    clamped = [change for change in changes if change.clamped]
    for change in clamped[:_NOTES_MAX]:
        out.warn(
            f"partition {change.partition} of {change.topic} has no offset {change.wanted:,}; "
            f"{change.after:,} is its nearer end."
        )
    if len(clamped) > _NOTES_MAX:
        out.warn(f"likewise {len(clamped) - _NOTES_MAX:,} more of the partitions above.")


def _tell_dry_run(out: Output, group: Group, changes: list[Change], export: bool) -> None:
    if not group.at_rest:
        out.warn(f"this is refused while there are members. {has_members(group)}")
    elif not export and not out.json:
        moved = sum(change.before != change.after for change in changes)
        out.say(
            "Nothing was changed: add --execute to carry this out."
            if moved
            else "The group is there already: nothing to change."
        )


def _carry_out(cluster: Cluster, out: Output, group: str, changes: list[Change]) -> None:
    wanted = {(change.topic, change.partition): change.after for change in changes}
    refused = commit_for(cluster, group, wanted) if wanted else {}
    for (topic, number), reason in sorted(refused.items()):
        out.problem(f"{topic}-{number}: {reason}")
    if refused:
        raise ClusterRefused(
            f"{len(refused):,} of {len(wanted):,} offsets of group {group} were not set, for the reasons "
            "above."
        )
    out.done(f"Set {len(wanted):,} offset{'s' * (len(wanted) != 1)} of group {group}.")


def has_members(group: Group) -> str:
    """Why nothing can be done with a group that is not at rest, and what to do about that."""
    count = len(group.members)
    who = ", ".join(f"{member.label} at {member.host}" for member in group.members[:3])
    more = f" and {count - 3:,} more" if count > 3 else ""
    if not count:
        return f"Group {group.name} is {group.state}: wait until it is empty, then ask again."
    return (
        f"Group {group.name} has {count:,} member{'s' * (count != 1)} ({who}{more}): stop "
        f"{'it' if count == 1 else 'them'}, then ask again. One that was killed is gone when its "
        "session ends."
    )
