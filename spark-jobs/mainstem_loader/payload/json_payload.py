"""JSON values to columns, read by Arrow's JSON reader many at a time.

Each value is one JSON object (RFC 8259, plus NaN and Infinity as some writers have them). Its fields become
columns: those of the table and those named by the load with their type, the others with the type that the
first records show, see `columns`. Numbers that are no 64-bit integers are doubles, but no integer is ever
rounded: a record with one that its column cannot hold exactly is dead, and where whole numbers in several
spellings stand beside integers that doubles cannot hold, their column is one of integers. Strings stay
strings unless the column is known to be a timestamp, date or decimal. A value that says nothing about its
type, such as an empty array, goes to the column `_rest` while no record has shown the type of its field
(`untyped_values`). Dead are also: what is not one object, a field twice in one object, a string that
is not UTF-8, and a field whose type is not the column's (an integer fits a column of doubles, and a whole
number such as 30.0 or 3e1 one of integers; nothing else bends). Dates and times outside of the years 1 to
9999 in UTC are of no column's type.

Values are joined by newlines and parsed as one text. That is sound, no value can leak into the next one or
hide another, because each begins with `{` and ends with `}`, no byte is zero, Arrow takes no line break
inside of a string, and the count of rows must be the count of values. A block that does not parse is halved
until the values that do not parse stand in small blocks; there each record is looked at (`json_kinds`), and
what then still does not parse is halved on until it stands alone.

Arrow's reader is recursive and dies of nesting thousands of levels deep, so that is kept from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Final, Literal, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from mainstem_loader.arrow_arrays import (
    Array,
    ChunkedArray,
    Int64s,
    buffer_of,
    bytes_and_edges,
    lines_of,
    null_flags,
    of_numbers,
)
from mainstem_loader.columns import (
    COLUMNS_MAX,
    DAYS_MAX,
    DAYS_MIN,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    REST_COLUMN,
    ColumnError,
    Columns,
    check_name,
    column_of_field,
    field_of_column,
    members_of,
    merge_types,
    storable_type,
)
from mainstem_loader.exact_numbers import (
    INEXACT,
    has_longs,
    integers_and_floats,
    is_long,
    reason_against,
    rounded_field,
    rounds,
    suspect_rows,
)
from mainstem_loader.payload.json_kinds import (
    TOO_LARGE,
    KindCheck,
    SplitRecord,
    names_of,
    split_all,
    split_fields,
    type_of_value,
    wider_types,
)
from mainstem_loader.payload.readers import ParsedPayload
from mainstem_loader.payload.untyped_values import texts_of_fields, untyped_fields

# Arrow's reader was seen to overflow its stack between 7,000 and 10,000 levels. orjson refuses more than
# 1,024.
_SAFE_OPENERS: Final = 1024

_OPEN_BRACE: Final = ord("{")
_CLOSE_BRACE: Final = ord("}")
_OPEN_BRACKET: Final = ord("[")
_WHITESPACE: Final = b" \t\r\n"

# Arrow's reader makes a column as long as the block of each field, so one read of n records with n fields
# takes n * n cells. Reading fewer records at once costs time for ordinary ones: a tenth, with this limit.
_READ_ROWS_MAX: Final = 4096

# Below this, looking at each record costs less than parsing blocks again and again.
_LOOK_CLOSER_ROWS: Final = 1024

# Carries the position of each row through concatenation; no payload column can have this name.
_ROW: Final = "\x00row"
# Carries what columns have no place for yet, as JSON text.
_UNTYPED: Final = "\x00untyped"

_UNREADABLE: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, ColumnError)

_REASONS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)"),
        r"field '\1' is \3 where the column is \2",
    ),
    (re.compile(r"Column\(/?(.*?)\) was specified twice"), r"field '\1' appears twice"),
    (re.compile(r"Failed to convert JSON to (.+?), couldn't parse:(.*)"), r"\2 does not fit a column of \1"),
    (re.compile(r"Invalid UTF8|codec can't decode"), "a string is not UTF-8"),
    (re.compile(r"Number too big"), TOO_LARGE),
    (re.compile(r"JSON parse error: (.*?)\.? in row [0-9]+"), r"not JSON: \1"),
)


class JsonPayload:
    """Reads JSON objects.

    Args:
        fixed: columns and types that stay as they are, though structs may get new members: those of the
            table, and those the load names.
    """

    def __init__(self, fixed: Columns) -> None:
        self._fixed = {field_of_column(column): column_type for column, column_type in fixed.items()}
        # Fields beyond `_fixed`, and fixed structs with new members. Moved by every block that parses.
        self._found: dict[str, pa.DataType] = {}
        # Of these, those that must not widen to doubles, which would round what they hold.
        self._whole: dict[str, pa.DataType] = {}
        # Fields with values, or parts of them, that had no type yet, and the type that they had when they
        # were first met; `pa.null()` for none.
        self._untyped: dict[str, pa.DataType] = {}
        # Of the fixed fields, those that have integers, with doubles where a record needs one.
        self._wider = {field: kind for field, kind in self._fixed.items() if has_longs(kind)}

    def _is_full(self) -> bool:
        """Whether no field can become a column any more, so that records with new ones have to be divided."""
        return len({**self._fixed, **self._found}) >= COLUMNS_MAX

    def found_columns(self) -> Columns:
        return {column_of_field(field): arrow_type for field, arrow_type in self._found.items()}

    def untyped_columns(self) -> Columns:
        return {column_of_field(field): arrow_type for field, arrow_type in self._untyped.items()}

    def wider_columns(self) -> Columns:
        return {
            column_of_field(field): arrow_type
            for field, arrow_type in self._wider.items()
            if arrow_type != self._fixed[field]
        }

    @property
    def _settled(self) -> Columns:
        """The types that stay."""
        return {**self._fixed, **self._whole}

    def parse(self, values: Array) -> ParsedPayload:
        texts, rows, malformed = _candidates(values)
        while True:
            dead, rest = list(malformed), dict[int, str]()
            pieces: list[pa.Table] = []
            for begin in range(0, len(texts), _READ_ROWS_MAX):
                span = slice(begin, begin + _READ_ROWS_MAX)
                self._parse_span(texts[span], rows[span], pieces, dead, rest)
            if not rounds(pieces):
                break
            # Later blocks made doubles of a column. With that type from the start nothing is rounded.
        if values.null_count:
            pieces.append(pa.table({_ROW: np.flatnonzero(null_flags(values))}))
        if not pieces:
            return ParsedPayload(np.empty(0, dtype=np.int64), pa.table({}), sorted(dead))
        table = pa.concat_tables(pieces, promote_options="permissive")
        order = table.column(_ROW).to_numpy()
        if np.any(np.diff(order) < 0):
            table = table.take(of_numbers(np.argsort(order, kind="stable")))
            order = table.column(_ROW).to_numpy()
        columns = table.drop_columns([name for name in (_ROW, _UNTYPED) if name in table.column_names])
        if _UNTYPED in table.column_names and not rest:
            columns = columns.append_column(REST_COLUMN, table.column(_UNTYPED))
        elif rest:
            has_untyped = _UNTYPED in table.column_names
            untyped = table.column(_UNTYPED).to_pylist() if has_untyped else [None] * len(order)
            texts_of_rest = [
                joined_objects(text, rest[row]) if row in rest else text
                for row, text in zip(order.tolist(), untyped, strict=True)
            ]
            columns = columns.append_column(REST_COLUMN, pa.array(texts_of_rest, pa.string()))
        return ParsedPayload(order, columns, sorted(dead))

    def _parse_span(
        self,
        texts: Array,
        rows: Int64s,
        pieces: list[pa.Table],
        dead: list[tuple[int, str]],
        rest: dict[int, str],
        looked_at: bool = False,
    ) -> None:
        if not len(texts):
            return
        before = self._found
        try:
            table = self._parse_all(texts)
        except _UNREADABLE as error:
            if len(texts) == 1:
                self._parse_one(texts[0].as_py(), int(rows[0]), pieces, dead, rest, _reason(error))
            elif looked_at or (len(texts) > _LOOK_CLOSER_ROWS and not self._is_full()):
                half = len(texts) // 2
                known = self._found
                self._parse_span(texts[:half], rows[:half], pieces, dead, rest, looked_at)
                # The first half may have settled what the second one has to fit.
                looked_at = looked_at and self._found == known
                self._parse_span(texts[half:], rows[half:], pieces, dead, rest, looked_at)
            else:
                check = KindCheck(self._settled, self._found)
                fitting: dict[int, bytes] = {}
                for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
                    split = check.split(text or b"")
                    if isinstance(split, str) or split.rest is not None:
                        self._wider |= wider_types(text or b"", self._wider)
                    if isinstance(split, str):
                        dead.append((row, split))
                        continue
                    fitting[row] = split.text
                    if split.rest is not None:
                        rest[row] = joined_objects(rest.get(row), split.rest)
                self._parse_span(
                    pa.array(fitting.values(), pa.binary()),
                    np.fromiter(fitting, dtype=np.int64),
                    pieces,
                    dead,
                    rest,
                    looked_at=True,
                )
            return
        kept = self._without_rounded(table, texts, before, rows, dead)
        if kept is None:
            self._add(table, rows, pieces)
            return
        for row in np.setdiff1d(rows, rows[kept]).tolist():
            rest.pop(row, None)
        self._parse_span(texts.take(of_numbers(kept)), rows[kept], pieces, dead, rest, looked_at)

    def _without_rounded(
        self,
        table: pa.Table,
        texts: Array,
        before: Mapping[str, pa.DataType],
        rows: Int64s,
        dead: list[tuple[int, str]],
    ) -> Int64s | None:
        """The texts to read again, since the column of some integer would round it; None if all is exact.

        Args:
            table: what `texts` were read as.
            before: what was found before they were.
            rows, dead: see `_parse_span`.
        """
        suspects = suspect_rows(table)
        types = dict(zip(table.column_names, table.schema.types, strict=True))
        rounded: dict[int, tuple[str, Any]] = {}
        for at in suspects.tolist():
            record = integers_and_floats(texts[at].as_py())
            if (found := rounded_field(record, types)) is not None:
                rounded[at] = found
        if not rounded:
            return None
        # Integers of more than 64 bits go first: without them the column may be one of integers.
        if not (out := {at for at, (_, integer) in rounded.items() if is_long(integer)}):
            whole = {
                field
                for field, _ in rounded.values()
                if pa.types.is_floating(types[field])
                and not pa.types.is_floating({**self._settled, **before}.get(field, pa.null()))
                and _is_whole(table.column(field))
            }
            if whole:
                self._found = {**before, **dict.fromkeys(whole, pa.int64())}
                self._whole |= dict.fromkeys(whole, pa.int64())
                return np.arange(len(texts))
            out = set(rounded)
        self._found = dict(before)
        for at in sorted(out):
            field, integer = rounded[at]
            column = "a column of numbers" if is_long(integer) else "its column of doubles"
            dead.append((int(rows[at]), reason_against(field, integer, column)))
        return np.array([at for at in range(len(texts)) if at not in out], dtype=np.int64)

    def _parse_one(
        self,
        text: bytes,
        row: int,
        pieces: list[pa.Table],
        dead: list[tuple[int, str]],
        rest: dict[int, str],
        reason: str,
    ) -> None:
        """A record that Arrow's reader does not take as it is: without what does not fit, or with nothing."""
        by_kind = KindCheck(self._settled, self._found).split(text)
        self._wider |= wider_types(text, self._wider)
        if isinstance(by_kind, str) and INEXACT in by_kind:
            reason = by_kind
        is_hopeless = "appears twice" in reason or INEXACT in reason
        fitting = SplitRecord(text, None) if isinstance(by_kind, str) else by_kind
        attempts: list[Callable[[], SplitRecord | str]] = [
            # With whole numbers as their columns want them: 2.0 in a column of integers is 2 there.
            lambda: self._without_unreadable(fitting),
            lambda: split_all(text),
        ]
        if fitting.rest is not None or fitting.text != text:
            attempts.insert(0, lambda: fitting)
        for attempt in () if is_hopeless else attempts:
            split = attempt()
            if isinstance(split, str):
                continue
            try:
                table = self._parse_all(pa.array([split.text], pa.binary()))
            except _UNREADABLE:
                continue
            if split.rest is not None:
                rest[row] = joined_objects(rest.get(row), split.rest)
            self._add(table, np.array([row], dtype=np.int64), pieces)
            return
        rest.pop(row, None)
        dead.append((row, reason))

    def _without_unreadable(self, record: SplitRecord) -> SplitRecord | str:
        """Set those fields of a record apart, too, that Arrow does not read even alone. It loses count in
        arrays that begin with nulls or empty arrays, unless their type is given.
        """
        misfits: set[str] = set()
        text = record.text
        names = names_of(text)
        if not names:
            return "not JSON"
        for name in names:
            alone = split_fields(text, names - {name})
            if not isinstance(alone, str) and not self._reads(name, alone.text):
                misfits.add(name)
                self._untyped.setdefault(name, {**self._fixed, **self._found}.get(name, pa.null()))
        split = split_fields(text, misfits)
        if isinstance(split, str) or record.rest is None:
            return split
        more = record.rest if split.rest is None else joined_objects(record.rest, split.rest)
        return SplitRecord(split.text, more)

    def _reads(self, field: str, text: bytes) -> bool:
        """Whether Arrow reads a record of one field, if need be with its type given."""
        texts = pa.array([text], pa.binary())
        with suppress(*_UNREADABLE):
            self._parse_all(texts)
            return True
        before = self._found
        known = {**self._fixed, **before}.get(field)
        try:
            shown = storable_type(type_of_value(orjson.loads(text)[field]), known)
            if shown is None or shown == known:
                return False
            if known is None:
                check_name(field, before.keys() | self._fixed.keys())
                column_type = shown
            else:
                column_type = merge_types(field, known, shown, widen=field not in self._settled)
            self._found = {**before, field: column_type}
            self._parse_all(texts)
        except (*_UNREADABLE, orjson.JSONDecodeError):
            self._found = before
            return False
        return True

    def _add(self, table: pa.Table, rows: Int64s, pieces: list[pa.Table]) -> None:
        names = [column_of_field(name) for name in table.column_names]
        pieces.append(pa.Table.from_arrays([*table.columns, of_numbers(rows)], names=[*names, _ROW]))

    def _parse_all(self, texts: Array) -> pa.Table:
        """All values as one table, by field. Raises one of `_UNREADABLE` if any value must stand alone."""
        joined = _join(texts)
        previous = {**self._fixed, **self._found}
        settled = self._settled
        try:
            table = _read(joined, previous, "infer", len(texts))
            widened = self._widened(table.schema, previous)
        except pa.ArrowInvalid:
            if not self._found:
                raise
            # A type that only earlier blocks gave may have to widen: look again without it.
            table = _read(joined, settled, "infer", len(texts))
            widened = self._widened(table.schema, previous)
            if widened == previous:
                raise
        untyped = untyped_fields(table, widened)
        for field in untyped:
            self._untyped.setdefault(field, widened.get(field, pa.null()))
        if any(
            name in widened and widened[name] != table.schema.field(name).type for name in table.column_names
        ):
            table = _read(joined, widened, "ignore", len(texts))
        self._found = {
            field: arrow_type for field, arrow_type in widened.items() if self._fixed.get(field) != arrow_type
        }
        table = table.select([name for name in table.column_names if name in widened])
        return table.append_column(_UNTYPED, texts_of_fields(untyped, len(texts))) if untyped else table

    def _widened(self, schema: pa.Schema, previous: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """The known fields with what a block's schema adds to them."""
        widened = dict(previous)
        for field in schema:
            before = previous.get(field.name)
            if field.type == before:
                continue
            widened_type = storable_type(field.type, before)
            if widened_type is None:
                continue
            if before is None:
                if len(widened) >= COLUMNS_MAX:
                    raise ColumnError(f"there are more than {COLUMNS_MAX} columns")
                check_name(field.name, widened)
                widened[field.name] = widened_type
            else:
                widened[field.name] = merge_types(
                    field.name, before, widened_type, widen=field.name not in self._settled
                )
        return widened


def _is_whole(column: ChunkedArray) -> bool:
    """Whether all numbers of a column are integers of 64 bits, as far as doubles show: the largest integers
    are 2^63 there.
    """
    values = column.drop_null().to_numpy()
    return bool(np.all(np.abs(values) <= float(1 << 63)) and np.all(values == np.floor(values)))


def _candidates(values: Array) -> tuple[Array, Int64s, list[tuple[int, str]]]:
    """The values that may be objects, their positions, and the reasons against the others but nulls."""
    data, edges = bytes_and_edges(values)
    begins, lengths = edges[:-1], np.diff(edges)
    present = ~null_flags(values)
    braced = present & (lengths >= 2)
    where = np.flatnonzero(braced)
    braced[where] = (data[begins[where]] == _OPEN_BRACE) & (
        data[begins[where] + lengths[where] - 1] == _CLOSE_BRACE
    )
    dead: list[tuple[int, str]] = []
    trimmed: dict[int, bytes] = {}
    for row in np.flatnonzero(present & ~braced).tolist():
        text = data[begins[row] : begins[row] + lengths[row]].tobytes().strip(_WHITESPACE)
        if text[:1] == b"{" and text[-1:] == b"}" and len(text) > 1:
            trimmed[row] = text
        else:
            dead.append((row, "not a JSON object" if text else "the value is empty"))
    for row in np.flatnonzero(braced & (lengths > _SAFE_OPENERS)).tolist():
        long_text = data[begins[row] : begins[row] + lengths[row]]
        if np.count_nonzero((long_text == _OPEN_BRACE) | (long_text == _OPEN_BRACKET)) > _SAFE_OPENERS:
            try:
                orjson.loads(long_text.tobytes())
            except orjson.JSONDecodeError as error:
                dead.append((row, f"not JSON, or nested too deeply: {error}"))
                braced[row] = False
    rows = np.flatnonzero(braced)
    texts = values if len(rows) == len(values) else values.take(of_numbers(rows))
    if trimmed:
        rows = np.concatenate((rows, np.fromiter(trimmed, dtype=np.int64)))
        texts = pa.concat_arrays([texts, pa.array(trimmed.values(), pa.binary())])
    return texts, rows, dead


def _join(texts: Array) -> pa.Buffer:
    """All texts as one."""
    lines = lines_of(texts)
    if not lines.all():
        # To Arrow's reader a zero byte is the end of the text.
        raise ColumnError("not JSON: it holds a zero byte")
    return buffer_of(lines)


def _read(
    text: pa.Buffer, columns: Mapping[str, pa.DataType], unexpected: Literal["ignore", "infer"], count: int
) -> pa.Table:
    """Parse lines of JSON into a table by field.

    Raises:
        ArrowInvalid: the text does not parse, or a value is not of its column's type.
        ColumnError: the text holds another number of objects than `count`, or a column a time that tables
            cannot have.
    """
    # Arrow reads no dates, but timestamps.
    types = {name: pa.timestamp("s") if pa.types.is_date(kind) else kind for name, kind in columns.items()}
    table = arrow_json.read_json(
        cast(IO[bytes], pa.BufferReader(text)),
        # One block, so that objects over several lines are not cut.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior=unexpected
        ),
    )
    if table.num_rows != count:
        raise ColumnError("not one JSON object, but several")
    table.validate(full=True)
    for position, name in enumerate(table.column_names):
        if name in columns and pa.types.is_date(columns[name]):
            times = table.column(name)
            dates = times.cast(columns[name])
            if not dates.cast(times.type).equals(times):
                raise ColumnError(f"field {name!r} has a time of day where the column is a date")
            table = table.set_column(position, name, dates)
        if name in columns:
            _check_times(name, table.column(name), columns[name])
    return table


