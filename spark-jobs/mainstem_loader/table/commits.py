"""Tables of a warehouse: where data and offsets become visible together, in one commit, or not at all.

A commit of a load holds

- the files of the run,
- a counter for each partition whose offset it sets: `<topic id>/<partition>` is its name, the next offset to
  load its value,
- for a run with dead letters, the counter `mainstem/dead-letters`, the number of the run (`delivery`),
- for rows that went through a transform, the counter `mainstem/transformed/<topic id>`: rows are not records,
- for a rewrite that was requested by an id, the counter `mainstem/requests/<digest of the id>`: it is done,
- for a commit that changes what was loaded before, the counter `mainstem/rewrites`, the number of such
  commits,
- for a rewind, the counters `mainstem/hold-until/<topic id>/<partition>` as 0: its hold has ended,
- the run: its id, topic, offset ranges with counts, gaps, and the files and the table of its dead letters.

Two loaders cannot both set a partition's offset: a commit is refused if one of its counters moved since the
snapshot it was made from (`formats`). But a snapshot silently moves on when columns are added, and from a
later snapshot the same commit would be accepted. So the offsets that a run was planned on are compared with
the very snapshot that it commits from, every time.

A rewrite (`rewrite`) adds or replaces rows of offsets that are loaded already. Live loads only add offsets
that are not, so both commit side by side. Two rewrites cannot: each is refused unless the counter is the one
it was planned on. A rewrite that replaces rows removes the files of whole days, and only those of the
snapshot whose remaining rows it has copied: files that a live load adds meanwhile stay.

A rewind removes rows whose records have to be in the topic afterwards. Before it looks at the topic, it
commits a hold for each partition: `mainstem/hold/<topic id>/<partition>` is the first offset that it removes,
and `mainstem/hold-until/<topic id>/<partition>` the time, in milliseconds since 1970, after which the hold
does not count, because no commit of the rewind is possible any more. Loads that delete loaded records
(`ranges.deletable_ends`) take the newest snapshot right before, and leave what is held.

A commit may be made although its answer is lost. So whenever one fails, or the offsets are no longer those of
the plan, the table is searched for the run's own id before anything else is concluded.

Must not live here: table formats, Parquet, records, or which offsets to load.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from mainstem_loader.columns import (
    RESERVED_NAMES,
    REST_COLUMN,
    RUN_COLUMN,
    TOMBSTONE_COLUMN,
    TOPIC_ID_COLUMN,
    ColumnError,
    Columns,
    TableFormat,
    are_of_types,
    fits,
    merge_types,
    record_columns,
)
from mainstem_loader.errors import WarehouseError
from mainstem_loader.ranges import OffsetRange, offset_key
from mainstem_loader.table import contents, delivery, sweep
from mainstem_loader.table.adaptation import Adaptation
from mainstem_loader.table.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.table.delivery import COMMIT_TRIES_MAX
from mainstem_loader.table.delta import json_of_add
from mainstem_loader.table.delta_store import DeltaSnapshot, DeltaStore
from mainstem_loader.table.folder import Folder, unfit_character
from mainstem_loader.table.formats import (
    DEAD_LETTER_RUNS,
    RUN_METADATA,
    Change,
    CommitConflictError,
    RecordedRun,
    TableSnapshot,
    TableStore,
)
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.parquet_files import WrittenFile, origin_of_file

REWRITES: Final = "mainstem/rewrites"
_TRANSFORMED: Final = "mainstem/transformed/"
_REQUESTS: Final = "mainstem/requests/"
_HOLD: Final = "mainstem/hold/"
_HOLD_UNTIL: Final = "mainstem/hold-until/"
# Clocks of machines may differ.
_HOLD_SPARE_S: Final = 3600
_NAME_BYTES_MAX: Final = 255  # of a part of a path, in all usual file systems


class CommitOutcome(StrEnum):
    """`SUPERSEDED`: another load moved the offsets first, and nothing was committed. `COLUMNS_MOVED`: another
    load gave a new column another type, so the files cannot be read as the table demands, and nothing was
    committed.
    """

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    COLUMNS_MOVED = "columns moved"


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A partition's offset, from what the run was planned on (None: no offset yet) to the run's end."""

    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """All that becomes visible at once.

    Attributes:
        run_id: identifies the run in the log; no other run has it.
        started_s: when the run began, in seconds since 1970, before its first file.
        topic_id: of the partitions.
        moves: one for each partition whose offset the commit sets.
        files, dead_files: rows, and dead letters.
        columns: those the files have, beyond the record's own.
        metadata: what is remembered of the run, as JSON.
        rewrites: for a rewrite, the counter that it was planned on.
        replaced_days: ISO dates; their files in the snapshot are removed.
        settled: dead letters of these offsets, from earlier runs, are removed.
        is_transformed: whether rows went through a transform.
        request_id: of a rewrite that is to be carried out once; None for none.
        untyped: columns of which the files have values in `_rest` for want of a type, and the type that the
            table had for them then; `pa.null()` for none.
        planned_version: of the table that the run was planned on; None for the snapshot at hand.
    """

    run_id: str
    started_s: float
    topic_id: str
    moves: tuple[OffsetMove, ...]
    files: tuple[WrittenFile, ...]
    dead_files: tuple[WrittenFile, ...]
    columns: Columns
    metadata: Mapping[str, object]
    rewrites: int | None = None
    replaced_days: tuple[str, ...] = ()
    settled: tuple[OffsetRange, ...] = ()
    is_transformed: bool = False
    request_id: str | None = None
    untyped: Columns = field(default_factory=dict)
    planned_version: int | None = None


