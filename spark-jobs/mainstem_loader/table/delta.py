"""What all Delta tables of a warehouse have in common: opening, creating, committing, and naming files in the
log.

Only this module and its callers in `table` know deltalake. Must not live here: what a commit means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from mainstem_loader.columns import Columns
from mainstem_loader.errors import DiskFullError, WarehouseError
from mainstem_loader.table.folder import Folder, explaining_file_errors
from mainstem_loader.table.parquet_files import WrittenFile, origin_of_file

# Long enough to look back, short enough that opening a table stays fast.
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 7 days"}
# What writers of files have to obey (Delta protocol, "Column Invariants", "Generated Columns", "Identity
# Columns"; Spark keeps the length of varchar(n) and char(n) beside a column of strings, and checks and pads
# values itself as it writes).
_DEMANDING_METADATA: Final = {
    "delta.invariants": "has an invariant",
    "delta.generationExpression": "is generated from others",
    "delta.identity.start": "is an identity column",
    "__CHAR_VARCHAR_TYPE_STRING": "is of the type {}",
}
# Features that demand nothing of a commit that adds whole files, or what is checked here. With others the
# library refuses each commit, as it does if one was faster.
_HEEDED_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
# With it Spark's checkpoints leave out versions of applications that are older, or name no time, as those of
# loads (delta-io/delta, `InMemoryLogReplay.getTransactions`).
_COUNTER_RETENTION: Final = "delta.setTransactionRetentionDuration"
_IDENTITY_COLUMNS_VERSION: Final = 6
"""Writers of this version know identity columns; of the next one, the table names its features."""
# As delta-rs names it, local or in a bucket.
_MISSING_COMMIT: Final = re.compile(r"not found:.*/_delta_log/([0-9]+\.json)", re.IGNORECASE)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turns a panic, by which the library's Rust code gives up, into an error of the library.

    PyO3 lets a panic pass every `except Exception`, and its class cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), "without a reason")
        raise DeltaError(f"the Delta library gave up: {reason}") from error


def open_table(folder: Folder) -> DeltaTable | None:
    """The newest snapshot of the table in a folder; None if there is no table.

    Raises:
        WarehouseError: it cannot be opened.
    """
    options = folder.delta_options
    with explaining_table_errors(folder):
        if not DeltaTable.is_deltatable(folder.url, options):
            return None
        return DeltaTable(folder.url, storage_options=options)


@panics_as_errors()
def create_table(folder: Folder, schema: pa.Schema, partition_by: str) -> DeltaTable:
    """Create an empty table, or open the one that another load has just created."""
    try:
        return DeltaTable.create(
            folder.url,
            delta_schema(schema),
            mode="error",
            partition_by=[partition_by],
            configuration=_CONFIGURATION,
            storage_options=folder.delta_options,
        )
    except DeltaError:
        if (table := open_table(folder)) is not None:
            return table
        raise


def delta_schema(columns: pa.Schema) -> Schema:
    """Columns as Delta has them.

    Raises:
        WarehouseError: no table can have them.
    """
    try:
        return Schema.from_arrow(columns)
    except Exception as error:  # the library has no class of its own for it
        reason = str(error).splitlines()[0].rpartition("External error: ")[2]
        raise WarehouseError(
            f"No Delta table can have columns as of this load ({reason}). Nothing was committed; give what it"
            " names another name or type."
        ) from error


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The columns of a table, the partition column included."""
    # pa.schema takes any object that exports an Arrow schema; its stubs do not know.
    return pa.schema(table.schema().to_arrow())  # type: ignore[arg-type]


def check_demands(table: DeltaTable, folder: Folder, advice: str) -> None:
    """Whether others have given a table rules that files of loads would break: they are written without a
    look at values, and name columns as the table does.

    Args:
        table: in `folder`.
        folder: names the table in the error.
        advice: what else to do; ends the error.

    Raises:
        WarehouseError: they have. Engines refuse tables with rows against their rules, or read other values.
    """
    demand = next(_demands(table), None)
    if demand is not None:
        raise WarehouseError(
            f"The table in {folder} was changed by another program: {demand}, which loads do not heed."
            f" Nothing was written; undo that change, or {advice}."
        )


def _demands(table: DeltaTable) -> Iterator[str]:
    configuration = table.metadata().configuration
    if (duration := configuration.get(_COUNTER_RETENTION)) is not None:
        yield f"it forgets after some time which offsets are loaded ({_COUNTER_RETENTION}={duration})"
    if (mode := configuration.get("delta.columnMapping.mode") or "none") != "none":
        yield f"it maps the names of columns (delta.columnMapping.mode={mode})"
    for name, value in sorted(configuration.items()):
        if name.startswith("delta.constraints."):
            yield f"it has the constraint {name.removeprefix('delta.constraints.')} ({value})"
    yield from _demands_of_fields(json.loads(table.schema().to_json())["fields"], "")
    protocol = table.protocol()
    if protocol.min_writer_version == _IDENTITY_COLUMNS_VERSION:
        yield f"its writers have to be of version {_IDENTITY_COLUMNS_VERSION}"
    features = {str(feature) for feature in protocol.writer_features or ()}
    if unknown := sorted(features - _HEEDED_FEATURES):
        yield f"it has the feature {unknown[0]}"


def _demands_of_fields(fields: Sequence[Mapping[str, Any]], path: str) -> Iterator[str]:
    for field in fields:
        name = f"{path}{field['name']}"
        if not field["nullable"]:
            yield f"its column {name} takes no nulls"
        for key, words in _DEMANDING_METADATA.items():
            if key in field["metadata"]:
                yield f"its column {name} {words.format(field['metadata'][key])}"
        yield from _demands_of_type(field["type"], name)


