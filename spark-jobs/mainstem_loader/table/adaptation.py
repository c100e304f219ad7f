"""What a Delta table needs so that its columns can have the types that a load has shown.

A field that was empty in all records so far gets its column from the first record that shows a type, and a
column of whole numbers has to become one of doubles for the first fraction. Earlier rows have such values in
`_rest`, or as whole numbers, so the files of their days are written anew. That costs as much as the days are
large, so it is done up to a limit only; beyond, values stay in `_rest`, and a note says so.

Must not live here: writing the files, and the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from mainstem_loader.columns import (
    DAY_COLUMN,
    RESERVED_NAMES,
    REST_COLUMN,
    ColumnError,
    Columns,
    field_of_column,
    merge_types,
)
from mainstem_loader.exact_numbers import EXACT_BOUND
from mainstem_loader.table import contents
from mainstem_loader.table.delta import arrow_schema, explaining_table_errors
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.parquet_files import WrittenFile, origin_of_file

REWRITTEN_BYTES_MAX: Final = 1024**3
"""What one load writes anew: seconds to a minute of work for one core."""
FILE_BYTES_MIN: Final = 256 * 1024
"""What opening a file costs, in bytes that could be copied meanwhile; thousands of small files are slow."""
SEARCHED_BYTES_MAX: Final = 16 * 1024**3
"""Files whose column `_rest` a load reads, which is a small part of them."""
_READS_AT_ONCE: Final = 16
# Others may have switched on features of Delta with which replacing files takes more than this module does:
# deletion vectors, column mapping, row ids.
_READER_VERSION_MAX: Final = 1
_WRITER_VERSION_MAX: Final = 2
# As Parquet calls integers. Times, which stay as they are, are stored as integers of 64 bits, too.
_INTEGER_KINDS: Final = ("NONE", "INT")


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What is to be done to a table, in one commit.

    Attributes:
        columns: get these types; those that the table does not have are added.
        days: ISO dates; all of their rows are written anew.
        rows, size_bytes: of the files of these days. `rows` is 0 if that is not known.
    """

    columns: Columns
    days: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Plan:
    columns: dict[str, pa.DataType] = field(default_factory=dict)
    days: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _File:
    """A file that the table names, with what its log says of one column, None for nothing."""

    path: str
    day: str | None
    size_bytes: int
    rows: int | None
    nulls: int | None
    least: Any
    greatest: Any

    def may_hold(self) -> bool:
        """Whether the file may have values of the column."""
        if self.nulls is not None and self.rows is not None:
            return self.nulls < self.rows
        return self.may_have_column()

    def may_have_column(self) -> bool:
        # Files of the loader count the nulls of each plain column that they have.
        return self.nulls is not None or self.rows is None or origin_of_file(self.path) is None


def plan_adaptation(
    folder: Folder,
    table: DeltaTable,
    learned: Columns,
    wider: Columns,
    new_files: Sequence[WrittenFile],
) -> tuple[Adaptation, list[str]]:
    """Decide which columns get other types, and what has to be written anew for that.

    Args:
        folder: of the table.
        table: the snapshot that the change is made from.
        learned: types of new columns, or with new members, that earlier rows may have values of in `_rest`.
        wider: columns of the table, with doubles in the places of some integers.
        new_files: of the load, which has whole numbers in the columns of `wider`.

    Returns:
        Notes for people say which columns stay as they are, why, and what to do.
    """
    plan = _Plan()
    present = {column.name: column.type for column in arrow_schema(table)}
    refusal = _refusal(table)
    for name, column_type in wider.items():
        _plan_wider(plan, folder, table, name, column_type, new_files, refusal)
    names = {*plan.columns, *(name for name in learned if name not in RESERVED_NAMES)}
    _plan_learned(plan, folder, table, sorted(names), refusal)
    # The commit of the load adds columns by the library's own operation, which knows of such features.
    for name, column_type in learned.items() if refusal is None else ():
        before = plan.columns.get(name, present.get(name))
        try:
            plan.columns[name] = (
                column_type if before is None else merge_types(name, before, column_type, widen=True)
            )
        except ColumnError:
            continue  # Others gave it another type; the commit of the load finds out.
    files = contents.files_of_days(folder, table, tuple(plan.days)) if plan.days else []
    rows = sum(file.rows for file in files) if all(file.rows for file in files) else 0
    size_bytes = sum(file.size_bytes for file in files)
    return Adaptation(plan.columns, tuple(sorted(plan.days)), rows, size_bytes), plan.notes


def _refusal(table: DeltaTable) -> str | None:
    """Why files of this table are not replaced; None if they may be."""
    protocol = table.protocol()
    if protocol.min_reader_version > _READER_VERSION_MAX or protocol.min_writer_version > _WRITER_VERSION_MAX:
        return "the table has features of Delta that other programs have switched on"
    if (table.metadata().configuration.get("delta.appendOnly") or "").lower() == "true":
        return "the table is append-only (delta.appendOnly)"
    return None


