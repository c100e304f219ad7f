"""Columns that decoded values go to: their types, which widen or stay, and what becomes of a misfit. Pure.

Formats whose schemas say the type of each field use this. The fields of all schemas become the columns of one
table, by name. A field whose values do not fit the column that the table has goes to the column `_rest` as
JSON, as of JSON records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, Int64s, null_flags
from mainstem_loader.columns import (
    COLUMNS_MAX,
    REST_COLUMN,
    ColumnError,
    Columns,
    check_name,
    column_of_field,
    field_of_column,
    merge_types,
)

ROW: Final = "\x00row"
"""The column of `conform` with the position of each row's value."""


class SettledColumns:
    """The columns of one task; what one block has settled holds for the next.

    Args:
        fixed: columns and types that stay as they are, though structs may get new members.
    """

    def __init__(self, fixed: Columns) -> None:
        self._fixed = {field_of_column(column): column_type for column, column_type in fixed.items()}
        self._found: dict[str, pa.DataType] = {}
        # Of the fixed fields, those that would have to have doubles for integers to take all values.
        self._wider: dict[str, pa.DataType] = {}

    def found_columns(self) -> Columns:
        """Columns that are not among the fixed ones, or wider."""
        return {column_of_field(field): value_type for field, value_type in self._found.items()}

    def wider_columns(self) -> Columns:
        """Fixed columns, with the doubles in the places of integers that values needed to fit."""
        return {column_of_field(field): value_type for field, value_type in self._wider.items()}

    def conform(self, columns: Mapping[str, Array], rows: Int64s) -> pa.Table:
        """The columns with the types that the table has, and what does not fit as JSON."""
        arrays: dict[str, Array] = {}
        rest: list[dict[str, Any]] | None = None
        for field, array in columns.items():
            if pa.types.is_null(array.type):
                continue
            try:
                column_type = self._settle(field, array.type)
                arrays[column_of_field(field)] = _cast(array, column_type)
            except (ColumnError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                fitted, misfits = self._fit_each(field, array)
                if fitted is not None:
                    arrays[column_of_field(field)] = fitted
                rest = rest if rest is not None else [{} for _ in range(len(rows))]
                for at in misfits:
                    rest[at][field] = array[at].as_py(maps_as_pydicts="strict")
                if misfits:
                    self._note_wider(field, array.type)
        if rest is not None:
            texts = [json_text(fields) if fields else None for fields in rest]
            arrays[REST_COLUMN] = pa.array(texts, pa.string())
        return pa.table({**arrays, ROW: rows})

    def _settle(self, field: str, value_type: pa.DataType) -> pa.DataType:
        """The type of a field's column, which it keeps from now on, or widens to if it may.

        Raises:
            ColumnError: it cannot be a column, or not of this type.
        """
        current_type = self._found.get(field, self._fixed.get(field))
        if current_type == value_type:
            return value_type
        if current_type is None:
            known = {**self._fixed, **self._found}
            if len(known) >= COLUMNS_MAX:
                raise ColumnError(f"there are more than {COLUMNS_MAX} columns")
            check_name(field, known)
            column_type = value_type
        elif field in self._fixed and _promotes(value_type, current_type):
            return current_type
        else:
            column_type = merge_types(field, current_type, value_type, widen=field not in self._fixed)
        if self._fixed.get(field) != column_type:
            self._found[field] = column_type
        return column_type

    def _note_wider(self, field: str, value_type: pa.DataType) -> None:
        current_type = self._wider.get(field, self._fixed.get(field))
        if current_type is None:
            return
        with suppress(ColumnError):
            wider_type = merge_types(field, current_type, value_type, widen=True)
            if wider_type != current_type:
                self._wider[field] = wider_type

    def _fit_each(self, field: str, array: Array) -> tuple[Array | None, list[int]]:
        """The values that fit the field's column one by one, and the positions of the others."""
        current_type = self._found.get(field, self._fixed.get(field))
        misfits: list[int] = []
        if current_type is None or not _promotes(array.type, current_type):
            misfits = np.flatnonzero(~null_flags(array)).tolist()
            return None, misfits
        fitted: list[Any] = []
        for at in range(len(array)):
            try:
                # A slice of maps would be cast with the items of all.
                fitted.append(_cast(array.take(pa.array([at])), current_type)[0].as_py())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                fitted.append(None)
                misfits.append(at)
        return pa.array(fitted, current_type), misfits


def _promotes(value_type: pa.DataType, current_type: pa.DataType) -> bool:
    """Whether values may be read as what the column is: promotions of Avro and Protobuf, value by value."""
    if pa.types.is_map(value_type) and pa.types.is_map(current_type):
        # As a table has it whose maps became ones of doubles.
        is_wider = pa.types.is_integer(value_type.item_type) and pa.types.is_floating(current_type.item_type)
        return is_wider and value_type.key_type == current_type.key_type
    if pa.types.is_integer(value_type):
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        return any(is_kind(current_type) for is_kind in kinds)
    if pa.types.is_floating(value_type):
        # A table that was made of integers keeps them: numbers without a fraction still fit.
        return pa.types.is_floating(current_type) or pa.types.is_integer(current_type)
    if pa.types.is_binary(value_type) or pa.types.is_string(value_type):
        return pa.types.is_string(current_type) or pa.types.is_binary(current_type)
    if pa.types.is_decimal(value_type):
        is_whole = pa.types.is_integer(current_type) and value_type.scale == 0
        return is_whole or pa.types.is_decimal(current_type)
    return False


def _cast(array: Array, column_type: pa.DataType) -> Array:
    """Values as what the column is.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: one of them cannot be that.
    """
    if array.type == column_type:
        return array
    if pa.types.is_floating(array.type) and pa.types.is_integer(column_type):
        numbers = array.drop_null().to_numpy(zero_copy_only=False)
        if np.any((numbers == 0) & np.signbit(numbers)):
            raise pa.ArrowInvalid("no integer is -0.0")
    cast: Array = array.cast(column_type)
    return cast


def json_text(value: Any) -> str:
    """A value as JSON; bytes as in Avro's JSON encoding, a character for each, and numbers that JSON does not
    have as in Protobuf's, as the texts "NaN", "Infinity" and "-Infinity".
    """
    try:
        return json.dumps(value, default=_json_form, allow_nan=False)
    except (ValueError, TypeError):  # the latter for names of other types, such as decimals
        return json.dumps(_with_words(value), default=_json_form)


def _with_words(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case dict():
            return {
                name if isinstance(name, (str, bool)) else str(name): _with_words(member)
                for name, member in value.items()
            }
        case list() | tuple():
            return [_with_words(item) for item in value]
    return value


def _json_form(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
