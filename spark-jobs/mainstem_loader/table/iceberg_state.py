"""What an Iceberg table remembers of loads, and which of its records of that is true.

Every commit of a load writes the whole state twice, in the same commit as the files: into the summary of its
snapshot, and into a property of the table. Both are JSON under `mainstem.state`:

    offsets        by topic id, a list: the next offset to load of each partition, null where there is none
    counters       all other counters by name
    letters        what runs with dead letters said of them, until these are delivered
    restored       offsets as they were before somebody restored an older snapshot, until they are passed
    rows           of the table, once the commit is made

The summary is the truth. It belongs to the rows of its snapshot, so whoever restores an older snapshot
restores its offsets, too. Commits of others have no state; theirs is that of the nearest ancestor that has
one. But others may also expire the ancestors of their own commit. Then the property stands in, if the table
has as many rows as after the commit that wrote it: rewriting files changes no row, while a restore or a
deletion does. Otherwise nobody can tell which offsets the rows are from, and loads refuse to guess.

A run is described in the summary of its snapshot, under `mainstem.run`. All snapshots are in one file that
each commit writes anew, so both texts are short: what a run said of dead letters is in the state, and its
ranges are lists of numbers, without those that did not move.

Must not live here: files, catalogs, or what a counter means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.formats import DELIVERED_RUNS
from mainstem_loader.whole_numbers import is_whole_number

STATE: Final = "mainstem.state"
RUN: Final = "mainstem.run"
_RANGE: Final = ("partition", "start", "end", "read", "loaded", "dead")
ACCEPTED: Final = "mainstem.accept-snapshot"
"""A property that a person sets to the id of a snapshot: the property's state is that of its rows."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """See above. `counters` holds the offsets, too, by `ranges.offset_key`; `rows` None is not known."""

    counters: Mapping[str, int] = field(default_factory=dict)
    letters: Sequence[Mapping[str, Any]] = ()
    restored: Mapping[str, int] = field(default_factory=dict)
    rows: int | None = None

    def after(
        self, counters: Mapping[str, int], letters: Mapping[str, Any] | None, rows: int | None
    ) -> LoadState:
        """The state once a commit is made.

        Args:
            counters: that it sets.
            letters: what it says of dead letters; None if it has none.
            rows: the table's then; None if that is not known.
        """
        merged = {**self.counters, **counters}
        delivered = merged.get(DELIVERED_RUNS, 0)
        kept = [one for one in self.letters if one["run"] > delivered]
        return LoadState(
            counters=merged,
            letters=kept if letters is None else [*kept, letters],
            restored={name: end for name, end in self.restored.items() if end > merged.get(name, 0)},
            rows=rows,
        )

    def seen_beside(self, copy: LoadState) -> LoadState:
        """This state, of the snapshot, where the property's is `copy`: the property remembers what a restore
        has undone.
        """
        restored = dict(self.restored)
        for name, end in {**copy.restored, **{name: copy.counters[name] for name in _offsets(copy)}}.items():
            if end > self.counters.get(name, 0):
                restored[name] = max(end, restored.get(name, 0))
        return replace(self, restored=restored)

    def text(self) -> str:
        """As JSON."""
        offsets: dict[str, list[int | None]] = {}
        for name in _offsets(self):
            topic_id, _, partition = name.rpartition("/")
            row = offsets.setdefault(topic_id, [])
            row += [None] * (int(partition) + 1 - len(row))
            row[int(partition)] = self.counters[name]
        others = {name: value for name, value in self.counters.items() if not _is_offset(name)}
        state = {
            "offsets": offsets,
            "counters": others,
            "letters": list(self.letters),
            "restored": dict(self.restored),
            "rows": self.rows,
        }
        return json.dumps(state, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """The inverse of `text`.

        Raises:
            ValueError: it is no such JSON.
        """
        try:
            state = json.loads(text)
            counters = {name: int(value) for name, value in state["counters"].items()}
            for topic_id, ends in state["offsets"].items():
                for partition, end in enumerate(ends):
                    if end is not None:
                        counters[f"{topic_id}/{partition}"] = int(end)
            rows = state["rows"]
            return cls(
                counters=counters,
                letters=[dict(one) for one in state["letters"]],
                restored={name: int(end) for name, end in state["restored"].items()},
                rows=None if rows is None else int(rows),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a state: {error}") from error


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot: its id, its parent's, and its state as text; None if it has none."""

    snapshot_id: int
    parent_id: int | None
    state: str | None


def current_state(
    table: str,
    head: Ancestor | None,
    ancestors: Mapping[int, Ancestor],
    properties: Mapping[str, str],
    rows: int | None,
    has_offsets: bool,
) -> LoadState:
    """The state of the table's rows.

    Args:
        table: its name, for people.
        head: the current snapshot; None if there is none.
        ancestors: all snapshots that were not expired, by id.
        properties: of the table.
        rows: how many the current snapshot has, as its summary says.
        has_offsets: whether the table has a column of offsets.

    Raises:
        WarehouseError: it cannot be told.
    """
    try:
        copy = LoadState.of_text(properties[STATE]) if STATE in properties else None
        snapshot: Ancestor | None = head
        while snapshot is not None:
            if snapshot.state is not None:
                state = LoadState.of_text(snapshot.state)
                return state if copy is None else state.seen_beside(copy)
            snapshot = None if snapshot.parent_id is None else ancestors.get(snapshot.parent_id)
    except ValueError as error:
        raise WarehouseError(
            f"What Iceberg table {table} says about its loads ({STATE}) cannot be read ({error}): somebody"
            " has changed it. Restore an older snapshot and property, or load into another table."
        ) from error
    if copy is None:
        if rows and has_offsets:
            raise WarehouseError(
                f"Iceberg table {table} has rows of a load, but no longer says of which offsets: its property"
                f" {STATE} and the snapshots with it were removed. Load into another table."
            )
        return LoadState()
    accepted = head is not None and properties.get(ACCEPTED) == str(head.snapshot_id)
    if accepted or copy.rows == (rows if head is not None else 0):
        return copy
    raise WarehouseError(
        f"Iceberg table {table} was changed or restored by others, and the snapshots since the last load were"
        f" expired, so nobody can tell which offsets its rows are from: there are {rows} rows, and after the"
        f" last load there were {copy.rows}. If only rows were deleted since, set the table's property"
        f" {ACCEPTED} to {None if head is None else head.snapshot_id} and load again; else load into another"
        " table."
    )


def _is_offset(name: str) -> bool:
    topic_id, slash, partition = name.rpartition("/")
    return bool(slash) and is_whole_number(partition) and "/" not in topic_id


def _offsets(state: LoadState) -> list[str]:
    return [name for name in state.counters if _is_offset(name)]


def text_of_run(run: Mapping[str, Any]) -> str:
    """A run as the summary has it."""
    moved = [part for part in run.get("ranges", ()) if part["start"] != part["end"]]
    ranges = [[part[name] for name in _RANGE] for part in moved]
    described = {name: value for name, value in run.items() if name != "deadLetters"}
    return json.dumps({**described, "ranges": ranges}, separators=(",", ":"))


def run_of_text(text: str) -> dict[str, Any]:
    """The inverse of `text_of_run`; nothing, if somebody has changed it."""
    try:
        run = json.loads(text)
        ranges = [dict(zip(_RANGE, map(int, part), strict=True)) for part in run["ranges"]]
        return {**run, "ranges": ranges, "run": str(run["run"])}
    except (ValueError, KeyError, TypeError):
        return {}