class WarehouseTable:
    """One table as it was when opened; it may not exist yet. `reload` takes a new snapshot.

    Args:
        warehouse: the folder of all tables, or s3://bucket/prefix.
        name: the table's.
        dead_letter_table: for the dead letters of runs from now on; other tables may share it. It is a Delta
            table, whatever the format of the rows is.
        catalog: of the Iceberg table; None for a Delta table.
    """

    def __init__(
        self,
        warehouse: str | Path | Folder,
        name: str,
        dead_letter_table: str = DEAD_LETTER_TABLE,
        catalog: IcebergCatalog | None = None,
    ) -> None:
        for chosen, other in ((name, dead_letter_table), (dead_letter_table, name)):
            if (character := unfit_character(chosen)) is not None:
                raise WarehouseError(
                    f"No table can be called {chosen!r}, because {character!r} is another character in the"
                    " table's URL; choose another name."
                )
            if chosen == other or not chosen or chosen.startswith(("_", ".")) or Path(chosen).name != chosen:
                raise WarehouseError(
                    f"No table can be called {chosen!r}; choose another name without slashes that begins with"
                    " a letter."
                )
            if len(os.fsencode(chosen)) > _NAME_BYTES_MAX:
                raise WarehouseError(
                    f"No table can be called {chosen!r}, because no folder can have a name of more than"
                    f" {_NAME_BYTES_MAX} bytes; choose a shorter one."
                )
        self.name = name
        self.warehouse = Folder.of(warehouse)
        self.dead_letter_folder = self.warehouse / dead_letter_table
        self.dead_letter_folder.check()
        self._store = _store(self.warehouse, name, catalog)
        self._table: TableSnapshot | None = None
        self._checked: Mapping[str, int] = {}
        self._files: Folder | None = None
        self.reload()

    @property
    def format(self) -> TableFormat:
        return self._store.format

    @property
    def unique_name(self) -> str:
        """How dead letters name the table: a Delta table and an Iceberg table may share a name."""
        return self._store.name

    @property
    def folder(self) -> Folder:
        """Where its files are written; of an Iceberg table only if it exists, or did at `check_store`."""
        folder = self._files or self._store.folder(self._table)
        assert folder is not None, "`check_store` has created the table"
        return folder

    def reload(self) -> None:
        """Take the newest snapshot."""
        with self._store.explaining_errors():
            self._table = self._store.open()

    def check_columns(self) -> None:
        """Whether the table has no payload column with a name that is the loader's own now, or can be made,
        and dead letters have a place.

        Raises:
            WarehouseError: it has: earlier versions of the loader did not reserve all names. Or something of
                another program is in the place of one of the tables.
        """
        if self._table is None:
            self._store.check_vacant()
        delivery.check_dead_letter_table(self.dead_letter_folder)
        names = {name.casefold(): name for name in self._columns()}
        of_rows = {TOPIC_ID_COLUMN, RUN_COLUMN}
        # A table gets both columns at once, and the others never before.
        complete = of_rows <= names.keys()
        types = {**dict.fromkeys({*of_rows, REST_COLUMN}, pa.string()), TOMBSTONE_COLUMN: pa.bool_()}
        for name in sorted(types.keys() & names.keys()):
            if not complete or names[name] != name or self._columns()[name] != types[name]:
                raise WarehouseError(
                    f"Column {names[name]} of table {self.name} holds a field of the payload, written by an"
                    " earlier version; the name is the loader's own now. Load into another table (--table)."
                )

    def was_restored(self, topic_id: str) -> bool:
        """Whether somebody has restored an older version of the table, so that rows of the topic may be
        missing whose offsets count as loaded.
        """
        if self._table is None:
            return False
        with self._store.explaining_errors():
            return self._table.was_restored(topic_id)

    def check_not_restored(self, topic_id: str) -> None:
        """Whether the offsets are those of the rows.

        Raises:
            WarehouseError: they are not, and the next load would continue after the missing rows.
        """
        if self.was_restored(topic_id):
            raise self._restored()

    def check_offsets_of_rows(self, topic_id: str, committed: Mapping[int, int | None]) -> None:
        """Whether the table has rows only of partitions with an offset. The others are loaded from their
        beginning, which would bring their rows a second time.

        Args:
            topic_id: of the partitions.
            committed: by partition the next offset to load; None if no run has seen it yet.

        Raises:
            WarehouseError: it has others: it is a copy, or another program has added the rows, or removed the
                counters from its log.
        """
        unknown = [partition for partition, offset in committed.items() if offset is None]
        if self._table is None or not unknown:
            return
        # Rows of a transform need not name their partition.
        partitions = [] if len(unknown) == len(committed) else unknown
        with self._store.explaining_errors():
            if not self._table.has_rows_of(topic_id, partitions):
                return
        raise WarehouseError(
            f"Table {self.name} has rows of the topic with the id {topic_id}, but does not say up to which"
            f" offset partition {unknown[0]} is loaded: it is a copy of another table, or another program has"
            " added the rows, or removed what loads have written to its log. A load would add the rows a"
            " second time, so nothing was loaded. Load into another table, or delete these rows"
            f" ({TOPIC_ID_COLUMN}) and load again."
        )

    def check_store(self) -> None:
        """Whether the store keeps the conditions that commits rely on; tried before a table's first commit.
        Files can be written afterwards: the warehouse is made, and a table whose catalog chooses their place.

        Raises:
            WarehouseError: it ignores them, or cannot be used.
        """
        self.warehouse.create()
        with self._store.explaining_errors():
            self._checked = {**self._checked, **self._store.check(self._table)}
            if self._table is None and self._store.folder(None) is None:
                self._table = self._store.create({})
            self._files = self._store.folder(self._table)

    @property
    def payload_columns(self) -> dict[str, pa.DataType]:
        """The columns that come from payloads."""
        return {name: kind for name, kind in self._columns().items() if name not in RESERVED_NAMES}

    @property
    def all_columns(self) -> dict[str, pa.DataType]:
        """The columns that the table has; none if it does not exist."""
        return self._columns()

    def storable(self, column_type: pa.DataType) -> pa.DataType:
        """The type that a column gets which was declared to have this one."""
        return self._store.storable(column_type)

    def is_empty(self) -> bool:
        """Whether the table does not exist or has no rows."""
        return self._table is None or self._table.is_empty()

    def committed(self, topic_id: str, partition: int) -> int | None:
        """The next offset to load of a partition; None if no run has seen it yet."""
        return None if self._table is None else self._table.counter(offset_key(topic_id, partition))

    def is_transformed(self, topic_id: str) -> bool:
        """Whether rows of the topic went through a transform, so they are not records."""
        return self._table is not None and self._table.counter(_TRANSFORMED + topic_id) is not None

    def has_carried_out(self, request_id: str) -> bool:
        """Whether the rewrite of this request was committed."""
        return self._table is not None and self._table.counter(_request(request_id)) is not None

    def note_carried_out(self, request_id: str) -> None:
        """Remember a request that changed nothing.

        Raises:
            WarehouseError: the table cannot be written.
        """
        assert self._table is not None, "there was something to change"
        with self._store.explaining_errors():
            for _ in range(COMMIT_TRIES_MAX):
                if self.has_carried_out(request_id):
                    return
                try:
                    self._table.commit(Change(counters={_request(request_id): 1}))
                except CommitConflictError:
                    pass  # Another commit was faster; look at what is there.
                self.reload()
        raise self._changed_by_others()

    def kept_from(self, topic_id: str, partition: int, now_s: float | None = None) -> int:
        """The first offset whose record has to stay in the topic: the next one to load, or the start of a
        rewind under way.

        Args:
            topic_id, partition: of the record.
            now_s: seconds since 1970; the clock's by default.
        """
        committed = self.committed(topic_id, partition) or 0
        held = self._held(topic_id, partition, time.time() if now_s is None else now_s)
        return committed if held is None else min(committed, held)

    def hold(self, topic_id: str, start_of: Mapping[int, int], started_s: float) -> None:
        """Make loads leave the records from these offsets on in the topic, until the rewind commits or is too
        old to do so. A hold of another rewind that begins earlier stays as it is.

        Args:
            topic_id: of the partitions.
            start_of: by partition the first offset that a rewind removes.
            started_s: when the rewind began, in seconds since 1970.

        Raises:
            WarehouseError: the table cannot be written.
        """
        assert self._table is not None, "there are rows to remove"
        until_ms = _held_until_ms(started_s)
        with self._store.explaining_errors():
            for _ in range(COMMIT_TRIES_MAX):
                counters: dict[str, int] = {}
                for partition, start in start_of.items():
                    key = offset_key(topic_id, partition)
                    held = self._held(topic_id, partition, time.time())
                    counters[_HOLD + key] = start if held is None else min(start, held)
                    counters[_HOLD_UNTIL + key] = max(until_ms, self._table.counter(_HOLD_UNTIL + key) or 0)
                try:
                    self._table.commit(Change(counters=counters))
                    self.reload()
                    return
                except CommitConflictError:
                    self.reload()  # Another rewind was faster.
        raise self._changed_by_others()

    def end_hold(self, topic_id: str, start_of: Mapping[int, int], started_s: float) -> None:
        """End what `hold` began with the same arguments, where neither the rewind's commit has done so nor
        another rewind has held more since.

        Raises:
            WarehouseError: the table cannot be read or written.
        """
        with self._store.explaining_errors():
            for _ in range(COMMIT_TRIES_MAX):
                self.reload()
                if self._table is None:
                    return
                counters = {
                    _HOLD_UNTIL + key: 0
                    for partition, start in start_of.items()
                    if self._table.counter(_HOLD + (key := offset_key(topic_id, partition))) == start
                    and self._table.counter(_HOLD_UNTIL + key) == _held_until_ms(started_s)
                }
                if not counters:
                    return
                try:
                    self._table.commit(Change(counters=counters))
                    return
                except CommitConflictError:
                    continue  # Another commit was faster.
        raise self._changed_by_others()

    def _held(self, topic_id: str, partition: int, now_s: float) -> int | None:
        """The start of a hold that counts; None if there is none."""
        if self._table is None:
            return None
        key = offset_key(topic_id, partition)
        if (self._table.counter(_HOLD_UNTIL + key) or 0) <= now_s * 1000:
            return None
        return self._table.counter(_HOLD + key)

    @property
    def delta(self) -> DeltaTable:
        """The snapshot, of a Delta table that exists."""
        assert isinstance(self._table, DeltaSnapshot)
        return self._table.delta

    @property
    def version(self) -> int:
        """The version of the snapshot at hand; -1 if there is no table."""
        return -1 if self._table is None else self._table.version

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def rewrites(self) -> int:
        """How many commits have changed what was loaded before."""
        return 0 if self._table is None else self._table.counter(REWRITES) or 0

    def last_runs(self) -> list[RecordedRun]:
        """Recent runs, the newest first."""
        if self._table is None:
            return []
        with self._store.explaining_errors():
            return self._table.recent_runs()

    def runs_since(self, version: int) -> list[str]:
        """The ids of the runs that were committed after a version of a Delta table."""
        count = self.delta.version() - version
        with self._store.explaining_errors():
            commits = self.delta.history(count) if count else []
        return [commit[RUN_METADATA]["run"] for commit in commits if RUN_METADATA in commit]

    def prepare(self, columns: Columns) -> bool:
        """Make the table hold these columns, and take the newest snapshot. False if one of the table's own
        columns is in the way.
        """
        with self._store.explaining_errors():
            for _ in range(COMMIT_TRIES_MAX):
                self.reload()
                try:
                    if not self._prepare(columns):
                        return False
                except CommitConflictError:
                    continue  # Another load was faster; it may have added the same columns.
                self.reload()
                return True
        raise self._changed_by_others()

    def rewrite(self, load: LoadCommit) -> CommitOutcome:
        """Make a rewrite visible, from the snapshot at hand. `SUPERSEDED` if that is not possible any more;
        the newest snapshot is taken in either case.

        Raises:
            WarehouseError: the table cannot be written, or the run took too long.
        """
        _check_age(load)
        with self._store.explaining_errors():
            planned_version = self.version
            try:
                is_planned = self.rewrites == load.rewrites and self._is_as_planned(load)
                if is_planned and self._is_fit_for_rewrite(load):
                    self._append(load)
                    self.reload()
                    return CommitOutcome.COMMITTED
            except CommitConflictError:
                pass  # Another commit was faster, or the answer was lost; look at what is there.
            except self._store.unknown_outcomes:
                self.reload()
                if self._holds_run(load.run_id, planned_version):
                    return CommitOutcome.COMMITTED
                raise
            self.reload()
            if self._holds_run(load.run_id, planned_version):
                return CommitOutcome.COMMITTED
            return CommitOutcome.SUPERSEDED

    def adapt(
        self,
        run_id: str,
        adaptation: Adaptation,
        files: Sequence[WrittenFile],
        metadata: Mapping[str, object],
    ) -> bool:
        """Give columns other types, and replace the files of days that need it, from the snapshot at hand.
        The newest snapshot is taken in either case.

        Returns:
            Whether that was done; not if there was any other commit meanwhile.

        Raises:
            WarehouseError: the table cannot be written.
        """
        assert self._table is not None
        with self._store.explaining_errors():
            planned_version = self.version
            counters = {REWRITES: self.rewrites + 1} if adaptation.days else {}
            run = {**metadata, "run": run_id}
            try:
                self._table.commit(Change(files, counters, run, adaptation.days, adaptation.columns))
            except CommitConflictError:
                pass  # Another commit was faster, or the answer was lost; look at what is there.
            except self._store.unknown_outcomes:
                self.reload()
                if self._holds_run(run_id, planned_version):
                    return True
                raise
            self.reload()
            return self._holds_run(run_id, planned_version)

    def commit(self, load: LoadCommit) -> CommitOutcome:
        """Make a run visible, or nothing of it.

        Raises:
            WarehouseError: the table cannot be written, others keep changing it, or the run took too long.
                The commit may have been made if the store broke down meanwhile.
        """
        with self._store.explaining_errors():
            planned_version = self.version
            for _ in range(COMMIT_TRIES_MAX):
                if not self._is_as_planned(load):
                    if self._holds_run(load.run_id, planned_version):
                        return CommitOutcome.COMMITTED
                    return CommitOutcome.SUPERSEDED
                _check_age(load)
                try:
                    if self.has_learned(load.untyped) or not self._prepare(load.columns):
                        return CommitOutcome.COLUMNS_MOVED
                    # Preparing may have moved the snapshot past another load's commit.
                    if self._is_as_planned(load):
                        # From an older snapshot delta-rs would refuse the commit, as files were removed.
                        if self._table is not None and self._table.was_restored_since(
                            _planned(load, planned_version)
                        ):
                            raise self._restored()
                        self._append(load)
                        self.reload()
                        return CommitOutcome.COMMITTED
                except CommitConflictError:
                    pass  # Another commit was faster, or the answer was lost; look at what is there.
                except self._store.unknown_outcomes:
                    # The store failed before or after it took the commit.
                    self.reload()
                    if self._holds_run(load.run_id, planned_version):
                        return CommitOutcome.COMMITTED
                    raise
                self.reload()
        raise self._changed_by_others()

    def deliver_dead_letters(self) -> None:
        """Add the dead letters of all committed runs to their tables, see `delivery`."""
        if self._table is not None:
            with self._store.explaining_errors():
                delivery.deliver_dead_letters(
                    self.warehouse, self._table, self.unique_name, self.dead_letter_folder.name
                )

    def sweep_orphans(self, older_than_hours: int, now_s: float | None = None) -> int:
        """Delete files that no commit names, see `sweep`. Returns how many."""
        sweep.check_orphan_hours(older_than_hours)
        if self._table is None:
            return 0
        self.deliver_dead_letters()
        with self._store.explaining_errors():
            return sweep.sweep_orphans(
                self.folder, self.dead_letter_folder, self._table, self.unique_name, older_than_hours, now_s
            )

    def delete_files_of(self, run_id: str) -> None:
        """Delete the files of a run that no commit names and none will: one that failed or was interrupted.

        What cannot be deleted now is swept later.
        """
        for folder in (self.folder, self.dead_letter_folder):
            try:
                for path, _ in folder.files():
                    origin = origin_of_file(path)
                    if origin is not None and origin.run_id == run_id:
                        folder.delete(path)
            except OSError:
                continue

    def is_sweep_due(self) -> bool:
        """Whether the last sweep was long enough ago."""
        return self._table is not None and sweep.is_sweep_due(self._table, time.time())

    def _restored(self) -> WarehouseError:
        return WarehouseError(
            f"Table {self.name} was restored to an older version after its last load. Rows that were"
            " loaded since are missing, and a load would continue after them, so nothing was loaded. Add"
            " the missing rows with `mainstem load backfill TOPIC --all`, then load again."
        )

    def _changed_by_others(self) -> WarehouseError:
        return WarehouseError(
            f"Table {self.name} was changed by others {COMMIT_TRIES_MAX} times while this load tried to"
            " commit; run fewer jobs on it at once, then load again."
        )

    def _columns(self) -> dict[str, pa.DataType]:
        return {} if self._table is None else self._table.columns()

    def has_learned(self, untyped: Columns) -> bool:
        """Whether columns got another type since; `pa.null()` stands for columns that were not there."""
        return not are_of_types(self._columns(), untyped)

    def _is_as_planned(self, load: LoadCommit) -> bool:
        if self._files is not None and self._files != self._store.folder(self._table):
            return False  # Others made the table anew elsewhere, while files were written.
        return all(self.committed(load.topic_id, move.partition) == move.committed for move in load.moves)

    def _is_fit_for_rewrite(self, load: LoadCommit) -> bool:
        """Whether nobody has restored an older version since the plan, which knows nothing of the rows that
        are missing now, and the files of the replaced days are still in the table.

        Another program may have merged them, and delta-rs takes a commit that removes them a second time if
        no row changed by the first (`dataChange` false). Every row would then be there twice.
        """
        newest, days = self._store.open(), load.replaced_days
        if not isinstance(newest, DeltaSnapshot):
            return False
        if newest.was_restored_since(_planned(load, self.version)):
            return False
        if not days:
            return True
        present = {file.path for file in contents.files_of_days(self.folder, newest.delta, days)}
        return all(file.path in present for file in contents.files_of_days(self.folder, self.delta, days))

    def _holds_run(self, run_id: str, since_version: int) -> bool:
        """Whether a commit after `since_version` is that of the run."""
        return self._table is not None and self._table.holds_run(run_id, since_version)

    def _prepare(self, columns: Columns) -> bool:
        """Make the table hold these columns. False if one of its own is in the way."""
        if self._table is None:
            self._table = self._store.create(columns)
        present = self._columns()
        by_folded_name = {name.casefold(): name for name in present}
        # Tables of earlier versions do not have all of the record's own columns.
        own = record_columns(self.format)
        missing = {name: kind for name, kind in own.items() if name not in present}
        for name, column_type in columns.items():
            if by_folded_name.setdefault(name.casefold(), name) != name:
                return False
            if name not in present:
                missing[name] = column_type
            elif not fits(column_type, present[name]):
                try:
                    missing[name] = merge_types(name, present[name], column_type, widen=False)
                except ColumnError:
                    return False
        if missing:
            self._table.add_columns(missing)
        return True

    def _append(self, load: LoadCommit) -> None:
        table = self._table
        assert table is not None
        counters = {
            offset_key(load.topic_id, move.partition): move.end
            for move in load.moves
            if move.end != move.committed
        }
        counters |= {name: value for name, value in self._checked.items() if table.counter(name) is None}
        run: dict[str, Any] = {**load.metadata, "run": load.run_id}
        if load.is_transformed and not self.is_transformed(load.topic_id):
            counters[_TRANSFORMED + load.topic_id] = 1
        if load.request_id is not None:
            counters[_request(load.request_id)] = 1
        if load.rewrites is not None:
            counters[REWRITES] = load.rewrites + 1
            keys = [_HOLD_UNTIL + offset_key(load.topic_id, move.partition) for move in load.moves]
            counters |= {key: 0 for key in keys if table.counter(key) is not None}
        settled = load.settled or self._reloaded(load)
        if load.dead_files or settled:
            number = delivery.next_run(self.dead_letter_folder, table)
            counters[DEAD_LETTER_RUNS] = number
            run["deadLetters"] = {
                "run": number,
                "table": self.dead_letter_folder.name,
                "files": [json_of_add(written) for written in load.dead_files],
            }
        if settled:
            run["deadLetters"]["settled"] = {
                "topic": load.metadata["topic"],
                "topicId": load.topic_id,
                "ranges": [[part.partition, part.start, part.end] for part in settled],
            }
        self._check_files(load)
        table.commit(Change(load.files, counters, run, load.replaced_days))

    def _check_files(self, load: LoadCommit) -> None:
        """Whether the files are still there. Other programs know of no file before it is committed, and may
        remove it if they keep such files for less time than a run takes.

        Raises:
            WarehouseError: one is not.
        """
        for folder, files in ((self.folder, load.files), (self.dead_letter_folder, load.dead_files)):
            if (missing := folder.first_missing([written.path for written in files])) is not None:
                raise WarehouseError(
                    f"File {missing} of table {folder.name}, which this run has written, was removed by"
                    " another program before it was committed, so nothing was committed. Let VACUUM and the"
                    f" like keep files for at least {sweep.ORPHAN_HOURS_MIN} hours, then run this again."
                )

    def _reloaded(self, load: LoadCommit) -> tuple[OffsetRange, ...]:
        """The ranges of a load that were loaded before, until somebody restored an older snapshot. Their dead
        letters of then are settled, or each would be there twice.
        """
        assert self._table is not None
        ranges = (OffsetRange(move.partition, move.committed or 0, move.end) for move in load.moves)
        return tuple(part for part in ranges if self._table.reloaded(load.topic_id, part))


