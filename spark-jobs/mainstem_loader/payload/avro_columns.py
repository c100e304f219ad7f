"""Avro bodies to columns, many records at a time.

Avro has no lengths or offsets of fields, so a field can only be found after the one before it. But all
records of one schema have the same fields: the decoder walks through the schema once, and decodes each
field for all records with a few operations of numpy, on an array with each record's position. What differs
between records (a union's branch, an array's length) divides them into groups for a while.

Nothing here judges why a record is corrupt: records that leave their bounds, or do not end where they
should, are reported, and the caller decodes those one by one. Types that rarely occur are not decoded here
(`is_supported`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, Bytes, Flags, Int64s, cut_binary, of_numbers
from mainstem_loader.columns import DAYS_MAX, DAYS_MIN, MICROSECONDS_MAX, MICROSECONDS_MIN
from mainstem_loader.payload.avro_schema import AvroType

ITEMS_MAX: Final = 64
"""Of an array that is decoded here: each position in it costs some operations, for however few records."""
VARINT_BYTES_MAX: Final = 10
_PADDING: Final = VARINT_BYTES_MAX
_DAYS: Final = (DAYS_MIN, DAYS_MAX)
_MILLIS: Final = (MICROSECONDS_MIN // 1000, MICROSECONDS_MAX // 1000)
_MICROS: Final = (MICROSECONDS_MIN, MICROSECONDS_MAX)
Rows = npt.NDArray[np.int64]


class _NotVectorized(Exception):
    """The data has a shape that is decoded record by record."""


def is_supported(avro_type: AvroType) -> bool:
    """Whether all values of a type can be decoded here."""
    if avro_type.is_json or avro_type.logical == "decimal":
        return False
    match avro_type.kind:
        case "map":
            return False
        case "union":
            return avro_type.is_optional and all(map(is_supported, avro_type.parts))
        case "record" | "error":
            return bool(avro_type.parts) and all(map(is_supported, avro_type.parts))
        case "array":
            return not pa.types.is_null(avro_type.parts[0].arrow) and all(map(is_supported, avro_type.parts))
    return True


class ColumnDecoder:
    """Decodes records of one schema.

    Args:
        data: the bytes of all records, in order.
        begins, ends: of each record's body in `data`.
    """

    def __init__(self, data: Bytes, begins: Int64s, ends: Int64s) -> None:
        self._data = np.concatenate((data, np.zeros(_PADDING, np.uint8)))
        self._plain = self._data.tobytes()
        self._position = begins.astype(np.int64)
        self._end = ends.astype(np.int64)
        self._corrupt = np.zeros(len(begins), dtype=np.bool_)

    def decode(self, root: AvroType) -> tuple[Array, Flags] | None:
        """The column of all records, and which are corrupt: their values mean nothing.

        None if the data has a shape that is not decoded here.
        """
        try:
            column = self._decode(root, np.arange(len(self._position)))
        except _NotVectorized:
            return None
        self._corrupt |= self._position != self._end
        return column, self._corrupt

    def _decode(self, avro_type: AvroType, rows: Rows) -> Array:
        """The column of some records, which all have a value of this type at their position."""
        match avro_type.kind:
            case "null":
                return pa.nulls(len(rows))
            case "boolean":
                return self._booleans(rows)
            case "int" | "long":
                return self._integers(avro_type, rows)
            case "float" | "double":
                return self._floats(np.float32 if avro_type.kind == "float" else np.float64, rows)
            case "bytes" | "string":
                values = self._slices(rows, self._varints(rows))
                return self._texts(values) if avro_type.kind == "string" else values
            case "fixed":
                return self._slices(rows, np.full(len(rows), avro_type.size, np.int64))
            case "enum":
                return self._symbols(avro_type, rows)
            case "union":
                return self._optional(avro_type, rows)
            case "array":
                return self._lists(avro_type, rows)
        columns = [self._decode(part, rows) for part in avro_type.parts]
        kept = [
            (name, column)
            for name, part, column in zip(avro_type.names, avro_type.parts, columns, strict=True)
            if not pa.types.is_null(part.arrow)
        ]
        if not kept:
            return pa.nulls(len(rows))
        names, arrays = [name for name, _ in kept], [column for _, column in kept]
        return pa.StructArray.from_arrays(arrays, names=names)

    def _advance(self, rows: Rows, position: Int64s) -> None:
        """Move on; records that leave their bounds are corrupt, and stay inside of them."""
        end = self._end[rows]
        beyond = (position > end) | (position < self._position[rows])
        if beyond.any():
            self._corrupt[rows[beyond]] = True
            position = np.where(beyond, end, position)
        self._position[rows] = position

    def _varints(self, rows: Rows) -> Int64s:
        """Zigzag numbers of variable length."""
        position = self._position[rows]
        octets = self._data[position]
        values = (octets & 0x7F).astype(np.uint64)
        position = position + 1
        more = np.flatnonzero(octets >= 0x80)
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            if not len(more):
                break
            # Records at the end of the data may have no next byte: the padding ends their numbers.
            octets = self._data[position[more]]
            values[more] |= (octets & 0x7F).astype(np.uint64) << np.uint64(shift)
            position[more] += 1
            more = more[octets >= 0x80]
        if len(more):
            self._corrupt[rows[more]] = True
        self._advance(rows, position)
        decoded: Int64s = (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)
        return decoded

    def _booleans(self, rows: Rows) -> Array:
        octets = self._data[self._position[rows]]
        self._corrupt[rows[octets > 1]] = True
        self._advance(rows, self._position[rows] + 1)
        return _array(octets == 1)

    def _integers(self, avro_type: AvroType, rows: Rows) -> Array:
        numbers = self._varints(rows)
        if avro_type.kind == "int":
            outside = (numbers < -(1 << 31)) | (numbers >= 1 << 31)
            self._corrupt[rows[outside]] = True
        match avro_type.logical:
            case "date":
                days = self._within(_DAYS, numbers, rows)
                return _array(days.astype(np.int32), pa.date32())
            case "timestamp-millis":
                return _array(self._within(_MILLIS, numbers, rows) * 1000, avro_type.arrow)
            case "timestamp-micros":
                return _array(self._within(_MICROS, numbers, rows), avro_type.arrow)
        return _array(numbers)

    def _within(self, bounds: tuple[int, int], numbers: Int64s, rows: Rows) -> Int64s:
        """Numbers, 0 for those outside of the bounds, whose records are corrupt."""
        outside = (numbers < bounds[0]) | (numbers > bounds[1])
        self._corrupt[rows[outside]] = True
        return np.where(outside, 0, numbers)

    def _floats(self, kind: type[np.floating[Any]], rows: Rows) -> Array:
        size = np.dtype(kind).itemsize
        position = self._position[rows]
        # The padding is longer than any number, so bytes beyond a record's end can be read.
        octets = self._data[position[:, None] + np.arange(size)]
        numbers = octets.view(np.dtype(kind).newbyteorder("<")).reshape(-1)
        self._advance(rows, position + size)
        return _array(numbers.astype(np.float64))

    def _slices(self, rows: Rows, lengths: Int64s) -> Array:
        begins = self._position[rows]
        negative = lengths < 0
        if negative.any():
            self._corrupt[rows[negative]] = True
            lengths = np.where(negative, 0, lengths)
        # A length near 2**63 must not wrap around.
        self._advance(rows, begins + np.minimum(lengths, len(self._data)))
        edges = np.empty(2 * len(rows) + 1, dtype=np.int32)
        edges[0:-1:2], edges[1::2] = begins, self._position[rows]
        edges[-1] = edges[-2] if len(rows) else 0
        return cut_binary(self._plain, edges).take(of_numbers(np.arange(0, 2 * len(rows), 2)))

    def _texts(self, values: Array) -> Array:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise _NotVectorized from error  # one of them is not UTF-8

    def _symbols(self, avro_type: AvroType, rows: Rows) -> Array:
        indexes = self._varints(rows)
        outside = (indexes < 0) | (indexes >= len(avro_type.symbols))
        self._corrupt[rows[outside]] = True
        symbols: Array = pa.array(avro_type.symbols, pa.string())
        return symbols.take(of_numbers(np.where(outside, 0, indexes)))

    def _optional(self, avro_type: AvroType, rows: Rows) -> Array:
        branches = self._varints(rows)
        outside = (branches < 0) | (branches > 1)
        self._corrupt[rows[outside]] = True
        present = (branches != avro_type.null_branch) & ~outside
        part = avro_type.parts[1 - avro_type.null_branch]
        if present.all():
            return self._decode(part, rows)
        values = self._decode(part, rows[present])
        # For each row the position of its value among those that are present.
        where = np.cumsum(present) - 1
        return values.take(of_numbers(np.maximum(where, 0), ~present))

    def _lists(self, avro_type: AvroType, rows: Rows) -> Array:
        counts = np.zeros(len(rows), dtype=np.int64)
        item_rows: list[Rows] = []
        items: list[Array] = []
        left = self._block_counts(rows)
        active = np.arange(len(rows))
        while True:
            begun = left[active] > 0
            active = active[begun]
            if not len(active):
                break
            if counts[active].max() >= ITEMS_MAX:
                raise _NotVectorized
            items.append(self._decode(avro_type.parts[0], rows[active]))
            item_rows.append(active)
            counts[active] += 1
            left[active] -= 1
            # Another block follows, or a count of zero, which ends the array.
            ended = active[left[active] == 0]
            if len(ended):
                left[ended] = self._block_counts(rows[ended])
        offsets = of_numbers(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        if not items:
            return pa.ListArray.from_arrays(offsets, pa.array([], avro_type.parts[0].arrow))
        # Items came by their position in the array; a stable sort brings them together by record.
        order = np.argsort(np.concatenate(item_rows), kind="stable")
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays(items).take(of_numbers(order)))

    def _block_counts(self, rows: Rows) -> Int64s:
        counts = self._varints(rows)
        negative = np.flatnonzero(counts < 0)
        if len(negative):
            # The size of the block in bytes follows, for those who skip it.
            self._varints(rows[negative])
            counts = np.abs(counts)
            self._corrupt[rows[counts < 0]] = True  # -2^63 has no positive counterpart
        return np.where(self._corrupt[rows], 0, counts)


def _array(numbers: npt.NDArray[Any], kind: pa.DataType | None = None) -> Array:
    """An array of numbers or flags, seen as `kind`, which is as wide."""
    array: Array = of_numbers(numbers)
    if kind is not None:
        array = array.view(kind)
    return array
