"""What a load needs of a table, whatever its format: the contract between `commits` and Delta or Iceberg.

A table keeps counters, which are named integers, next to its rows. Offsets are counters, and so are the
numbers of runs. A commit adds files, sets counters and describes its run, all at once or not at all, and only
if no counter that it sets has moved since the snapshot it is made from.

Must not live here: what a counter means, or how a format keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from mainstem_loader.columns import Columns, TableFormat
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import WrittenFile

RUN_METADATA: Final = "mainstem"
"""What commits say about runs is under this name."""
COMPLETES: Final = "completes"
"""What a run says of whether the rows of all offsets of its topic are there with it; true if missing."""
DEAD_LETTER_RUNS: Final = "mainstem/dead-letters"
"""The counter of runs with dead letters."""
DELIVERED_RUNS: Final = "mainstem/delivered"
"""The last of them whose dead letters are in their table."""


class CommitConflictError(Exception):
    """Another commit was faster, so this one was refused; or its answer was lost. The table says which."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit does.

    Attributes:
        files: are added.
        counters: new values by name.
        run: what is remembered of the run, as JSON; None if the commit is not of a run.
        replaced_days: ISO dates; their files in the snapshot are removed.
        columns: get these types, or are added; if there are any, the change is refused if the table has any
            newer commit. Only for Delta tables.
    """

    files: Sequence[WrittenFile] = ()
    counters: Mapping[str, int] | None = None
    run: Mapping[str, Any] | None = None
    replaced_days: Sequence[str] = ()
    columns: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a commit says about its run, and when it was made, in milliseconds since 1970."""

    committed_ms: int
    run: Mapping[str, Any]


class TableSnapshot(Protocol):
    """A table as it was at one moment."""

    @property
    def table_id(self) -> str:
        """No other table has it, not even one of the same name later."""
        ...

    @property
    def version(self) -> int:
        """Grows with every commit."""
        ...

    @property
    def next_dead_letter_run(self) -> int:
        """The number of the next run with dead letters: larger than that of any run before."""
        ...

    def counter(self, name: str) -> int | None:
        """The value of a counter; None if it was never set."""
        ...

    def columns(self) -> dict[str, pa.DataType]:
        """All columns, the partition column included."""
        ...

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        ...

    def has_rows_of(self, topic_id: str, partitions: Sequence[int]) -> bool:
        """Whether a row names this topic and one of these partitions, or any partition or none if the list is
        empty. Reads only files whose statistics do not exclude it.
        """
        ...

    def refresh(self) -> None:
        """Take the newest snapshot."""
        ...

    def add_columns(self, columns: Columns) -> None:
        """Add columns, and members to structs. Moves the snapshot to a newer one.

        Raises:
            CommitConflictError: another commit was faster.
        """
        ...

    def commit(self, change: Change) -> None:
        """Make a change from this very snapshot. The snapshot at hand is unknown afterwards.

        Raises:
            CommitConflictError: another commit was faster, or the answer was lost.
        """
        ...

    def was_restored(self, topic_id: str) -> bool:
        """Whether somebody has restored an older version, the offsets did not follow, and no run since has
        found or made the rows of the topic complete.
        """
        ...

    def was_restored_since(self, version: int) -> bool:
        """Whether that was done after a version."""
        ...

    def recent_runs(self) -> list[RecordedRun]:
        """The newest first."""
        ...

    def holds_run(self, run_id: str, since_version: int) -> bool:
        """Whether a commit after a version is that of the run."""
        ...

    def letters_of_runs(self, delivered: int, last: int) -> dict[int, dict[str, Any]]:
        """What the commits of the runs with dead letters after `delivered`, up to `last`, say about them.

        Raises:
            WarehouseError: the table no longer knows.
        """
        ...

    def reloaded(self, topic_id: str, part: OffsetRange) -> bool:
        """Whether offsets of a range were loaded before, by commits that a restore has undone."""
        ...

    def expire_snapshots(self, now_s: float) -> None:
        """Forget snapshots that are too old for readers, where the format's library does not do it by itself.

        Raises:
            CommitConflictError: another commit was faster.
        """
        ...

    def named_files(self, removed_within_hours: int) -> set[str]:
        """The paths or URLs of the files that the table names, and of those removed from it not long ago."""
        ...


class TableStore(Protocol):
    """Where one table is, or will be.

    Attributes:
        format: of the table.
        name: how dead letters and their files name the table: unique in the warehouse.
        unknown_outcomes: errors after which a commit may have been made.
    """

    format: TableFormat
    name: str
    unknown_outcomes: tuple[type[Exception], ...]

    def open(self) -> TableSnapshot | None:
        """The newest snapshot; None if there is no table."""
        ...

    def create(self, columns: Columns) -> TableSnapshot:
        """Create an empty table partitioned by day, or open the one that another load has just created."""
        ...

    def check_vacant(self) -> None:
        """Whether a table can be created: nothing of another program is in its place.

        Raises:
            WarehouseError: something is.
        """
        ...

    def storable(self, column_type: pa.DataType) -> pa.DataType:
        """The type of the format that holds all values of an Arrow type."""
        ...

    def folder(self, table: TableSnapshot | None) -> Folder | None:
        """Where files of the table are written; None if that is not known before the table exists."""
        ...

    def check(self, table: TableSnapshot | None) -> Mapping[str, int]:
        """Try whether the store keeps what commits rely on, before a table's first commit.

        Returns:
            Counters for the first commit, which say that it does.

        Raises:
            WarehouseError: it does not, or cannot be used.
        """
        ...

    def explaining_errors(self) -> AbstractContextManager[None]:
        """Turns the errors of the format's library into the loader's."""
        ...
