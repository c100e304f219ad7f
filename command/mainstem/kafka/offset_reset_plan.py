"""What resetting a group's offsets would change: decided here as values, carried out in `group_reset.py`.

Also the file of offsets that `--export` writes and `--from-file` reads.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem.errors import BadInput
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.start_point import Kind, StartPoint, offset_to_start_at, require_within
from mainstem.whole_numbers import is_whole_number

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: offsets from `earliest` up to, not including, `latest`.

    `at_time` is the offset of the first record at or after the requested time, if there is one.
    """

    earliest: int
    latest: int
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """So many records on from what is committed; back, if it is negative."""

    records: int


@dataclass(frozen=True, slots=True)
class AsCommitted:
    """Where the group is: nothing changes, which is of use for `--export`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The offsets of a file."""

    offsets: Offsets


Target = StartPoint | Shift | AsCommitted | Listed


@dataclass(frozen=True, slots=True)
class Change:
    """The reset of one partition: `before` is None if nothing was committed.

    `requested` is what the target says; `after` the same, or the nearer end of what the partition holds.
    """

    topic: str
    partition: int
    before: int | None
    requested: int
    after: int
    latest: int

    @property
    def clamped(self) -> bool:
        return self.requested != self.after


def plan_reset(target: Target, bounds: Mapping[TopicPartition, Bounds], committed: Offsets) -> list[Change]:
    """What becomes of each partition of `bounds`, in their order.

    Partitions of which the target says nothing are left out.

    Raises:
        BadInput: a shift of what was never committed, or an offset beyond the end of every partition.
    """
    if isinstance(target, StartPoint):
        require_within(target, (held.latest for held in bounds.values()))
    changes = []
    for (topic, partition), held in sorted(bounds.items()):
        before = committed.get((topic, partition))
        requested = _requested_offset(target, (topic, partition), held, before)
        if requested is not None:
            after = min(max(requested, held.earliest), held.latest)
            changes.append(Change(topic, partition, before, requested, after, held.latest))
    return changes


def _requested_offset(target: Target, key: TopicPartition, held: Bounds, before: int | None) -> int | None:
    match target:
        case Listed(offsets):
            return offsets.get(key)
        case AsCommitted():
            return before
        case Shift(records):
            if before is None:
                raise BadInput(
                    f"Nothing is committed for partition {key[1]} of {key[0]} that could be shifted: choose "
                    "other partitions with --topic, or set a target with --to."
                )
            return before + records
        case StartPoint(Kind.OFFSET, number):
            return number
        case StartPoint():
            return offset_to_start_at(target, held.earliest, held.latest, held.at_time)


def parse_topic_choice(text: str) -> tuple[str, list[int] | None]:
    """The topic and partitions in `clicks` (all: None) or `clicks:0,3`.

    Raises:
        BadInput: what follows the colon are no partitions.
    """
    topic, colon, numbers = text.partition(":")
    parts = [part.strip() for part in numbers.split(",")] if colon else []
    if not topic or not all(is_whole_number(part) for part in parts):
        raise BadInput(f"--topic takes a topic, or some of its partitions as clicks:0,3, not {text!r}.")
    return topic, sorted({int(part) for part in parts}) if colon else None


# --- The file ---

_COLUMNS: Final = 3
_COLUMNS_WITH_GROUP: Final = 4


def csv_of(changes: Iterable[Change]) -> str:
    """Lines of `topic,partition,offset`, as kafka-consumer-groups writes and reads them for one group."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((change.topic, change.partition, change.after) for change in changes)
    return text.getvalue()


def offsets_in(text: str, group: str) -> dict[TopicPartition, int]:
    """The offsets in lines of `topic,partition,offset`, or `group,topic,partition,offset`.

    With a group in front, the lines of other groups are passed over.

    Raises:
        BadInput: a line is of another form, a partition is named twice, or there are none.
    """
    offsets: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        fields = [field.strip() for field in row]
        if len(fields) == _COLUMNS_WITH_GROUP and fields.pop(0) != group:
            continue
        if len(fields) != _COLUMNS or not all(is_whole_number(part) for part in fields[1:]):
            raise BadInput(
                f"line {number} is {','.join(row)!r}, where topic,partition,offset should be, or "
                "group,topic,partition,offset"
            )
        key = (fields[0], int(fields[1]))
        if key in offsets:
            raise BadInput(f"line {number} names partition {key[1]} of {key[0]} a second time")
        offsets[key] = int(fields[2])
    if not offsets:
        raise BadInput(f"there are no offsets of group {group} in it")
    return offsets
