"""Delta tables in a folder: where data and offsets become visible together, in one commit, or not at all.

A commit of a load (Delta protocol, "Actions") holds

- an `add` for each file of the run,
- a `txn` for each partition that moved: `<topic id>/<partition>` is its application, the next offset to load
  its version,
- for a run with dead letters, a `txn` `mainstem/dead-letters` that counts such runs,
- in its `commitInfo`, under `mainstem`, the run: topic, offset ranges with counts, gaps, dead letter files.

Two loaders cannot both move a partition: delta-rs refuses a commit whose application moved since the snapshot
it was made from. But a snapshot silently moves on when columns are added, and from a later snapshot the same
commit would be accepted. So what a run was planned on is compared with the very snapshot that it commits
from, every time.

Dead letters are in another table, and no commit spans two. The run's commit names their files; they are added
to `dead_letters` right after, or, when the loader was killed in between, by the next run before it reads
anything. `mainstem/<table id>` there counts the runs that were taken over. So a dead letter is visible if and
only if its run's rows are, but for that moment, and neither is ever doubled or lost.

Must not live here: Parquet, records, or which offsets to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from deltalake.transaction import AddAction

from mainstem_loader.columns import (
    DAY_COLUMN,
    RECORD_COLUMNS,
    RESERVED_NAMES,
    ColumnError,
    Columns,
    fits,
    merge_types,
)
from mainstem_loader.dead_letters import DEAD_LETTER_SCHEMA, DEAD_LETTER_TABLE, TOPIC_COLUMN
from mainstem_loader.errors import DiskFullError, WarehouseError
from mainstem_loader.folder import Folder, saying_what_to_do
from mainstem_loader.parquet_files import WrittenFile
from mainstem_loader.ranges import offset_key

RUN_METADATA: Final = "mainstem"
DEAD_LETTER_RUNS: Final = "mainstem/dead-letters"

# Others may add columns or compact in between; each time, the commit is made anew on what they left.
COMMIT_TRIES_MAX: Final = 20

# The log's own history: long enough to look back, short enough that opening a table stays fast.
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 7 days"}
_HISTORY_PAGES: Final = (20, 200, None)


class CommitOutcome(StrEnum):
    """`SUPERSEDED`: another load moved the offsets first, and nothing was committed. `COLUMNS_MOVED`: another
    load gave a new column another type, so the files cannot be read as the table wants, and nothing was
    committed.
    """

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    COLUMNS_MOVED = "columns moved"


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A partition's offset, from what the run was planned on (None: never loaded) to the run's end."""

    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """All that becomes visible at once. `columns`: those the files have, beyond the record's own. `metadata`:
    what is remembered of the run, as JSON.
    """

    topic_id: str
    moves: tuple[OffsetMove, ...]
    files: tuple[WrittenFile, ...]
    dead_files: tuple[WrittenFile, ...]
    columns: Columns
    metadata: Mapping[str, object]


