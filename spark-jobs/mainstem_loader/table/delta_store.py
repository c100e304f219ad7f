"""A Delta table as `commits` needs it: counters are versions of applications.

A commit of a run (Delta protocol, "Actions") holds an `add` for each file, a `txn` for each counter, and in
its `commitInfo`, under `mainstem`, the run.

delta-rs refuses a commit if one of its applications moved since the snapshot it was made from. Removed files
are those of the snapshot: files that others added since stay, and if others removed some of them, the commit
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from mainstem_loader.columns import (
    DAY_COLUMN,
    RECORD_COLUMNS,
    RUN_COLUMN,
    TOPIC_ID_COLUMN,
    Columns,
    TableFormat,
)
from mainstem_loader.errors import WarehouseError
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.table import delta
from mainstem_loader.table.conditional_puts import check_conditional_puts
from mainstem_loader.table.delta import (
    add_of_json,
    arrow_schema,
    check_layout,
    check_vacant,
    create_table,
    delta_schema,
    explaining_table_errors,
    json_of_add,
    open_table,
    panics_as_errors,
)
from mainstem_loader.table.delta_counters import DeltaCounters
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.formats import (
    COMPLETES,
    DEAD_LETTER_RUNS,
    RUN_METADATA,
    Change,
    CommitConflictError,
    RecordedRun,
    TableSnapshot,
)

STORE_CHECKED: Final = "mainstem/conditional-puts"
"""The application whose version says that the store keeps the conditions of puts."""
_IDENTIFYING_COLUMNS: Final = {
    DAY_COLUMN: pa.date32(),
    **{name: kind for name, kind in RECORD_COLUMNS.items() if name not in (TOPIC_ID_COLUMN, RUN_COLUMN)},
}
"""Those of the tables of all versions of the loader; the first ones had no `_topic_id` and `_run`."""
_OTHER_TABLE: Final = "load into another table (--table)"
_RESTORE: Final = "RESTORE"
"""The operation of Delta's RESTORE command, in Spark as in delta-rs."""
_RECENT_COMMITS: Final = 50
_HISTORY_PAGES: Final = (20, 200, None)
_CONFLICTS: Final = (CommitFailedError, SchemaMismatchError)


