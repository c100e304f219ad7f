"""Commits as loads make them, with small files, and what can be read from the tables afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from mainstem_loader.arrow_arrays import Array
from mainstem_loader.columns import TIMESTAMP_TYPE, Columns, TableFormat, partition_column
from mainstem_loader.table.commits import LoadCommit, OffsetMove, WarehouseTable
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.parquet_files import WrittenFile
from mainstem_loader.table.query import query

TOPIC_ID = "wq6hGbKHTIWkQ8poXwsdww"
DAY = date(2013, 1, 1)


@dataclass(frozen=True)
class Tables:
    """The tables of a warehouse, of one format."""

    warehouse: Path
    format: TableFormat

    @property
    def catalog(self) -> IcebergCatalog | None:
        return IcebergCatalog() if self.format is TableFormat.ICEBERG else None

    def open(self, name: str = "t", dead_letters: str = "dead_letters") -> WarehouseTable:
        """As a load that is about to write files."""
        table = WarehouseTable(self.warehouse, name, dead_letters, self.catalog)
        table.check_store()
        return table

    def iceberg(self, name: str = "t") -> Any:
        """An Iceberg table as pyiceberg has it."""
        catalog = IcebergCatalog().open(Folder.of(self.warehouse))
        return catalog.load_table(("mainstem", name))

    def rows(self, *columns: str, name: str = "t") -> list[dict[str, Any]]:
        """Read by the format's own library, in the order of the offsets."""
        if self.format is TableFormat.DELTA:
            names = ", ".join(columns)
            return query(self.warehouse, f'SELECT {names} FROM "{name}" ORDER BY _offset').to_pylist()
        rows = self.iceberg(name).scan().to_arrow().sort_by("_offset").select(list(columns)).to_pylist()
        return list(rows)

    def offsets(self, name: str = "t") -> list[int]:
        return [row["_offset"] for row in self.rows("_offset", name=name)]

    def dead_offsets(self, table: str = "dead_letters") -> list[int]:
        return dead_offsets(self.warehouse, table)


def write_file(
    folder: Path,
    name: str,
    offsets: Sequence[int],
    table_format: TableFormat = TableFormat.DELTA,
    **columns: Array,
) -> WrittenFile:
    table = pa.table(
        {
            partition_column(table_format): pa.array([0] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_timestamp": pa.array([0] * len(offsets), TIMESTAMP_TYPE),
            "_key": pa.array([None] * len(offsets), pa.binary()),
            **columns,
        }
    )
    if table_format is TableFormat.ICEBERG:
        table = table.append_column("day", pa.array([DAY] * len(offsets), pa.date32()))
    path = f"day={DAY}/{name}.parquet"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, folder / path)
    return WrittenFile(
        path=path,
        partition_values={"day": str(DAY)},
        rows=len(offsets),
        size_bytes=(folder / path).stat().st_size,
        modified_ms=int(time.time() * 1000),
        columns={field.name: field.type for field in table.schema},
        statistics=json.dumps({"numRecords": len(offsets)}),
    )


def write_letters(folder: Path, name: str, offsets: Sequence[int]) -> WrittenFile:
    path = f"topic=t/{name}.parquet"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    letters = {
        "_partition": pa.array([0] * len(offsets), pa.int32()),
        "_offset": pa.array(offsets),
        "_topic_id": pa.array([TOPIC_ID] * len(offsets)),
        # As the loader names the two tables `t`.
        "table_name": pa.array(["_iceberg.mainstem.t" if name.startswith("_") else "t"] * len(offsets)),
    }
    parquet.write_table(pa.table(letters), folder / path)
    size = (folder / path).stat().st_size
    return WrittenFile(
        path, {"topic": "t"}, len(offsets), size, 0, {}, json.dumps({"numRecords": len(offsets)})
    )


def load(
    table: WarehouseTable,
    name: str,
    start: int | None,
    end: int,
    dead: Sequence[int] = (),
    columns: Columns | None = None,
    partition: int = 0,
    **arrays: Array,
) -> LoadCommit:
    letters = f"{table.unique_name}-{name}" if table.format is TableFormat.ICEBERG else name
    return LoadCommit(
        run_id=name,
        started_s=time.time(),
        topic_id=TOPIC_ID,
        moves=(OffsetMove(partition, start, end),),
        files=(write_file(Path(table.folder.url), name, range(start or 0, end), table.format, **arrays),),
        dead_files=(write_letters(Path(table.dead_letter_folder.url), letters, dead),) if dead else (),
        columns=columns or {},
        metadata={"topic": "t", "topicId": TOPIC_ID, "ranges": []},
    )


def offsets(folder: Path, name: str = "t") -> list[int]:
    return [row["_offset"] for row in query(folder, f"SELECT _offset FROM {name} ORDER BY 1").to_pylist()]


def dead_offsets(folder: Path, table: str = "dead_letters") -> list[int]:
    return [row["_offset"] for row in query(folder, f"SELECT _offset FROM {table} ORDER BY 1").to_pylist()]
