"""An Iceberg table as `commits` needs it: counters are in the state that each commit writes.

A commit appends the files, or none, with a new snapshot and sets a property (`iceberg_state`). The catalog
makes it only if the branch `main`, the columns and the partitioning are those of the snapshot at hand: every
commit in between, also of others, refuses it (Iceberg specification, "Optimistic Concurrency"). No commit is
repeated by the library, see `iceberg_catalog.CommitOnceCatalog`.

Files have no column ids, because they are written before new columns have any. The table's name mapping gives
them (specification, "Column Projection", `schema.name-mapping.default`). So a column that was renamed or
dropped cannot come back under its old name: files from before would be read as if they had it.

Must not live here: which offsets are committed, and the format of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertRefSnapshotId
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import MapType

from mainstem_loader.columns import (
    DAY_COLUMN,
    ICEBERG_PARTITION_COLUMN,
    OFFSET_COLUMN,
    TOPIC_ID_COLUMN,
    Columns,
    TableFormat,
    record_columns,
)
from mainstem_loader.errors import WarehouseError
from mainstem_loader.ranges import OffsetRange, offset_key
from mainstem_loader.table.conditional_puts import check_conditional_puts
from mainstem_loader.table.delta_store import STORE_CHECKED
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.formats import (
    DEAD_LETTER_RUNS,
    Change,
    RecordedRun,
    TableSnapshot,
)
from mainstem_loader.table.iceberg_catalog import (
    CommitOnceCatalog,
    IcebergCatalog,
    explaining_catalog_errors,
    library_errors,
)
from mainstem_loader.table.iceberg_state import (
    RUN,
    STATE,
    Ancestor,
    LoadState,
    current_state,
    run_of_text,
    text_of_run,
)
from mainstem_loader.table.iceberg_types import (
    arrow_type,
    days_of,
    is_writable,
    metrics,
    paths,
    schema_of,
    storable,
)
from mainstem_loader.table.parquet_files import WrittenFile, origin_of_file
from mainstem_loader.whole_numbers import is_whole_number

_DATA: Final = "data"
_MAIN: Final = "main"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_FORMAT_VERSION_MAX: Final = 2
_RECENT_RUNS: Final = 50
_TOTAL_RECORDS: Final = "total-records"
_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MAX_AGE_MS: Final = 7 * 24 * 3600 * 1000
_PROPERTIES: Final = {
    "format-version": str(_FORMAT_VERSION_MAX),
    # Each commit writes the list of all snapshots anew; the lists before are of no use to readers.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # A manifest for each commit would make planning slow.
    "commit.manifest-merge.enabled": "true",
    _MAX_AGE: str(_MAX_AGE_MS),
}


class IcebergSnapshot:
    """See `formats.TableSnapshot`.

    Args:
        table: as the catalog has it; its commits must go through `CommitOnceCatalog`.
        name: for people.
    """

    def __init__(self, catalog: Catalog, table: Table, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._table = table
        self._state = LoadState()
        self._use(table)

    @property
    def table_id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def version(self) -> int:
        return int(self._table.metadata.last_sequence_number)

    @property
    def next_dead_letter_run(self) -> int:
        # Restoring an older snapshot takes back the state, but never a sequence number.
        return max(self.version, self.counter(DEAD_LETTER_RUNS) or 0) + 1

    @property
    def location(self) -> str:
        return str(self._table.location())

    def counter(self, name: str) -> int | None:
        return self._state.counters.get(name)

    def columns(self) -> dict[str, pa.DataType]:
        return {column.name: arrow_type(column.field_type) for column in self._table.schema().fields}

    def is_empty(self) -> bool:
        return not any(True for _ in self._table.scan().plan_files())

    def has_rows_of(self, topic_id: str, partitions: Sequence[int]) -> bool:
        condition: BooleanExpression = EqualTo(TOPIC_ID_COLUMN, topic_id)
        if partitions:
            condition = And(condition, In(ICEBERG_PARTITION_COLUMN, partitions))
        found = self._table.scan(condition, selected_fields=(TOPIC_ID_COLUMN,), limit=1).to_arrow()
        return bool(found.num_rows)

    def refresh(self) -> None:
        self._use(self._catalog.load_table(self._table.name()))

    def add_columns(self, columns: Columns) -> None:
        self._check_not_renamed(columns)
        with self._table.update_schema() as update:
            update.union_by_name(pa.schema(list(columns.items())))
        self._use(self._table)

    def commit(self, change: Change) -> None:
        assert not change.replaced_days, "rewrites refuse Iceberg tables"
        schema = self._table.schema()
        self.check_mapping()
        letters = (change.run or {}).get("deadLetters")
        rows = self._rows()
        after = None if rows is None else rows + sum(written.rows for written in change.files)
        summary = {STATE: self._state.after(change.counters or {}, letters, after).text()}
        if change.run is not None:
            summary[RUN] = text_of_run(change.run)
        transaction = self._table.transaction()
        transaction.set_properties({STATE: summary[STATE]})
        with transaction.update_snapshot(snapshot_properties=summary).merge_append() as append:
            for written in change.files:
                append.append_data_file(self._data_file(schema, written))
        transaction.commit_transaction()

    def was_restored(self, topic_id: str) -> bool:  # noqa: ARG002
        return False  # The offsets are restored together with the rows.

    def was_restored_since(self, version: int) -> bool:  # noqa: ARG002
        return False

    def recent_runs(self) -> list[RecordedRun]:
        runs: list[RecordedRun] = []
        for snapshot in self._ancestors():
            if (text := _property(snapshot, RUN)) is not None:
                runs.append(RecordedRun(snapshot.timestamp_ms, run_of_text(text)))
                if len(runs) == _RECENT_RUNS:
                    break
        return runs

    def holds_run(self, run_id: str, since_version: int) -> bool:
        for snapshot in self._ancestors():
            if (snapshot.sequence_number or 0) <= since_version:
                return False
            if (text := _property(snapshot, RUN)) is not None and run_of_text(text).get("run") == run_id:
                return True
        # Its snapshot may have been expired, and its rows be there all the same.
        return any(
            (origin := origin_of_file(task.file.file_path)) is not None and origin.run_id == run_id
            for task in self._table.scan().plan_files()
        )

    def letters_of_runs(self, delivered: int, last: int) -> dict[int, dict[str, Any]]:
        return {one["run"]: dict(one) for one in self._state.letters if delivered < one["run"] <= last}

    def reloaded(self, topic_id: str, part: OffsetRange) -> bool:
        return part.start < self._state.restored.get(offset_key(topic_id, part.partition), 0)

    def expire_snapshots(self, now_s: float) -> None:
        """Those older than the table's own property says, except what branches and tags name, and what leads
        to the snapshot with the state.
        """
        max_age_ms = int(self._table.properties.get(_MAX_AGE, _MAX_AGE_MS))
        kept = {ref.snapshot_id for ref in self._table.metadata.refs.values()}
        for snapshot in self._ancestors():
            kept.add(snapshot.snapshot_id)
            if _property(snapshot, STATE) is not None:
                break
        expired = [
            snapshot.snapshot_id
            for snapshot in self._table.metadata.snapshots
            if snapshot.snapshot_id not in kept and snapshot.timestamp_ms < now_s * 1000 - max_age_ms
        ]
        if expired:
            self._table.maintenance.expire_snapshots().by_ids(expired).commit()
            self.refresh()

    def named_files(self, removed_within_hours: int) -> set[str]:  # noqa: ARG002
        """The files of all snapshots: what left the table stays until they are expired."""
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in self._table.metadata.snapshots
            for manifest in snapshot.manifests(self._table.io)
        }
        return {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(self._table.io)
        }

    def _use(self, table: Table) -> None:
        """Take a snapshot, with the state of its rows. Its commits are refused after any other."""
        metadata = table.metadata
        head = metadata.current_snapshot()
        requirements = (
            AssertRefSnapshotId(ref=_MAIN, snapshot_id=None if head is None else head.snapshot_id),
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        )
        self._table = Table(
            identifier=table.name(),
            metadata=metadata,
            metadata_location=table.metadata_location,
            io=table.io,
            catalog=cast(Catalog, CommitOnceCatalog(self._catalog, requirements)),
            config=table.config,
        )
        _check_loadable(self._table, self._name)
        by_id = {snapshot.snapshot_id: _ancestor(snapshot) for snapshot in metadata.snapshots}
        self._state = current_state(
            self._name,
            None if head is None else by_id[head.snapshot_id],
            by_id,
            metadata.properties,
            self._rows(),
            any(column.name == OFFSET_COLUMN for column in self._table.schema().fields),
        )

    def _ancestors(self) -> Iterator[Snapshot]:
        """The current snapshot and its ancestors, as far as they were not expired, the newest first."""
        snapshot = self._table.metadata.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.metadata.snapshot_by_id(parent)

    def _rows(self) -> int | None:
        """How many rows the table has; None if its current snapshot does not say."""
        head = self._table.metadata.current_snapshot()
        if head is None:
            return 0
        text = _property(head, _TOTAL_RECORDS)
        return int(text) if text is not None and is_whole_number(text) else None

    def _data_file(self, schema: Schema, written: WrittenFile) -> DataFile:
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.location.rstrip('/')}/{_DATA}/{written.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(days_of(written.partition_values[DAY_COLUMN])),
            record_count=written.rows,
            file_size_in_bytes=written.size_bytes,
            sort_order_id=None,
            spec_id=self._table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            split_offsets=None,
            **metrics(schema, written.statistics),
        )

    def check_mapping(self) -> None:
        """Whether readers find each column of a file, none of which has an id.

        Raises:
            WarehouseError: others have removed what names a column.
        """
        schema = self._table.schema()
        mapping = self._table.name_mapping()
        id_of_path = {} if mapping is None else dict(_mapped(mapping.root, ""))
        for path, column_id in _ids(schema).items():
            if id_of_path.get(path) != column_id:
                raise WarehouseError(
                    f"The property {_NAME_MAPPING} of Iceberg table {self._name} does not name column {path},"
                    " so its values would be read as null; add it there, or load into another table."
                )

    def _check_not_renamed(self, columns: Columns) -> None:
        """Whether no new column has the name of one that older files have, and that means something else."""
        present = _ids(self._table.schema())
        before = {path for schema in self._table.schemas().values() for path in _ids(schema)}
        for name, kind in columns.items():
            for path in paths(name, kind):
                if path in before and path not in present:
                    raise WarehouseError(
                        f"Column {path} of Iceberg table {self._name} was renamed or dropped, but the topic"
                        " still has that field; give the column its name back, or load into another table."
                    )


class IcebergStore:
    """See `formats.TableStore`. The table is in a catalog, which decides where its files are."""

    format = TableFormat.ICEBERG

    def __init__(self, warehouse: Folder, catalog: IcebergCatalog, table_name: str) -> None:
        self.name = f"_iceberg.{catalog.namespace}.{table_name}"
        self.unknown_outcomes = library_errors()
        self._warehouse = warehouse
        self._settings = catalog
        self._identifier = (*catalog.namespace.split("."), table_name)
        self._table_name = f"{catalog.namespace}.{table_name}"

    def open(self) -> IcebergSnapshot | None:
        if not self._settings.is_there(self._warehouse):
            return None
        catalog = self._settings.open(self._warehouse)
        try:
            table = catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None
        return IcebergSnapshot(catalog, table, self._table_name)

    def create(self, columns: Columns) -> IcebergSnapshot:  # noqa: ARG002  # are added when they get ids
        catalog = self._settings.open(self._warehouse)
        schema = schema_of({**record_columns(self.format), DAY_COLUMN: pa.date32()})
        day = schema.find_field(DAY_COLUMN)
        spec = PartitionSpec(
            PartitionField(
                source_id=day.field_id, field_id=1000, transform=IdentityTransform(), name=DAY_COLUMN
            )
        )
        properties = {**_PROPERTIES, _NAME_MAPPING: schema.name_mapping.model_dump_json()}
        try:
            catalog.create_namespace_if_not_exists(self._identifier[:-1])
        except self.unknown_outcomes:
            if not catalog.namespace_exists(self._identifier[:-1]):
                raise  # Otherwise another load was faster.
        try:
            table = catalog.create_table(
                self._identifier,
                schema=schema,
                location=self._settings.new_location(self._warehouse, self._identifier[-1]),
                partition_spec=spec,
                properties=properties,
            )
        except TableAlreadyExistsError:
            table = catalog.load_table(self._identifier)
        return IcebergSnapshot(catalog, table, self._table_name)

    def check_vacant(self) -> None:
        """The catalog gives each table a place of its own."""

    def storable(self, column_type: pa.DataType) -> pa.DataType:
        return storable(column_type)

    def folder(self, table: TableSnapshot | None) -> Folder | None:
        if not isinstance(table, IcebergSnapshot):
            return None
        scheme, separator, path = table.location.partition("://")
        if separator and scheme in ("s3", "s3a", "s3n"):
            return Folder.of(f"s3://{path}") / _DATA
        if separator and scheme != "file":
            raise WarehouseError(
                f"Iceberg table {self._table_name} is in {table.location}; the loader writes to disks and to"
                " S3."
            )
        return Folder.of((path if separator else table.location).rstrip("/")) / _DATA

    def check(self, table: TableSnapshot | None) -> Mapping[str, int]:
        if isinstance(table, IcebergSnapshot):
            table.check_mapping()
        # Rows are committed by the catalog, but dead letters are in a Delta table.
        if self._warehouse.is_local or (table is not None and table.counter(STORE_CHECKED) is not None):
            return {}
        check_conditional_puts(self._warehouse)
        return {STORE_CHECKED: 1}

    def explaining_errors(self) -> AbstractContextManager[None]:
        return explaining_catalog_errors(self._table_name, self._warehouse)


def _check_loadable(table: Table, name: str) -> None:
    """Refuse a table that the loader would write wrongly.

    Raises:
        WarehouseError: see there.
    """
    if table.metadata.format_version > _FORMAT_VERSION_MAX:
        raise WarehouseError(
            f"Iceberg table {name} has format version {table.metadata.format_version}; the loader writes up"
            f" to {_FORMAT_VERSION_MAX}. Load into another table."
        )
    schema = table.schema()
    fields = table.spec().fields
    days = [column.field_id for column in schema.fields if column.name == DAY_COLUMN]
    if (
        len(fields) != 1
        or not isinstance(fields[0].transform, IdentityTransform)
        or [fields[0].source_id] != days
    ):
        raise WarehouseError(
            f"Iceberg table {name} is not partitioned by the column {DAY_COLUMN} itself; the loader writes no"
            " others. Load into another table."
        )
    types = {column.name: arrow_type(column.field_type) for column in schema.fields}
    for column_name, kind in record_columns(TableFormat.ICEBERG).items():
        if (found := types.get(column_name)) != storable(kind):
            difference = "is missing" if found is None else f"is {found} instead of {storable(kind)}"
            raise WarehouseError(
                f"Iceberg table {name} was made by another program: column {column_name} {difference}."
                " Nothing was written; load into another table."
            )
    for column in schema.fields:
        if not is_writable(arrow_type(column.field_type)):
            raise WarehouseError(
                f"Column {column.name} of Iceberg table {name} is of type {column.field_type}, which the"
                " loader does not write; load into another table."
            )
    columns = {path: schema.find_field(column_id) for path, column_id in _ids(schema).items()}
    # Keys of maps are always required (Iceberg specification, "Nested Types"); others may be called so.
    map_keys = {
        column.field_type.key_id for column in columns.values() if isinstance(column.field_type, MapType)
    }
    required = [
        path for path, column in columns.items() if column.required and column.field_id not in map_keys
    ]
    if required:
        raise WarehouseError(
            f"Column {required[0]} of Iceberg table {name} allows no null, but a record may miss the field;"
            " make it optional, or load into another table."
        )


def _ancestor(snapshot: Snapshot) -> Ancestor:
    return Ancestor(snapshot.snapshot_id, snapshot.parent_snapshot_id, _property(snapshot, STATE))


def _property(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.get(name)


def _ids(schema: Schema) -> dict[str, int]:
    """The ids of all columns, members, elements, keys and values, by path."""
    ids: dict[str, int] = {}
    for column_id in schema.field_ids:
        path = schema.find_column_name(column_id)
        assert path is not None
        ids[path] = column_id
    return ids


def _mapped(fields: Sequence[MappedField], prefix: str) -> Iterator[tuple[str, int | None]]:
    for mapped in fields:
        for name in mapped.names:
            yield f"{prefix}{name}", mapped.field_id
            yield from _mapped(mapped.fields, f"{prefix}{name}.")
