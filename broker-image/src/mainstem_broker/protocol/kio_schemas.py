"""Reading kio's schemas: what a field is, how wide it is, what it is when it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from types import NoneType
from typing import Any, Final, get_args, get_origin

FIXED: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""Types of fixed width, with their letter in the `struct` module."""

_BYTES_OF_LETTER: Final = {"b": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8}
FIXED_BYTES: Final[Mapping[str, int]] = {
    **{kind: _BYTES_OF_LETTER[letter] for kind, letter in FIXED.items()},
    "uuid": 16,
}

_IMPLICIT_DEFAULTS: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False}


def with_plain_durations(schema: type) -> type:
    """A schema with durations of 64 bits as ints of milliseconds; the same one if it has none.

    kio reads them as timedeltas, which end at 86,399,999,999,999,999 ms, and clients may send more. Only the
    fields of the schema itself are looked at, for no request has one in its elements.
    """
    if not any(one.metadata.get("kafka_type") == "timedelta_i64" for one in fields(schema)):
        return schema
    plain = [
        (one.name, int, field(metadata={"kafka_type": "int64"}))
        if one.metadata.get("kafka_type") == "timedelta_i64"
        else (one.name, one.type, field(metadata=one.metadata))
        for one in fields(schema)
    ]
    about = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")
    constants = {name: getattr(schema, name) for name in about}
    return make_dataclass(schema.__name__, plain, namespace=constants, frozen=True, slots=True, kw_only=True)


def is_struct(kind: Any) -> bool:
    return is_dataclass(kind)


def shape_of(field: Field[Any]) -> tuple[Any, bool, bool]:
    """(the element or plain type, whether it is an array, whether null is allowed)."""
    kind: Any = field.type
    optional = NoneType in get_args(kind)
    if optional:
        kind = next(arm for arm in get_args(kind) if arm is not NoneType)
    if get_origin(kind) is tuple:
        return get_args(kind)[0], True, optional
    return kind, False, optional


def default_of(field: Field[Any]) -> Any:
    """The schema's default of `field`; without one, arrays are empty and nullable fields null."""
    if field.default is not MISSING:
        return field.default
    inner, repeated, optional = shape_of(field)
    if optional:
        return None
    if repeated:
        return ()
    if is_struct(inner):
        return inner(**{nested.name: default_of(nested) for nested in fields(inner)})
    return _IMPLICIT_DEFAULTS.get(field.metadata["kafka_type"], 0)
