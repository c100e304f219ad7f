"""Avro values with the id of their schema, to columns.

Values are grouped by schema. A group is decoded field by field (`avro_columns`), what that cannot decode
record by record with fastavro. Dead are: a value without an id, an id that the registry does not know or
whose schema is not Avro, and bytes that are not what the schema says.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, Int64s, fields_of, null_flags, of_numbers
from mainstem_loader.columns import ColumnError, Columns
from mainstem_loader.exact_numbers import rounds
from mainstem_loader.payload.avro_columns import ColumnDecoder, is_supported
from mainstem_loader.payload.avro_schema import BRANCH, VALUE_FIELD, AvroType, WriterSchema
from mainstem_loader.payload.readers import ParsedPayload
from mainstem_loader.payload.schema_ids import IdentifiedValues, SchemasById, split_ids
from mainstem_loader.payload.settled_columns import ROW, SettledColumns, json_text

SchemaOf = Callable[[int], WriterSchema]
"""The schema of an id. Raises ColumnError, with the reason, if there is none that can be read."""

ONE_BY_ONE_MAX: Final = 64
"""Values that are decoded one by one rather than divided further."""


class _Int(int):
    """An int that is a branch of a union."""


class _Float(float):
    """A float that is a branch of a union."""


fastavro.read.LOGICAL_READERS[f"int-{BRANCH}"] = lambda value, *_: _Int(value)
fastavro.read.LOGICAL_READERS[f"float-{BRANCH}"] = lambda value, *_: _Float(value)

# What fastavro makes of the branches of unions, by their logical type or, without one, by their type.
_PYTHON_TYPES: Final[Mapping[str, type]] = {
    "date": date,
    "timestamp-millis": datetime,
    "timestamp-micros": datetime,
    "decimal": Decimal,
    "boolean": bool,
    "int": _Int,
    "long": int,
    "float": _Float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "array": list,
    "map": dict,
}


class AvroPayload:
    """Reads Avro values.

    Args:
        fixed: columns and types that stay as they are, though structs may get new members.
        schema_of: knows the schemas.
    """

    def __init__(self, fixed: Columns, schema_of: SchemaOf) -> None:
        self._columns = SettledColumns(fixed)
        self._schemas = SchemasById(schema_of)

    def found_columns(self) -> Columns:
        return self._columns.found_columns()

    def untyped_columns(self) -> Columns:
        return {}  # Schemas say the type of each field.

    def wider_columns(self) -> Columns:
        return self._columns.wider_columns()

    def parse(self, values: Array) -> ParsedPayload:
        identified = split_ids(values)
        dead = list(identified.dead)
        pieces: list[pa.Table] = []
        for schema_id, schema in self._schemas.of_block(identified.ids):
            group = np.flatnonzero(identified.ids == schema_id)
            if isinstance(schema, ColumnError):
                dead += [(int(row), str(schema)) for row in identified.rows[group]]
                continue
            self._decode_group(schema_id, schema, identified, group, pieces, dead)
        tombstones = np.flatnonzero(null_flags(values))
        if len(tombstones):
            pieces.append(pa.table({ROW: tombstones}))
        if not pieces:
            return ParsedPayload(np.empty(0, dtype=np.int64), pa.table({}), sorted(dead))
        if rounds(pieces):  # with what the last schema made of the types, nothing is
            return self.parse(values)
        table = pa.concat_tables(pieces, promote_options="permissive")
        order = table.column(ROW).to_numpy()
        if np.any(np.diff(order) < 0):
            table = table.take(of_numbers(np.argsort(order, kind="stable")))
            order = table.column(ROW).to_numpy()
        return ParsedPayload(order, table.drop_columns([ROW]), sorted(dead))

    def _decode_group(
        self,
        schema_id: int,
        schema: WriterSchema,
        identified: IdentifiedValues,
        group: Int64s,
        pieces: list[pa.Table],
        dead: list[tuple[int, str]],
    ) -> None:
        """Decode values of one schema; what fastavro takes counts, and its reasons against the others."""
        one_by_one = group
        if is_supported(schema.root):
            decoder = ColumnDecoder(identified.data, identified.begins[group], identified.ends[group])
            decoded = decoder.decode(schema.root)
            if decoded is None and len(group) > ONE_BY_ONE_MAX:
                half = len(group) // 2
                for part in (group[:half], group[half:]):
                    self._decode_group(schema_id, schema, identified, part, pieces, dead)
                return
            if decoded is not None:
                column, corrupt = decoded
                one_by_one = group[corrupt]
                if len(one_by_one):
                    column = column.filter(of_numbers(~corrupt))
                if len(column):
                    rows = identified.rows[group[~corrupt]]
                    pieces.append(self._columns.conform(_fields_of(schema, column), rows))
        fitting: list[int] = []
        records: list[Any] = []
        for at in one_by_one.tolist():
            try:
                records.append(_decode_one(schema, identified.body(at)))
                fitting.append(at)
            except _Corrupt as error:
                dead.append((int(identified.rows[at]), f"not what schema {schema_id} says: {error}"))
        if fitting:
            pieces.append(self._columns.conform(_columns_of(schema, records), identified.rows[fitting]))


def _fields_of(schema: WriterSchema, column: Array) -> dict[str, Array]:
    if schema.root.kind != "record":
        return {VALUE_FIELD: column}
    if pa.types.is_null(column.type):
        return {}
    assert isinstance(column, pa.StructArray)
    names = [member.name for member in fields_of(column.type)]
    return dict(zip(names, column.flatten(), strict=True))


# Record by record.


class _Corrupt(Exception):
    """The bytes are not what the schema says."""


def _decode_one(schema: WriterSchema, body: bytes) -> Any:
    stream = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(stream, schema.parsed, None, return_named_type=True)
        if stream.tell() != len(body):
            raise _Corrupt(f"{len(body) - stream.tell()} bytes are left over")
        return _stored_value(schema.root, value)
    except EOFError:
        raise _Corrupt("it ends too early") from None
    except UnicodeDecodeError:
        raise _Corrupt("a string is not UTF-8") from None
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        raise _Corrupt(str(error)[:200] or type(error).__name__) from None


def _columns_of(schema: WriterSchema, records: list[Any]) -> dict[str, Array]:
    if schema.root.kind != "record":
        return {VALUE_FIELD: pa.array(records, schema.root.arrow)}
    return {
        name: pa.array([record[name] for record in records], part.arrow)
        for name, part in schema.fields.items()
        if not pa.types.is_null(part.arrow)
    }


def _stored_value(avro_type: AvroType, value: Any) -> Any:
    """A value as its column has it."""
    if avro_type.is_json:
        return json_text(_without_names(value))
    if value is None or pa.types.is_null(avro_type.arrow):
        return None
    if avro_type.name and isinstance(value, tuple):
        value = value[1]  # in a union, values of named types come with their name
    match avro_type.kind:
        case "record" | "error":
            return {
                name: _stored_value(part, value[name])
                for name, part in zip(avro_type.names, avro_type.parts, strict=True)
            }
        case "array":
            return [_stored_value(avro_type.parts[0], item) for item in value]
        case "map":
            return [(key, _stored_value(avro_type.parts[0], item)) for key, item in value.items()]
        case "union":
            return _stored_union(avro_type, value)
    kind = avro_type.arrow
    if pa.types.is_decimal(kind) and abs(value) >= 10 ** (kind.precision - kind.scale):
        raise _Corrupt(f"a decimal has more than {kind.precision} digits")
    return value


def _stored_union(avro_type: AvroType, value: Any) -> Any:
    others = [part for part in avro_type.parts if part.kind != "null"]
    if len(others) == 1:
        return _stored_value(others[0], value)
    for name, part in zip(avro_type.names, avro_type.parts, strict=True):
        if part.kind != "null" and _is_of(part, value):
            return {name: _stored_value(part, value)}
    raise _Corrupt("a union has a value of none of its types")


def _is_of(part: AvroType, value: Any) -> bool:
    """Whether a decoded value is of a union's branch. Those of named types, and no others, are pairs with the
    name.
    """
    if part.name or isinstance(value, tuple):
        return isinstance(value, tuple) and bool(part.name == value[0])
    return type(value) is (_PYTHON_TYPES.get(part.logical) or _PYTHON_TYPES[part.kind])


def _without_names(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2:
        return _without_names(value[1])
    if isinstance(value, dict):
        return {key: _without_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    return value
