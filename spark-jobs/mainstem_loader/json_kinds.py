"""Why a JSON value does not fit its column, found record by record.

Arrow's reader stops at the first value that does not fit and may not say which. Where many do not, asking it
about ever smaller blocks takes long; parsing each record once in Python and comparing kinds is some twenty
times faster. The verdicts here are sure but not complete: what passes is still for Arrow's reader to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import orjson
import pyarrow as pa

from mainstem_loader.columns import ColumnError, check_name, members_of, name_of_type

# Returns what the value is, if that is not what the column holds.
Misfit = Callable[[object], str | None]

_NUMBER_WORDS: Final = (b"NaN", b"Infinity")


class KindCheck:
    """Compares records with columns.

    Args:
        fixed: fields whose type stays.
        found: fields whose type may still widen, so any number will do for a number.
    """

    def __init__(self, fixed: Mapping[str, pa.DataType], found: Mapping[str, pa.DataType]) -> None:
        self._types = {**fixed, **found}
        self._misfit_of = {
            field: _misfit(column_type, widens=field not in fixed)
            for field, column_type in self._types.items()
        }

    def reason_against(self, text: bytes) -> str | None:
        """Why the record cannot be loaded, None if nothing speaks against it."""
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            # Arrow's reader takes these for numbers, orjson does not.
            return None if any(word in text for word in _NUMBER_WORDS) else f"not JSON: {error}"
        for field, value in record.items():
            misfit = self._misfit_of.get(field)
            if misfit is None:
                try:
                    check_name(field, self._types)
                except ColumnError as error:
                    return str(error)
            elif value is not None and (kind := misfit(value)) is not None:
                return f"field {field!r} is {kind} where the column is {name_of_type(self._types[field])}"
        return None


def _misfit(column_type: pa.DataType, widens: bool) -> Misfit:
    if pa.types.is_boolean(column_type):
        return lambda value: None if isinstance(value, bool) else _kind(value)
    if pa.types.is_integer(column_type) and not widens:
        bound = 1 << (column_type.bit_width - 1)
        return lambda value: None if type(value) is int and -bound <= value < bound else _kind(value)
    if pa.types.is_integer(column_type) or pa.types.is_floating(column_type):
        return lambda value: None if type(value) in (int, float) else _kind(value)
    if pa.types.is_decimal(column_type):
        return lambda value: None if type(value) in (int, float, str) else _kind(value)
    if pa.types.is_list(column_type):
        item_misfit = _misfit(column_type.value_type, widens)
        return lambda value: _misfit_of_list(value, item_misfit)
    if pa.types.is_struct(column_type):
        member_misfits = {name: _misfit(member, widens) for name, member in members_of(column_type).items()}
        return lambda value: _misfit_of_struct(value, member_misfits)
    return lambda value: None if isinstance(value, str) else _kind(value)


def _misfit_of_list(value: object, item_misfit: Misfit) -> str | None:
    if not isinstance(value, list):
        return _kind(value)
    return next(
        (f"an array with {kind}" for item in value if item is not None and (kind := item_misfit(item))), None
    )


def _misfit_of_struct(value: object, member_misfits: Mapping[str, Misfit]) -> str | None:
    if not isinstance(value, dict):
        return _kind(value)
    for name, member in value.items():
        misfit = member_misfits.get(name)
        if misfit is not None and member is not None and (kind := misfit(member)) is not None:
            return f"an object whose {name!r} is {kind}"
    return None


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int():
            return "an integer" if -(1 << 31) <= value < 1 << 31 else "a large integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
