"""Names of column types, as Spark and Delta write them, to Arrow's types.

Simple ones are words (`string`, `long`, `integer`, `double`, `boolean`, `date`, `timestamp`,
`decimal(10,2)`); nested ones are JSON (Delta protocol, "Schema Serialization Format"), such as
`{"type":"array","elementType":"long","containsNull":true}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
from deltalake import Schema

from mainstem_loader.errors import SettingsError


def columns_of(options: Iterable[str]) -> dict[str, pa.DataType]:
    """The columns that options `FIELD=TYPE` name.

    Raises:
        SettingsError: one of them does not.
    """
    columns: dict[str, pa.DataType] = {}
    for option in options:
        field, separator, name = option.partition("=")
        if not field or not separator:
            raise SettingsError(
                f"{option!r} names no column and type; write FIELD=TYPE, such as distance=long."
            )
        columns[field] = type_of_name(name)
    return columns


def type_of_name(name: str) -> pa.DataType:
    """The type of a column called `name` by Spark.

    Raises:
        SettingsError: there is no such type.
    """
    try:
        column_type = json.loads(name) if name.lstrip().startswith("{") else name
        field: dict[str, object] = {"name": "column", "type": column_type, "nullable": True, "metadata": {}}
        schema = Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))
        # pa.schema takes whatever exports an Arrow schema; its stubs do not know.
        arrow_type: pa.DataType = pa.schema(schema.to_arrow()).field(0).type  # type: ignore[arg-type]
    except ValueError as error:
        raise SettingsError(
            f"There is no column type {name!r}; use string, long, integer, double, boolean, date, timestamp,"
            " decimal(10,2), or a nested type as JSON."
        ) from error
    return arrow_type
