"""Protobuf messages to columns, many at a time.

Each field of a message says its number and, by its wire type, where the next one begins. Writers put fields
in the order of their numbers, so the decoder looks for the lowest number that any message has next, and
decodes that field for all messages that have it with a few operations of numpy. Messages of writers with
another order only cost more rounds. Values are noted with the message they belong to; when all messages have
ended, each field's notes become its column.

Nothing here judges why a message is corrupt. Messages that leave their bounds, or have what seldom occurs
(groups, a message field that occurs twice, two fields of a oneof), are reported, and the caller decodes those
one by one.

Source: "Encoding" in the documentation of Protocol Buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from mainstem_loader.arrow_arrays import Array, Bytes, Flags, Int64s, cut_binary, of_numbers
from mainstem_loader.columns import TIMESTAMP_TYPE
from mainstem_loader.payload.protobuf_schema import (
    FIXED32,
    FIXED64,
    LENGTH,
    UINT64_TYPE,
    VARINT,
    FieldType,
    MessageType,
)

VARINT_BYTES_MAX: Final = 10
ROUNDS_OF_ITEMS: Final = 256
"""Rounds beyond one for each field: for repeated fields that are not packed, and for unknown ones."""
TAG_MAX: Final = 2**32 - 1
_DONE: Final = 2**62
_PADDING: Final = VARINT_BYTES_MAX + 8
_SECONDS_MAX: Final = 253_402_300_799
_SECONDS_MIN: Final = -62_135_596_800
"""The bounds of google.protobuf.Timestamp: the years 1 to 9999."""
Uint64s = npt.NDArray[np.uint64]


@dataclass(slots=True)
class _Notes:
    """What was found of a field, round by round: the messages, and of each its value.

    `numbers` are raw: as the wire has them. `begins` and `ends` are of what has a length.
    """

    rows: list[Int64s] = field(default_factory=list)
    numbers: list[Uint64s] = field(default_factory=list)
    begins: list[Int64s] = field(default_factory=list)
    ends: list[Int64s] = field(default_factory=list)


@dataclass(slots=True)
class _Messages:
    """Messages of one type that are being decoded. `owners`: the record that each is a part of."""

    position: Int64s
    ends: Int64s
    owners: Int64s
    notes: dict[int, _Notes] = field(default_factory=dict)


class MessageDecoder:
    """Decodes records of one message type.

    Args:
        data: the bytes of all records, in order.
        begins, ends: of each record's message in `data`.
    """

    def __init__(self, data: Bytes, begins: Int64s, ends: Int64s) -> None:
        self._data = np.concatenate((data, np.zeros(_PADDING, np.uint8)))
        self._plain = self._data.tobytes()
        self._begins, self._ends = begins.astype(np.int64), ends.astype(np.int64)
        self._apart = np.zeros(len(begins), dtype=np.bool_)

    def decode(self, message: MessageType) -> tuple[dict[str, Array], Flags]:
        """The columns of all records, and which are to be decoded one by one: their values mean nothing."""
        rows = np.arange(len(self._begins))
        columns = self._decode(message, self._begins, self._ends, rows)
        names = [one.name for one in message.fields.values()]
        return dict(zip(names, columns, strict=True)), self._apart

    # Messages to notes.

    def _decode(self, message: MessageType, begins: Int64s, ends: Int64s, owners: Int64s) -> list[Array]:
        """The columns of messages, which lie in `data` one after another."""
        messages = _Messages(begins.copy(), ends, owners)
        messages.notes = {number: _Notes() for number in message.fields}
        tags = np.full(len(begins), _DONE, dtype=np.int64)
        self._read_tags(messages, np.arange(len(begins)), tags)
        active = np.flatnonzero(tags != _DONE)
        rounds = len(message.fields) + ROUNDS_OF_ITEMS
        while len(active):
            if not rounds:
                self._set_apart(messages, active)
                break
            rounds -= 1
            current = tags[active]
            tag = int(current.min())
            chosen = active[current == tag]
            self._take(message, tag, messages, chosen)
            self._read_tags(messages, chosen, tags)
            active = active[tags[active] != _DONE]
        for oneof in message.oneofs:
            self._check_oneof(messages, oneof)
        return [self._column(one, messages) for one in message.fields.values()]

    def _read_tags(self, messages: _Messages, rows: Int64s, tags: Int64s) -> None:
        """The next tag of each message, or that there is none."""
        more = messages.position[rows] < messages.ends[rows]
        tags[rows] = _DONE
        rows = rows[more] if not more.all() else rows
        if not len(rows):
            return
        numbers = self._varints(messages, rows)
        wrong = (numbers > TAG_MAX) | (numbers < 8) | self._apart[messages.owners[rows]]
        found = numbers.astype(np.int64)
        if wrong.any():
            self._set_apart(messages, rows[wrong])
            found[wrong] = _DONE
        tags[rows] = found

    def _take(self, message: MessageType, tag: int, messages: _Messages, rows: Int64s) -> None:
        """A field of messages that all have it next."""
        one, wire = message.fields.get(tag >> 3), tag & 7
        is_packed = (
            one is not None and one.is_repeated and one.wire in (VARINT, FIXED32, FIXED64) and wire == LENGTH
        )
        if one is None or (one.wire != wire and not is_packed):
            if message.is_entry:
                # The library passes over the whole entry.
                self._set_apart(messages, rows)
            self._skip(wire, messages, rows)
            return
        notes = messages.notes[one.number]
        if is_packed:
            begins, ends = self._lengths(messages, rows)
            self._unpack(one, messages, rows, begins, ends)
        elif wire == LENGTH:
            begins, ends = self._lengths(messages, rows)
            notes.rows.append(rows)
            notes.begins.append(begins)
            notes.ends.append(ends)
        else:
            notes.rows.append(rows)
            notes.numbers.append(self._numbers(wire, messages, rows))

    def _skip(self, wire: int, messages: _Messages, rows: Int64s) -> None:
        match wire:
            case 0 | 1 | 5:
                self._numbers(wire, messages, rows)
            case 2:
                self._lengths(messages, rows)
            case _:
                self._set_apart(messages, rows)

    def _numbers(self, wire: int, messages: _Messages, rows: Int64s) -> Uint64s:
        if wire == VARINT:
            return self._varints(messages, rows)
        position = messages.position[rows]
        numbers = self._fixed(position, 4 if wire == FIXED32 else 8)
        self._advance(messages, rows, position + (4 if wire == FIXED32 else 8))
        return numbers

    def _fixed(self, position: Int64s, size: int) -> Uint64s:
        # The padding is longer than any number, so bytes beyond the end can be read.
        octets = self._data[position[:, None] + np.arange(size)]
        numbers: Uint64s = octets.view(f"<u{size}").reshape(-1).astype(np.uint64)
        return numbers

    def _lengths(self, messages: _Messages, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Where values with a length begin and end; the messages go on behind them."""
        lengths = self._varints(messages, rows)
        begins = messages.position[rows]
        # A length near 2**64 must not wrap around.
        self._advance(messages, rows, begins + np.minimum(lengths, len(self._data)).astype(np.int64))
        return begins, np.maximum(messages.position[rows], begins)

    def _varints(self, messages: _Messages, rows: Int64s) -> Uint64s:
        position = messages.position[rows]
        octets = self._data[position]
        values = (octets & 0x7F).astype(np.uint64)
        position = position + 1
        more = np.flatnonzero(octets >= 0x80)
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            if not len(more):
                break
            # Messages at the end of the data may have no next byte: the padding ends their numbers.
            octets = self._data[position[more]]
            values[more] |= (octets & 0x7F).astype(np.uint64) << np.uint64(shift)
            position[more] += 1
            more = more[octets >= 0x80]
        if len(more):
            self._set_apart(messages, rows[more])
            position[more] = messages.ends[rows[more]]
        self._advance(messages, rows, position)
        return values

    def _advance(self, messages: _Messages, rows: Int64s, position: Int64s) -> None:
        ends = messages.ends[rows]
        beyond = position > ends
        if beyond.any():
            self._set_apart(messages, rows[beyond])
            position = np.minimum(position, ends)
        messages.position[rows] = position

    def _set_apart(self, messages: _Messages, rows: Int64s) -> None:
        self._apart[messages.owners[rows]] = True
        messages.position[rows] = messages.ends[rows]

    def _unpack(
        self, one: FieldType, messages: _Messages, rows: Int64s, begins: Int64s, ends: Int64s
    ) -> None:
        """Numbers that lie one behind another."""
        notes = messages.notes[one.number]
        sizes = ends - begins
        if one.wire != VARINT:
            width = 4 if one.wire == FIXED32 else 8
            uneven = sizes % width != 0
            self._set_apart(messages, rows[uneven])
            counts = sizes // width
            notes.rows.append(np.repeat(rows, counts))
            notes.numbers.append(self._fixed(_spread(begins, counts, width), width))
            return
        at = _spread(begins, sizes, 1)
        octets = self._data[at]
        lasts = octets < 0x80
        # A varint that is cut off, or too long, is told by where it ends.
        broken = (sizes > 0) & (self._data[ends - 1] >= 0x80)
        if broken.any():
            self._set_apart(messages, rows[broken])
            kept = np.repeat(~broken, sizes)
            at, octets, lasts = at[kept], octets[kept], lasts[kept]
            rows, sizes = rows[~broken], sizes[~broken]
        if not len(octets):
            return
        starts = np.flatnonzero(np.concatenate(([True], lasts[:-1])))
        number_of: Int64s = np.cumsum(lasts) - lasts
        place = np.arange(len(octets)) - starts[number_of]
        row_of = np.repeat(rows, sizes)
        too_long = place >= VARINT_BYTES_MAX
        if too_long.any():
            self._set_apart(messages, row_of[too_long])
            place = np.minimum(place, VARINT_BYTES_MAX - 1)
        parts = (octets & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
        notes.rows.append(row_of[starts])
        notes.numbers.append(np.bitwise_or.reduceat(parts, starts))

    def _check_oneof(self, messages: _Messages, numbers: frozenset[int]) -> None:
        """Of several fields of a oneof, the last counts: that is seen one by one."""
        counts = np.zeros(len(messages.position), dtype=np.int64)
        for number in numbers:
            if number in messages.notes:
                for rows in messages.notes[number].rows:
                    counts[rows] += 1
        several = np.flatnonzero(counts > 1)
        if len(several):
            self._set_apart(messages, several)

    # Notes to columns.

    def _column(self, one: FieldType, messages: _Messages) -> Array:
        notes, count = messages.notes[one.number], len(messages.position)
        rows = _joined(notes.rows)
        numbers: Uint64s = np.concatenate(notes.numbers) if notes.numbers else np.empty(0, np.uint64)
        begins, ends = _joined(notes.begins), _joined(notes.ends)
        if one.is_repeated:
            order = np.argsort(rows, kind="stable")
            offsets = np.zeros(count + 1, dtype=np.int64)
            np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        elif len(notes.rows) > 1:
            order, is_twice = self._last_ones(rows)
            if is_twice is not None and one.kind in ("message", "timestamp", "wrapper", "json"):
                self._set_apart(messages, is_twice)
        else:
            order = np.arange(len(rows))
        rows = rows[order]
        numbers = numbers[order] if len(numbers) else numbers
        begins, ends = (begins[order], ends[order]) if len(begins) else (begins, ends)
        values = self._values(one, numbers, begins, ends, messages.owners[rows])
        if one.is_map:
            return self._map(values, offsets, rows, messages)
        if one.is_repeated:
            return pa.ListArray.from_arrays(of_numbers(offsets.astype(np.int32)), values)
        if len(rows) == count:
            return values
        where = np.full(count, -1, dtype=np.int64)
        where[rows] = np.arange(len(rows))
        column = values.take(of_numbers(np.maximum(where, 0), where < 0))
        return column if one.has_presence else column.fill_null(_default(one))

    @staticmethod
    def _last_ones(rows: Int64s) -> tuple[Int64s, Int64s | None]:
        """The last note of each message, by message; and the messages that had several."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.empty(0, np.bool_)
        return order[is_last], (None if is_last.all() else np.unique(ordered[~is_last]))

    def _values(
        self, one: FieldType, numbers: Uint64s, begins: Int64s, ends: Int64s, owners: Int64s
    ) -> Array:
        """The values of a field, of which each belongs to one of `owners`."""
        match one.kind:
            case "string" | "bytes":
                values = self._slices(begins, ends)
                return self._texts(values, owners) if one.kind == "string" else values
            case "message":
                assert one.message is not None
                columns = self._decode(one.message, begins, ends, owners)
                names = [member.name for member in one.message.fields.values()]
                return pa.StructArray.from_arrays(columns, names=names)
            case "timestamp":
                return self._timestamps(one, begins, ends, owners)
            case "wrapper":
                assert one.message is not None
                return self._decode(one.message, begins, ends, owners)[0]
            case "json":
                return self._json(one, begins, ends, owners)
            case "enum":
                return self._enums(one, numbers, owners)
        return _of_wire(one.kind, numbers)

    def _slices(self, begins: Int64s, ends: Int64s) -> Array:
        edges = np.empty(2 * len(begins) + 1, dtype=np.int32)
        edges[0:-1:2], edges[1::2] = begins, ends
        edges[-1] = edges[-2] if len(begins) else 0
        return cut_binary(self._plain, edges).take(of_numbers(np.arange(0, 2 * len(begins), 2)))

    def _texts(self, values: Array, owners: Int64s) -> Array:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # one of them is not UTF-8
        texts: list[str] = []
        for octets, owner in zip(values, owners.tolist(), strict=True):
            try:
                texts.append(octets.as_py().decode())
            except UnicodeDecodeError:
                texts.append("")
                self._apart[owner] = True
        return pa.array(texts, pa.string())

    def _timestamps(self, one: FieldType, begins: Int64s, ends: Int64s, owners: Int64s) -> Array:
        assert one.message is not None
        seconds, nanos = (column.to_numpy() for column in self._decode(one.message, begins, ends, owners))
        outside = (seconds > _SECONDS_MAX) | (seconds < _SECONDS_MIN) | (nanos < 0) | (nanos >= 10**9)
        self._apart[owners[outside]] = True
        microseconds = np.where(outside, 0, seconds) * 1_000_000 + nanos // 1000
        array: Array = of_numbers(microseconds).view(TIMESTAMP_TYPE)
        return array

    def _json(self, one: FieldType, begins: Int64s, ends: Int64s, owners: Int64s) -> Array:
        texts: list[str | None] = []
        for begin, end, owner in zip(begins.tolist(), ends.tolist(), owners.tolist(), strict=True):
            try:
                texts.append(message_json(one.message_class.FromString(self._plain[begin:end])))
            except (DecodeError, ValueError, TypeError, RecursionError):
                texts.append(None)
                self._apart[owner] = True
        return pa.array(texts, pa.string())

    def _enums(self, one: FieldType, numbers: Uint64s, owners: Int64s) -> Array:
        assert one.enum_names is not None
        distinct, which = np.unique(_int32(numbers), return_inverse=True)
        names = [one.enum_names.get(number, str(number)) for number in distinct.tolist()]
        if one.is_closed:
            # Of a closed enum, other numbers do not count as set.
            unknown = np.array([number not in one.enum_names for number in distinct.tolist()], np.bool_)
            if unknown.any():
                self._apart[owners[unknown[which]]] = True
        return pa.array(names, pa.string()).take(of_numbers(which.astype(np.int64)))

    def _map(self, entries: Array, offsets: Int64s, rows: Int64s, messages: _Messages) -> Array:
        assert isinstance(entries, pa.StructArray)
        keys, values = entries.flatten()
        if values.null_count:  # a message that was left out, which is an empty one
            self._set_apart(messages, rows[values.is_null().to_numpy(zero_copy_only=False)])
        if len(keys):
            # Of a key that occurs twice, the last value counts.
            encoded: Any = pc.dictionary_encode(keys)
            codes = encoded.indices.to_numpy()
            pairs = rows * (int(codes.max()) + 1) + codes
            _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
            if (counts > 1).any():
                self._set_apart(messages, rows[first[counts > 1]])
        edges = of_numbers(offsets.astype(np.int32))
        array: Array = pa.MapArray.from_arrays(edges, keys, values)
        return array


def message_json(message: Any) -> str:
    """A message as JSON on one line, with the names of its fields as the schema has them.

    Raises:
        ValueError: it has a value that JSON has not, such as a timestamp outside of the years 1 to 9999.
        TypeError: it has an `Any` of an unknown type.
    """
    try:
        text: str = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
    except json_format.Error as error:  # which is no ValueError
        raise ValueError(str(error)) from error
    return text


def _joined(parts: list[Int64s]) -> Int64s:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _spread(begins: Int64s, counts: Int64s, step: int) -> Int64s:
    """`counts` positions from each of `begins`, `step` apart."""
    firsts = np.cumsum(counts) - counts
    return np.repeat(begins - firsts * step, counts) + np.arange(int(counts.sum())) * step


def _int32(numbers: Uint64s) -> npt.NDArray[np.int32]:
    return (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)


def _of_wire(kind: str, numbers: Uint64s) -> Array:
    """Numbers as the schema means them. What is too large for its type loses its upper bits, as elsewhere."""
    decoded: npt.NDArray[Any]
    match kind:
        case "int64" | "sfixed64":
            decoded = numbers.view(np.int64)
        case "int32" | "sfixed32":
            decoded = _int32(numbers).astype(np.int64)
        case "uint32" | "fixed32":
            decoded = (numbers & np.uint64(0xFFFFFFFF)).astype(np.int64)
        case "sint64":
            decoded = (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)
        case "sint32":
            short = numbers & np.uint64(0xFFFFFFFF)
            decoded = (short >> np.uint64(1)).view(np.int64) ^ -(short & np.uint64(1)).view(np.int64)
        case "bool":
            decoded = numbers != 0
        case "float":
            decoded = numbers.astype(np.uint32).view(np.float32).astype(np.float64)
        case "double":
            decoded = numbers.view(np.float64)
        case _:  # uint64, fixed64
            exact: Array = of_numbers(numbers).cast(UINT64_TYPE)
            return exact
    array: Array = of_numbers(np.ascontiguousarray(decoded))
    return array


def _default(one: FieldType) -> Any:
    """The value of a field that was not set, and has no presence."""
    match one.kind:
        case "string":
            return pa.scalar("", pa.string())
        case "bytes":
            return pa.scalar(b"", pa.binary())
        case "enum":
            assert one.enum_names is not None
            return pa.scalar(one.enum_names.get(0, "0"), pa.string())
        case "bool":
            return pa.scalar(False, pa.bool_())
    return pa.scalar(0, pa.int64()).cast(one.arrow)