class WarehouseTable:
    """One table as it was when opened; it may not exist yet. `reload` looks again.

    Args:
        warehouse: the folder of all tables, or s3://bucket/prefix.
        name: the table's, which is its folder's.
        dead_letter_table: that of its dead letters, which other tables may share. It is to stay the same:
            another one gets those of all earlier runs, as far as the log goes back.
    """

    def __init__(
        self, warehouse: str | Path | Folder, name: str, dead_letter_table: str = DEAD_LETTER_TABLE
    ) -> None:
        for chosen, other in ((name, dead_letter_table), (dead_letter_table, name)):
            if chosen == other or not chosen or chosen.startswith(("_", ".")) or Path(chosen).name != chosen:
                raise WarehouseError(
                    f"No table can be called {chosen!r}; choose another name without slashes that begins with"
                    " a letter."
                )
        self.name = name
        self.folder = Folder.of(warehouse) / name
        self.dead_letter_folder = Folder.of(warehouse) / dead_letter_table
        self._delta: DeltaTable | None = None
        self.reload()

    def reload(self) -> None:
        """Take the newest snapshot."""
        with _saying_what_to_do(self.folder):
            self._delta = _open(self.folder)

    @property
    def payload_columns(self) -> dict[str, pa.DataType]:
        """The columns that come from payloads."""
        return {name: kind for name, kind in self._columns().items() if name not in RESERVED_NAMES}

    def committed(self, topic_id: str, partition: int) -> int | None:
        """The next offset to load of a partition; None if it never was loaded."""
        return (
            None if self._delta is None else self._delta.transaction_version(offset_key(topic_id, partition))
        )

    def commit(self, load: LoadCommit) -> CommitOutcome:
        """Make a run visible, or nothing of it.

        Raises:
            WarehouseError: the table cannot be written, or others keep changing it.
        """
        with _saying_what_to_do(self.folder):
            for _ in range(COMMIT_TRIES_MAX):
                if not self._is_as_planned(load):
                    # When the answer to a commit was lost, it is our own run that moved the offsets.
                    return CommitOutcome.COMMITTED if self._holds(load.files) else CommitOutcome.SUPERSEDED
                try:
                    if not self._prepare(load.columns):
                        return CommitOutcome.COLUMNS_MOVED
                    # Preparing may have moved the snapshot past another load's commit.
                    if self._is_as_planned(load):
                        self._append(load)
                        self.reload()
                        return CommitOutcome.COMMITTED
                except (CommitFailedError, SchemaMismatchError):
                    pass  # Someone else was faster; look at what they did.
                self.reload()
        raise WarehouseError(
            f"Table {self.name} was changed by others {COMMIT_TRIES_MAX} times while this load tried to"
            " commit; run fewer jobs on it at once, then load again."
        )

    def deliver_dead_letters(self) -> None:
        """Add the dead letters of all committed runs to their table, unless that was done. Safe to repeat,
        and to be done by several at once.

        Raises:
            WarehouseError: the log no longer tells which files they are.
        """
        if self._delta is None:
            return
        last = self._delta.transaction_version(DEAD_LETTER_RUNS) or 0
        application = f"mainstem/{self._delta.metadata().id}"
        with _saying_what_to_do(self.dead_letter_folder):
            for _ in range(COMMIT_TRIES_MAX):
                if not last:
                    return
                letters = _open(self.dead_letter_folder) or _create(
                    self.dead_letter_folder,
                    DEAD_LETTER_SCHEMA.append(pa.field(TOPIC_COLUMN, pa.string())),
                    TOPIC_COLUMN,
                )
                done = letters.transaction_version(application) or 0
                if done >= last:
                    return
                adds = [_add_of_json(add) for run in self._dead_letter_runs(done, last) for add in run]
                try:
                    _commit(letters, adds, TOPIC_COLUMN, [Transaction(application, last)], {})
                except CommitFailedError:
                    continue
                return
        raise WarehouseError(
            f"Table {self.dead_letter_folder.name} was changed by others {COMMIT_TRIES_MAX} times while this"
            " load tried to add to it; the next load will do it."
        )

    def sweep_orphans(self, older_than_hours: int) -> int:
        """Delete files that belong to no table and are older than any load can still be running: what killed
        and superseded runs left. Also deletes files that left the table as long ago (Delta's vacuum).

        Returns:
            How many files were deleted.
        """
        if self._delta is None:
            return 0
        self.deliver_dead_letters()
        swept = 0
        for folder in (self.folder, self.dead_letter_folder):
            with _saying_what_to_do(folder):
                if (table := _open(folder)) is not None:
                    swept += len(
                        table.vacuum(
                            retention_hours=older_than_hours,
                            dry_run=False,
                            enforce_retention_duration=False,
                            full=True,
                        )
                    )
        return swept

    def _columns(self) -> dict[str, pa.DataType]:
        if self._delta is None:
            return {}
        # pa.schema takes whatever exports an Arrow schema; its stubs do not know.
        schema = pa.schema(self._delta.schema().to_arrow())  # type: ignore[arg-type]
        return {field.name: field.type for field in schema}

    def _is_as_planned(self, load: LoadCommit) -> bool:
        return all(self.committed(load.topic_id, move.partition) == move.committed for move in load.moves)

    def _holds(self, files: Sequence[WrittenFile]) -> bool:
        if self._delta is None or not files:
            return False
        names = {Path(uri).name for uri in self._delta.file_uris()}
        return all(Path(written.path).name in names for written in files)

    def _prepare(self, columns: Columns) -> bool:
        """Make the table hold these columns. False if one of its own is in the way."""
        if self._delta is None:
            fields = [*RECORD_COLUMNS.items(), *columns.items(), (DAY_COLUMN, pa.date32())]
            self._delta = _create(self.folder, pa.schema(fields), DAY_COLUMN)
        present = self._columns()
        by_folded_name = {name.casefold(): name for name in present}
        missing: list[tuple[str, pa.DataType]] = []
        for name, column_type in columns.items():
            if by_folded_name.setdefault(name.casefold(), name) != name:
                return False
            if name not in present:
                missing.append((name, column_type))
            elif not fits(column_type, present[name]):
                try:
                    missing.append((name, merge_types(name, present[name], column_type, widen=False)))
                except ColumnError:
                    return False
        if missing:
            self._delta.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
        return True

    def _append(self, load: LoadCommit) -> None:
        assert self._delta is not None
        transactions = [
            Transaction(offset_key(load.topic_id, move.partition), move.end)
            for move in load.moves
            if move.end != move.committed
        ]
        metadata = dict(load.metadata)
        if load.dead_files:
            run = (self._delta.transaction_version(DEAD_LETTER_RUNS) or 0) + 1
            transactions.append(Transaction(DEAD_LETTER_RUNS, run))
            metadata["deadLetters"] = {
                "run": run,
                "files": [_json_of_add(written) for written in load.dead_files],
            }
        adds = [_add_of_json(_json_of_add(written)) for written in load.files]
        _commit(self._delta, adds, DAY_COLUMN, transactions, {RUN_METADATA: metadata})

    def _dead_letter_runs(self, done: int, last: int) -> Iterator[list[dict[str, Any]]]:
        """The dead letter files of the runs after `done`, up to `last`."""
        assert self._delta is not None
        found: dict[int, list[dict[str, Any]]] = {}
        for page in _HISTORY_PAGES:
            for commit in self._delta.history(page):
                letters = commit.get(RUN_METADATA, {}).get("deadLetters")
                if letters is not None and done < letters["run"] <= last:
                    found[letters["run"]] = letters["files"]
            if len(found) == last - done:
                break
        for run in range(done + 1, last + 1):
            if run not in found:
                raise WarehouseError(
                    f"The log of table {self.name} no longer names the dead letters of its run {run}, which"
                    f" was killed before it added them to {self.dead_letter_folder.name}; restore the log's"
                    " older files, then load again."
                )
            yield found[run]


