"""Protobuf values with the id of their schema, to columns.

Behind the id, a value names its message by the position in the schema's file, as Confluent's serializers
write it: how many numbers follow and then these, each a zigzag varint; or a zero byte for the first message.
Values are grouped by schema and message. A group is decoded field by field (`protobuf_columns`), what that
cannot decode record by record with Google's library. Dead are: a value without an id, an id that the registry
does not know or whose schema is not Protobuf, a message that the schema does not have, and bytes that are not
what the schema says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from mainstem_loader.arrow_arrays import Array, Bytes, Int64s, null_flags, of_numbers
from mainstem_loader.columns import ColumnError, Columns
from mainstem_loader.exact_numbers import rounds
from mainstem_loader.payload.protobuf_columns import MessageDecoder, message_json
from mainstem_loader.payload.protobuf_schema import (
    FieldType,
    MessageType,
    ProtobufSchema,
)
from mainstem_loader.payload.readers import ParsedPayload
from mainstem_loader.payload.schema_ids import IdentifiedValues, SchemasById, split_ids
from mainstem_loader.payload.settled_columns import ROW, SettledColumns

SchemaOf = Callable[[int], ProtobufSchema]
"""The schema of an id. Raises ColumnError, with the reason, if there is none that can be read."""

INDEXES_MAX: Final = 32
"""Numbers of a message's position: no schema nests messages deeper."""
_EPOCH_SECONDS: Final = (-62_135_596_800, 253_402_300_799)


class ProtobufPayload:
    """Reads Protobuf values.

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
            for indexes, members, begins in _messages_of(identified, group, dead):
                try:
                    message = schema.message(indexes)
                except ColumnError as error:
                    reason = f"schema {schema_id}: {error}"
                    dead += [(int(row), reason) for row in identified.rows[members]]
                    continue
                self._decode_group(schema_id, message, identified, members, begins, pieces, dead)
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
        message: MessageType,
        identified: IdentifiedValues,
        group: Int64s,
        begins: Int64s,
        pieces: list[pa.Table],
        dead: list[tuple[int, str]],
    ) -> None:
        """Decode values of one message. The library judges those that are decoded one by one."""
        decoder = MessageDecoder(identified.data, begins, identified.ends[group])
        columns, apart = decoder.decode(message)
        if not apart.all():
            kept = of_numbers(~apart)
            columns = {name: array.filter(kept) if apart.any() else array for name, array in columns.items()}
            pieces.append(self._columns.conform(columns, identified.rows[group[~apart]]))
        rows: list[int] = []
        records: list[dict[str, Any]] = []
        for at in np.flatnonzero(apart).tolist():
            row = int(identified.rows[group[at]])
            try:
                body = identified.data[begins[at] : identified.ends[group[at]]].tobytes()
                records.append(_members(message, message.message_class.FromString(body)))
                rows.append(row)
            except (DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = str(error).strip()[:200] or type(error).__name__
                dead.append((row, f"not what schema {schema_id} says: {reason}"))
        if rows:
            fields = message.fields.values()
            columns = {
                one.name: pa.array([record[one.name] for record in records], one.column) for one in fields
            }
            pieces.append(self._columns.conform(columns, np.array(rows, dtype=np.int64)))


# The position of a value's message.


def _messages_of(
    identified: IdentifiedValues, group: Int64s, dead: list[tuple[int, str]]
) -> Iterator[tuple[tuple[int, ...], Int64s, Int64s]]:
    """The values of a group by message: its position, the values, and where their messages begin."""
    begins, ends = identified.begins[group], identified.ends[group]
    data = identified.data
    is_empty = begins == ends
    dead += [
        (int(row), "the value ends behind the id of its schema") for row in identified.rows[group[is_empty]]
    ]
    first = data[np.minimum(begins, max(len(data) - 1, 0))] if len(data) else np.empty(0, np.uint8)
    is_first = ~is_empty & (first == 0)
    if is_first.any():
        yield (0,), group[is_first], begins[is_first] + 1
    others: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for at in np.flatnonzero(~is_empty & ~is_first).tolist():
        try:
            indexes, begin = _read_indexes(data, int(begins[at]), int(ends[at]))
            others.setdefault(indexes, []).append((int(group[at]), begin))
        except IndexError:
            dead.append((int(identified.rows[group[at]]), "the position of the value's message is not valid"))
    for indexes, members in others.items():
        pairs = np.array(members, dtype=np.int64)
        yield indexes, pairs[:, 0], pairs[:, 1]


def _read_indexes(data: Bytes, position: int, end: int) -> tuple[tuple[int, ...], int]:
    """The position of a message, and where its bytes begin.

    Raises:
        IndexError: the value does not begin with one.
    """
    count, position = _zigzag(data, position, end)
    if not 0 < count <= INDEXES_MAX:
        raise IndexError
    indexes = []
    for _ in range(count):
        index, position = _zigzag(data, position, end)
        indexes.append(index)
    return tuple(indexes), position


def _zigzag(data: Bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= end:
            break
        octet = int(data[position])
        value |= (octet & 0x7F) << shift
        position += 1
        if octet < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise IndexError


# Record by record.


def _members(message_type: MessageType, message: Any) -> dict[str, Any]:
    """The fields of a message as their columns have them."""
    return {one.name: _member(one, message) for one in message_type.fields.values()}


def _member(one: FieldType, message: Any) -> Any:
    if one.is_map:
        assert one.message is not None
        value_type = one.message.fields[2]
        return [(key, _value(value_type, value)) for key, value in getattr(message, one.name).items()]
    if one.is_repeated:
        return [_value(one, value) for value in getattr(message, one.name)]
    if one.has_presence and not message.HasField(one.name):
        return None
    return _value(one, getattr(message, one.name))


def _value(one: FieldType, value: Any) -> Any:
    match one.kind:
        case "message":
            assert one.message is not None
            return _members(one.message, value)
        case "enum":
            assert one.enum_names is not None
            return one.enum_names.get(value, str(value))
        case "json":
            return message_json(value)
        case "wrapper":
            return value.value
        case "timestamp":
            first, last = _EPOCH_SECONDS
            if not (first <= value.seconds <= last and 0 <= value.nanos < 10**9):
                raise ValueError(f"field {one.name!r} is a timestamp outside of the years 1 to 9999")
            return value.seconds * 1_000_000 + value.nanos // 1000
    return value
