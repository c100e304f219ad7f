"""Random messages by kio's schemas: bodies as our writer takes them, entities as kio reads and writes them.

The schemas are walked here once more, apart from the codec under test, so that neither hides the other's
mistakes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from mainstem_broker.api.api_table import APIS
from mainstem_broker.protocol.fetch_codec import FIELDS_NOT_READ, FIELDS_NOT_WRITTEN
from mainstem_broker.protocol.wire import Body, Entity

RESPONSES: Final = [
    (key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)
]
REQUESTS: Final = RESPONSES
TIMESTAMP_MS_MAX: Final = 4_102_444_800_000
"""The year 2100: kio's datetimes are floats of seconds, which are exact enough up to there."""

_INTEGERS: Final = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
}
_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_DURATIONS: Final = ("timedelta_i32", "timedelta_i64")
_MILLISECONDS: Final = st.integers(-(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema says of a field: `inner` is the type of one value, without array and null around it."""

    inner: Any
    repeated: bool
    optional: bool
    kafka_type: str | None
    tag: int | None

    @classmethod
    @cache  # by the field itself: it is asked for each value of each example
    def of(cls, field: Field[Any]) -> Shape:
        kind: Any = field.type
        optional = NoneType in get_args(kind)
        if optional:
            (kind,) = (arm for arm in get_args(kind) if arm is not NoneType)
        repeated = get_origin(kind) is tuple
        inner = get_args(kind)[0] if repeated else kind
        return cls(inner, repeated, optional, field.metadata.get("kafka_type"), field.metadata.get("tag"))

    @property
    def is_struct(self) -> bool:
        return is_dataclass(self.inner)


# Tests ask for the strategy of a schema in each example. It takes longer to make one than to draw from it.
@cache
def bodies(schema: type) -> st.SearchStrategy[Body]:
    """Bodies that our writer must take: fields with a default are there or not, others always.

    A field that the schema does not know comes along, as with a handler that serves later versions too.
    """
    required: dict[str, st.SearchStrategy[Any]] = {"no_field_of_this_version": st.just(object())}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(schema):
        if field.name in FIELDS_NOT_WRITTEN:
            continue
        shape = Shape.of(field)
        may_lack = field.default is not MISSING or shape.repeated or shape.optional
        (optional if may_lack or shape.tag is not None else required)[field.name] = _body_values(shape)
    return st.fixed_dictionaries(required, optional=optional)


def _body_values(shape: Shape) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    nullable = shape.optional and shape.tag is None
    if shape.is_struct:
        one = bodies(shape.inner)
    elif shape.kafka_type in _INTEGERS:
        one = _INTEGERS[shape.kafka_type]
    elif shape.kafka_type == "error_code":
        one = st.sampled_from([code.value for code in ErrorCode])
    elif shape.kafka_type in _DURATIONS:
        one = _MILLISECONDS
    elif shape.kafka_type == "datetime_i64":
        # -1 is null. kio refuses it where the schema has no null (the start time of DescribeTransactions).
        one, nullable = st.integers(-1 if shape.optional else 0, TIMESTAMP_MS_MAX), False
    else:
        one = _plain_values(shape.kafka_type)
    if shape.repeated:
        one = st.lists(one, max_size=3)
    return st.none() | one if nullable else one


def _plain_values(kafka_type: str | None) -> st.SearchStrategy[Any]:
    if kafka_type == "string":
        return _TEXT
    if kafka_type == "bool":
        return st.booleans()
    if kafka_type == "float64":
        return st.floats(allow_nan=False)  # which equals nothing, not even itself
    if kafka_type == "uuid":
        return st.uuids()
    if kafka_type in ("bytes", "records"):
        return st.binary(max_size=300)
    raise AssertionError(f"no strategy for {kafka_type}")


def expected_entity(schema: type, body: Body) -> Entity:
    """What kio must read of a response that was written from `body`."""
    return schema(**{field.name: _expected_value(field, body) for field in fields(schema)})


def _expected_value(field: Field[Any], body: Body) -> Any:
    shape = Shape.of(field)
    if field.name not in body:
        return default_of(field)
    value = body[field.name]
    if shape.repeated:
        return None if value is None else tuple(_expected_one(shape, item) for item in value)
    return _expected_one(shape, value)


def _expected_one(shape: Shape, value: Any) -> Any:
    if value is None:
        return None
    if shape.is_struct:
        return expected_entity(shape.inner, value)
    match shape.kafka_type:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else datetime.fromtimestamp(value / 1000, UTC)
        case "uuid":
            return value if value.int else None
    return value


def default_of(field: Field[Any]) -> Any:
    """The value of a field that is not there: the schema's default, or null, none, zero, empty."""
    shape = Shape.of(field)
    if field.default is not MISSING:
        return field.default
    if shape.optional:
        return None
    if shape.repeated:
        return ()
    if shape.is_struct:
        return shape.inner(**{nested.name: default_of(nested) for nested in fields(shape.inner)})
    plain = {"string": "", "bytes": b"", "bool": False, **dict.fromkeys(_DURATIONS, timedelta(0))}
    return plain.get(shape.kafka_type or "", 0)


@cache
def entities(schema: type) -> st.SearchStrategy[Entity]:
    """Requests as a client's library makes them: every field set."""
    return st.builds(schema, **{field.name: _entity_values(Shape.of(field)) for field in fields(schema)})


def _entity_values(shape: Shape) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    if shape.is_struct:
        one = entities(shape.inner)
    elif shape.kafka_type in _INTEGERS:
        one = _INTEGERS[shape.kafka_type].map(shape.inner)
    elif shape.kafka_type in _DURATIONS:
        one = _MILLISECONDS.map(lambda value: shape.inner.parse(timedelta(milliseconds=value)))
    else:
        one = _plain_values(shape.kafka_type).map(shape.inner if shape.kafka_type == "string" else _same)
        if shape.kafka_type == "uuid":
            one = one.map(lambda value: value if value.int else None)
    if shape.repeated:
        one = st.lists(one, max_size=3).map(tuple)
    return st.none() | one if shape.optional else one


def _same(value: Any) -> Any:
    return value


def lifted(source: Entity, model: type) -> Entity:
    """`source` as an entity of `model`: known fields kept, others and those never read at their default.

    An array that must be there is empty where it is null, as clients send it.
    """
    values = {}
    for field in fields(model):
        shape = Shape.of(field)
        if not hasattr(source, field.name) or field.name in FIELDS_NOT_READ:
            values[field.name] = default_of(field)
            continue
        value = getattr(source, field.name)
        if value is None and shape.repeated and not shape.optional:
            value = ()
        elif shape.is_struct and value is not None:
            value = (
                tuple(lifted(item, shape.inner) for item in value)
                if shape.repeated
                else lifted(value, shape.inner)
            )
        elif isinstance(value, timedelta) and shape.kafka_type == "timedelta_i64":
            value = value // timedelta(milliseconds=1)  # as requests are read
        values[field.name] = value
    return model(**values)


def smallest(schema: Any) -> Entity:
    """A request with one item in every array and zeros and empty texts in them."""
    return schema(**{field.name: _smallest_value(Shape.of(field)) for field in fields(schema)})


def _smallest_value(shape: Shape) -> Any:
    value: Any
    if shape.is_struct:
        value = smallest(shape.inner)
    elif shape.kafka_type in _DURATIONS:
        value = shape.inner.parse(timedelta(0))
    elif shape.kafka_type == "uuid":
        value = None
    else:
        value = {"string": "", "bytes": b"", "records": b"", "bool": False}.get(shape.kafka_type or "", 0)
    return (value,) if shape.repeated else value


def missing_fields(entity: Entity, model: type, path: str = "") -> list[str]:
    """Paths of the model's fields that an entity, of whatever version, does not have."""
    missing = []
    for field in fields(model):
        shape = Shape.of(field)
        if not hasattr(entity, field.name) and field.name not in FIELDS_NOT_READ:
            missing.append(path + field.name)
        elif shape.is_struct:
            value = getattr(entity, field.name, None)
            for item in (value or ()) if shape.repeated or value is None else (value,):
                missing += missing_fields(item, shape.inner, f"{path}{field.name}.")
    return missing


def encode_request(entity: Entity, correlation_id: int, client_id: str | None) -> bytes:
    """The frame of a request without its size prefix, written by kio."""
    header_schema = entity.__header_schema__
    header = header_schema(
        request_api_key=entity.__api_key__,
        request_api_version=entity.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return written(header) + written(entity)


def written(entity: Entity) -> bytes:
    """An entity's bytes, by kio."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def unknown_fields(key: int, body: Body) -> list[str]:
    """Paths of fields of a response body that no version of its schema knows, which are typos, or that
    are never written.
    """
    api = APIS[key]
    schemas = [load_response_schema(key, version) for version in range(api.min_version, api.max_version + 1)]
    return sorted(_unknown(body, schemas, ""))


def _unknown(body: Body, schemas: list[type], path: str) -> Iterator[str]:
    for name, value in body.items():
        if name in FIELDS_NOT_WRITTEN:
            yield path + name
            continue
        expected = [field for schema in schemas for field in fields(schema) if field.name == name]
        if not expected:
            yield path + name
            continue
        inner = [shape.inner for shape in map(Shape.of, expected) if shape.is_struct]
        if inner and value is not None:
            for item in [value] if isinstance(value, dict) else value:
                yield from _unknown(item, inner, f"{path}{name}.")


def request_schema(key: int, version: int) -> Any:
    return load_request_schema(key, version)


def response_schema(key: int, version: int) -> Any:
    return load_response_schema(key, version)
