"""Rows of a table whose columns get other types: what was in `_rest` for want of one moves to its column.

A load may show the type of a field that was empty before, or a fraction in a column of whole numbers. The
rows that the table has then get the content that they would have if they were loaded now. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_loader.arrow_arrays import Array, of_numbers, repeated
from mainstem_loader.columns import REST_COLUMN, Columns, field_of_column
from mainstem_loader.payload.json_kinds import names_of, split_fields
from mainstem_loader.payload.json_payload import JsonPayload, joined_objects


def with_learned_types(rows: pa.Table, learned: Columns) -> pa.Table:
    """Rows as the table has them once its columns have these types.

    Args:
        rows: of the table, with or without `_rest`.
        learned: columns that are new, or have a type that holds all values of the present one. Whole numbers
            become doubles only if none is rounded.

    Raises:
        ArrowInvalid: a whole number would be rounded.
    """
    arrays = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    for name, column_type in learned.items():
        before = arrays.get(name)
        arrays[name] = repeated(None, column_type, len(rows)) if before is None else before.cast(column_type)
    if REST_COLUMN in arrays:
        texts = arrays[REST_COLUMN].dictionary_encode()
        moved = _Moved(texts.dictionary, learned)
        numbers = texts.indices
        for name, values in moved.columns.items():
            arrays[name] = _filled(arrays[name], values.take(numbers))
        arrays[REST_COLUMN] = moved.rest.take(numbers)
    return pa.table(arrays)


class _Moved:
    """What becomes of texts of `_rest`.

    Attributes:
        columns: values that fit columns now, by column, one for each text.
        rest: what is left of the texts, null for nothing.
    """

    def __init__(self, texts: Array, learned: Columns) -> None:
        self.rest = texts
        self.columns: dict[str, Array] = {}
        left: list[Any] = texts.to_pylist()
        fields = {field_of_column(name): name for name in learned}
        while fields:
            divided = {
                at: (split.text.decode(), split.rest)
                for at, text in enumerate(left)
                if (split := _divided(text, fields.keys())) is not None
            }
            reader = JsonPayload({name: learned[name] for name in fields.values()})
            parsed = reader.parse(pa.array([part.encode() for _, part in divided.values()], pa.binary()))
            if not (beyond := reader.found_columns()):
                break
            # Such a value has more than its column: it stays, whole.
            fields = {field: name for field, name in fields.items() if name not in beyond}
        else:
            return
        ats = np.fromiter(divided, dtype=np.int64)[parsed.rows]
        place = np.full(len(texts), -1)
        place[ats] = np.arange(len(ats))
        numbers = of_numbers(place, place < 0)
        is_rest = REST_COLUMN in parsed.columns.column_names
        rest = parsed.columns.column(REST_COLUMN).to_pylist() if is_rest else [None] * len(ats)
        for at, more in zip(ats.tolist(), rest, strict=True):
            other = divided[at][0]
            other_fields = None if other == "{}" else other
            left[at] = other_fields if more is None else joined_objects(other_fields, more)
        self.rest = pa.array(left, pa.string())
        self.columns = {
            name: parsed.columns.column(name).combine_chunks().take(numbers)
            for name in parsed.columns.column_names
            if name != REST_COLUMN
        }


def _divided(text: str, fields: AbstractSet[str]) -> Any:
    """A text of `_rest` divided into other fields and these; None if it has none of these."""
    named = names_of(text.encode()) & fields
    split = split_fields(text.encode(), named) if named else None
    return None if isinstance(split, str) or split is None or split.rest is None else split


def _filled(values: Array, more: Array) -> Array:
    """Values, each completed by the parts that only the other has."""
    filled: Array = pc.if_else(values.is_valid(), values, more)
    both = np.flatnonzero(pc.and_(values.is_valid(), more.is_valid()).to_numpy(zero_copy_only=False))
    if not len(both):
        return filled
    numbers = of_numbers(both)
    pairs = zip(values.take(numbers).to_pylist(), more.take(numbers).to_pylist(), strict=True)
    merged = pa.array([_merged(one, other) for one, other in pairs], values.type)
    order = np.arange(len(values))
    order[both] = len(values) + np.arange(len(both))
    whole: Array = pa.concat_arrays([filled, merged]).take(of_numbers(order))
    return whole


def _merged(one: Any, other: Any) -> Any:
    if one is None:
        return other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {name: _merged(member, other.get(name)) for name, member in one.items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(item, more) for item, more in zip(one, other, strict=True)]
    return one