def _store(warehouse: Folder, name: str, catalog: IcebergCatalog | None) -> TableStore:
    if catalog is None:
        return DeltaStore(warehouse, name)
    # pyiceberg takes a while to import, and plain loads do not need it.
    from mainstem_loader.table.iceberg_store import IcebergStore

    return IcebergStore(warehouse, catalog, name)


def _planned(load: LoadCommit, at_hand: int) -> int:
    return at_hand if load.planned_version is None else load.planned_version


def _request(request_id: str) -> str:
    """The application of a request. A digest: ids are whatever a person writes."""
    return _REQUESTS + hashlib.sha256(request_id.encode()).hexdigest()[:32]


def _held_until_ms(started_s: float) -> int:
    """When the hold of a rewind ends that began then: it could not commit any more."""
    return int((started_s + sweep.COMMIT_WITHIN_HOURS * 3600 + _HOLD_SPARE_S) * 1000)


def _check_age(load: LoadCommit) -> None:
    """A run whose files may have been swept must not commit them."""
    hours: Final = sweep.COMMIT_WITHIN_HOURS
    if time.time() - load.started_s > hours * 3600:
        raise WarehouseError(
            f"The load took more than {hours} hours, after which its files may be swept, so it was not"
            " committed; load less at once (--max-records)."
        )