def _check_times(field: str, values: Array | ChunkedArray, column_type: pa.DataType) -> None:
    """Whether all dates and timestamps are of years that tables can have: an offset may lead out of them.

    Args:
        field: names the values in the error.
        values: as they were read; what `column_type` does not have in them may look like times and is none.
        column_type: of their column.

    Raises:
        ColumnError: see there.
    """
    if pa.types.is_date(column_type) or pa.types.is_timestamp(column_type):
        is_date = pa.types.is_date(column_type)
        numbers = values.cast(pa.int32() if is_date else pa.int64())
        bounds = pc.min_max(numbers)
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        least_of_all, greatest_of_all = (
            (DAYS_MIN, DAYS_MAX) if is_date else (MICROSECONDS_MIN, MICROSECONDS_MAX)
        )
        if least is not None and (least < least_of_all or greatest > greatest_of_all):
            raise ColumnError(f"field {field!r} has a time outside of the years 1 to 9999")
    elif pa.types.is_list(column_type):
        _check_times(field, pc.list_flatten(values), column_type.value_type)
    elif pa.types.is_struct(column_type):
        for name, member_type in members_of(column_type).items():
            _check_times(f"{field}.{name}", pc.struct_field(values, [name]), member_type)


def joined_objects(one: str | None, other: str) -> str:
    """Two JSON objects that have different fields, none of them empty, as one."""
    return other if one is None else f"{one[:-1]},{other[1:]}"


def _reason(error: Exception) -> str:
    text = str(error)
    for pattern, reason in _REASONS:
        if (match := pattern.search(text)) is not None:
            return match.expand(reason)
    return text
