"""Rows of a Delta table that others delete by deletion vectors, which delta-rs reads and does not write."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from pyarrow import parquet

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FEATURE = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


def delete_by_vector(folder: Path, column: str, value: object) -> None:
    """Delete the first row that has a value, which must be in no file with a deletion vector."""
    table = DeltaTable(folder)
    for add in _adds(folder):
        rows = parquet.read_table(folder / unquote(add["path"])).to_pydict().get(column, [])
        if value in rows:
            removed: dict[str, Any] = {name: add[name] for name in ("path", "partitionValues", "size")}
            removed |= {"dataChange": True, "deletionTimestamp": 0, "extendedFileMetadata": True}
            actions = [
                {"commitInfo": {"timestamp": 0, "operation": "DELETE"}},
                {"protocol": _FEATURE},
                {"remove": removed},
                {"add": add | {"dataChange": True, "deletionVector": _vector(rows.index(value))}},
            ]
            log = folder / "_delta_log" / f"{table.version() + 1:020}.json"
            log.write_text("\n".join(map(json.dumps, actions)))
            return
    raise AssertionError(f"no row has {column} {value}")


def _adds(folder: Path) -> list[dict[str, Any]]:
    """What was ever added and is still in the table."""
    present = {unquote(uri).rpartition("/")[2] for uri in DeltaTable(folder).file_uris()}
    actions = [
        json.loads(line)
        for commit in sorted((folder / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    adds = [
        {name: value for name, value in action["add"].items() if value is not None}
        for action in actions
        if "add" in action
    ]
    return [add for add in adds if unquote(add["path"]).rpartition("/")[2] in present]


def _vector(row: int) -> dict[str, Any]:
    """An inline deletion vector of one row (Delta protocol, "Deletion Vector Format").

    It has one bitmap of one container, an array of 16-bit numbers (RoaringFormatSpec).
    """
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, row)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = content + bytes(-len(content) % 4)
    words = struct.unpack(f">{len(padded) // 4}I", padded)
    text = "".join(_Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(content), "cardinality": 1}