def _open(folder: Folder) -> DeltaTable | None:
    options = folder.delta_options
    if not DeltaTable.is_deltatable(folder.url, options):
        return None
    return DeltaTable(folder.url, storage_options=options)


def _create(folder: Folder, schema: pa.Schema, partition_by: str) -> DeltaTable:
    """Make an empty table, or open the one that another load has just made."""
    try:
        return DeltaTable.create(
            folder.url,
            Schema.from_arrow(schema),
            mode="error",
            partition_by=[partition_by],
            configuration=_CONFIGURATION,
            storage_options=folder.delta_options,
        )
    except DeltaError:
        if (table := _open(folder)) is not None:
            return table
        raise


def _commit(
    table: DeltaTable,
    adds: list[AddAction],
    partition_by: str,
    transactions: list[Transaction],
    metadata: dict[str, Any],
) -> None:
    table.create_write_transaction(
        list(adds),
        mode="append",
        schema=table.schema(),
        partition_by=[partition_by],
        commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=transactions),
    )


def _json_of_add(written: WrittenFile) -> dict[str, Any]:
    return {
        "path": written.path,
        "size": written.size_bytes,
        "partitionValues": dict(written.partition_values),
        "modificationTime": written.modified_ms,
        "stats": written.statistics,
    }


def _add_of_json(add: dict[str, Any]) -> AddAction:
    return AddAction(
        path=add["path"],
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


@contextmanager
def _saying_what_to_do(folder: Folder) -> Iterator[None]:
    with saying_what_to_do(folder):
        try:
            yield
        except DeltaError as error:
            # What follows the first line is a backtrace of the library.
            reason = str(error).splitlines()[0]
            if "No space left" in str(error):
                raise DiskFullError(
                    f"The disk of {folder} is full; nothing of this run was loaded. Free some room, then"
                    " load again."
                ) from error
            raise WarehouseError(
                f"The table in {folder} cannot be read or written ({reason}); check that it is a Delta table"
                " and whole."
            ) from error