def _plan_wider(
    plan: _Plan,
    folder: Folder,
    table: DeltaTable,
    name: str,
    column_type: pa.DataType,
    new_files: Sequence[WrittenFile],
    refusal: str | None,
) -> None:
    """Whether a column may get doubles for integers: all files that have it can be written anew, and none of
    its integers would be rounded.
    """
    # The log has no statistics of what is inside of other values, nor of a name that looks like a path there.
    is_nested = pa.types.is_nested(column_type)
    is_in_log = not is_nested and "." not in name
    files = [file for file in _files(folder, table, name) if not is_in_log or file.may_have_column()]
    with explaining_table_errors(folder):
        days = {file.day for file in files if file.day is not None}
        if refusal is None and any(file.day is None for file in files):
            refusal = "it has rows without a day"
        if refusal is None:
            refusal = _too_large(folder, table, {*plan.days, *days})
        new_paths = [written.path for written in new_files if name in written.columns]
        if refusal is None and not (
            all(_is_exact(file) for file in files)
            and _are_exact(folder, [*(file.path for file in files if file.least is None), *new_paths], name)
        ):
            refusal = "some of them are too large to be exact as doubles"
    if refusal is None:
        plan.columns[name] = column_type
        plan.days |= days
        return
    field_name = field_of_column(name)
    plan.notes.append(
        f"Column {name} has whole numbers only, and other numbers of field {field_name} are in the column"
        f" _rest, because {refusal}. To have all of them in one column, load into another table with"
        f" --column {field_name}={'TYPE' if is_nested else 'double'}."
    )


def _plan_learned(
    plan: _Plan, folder: Folder, table: DeltaTable, names: Sequence[str], refusal: str | None
) -> None:
    """The days whose rows have values of new columns in `_rest`, unless they are too large."""
    if not names or REST_COLUMN not in {column.name for column in arrow_schema(table)}:
        return
    texts = [json.dumps(field_of_column(name), ensure_ascii=False) for name in names]
    files = [
        file
        for file in _files(folder, table, REST_COLUMN)
        if file.may_hold() and file.day is not None and _may_name(file, texts)
    ]
    if not files:
        return
    if refusal is None and sum(file.size_bytes for file in files) > SEARCHED_BYTES_MAX:
        refusal = f"it would have to be looked for in files of more than {SEARCHED_BYTES_MAX >> 30} GiB"
    if refusal is None:
        days = contents.days_with_rest(folder, table, sorted({file.day or "" for file in files}), texts)
        refusal = _too_large(folder, table, {*plan.days, *days})
        if refusal is None:
            plan.days |= set(days)
            return
    plan.notes.append(
        f"Earlier rows may have values of {', '.join(names)} in the column _rest, and they stay there,"
        f" because {refusal}. `mainstem load backfill TOPIC --all --replace` gives the columns what the topic"
        " still has of them."
    )


def _too_large(folder: Folder, table: DeltaTable, days: Iterable[str]) -> str | None:
    files = contents.files_of_days(folder, table, tuple(days))
    size_bytes = sum(max(file.size_bytes, FILE_BYTES_MIN) for file in files)
    if size_bytes <= REWRITTEN_BYTES_MAX:
        return None
    size_mib = sum(file.size_bytes for file in files) / 1024**2
    return (
        f"{len(files):,} files of {size_mib:,.0f} MiB would have to be written anew, which is too much for"
        " one load"
    )


def _files(folder: Folder, table: DeltaTable, column: str) -> list[_File]:
    """The files of the table with what its log says of a column."""
    with explaining_table_errors(folder):
        actions = pa.table(table.get_add_actions(flatten=True))
    names = (
        "path",
        f"partition.{DAY_COLUMN}",
        "size_bytes",
        "num_records",
        f"null_count.{column}",
        f"min.{column}",
        f"max.{column}",
    )
    columns = [
        actions[name].to_pylist() if name in actions.column_names else [None] * len(actions) for name in names
    ]
    return [
        _File(path, None if day is None else day.isoformat(), *rest)
        for path, day, *rest in zip(*columns, strict=True)
    ]


def _may_name(file: _File, texts: Sequence[str]) -> bool:
    """Whether a file may have one of these texts in `_rest`, as far as the least and the greatest show."""
    if file.least is None or file.least != file.greatest:
        return True
    return "\\" in file.least or any(text in file.least for text in texts)


def _is_exact(file: _File) -> bool:
    """Whether all numbers of a plain column of integers are exact as doubles, as far as the log says."""
    return all(bound is None or abs(bound) <= EXACT_BOUND for bound in (file.least, file.greatest))


def _are_exact(folder: Folder, paths: Sequence[str], column: str) -> bool:
    """Whether all integers of a column are exact as doubles, as the files themselves say."""
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        return all(pool.map(partial(_file_is_exact, folder, column), paths))


def _file_is_exact(folder: Folder, column: str, path: str) -> bool:
    with folder.open_to_read(path) as file:
        metadata = parquet.read_metadata(file)
    for index in range(metadata.num_columns):
        leaf = metadata.schema.column(index)
        # A column may have dots in its name; no other then begins with it and a dot (`columns.check_name`).
        if not f"{leaf.path}.".startswith(f"{column}.") or leaf.physical_type != "INT64":
            continue
        if leaf.logical_type.type not in _INTEGER_KINDS:
            continue
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(index)
            found: Any = chunk.statistics
            if found is None or not found.has_min_max:
                if found is None or found.null_count != chunk.num_values:
                    return False
            elif max(abs(found.min), abs(found.max)) > EXACT_BOUND:
                return False
    return True
