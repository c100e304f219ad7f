"""`mainstem group reset-offsets`: where a group is to go on; the plan itself is `offset_reset.py`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_groups,
    complete_topics,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Cluster
from mainstem.kafka.groups import (
    Group,
    commit_for,
    committed,
    describe_groups,
    unknown_group,
    why_not_at_rest,
)
from mainstem.kafka.offset_reset import bounds_of, choose_partitions
from mainstem.kafka.offset_reset_plan import (
    AsCommitted,
    Change,
    Listed,
    Shift,
    Target,
    csv_of,
    offsets_in,
    plan_reset,
)
from mainstem.kafka.start_point import parse_start

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
            help="earliest, latest, an offset, the last N records of each partition (-10), a date or "
            "date-time, a time ago (10m, 2h, 1d), or current.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", **integer(), metavar="N", help="Records to move forward, or, if negative, back."
        ),
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
            help="A topic, or some of its partitions; repeatable.",
            autocompletion=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics for which the group has committed offsets.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Execute the plan, not only show it.")] = False,
    export: Annotated[
        bool,
        typer.Option("--export", help="Show the plan as a file for --from-file: topic,partition,offset."),
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Reset the offsets of a group: show the plan; with --execute also execute it.

    To execute it, the group must not have members.
    """
    out = Output(output)
    target = _target(to, shift_by, from_file, group)
    if bool(topic) == all_topics and not (isinstance(target, Listed) and not topic):
        raise BadInput("Choose the offsets: either --topic TOPIC (may be repeated) or --all-topics.")
    if export and out.json:
        raise BadInput("--export writes its own format: leave out --output json.")
    cluster = connect(bootstrap_servers, client_properties)
    (described,) = describe_groups(cluster, [group])
    if execute and not described.at_rest:
        raise ClusterRefused(why_not_at_rest(described))
    offsets = committed(cluster, group)
    if described.state == "dead" and not offsets and all_topics:
        raise unknown_group(cluster, group)
    if isinstance(target, Listed) and not topic:
        chosen = sorted(target.offsets)
    else:
        chosen = choose_partitions(cluster, topic, offsets)
    changes = plan_reset(target, bounds_of(cluster, chosen, target), offsets)
    if not changes and not (out.json or export):
        out.done(f"There is nothing to set: group {group} has committed nothing for these partitions.")
        return
    _show(out, changes, export)
    if not execute:
        _tell_dry_run(out, described, changes, export)
        return
    _carry_out(cluster, out, group, changes)


def _target(to: str | None, shift_by: int | None, from_file: Path | None, group: str) -> Target:
    if [to, shift_by, from_file].count(None) != 2:
        raise BadInput(f"Name the target, in one way: {_WHERE}.")
    if shift_by is not None:
        return Shift(shift_by)
    if from_file is not None:
        try:
            return Listed(offsets_in(from_file.read_text(), group))
        except OSError as error:
            raise BadInput(f"{from_file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{from_file} cannot be read: it is not text.") from error
        except BadInput as error:
            raise BadInput(f"{from_file} cannot be used: {error}.") from error
    assert to is not None
    if to == "current":
        return AsCommitted()
    return parse_start(to, int(time.time() * 1000), "--to")


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
            f"partition {change.partition} of {change.topic} has no offset {change.requested:,}; "
            f"{change.after:,} is its nearer end."
        )
    if len(clamped) > _NOTES_MAX:
        out.warn(f"likewise {len(clamped) - _NOTES_MAX:,} more of the partitions above.")


def _tell_dry_run(out: Output, group: Group, changes: list[Change], export: bool) -> None:
    if not group.at_rest:
        out.warn(f"this is refused while there are members. {why_not_at_rest(group)}")
    elif not export and not out.json:
        moved = sum(change.before != change.after for change in changes)
        out.say(
            "Nothing was changed: add --execute to carry this out."
            if moved
            else "The group already has these offsets: nothing to change."
        )


def _carry_out(cluster: Cluster, out: Output, group: str, changes: list[Change]) -> None:
    requested = {(change.topic, change.partition): change.after for change in changes}
    refused = commit_for(cluster, group, requested) if requested else {}
    for (topic, number), reason in sorted(refused.items()):
        out.problem(f"{topic}-{number}: {reason}")
    if refused:
        raise ClusterRefused(
            f"{len(refused):,} of {len(requested):,} offsets of group {group} were not set, for the reasons "
            "above."
        )
    out.done(f"Set {len(requested):,} offset{'s' * (len(requested) != 1)} of group {group}.")