def _demands_of_type(kind: Any, name: str) -> Iterator[str]:
    match kind:
        case {"type": "struct", "fields": fields}:
            yield from _demands_of_fields(fields, f"{name}.")
        case {"type": "array", "elementType": element, "containsNull": takes_nulls}:
            if not takes_nulls:
                yield f"its column {name} takes no nulls in arrays"
            yield from _demands_of_type(element, f"{name}.element")
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": takes_nulls}:
            if not takes_nulls:
                yield f"its column {name} takes no nulls as values of maps"
            yield from _demands_of_type(key, f"{name}.key")
            yield from _demands_of_type(value, f"{name}.value")


def check_vacant(folder: Folder, advice: str) -> None:
    """Whether a table can be created in a folder: nothing is there but what loads have left.

    Raises:
        WarehouseError: another program has files there. It would read those of loads, too, and maintenance
            would delete its files.
    """
    theirs = next((path for path in folder.visible_files() if origin_of_file(path) is None), None)
    if theirs is not None:
        raise WarehouseError(
            f"The folder {folder} holds {theirs} of another program, but no Delta table. Nothing was written;"
            f" {advice}."
        )


def check_layout(
    table: DeltaTable, folder: Folder, partition_by: str, columns: Mapping[str, pa.DataType], advice: str
) -> None:
    """Whether the loader has made a table, as far as its columns show.

    Args:
        table: in `folder`.
        folder: names the table in the error.
        partition_by: its only partition column.
        columns: those that it has to have, with their types.
        advice: what to do if it is another table; ends the error.

    Raises:
        WarehouseError: another program has made the table.
    """
    partition_columns = table.metadata().partition_columns
    present = {field.name: field.type for field in arrow_schema(table)}
    if partition_columns != [partition_by]:
        found = (
            f"is partitioned by {', '.join(partition_columns)}" if partition_columns else "has no partitions"
        )
        difference = f"it {found} instead of being partitioned by {partition_by}"
    else:
        wrong = next((name for name, kind in columns.items() if present.get(name) != kind), None)
        if wrong is None:
            check_demands(table, folder, advice)
            return
        difference = (
            f"its column {wrong} is {present[wrong]} instead of {columns[wrong]}"
            if wrong in present
            else f"it has no column {wrong}"
        )
    raise WarehouseError(
        f"The table in {folder} was made by another program: {difference}. Nothing was written; {advice}."
    )


@panics_as_errors()
def commit_files(
    table: DeltaTable,
    adds: Sequence[AddAction],
    partition_by: str,
    transactions: Sequence[Transaction],
    metadata: dict[str, Any],
    replaced: Sequence[str] = (),
    columns: Columns | None = None,
) -> None:
    """Add files to a table, and remove others, in one commit.

    Args:
        table: the snapshot that the commit is made from.
        adds: the files.
        partition_by: the table's partition column.
        transactions: versions of applications; delta-rs refuses the commit if one of them moved since the
            snapshot.
        metadata: goes to the commit's `commitInfo`.
        replaced: values of the partition column whose files, as far as the snapshot has them, are removed.
            Files that others added since stay, and if others removed some of them, the commit is refused.
        columns: get these types, or are added. Then the commit is refused if there is any newer one than the
            snapshot: files that others added since could have the types of before.

    Raises:
        CommitFailedError: another commit was faster, or the answer to this one was lost.
    """
    table.create_write_transaction(
        list(adds),
        # Appending leaves the schema as it is. Overwriting removes what the filter matches, if anything.
        mode="overwrite" if replaced or columns else "append",
        schema=_schema_with(table.schema(), columns or {}),
        partition_by=[partition_by],
        partition_filters=[(partition_by, "in", list(replaced))] if replaced or columns else None,
        commit_properties=CommitProperties(
            custom_metadata=metadata,
            max_commit_retries=0 if columns else None,
            app_transactions=list(transactions),
        ),
    )


def _schema_with(schema: Schema, columns: Columns) -> Schema:
    """A schema in which columns have these types; new ones come last."""
    if not columns:
        return schema
    given = {one.name: one for one in delta_schema(pa.schema(list(columns.items()))).fields}
    fields = [
        Field(one.name, given.pop(one.name).type, nullable=one.nullable, metadata=one.metadata)
        if one.name in given
        else one
        for one in schema.fields
    ]
    return Schema([*fields, *given.values()])


def json_of_add(written: WrittenFile) -> dict[str, Any]:
    """A file as an `add` action of the Delta protocol, without `dataChange`."""
    return {
        "path": written.path,
        "size": written.size_bytes,
        "partitionValues": dict(written.partition_values),
        "modificationTime": written.modified_ms,
        "stats": written.statistics,
    }


def add_of_json(add: dict[str, Any]) -> AddAction:
    """The inverse of `json_of_add`."""
    return AddAction(
        path=add["path"],
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )


@contextmanager
def explaining_table_errors(folder: Folder) -> Iterator[None]:
    """Turns the errors of deltalake and of the file system under `folder` into the loader's."""
    with explaining_file_errors(folder):
        try:
            with panics_as_errors():
                yield
        except DeltaError as error:
            # What follows the first line is a backtrace of the library.
            reason = str(error).splitlines()[0]
            if "No space left" in str(error):
                raise DiskFullError(
                    f"The disk of {folder} is full; nothing of this run was loaded. Free some room, then"
                    " load again."
                ) from error
            if (missing := _MISSING_COMMIT.search(reason)) is not None:
                raise WarehouseError(
                    f"Another program has removed {missing[1]} from the log of the table in {folder}, which"
                    " this has still read. Run this again; if it fails again, restore the log."
                ) from error
            raise WarehouseError(
                f"The table in {folder} cannot be read or written ({reason}); check that it is a Delta table"
                " and whole."
            ) from error