class DeltaSnapshot:
    """See `formats.TableSnapshot`. `delta` is the table itself; `counters` remembers those of others."""

    def __init__(self, table: DeltaTable, folder: Folder, counters: DeltaCounters | None = None) -> None:
        self.delta = table
        self._folder = folder
        self._counters = counters or DeltaCounters(folder)

    @property
    def table_id(self) -> str:
        return str(self.delta.metadata().id)

    @property
    def version(self) -> int:
        return self.delta.version()

    @property
    def next_dead_letter_run(self) -> int:
        return (self.counter(DEAD_LETTER_RUNS) or 0) + 1

    def counter(self, name: str) -> int | None:
        with explaining_table_errors(self._folder):  # it may read the log
            return self._counters.value(self.delta, name)

    def columns(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in arrow_schema(self.delta)}

    def is_empty(self) -> bool:
        return not self.delta.file_uris()

    def has_rows_of(self, topic_id: str, partitions: Sequence[int]) -> bool:
        from mainstem_loader.table import contents  # It imports `sweep`, which imports this module.

        return contents.has_rows_of(self._folder, self.delta, topic_id, partitions)

    def refresh(self) -> None:
        self.delta.update_incremental()

    def add_columns(self, columns: Columns) -> None:
        try:
            with panics_as_errors():
                self.delta.alter.add_columns(list(delta_schema(pa.schema(list(columns.items()))).fields))
        except _CONFLICTS as error:
            raise CommitConflictError(str(error)) from error

    def commit(self, change: Change) -> None:
        try:
            delta.commit_files(
                self.delta,
                [add_of_json(json_of_add(written)) for written in change.files],
                DAY_COLUMN,
                [Transaction(name, value) for name, value in (change.counters or {}).items()],
                {} if change.run is None else {RUN_METADATA: dict(change.run)},
                change.replaced_days,
                change.columns,
            )
        except _CONFLICTS as error:
            raise CommitConflictError(str(error)) from error

    def was_restored(self, topic_id: str) -> bool:
        # Restoring an older version leaves the versions of applications as they are.
        for page in _HISTORY_PAGES:
            for commit in self.delta.history(page):
                if commit.get("operation") == _RESTORE:
                    return True
                # The run of a load or a rewrite, which a merge of files is not.
                run = commit.get(RUN_METADATA, {})
                if "topic" in run and run.get("topicId", topic_id) == topic_id and run.get(COMPLETES, True):
                    return False
        return False

    def was_restored_since(self, version: int) -> bool:
        if (count := self.version - version) < 1:
            return False
        return any(commit.get("operation") == _RESTORE for commit in self.delta.history(count))

    def recent_runs(self) -> list[RecordedRun]:
        return [
            RecordedRun(int(commit["timestamp"]), commit[RUN_METADATA])
            for commit in self.delta.history(_RECENT_COMMITS)
            if RUN_METADATA in commit
        ]

    def holds_run(self, run_id: str, since_version: int) -> bool:
        if (count := self.version - since_version) < 1:
            return False
        return any(commit.get(RUN_METADATA, {}).get("run") == run_id for commit in self.delta.history(count))

    def letters_of_runs(self, delivered: int, last: int) -> dict[int, dict[str, Any]]:
        letters_of_run: dict[int, dict[str, Any]] = {}
        for page in _HISTORY_PAGES:
            for commit in self.delta.history(page):
                letters = commit.get(RUN_METADATA, {}).get("deadLetters")
                if letters is not None and delivered < letters["run"] <= last:
                    letters_of_run[letters["run"]] = letters
            if len(letters_of_run) == last - delivered:
                return letters_of_run
        missing = min(set(range(delivered + 1, last + 1)) - letters_of_run.keys())
        raise WarehouseError(
            f"The log of {self.delta.table_uri} no longer names the dead letters of its run {missing}, which"
            " was killed before it delivered them; restore the log's older files, then load again."
        )

    def reloaded(self, topic_id: str, part: OffsetRange) -> bool:  # noqa: ARG002
        return False  # Restoring an older version leaves the versions of applications as they are.

    def expire_snapshots(self, now_s: float) -> None:
        """delta-rs cleans the log whenever it writes a checkpoint."""

    def named_files(self, removed_within_hours: int) -> set[str]:
        removed = set(self.delta.vacuum(retention_hours=0, enforce_retention_duration=False))
        removed -= set(
            self.delta.vacuum(retention_hours=removed_within_hours, enforce_retention_duration=False)
        )
        return {*self.delta.file_uris(), *removed}


class DeltaStore:
    """See `formats.TableStore`. The table is its folder in the warehouse."""

    format = TableFormat.DELTA
    unknown_outcomes: tuple[type[Exception], ...] = (DeltaError, OSError)

    def __init__(self, warehouse: Folder, name: str) -> None:
        self.name = name
        self._warehouse = warehouse
        self._folder = warehouse / name
        self._folder.check()
        self._counters = DeltaCounters(self._folder)

    def open(self) -> DeltaSnapshot | None:
        table = open_table(self._folder)
        if table is None:
            return None
        check_layout(table, self._folder, DAY_COLUMN, _IDENTIFYING_COLUMNS, _OTHER_TABLE)
        return DeltaSnapshot(table, self._folder, self._counters)

    def create(self, columns: Columns) -> DeltaSnapshot:
        fields = [*RECORD_COLUMNS.items(), *columns.items(), (DAY_COLUMN, pa.date32())]
        table = create_table(self._folder, pa.schema(fields), DAY_COLUMN)
        return DeltaSnapshot(table, self._folder, self._counters)

    def check_vacant(self) -> None:
        with explaining_table_errors(self._folder):
            check_vacant(self._folder, _OTHER_TABLE)

    def storable(self, column_type: pa.DataType) -> pa.DataType:
        return column_type

    def folder(self, table: TableSnapshot | None) -> Folder:  # noqa: ARG002  # the same before and after
        return self._folder

    def check(self, table: TableSnapshot | None) -> Mapping[str, int]:
        if self._folder.is_local or (table is not None and table.counter(STORE_CHECKED) is not None):
            return {}
        with explaining_table_errors(self._warehouse):
            check_conditional_puts(self._warehouse)
        return {STORE_CHECKED: 1}

    def explaining_errors(self) -> AbstractContextManager[None]:
        return explaining_table_errors(self._folder)
