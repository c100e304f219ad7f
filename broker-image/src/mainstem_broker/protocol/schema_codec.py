"""Messages read and written by kio's schemas, for every API key and version that kio has a schema for.

Requests are read by kio's native decoder, after `length_checks.py`, and lifted to the model version of their
API. Responses, and requests to other brokers, are written from plain dicts by writers that are built once per
schema.

What a request means, and anything that reads records, must not be here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from operator import attrgetter
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import InvalidUnicode

from mainstem_broker.protocol.kio_schemas import FIXED, default_of, is_struct, shape_of, with_plain_durations
from mainstem_broker.protocol.length_checks import Edit, walker
from mainstem_broker.protocol.primitives import encode_compact_string, encode_unsigned_varint
from mainstem_broker.protocol.wire import NULL_UUID, Body, Entity, Frame, Read, Sendable, Write

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_REQUIRED: Final = object()

WriteInSteps = Callable[[Frame, Any], Iterator[None]]
"""As `Write`, in the steps of a generator."""


def is_flexible(api_key: int, version: int) -> bool:
    """Whether the messages of this version have compact lengths and tagged fields (KIP-482)."""
    flexible: bool = load_request_schema(api_key, version).__flexible__
    return flexible


def request_reader(api_key: int, version: int) -> Read:
    """A reader of requests, as entities of this version, with durations of 64 bits as ints of milliseconds.

    It raises many kinds of errors for invalid bytes.
    """
    schema = load_request_schema(api_key, version)
    walk = walker(schema)
    read: Read = entity_reader(with_plain_durations(schema))

    def walk_and_read(frame: memoryview, position: int) -> tuple[Entity, int]:
        end, edits = walk(frame, position)
        try:
            if not edits:
                return read(frame, position)
            return read(_edited(frame, edits), position)[0], end
        except InvalidUnicode:
            end, edits = walker(schema, repairs_texts=True)(frame, position)
            return read(_edited(frame, edits), position)[0], end

    return walk_and_read


def _edited(frame: memoryview, edits: Sequence[Edit]) -> memoryview:
    """A copy of the frame; `edits` are in its order."""
    parts: list[bytes | memoryview] = []
    position = 0
    for start, end, content in edits:
        parts += (frame[position:start], content)
        position = end
    parts.append(frame[position:])
    return memoryview(b"".join(parts))


def response_reader(api_key: int, version: int) -> Read:
    """A reader of another broker's responses, which are trusted to be well formed."""
    read: Read = entity_reader(load_response_schema(api_key, version))
    return read


def request_writer(api_key: int, version: int) -> Write:
    """A writer of requests to other brokers, from dicts."""
    return _struct_writer(load_request_schema(api_key, version))


def response_writer(api_key: int, version: int) -> Write:
    """A writer of responses, from dicts; it joins neighbouring bytes to one run."""
    return _joining(_struct_writer(load_response_schema(api_key, version)))


def response_writer_in_steps(api_key: int, version: int) -> WriteInSteps:
    """A writer of large responses, from dicts without slices of files, that pauses between elements."""
    return _struct_writer_in_steps(load_response_schema(api_key, version))


def request_lift(api_key: int, version: int, model_version: int) -> Callable[[Entity], Entity] | None:
    """A function from entities of `version` to entities of `model_version`; None if they have the same
    fields."""
    schema, model = load_request_schema(api_key, version), load_request_schema(api_key, model_version)
    return None if _same_fields(schema, model) else _lifter(schema, model)


def failed_response(api_key: int, version: int, error_code: int, error_message: str | None) -> Body:
    """A response that contains an error for the whole, where its version has a field for one, and nothing
    else: no items, and the defaults of the schema."""
    body: Body = {}
    for field in fields(load_response_schema(api_key, version)):
        if field.name == "error_code":
            body[field.name] = error_code
        elif field.name == "error_message":
            body[field.name] = error_message
        elif _response_default(field) is _REQUIRED:
            body[field.name] = 0 if field.metadata.get("kafka_type") in FIXED else default_of(field)
    return body


# --- Lifting a request to its model version ---


def _lifter(source: type, model: type) -> Callable[[Entity], Entity]:
    """A function that makes a `model` of a `source`: same names kept, missing ones defaulted.

    The fields are set one by one, past the constructor, which only does that and costs three times as much: a
    request may have tens of thousands of elements.
    """
    source_fields = {field.name: field for field in fields(source)}
    copied: list[tuple[Callable[[Entity, Any], None], Callable[[Entity], Any], Callable[[Any], Any]]] = []
    constants: list[tuple[Callable[[Entity, Any], None], Any]] = []
    for field in fields(model):
        slot = getattr(model, field.name)
        if field.name in source_fields:
            convert = _value_lifter(source_fields[field.name], field)
            copied.append((slot.__set__, attrgetter(field.name), convert))
        else:
            constants.append((slot.__set__, default_of(field)))
    plain = [(set_value, get_value) for set_value, get_value, convert in copied if convert is _same]
    converted = [item for item in copied if item[2] is not _same]

    def lift(entity: Entity) -> Entity:
        lifted: Entity = object.__new__(model)
        for set_value, get_value in plain:
            set_value(lifted, get_value(entity))
        for set_value, get_value, convert in converted:
            set_value(lifted, convert(get_value(entity)))
        for set_value, constant in constants:
            set_value(lifted, constant)
        return lifted

    return lift


def _same_fields(source: type, model: type) -> bool:
    """Whether an entity of `source` serves as one of `model`, as between most neighbouring versions."""
    if [field.name for field in fields(source)] != [field.name for field in fields(model)]:
        return False
    pairs = [
        (shape_of(one)[0], shape_of(other)[0])
        for one, other in zip(fields(source), fields(model), strict=True)
    ]
    return all(_same_fields(one, other) for one, other in pairs if is_struct(one))


def _value_lifter(source: Field[Any], model: Field[Any]) -> Callable[[Any], Any]:
    source_inner, repeated, _ = shape_of(source)
    model_inner, _, _ = shape_of(model)
    if not (is_struct(source_inner) and is_struct(model_inner)):
        return _same
    lift = _lifter(source_inner, model_inner)
    if repeated:
        return lambda items: None if items is None else tuple(lift(item) for item in items)
    return lambda item: None if item is None else lift(item)


def _same(value: Any) -> Any:
    return value


# --- Writing ---


def _joining(write: Write) -> Write:
    """The same, with neighbouring bytes joined to one run; slices of files are kept apart."""

    def write_joined(out: Frame, body: Body) -> None:
        parts: Frame = []
        write(parts, body)
        run: list[bytes] = []
        for part in parts:
            if isinstance(part, bytes):
                run.append(part)
            else:
                out.append(b"".join(run))
                out.append(part)
                run = []
        if run:
            out.append(b"".join(run))

    return write_joined


@cache
def _struct_writer(schema: type) -> Write:
    """A writer of dicts as `schema`. Neighbouring fields of fixed width are packed by one call."""
    steps = _field_writers(schema)

    def write(out: Frame, body: Body) -> None:
        for step in steps:
            step(out, body)

    return steps[0] if len(steps) == 1 else write


@cache
def _struct_writer_in_steps(schema: type) -> WriteInSteps:
    """As `_struct_writer`, with a pause after each element of an array of structs."""
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    arrays = {field.name: field for field in fields(schema) if _is_array_of_structs(field)}
    steps: list[Write | WriteInSteps] = []
    for name, step in _named_field_writers(schema):
        steps.append(step if name not in arrays else _array_writer_in_steps(arrays[name], flexible))

    def write(out: Frame, body: Body) -> Iterator[None]:
        for step in steps:
            pauses = step(out, body)
            if pauses is not None:
                yield from pauses

    return write


def _array_writer_in_steps(field: Field[Any], flexible: bool) -> WriteInSteps:
    name, inner = field.name, shape_of(field)[0]
    encode_count = _compact_count if flexible else _legacy_count
    has_arrays = any(map(_is_array_of_structs, fields(inner)))
    write_one = _struct_writer(inner)
    write_one_in_steps = _struct_writer_in_steps(inner)

    def write(out: Frame, body: Body) -> Iterator[None]:
        elements = body.get(name, ())
        out.append(encode_count(elements))
        for element in elements or ():
            if has_arrays:
                yield from write_one_in_steps(out, element)
            else:
                write_one(out, element)
            yield

    return write


def _is_array_of_structs(field: Field[Any]) -> bool:
    inner, repeated, _ = shape_of(field)
    return repeated and is_struct(inner) and field.metadata.get("tag") is None


def _field_writers(schema: type) -> list[Write]:
    return [step for _, step in _named_field_writers(schema)]


def _named_field_writers(schema: type) -> list[tuple[str, Write]]:
    """What writes the fields of a schema, in their order, each with the name of its field; what writes
    several has none."""
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    steps: list[tuple[str, Write]] = []
    run: list[Field[Any]] = []
    tagged: list[tuple[int, str, Write]] = []
    for field in fields(schema):
        tag = field.metadata.get("tag")
        if tag is not None:
            tagged.append((tag, field.name, _value_writer(field, flexible, tagged=True)))
        elif _is_fixed(field):
            run.append(field)
        else:
            if run:
                steps.append(("", _fixed_run_writer(run)))
                run = []
            steps.append((field.name, _field_writer(field, flexible)))
    if run:
        steps.append(("", _fixed_run_writer(run)))
    if flexible:
        steps.append(("", _tagged_fields_writer(sorted(tagged, key=lambda item: item[0]))))
    return steps


def _is_fixed(field: Field[Any]) -> bool:
    inner, repeated, _ = shape_of(field)
    return not repeated and not is_struct(inner) and field.metadata.get("kafka_type") in FIXED


def _response_default(field: Field[Any]) -> Any:
    """As `default_of`, but a scalar without one is `_REQUIRED`: leaving it out is a mistake."""
    _, repeated, optional = shape_of(field)
    if field.default is MISSING and not repeated and not optional:
        return _REQUIRED
    default = default_of(field)
    if default is None and _is_fixed(field):
        return -1  # no time is -1 on the wire
    return int(default.total_seconds() * 1000) if hasattr(default, "total_seconds") else default


def _fixed_run_writer(run: Sequence[Field[Any]]) -> Write:
    pack = struct.Struct(">" + "".join(FIXED[field.metadata["kafka_type"]] for field in run)).pack
    names = tuple(field.name for field in run)
    defaults = {
        field.name: default for field in run if (default := _response_default(field)) is not _REQUIRED
    }
    if not defaults:
        return lambda out, body: out.append(pack(*[body[name] for name in names]))

    def write(out: Frame, body: Body) -> None:
        out.append(pack(*[body[name] if name in body else defaults[name] for name in names]))

    return write


def _field_writer(field: Field[Any], flexible: bool) -> Write:
    name, default = field.name, _response_default(field)
    write_value = _value_writer(field, flexible, tagged=False)
    if default is _REQUIRED:
        return lambda out, body: write_value(out, body[name])
    return lambda out, body: write_value(out, body.get(name, default))


def _tagged_fields_writer(tagged: Sequence[tuple[int, str, Write]]) -> Write:
    """Only tagged fields that the body has are written; absence is their default (KIP-482)."""
    if not tagged:
        return lambda out, _body: out.append(b"\0")

    def write(out: Frame, body: Body) -> None:
        present = [item for item in tagged if item[1] in body]
        out.append(encode_unsigned_varint(len(present)))
        for tag, name, write_value in present:
            value: Frame = []
            write_value(value, body[name])
            encoded = b"".join(part for part in value if isinstance(part, bytes))
            out.append(encode_unsigned_varint(tag) + encode_unsigned_varint(len(encoded)) + encoded)

    return write


def _value_writer(field: Field[Any], flexible: bool, *, tagged: bool) -> Write:
    inner, repeated, optional = shape_of(field)
    if is_struct(inner):
        write_one = _struct_writer(inner)
        if not repeated and optional and not tagged:
            return _nullable_struct_writer(write_one)
    else:
        write_one = _scalar_writer(field.metadata["kafka_type"], flexible)
    return _array_writer(write_one, flexible) if repeated else write_one


def _nullable_struct_writer(write_one: Write) -> Write:
    """A nullable struct is preceded by 1, or is just -1 (KIP-893)."""

    def write(out: Frame, value: Body | None) -> None:
        if value is None:
            out.append(b"\xff")
        else:
            out.append(b"\x01")
            write_one(out, value)

    return write


def _array_writer(write_one: Write, flexible: bool) -> Write:
    encode_count = _compact_count if flexible else _legacy_count

    def write(out: Frame, items: Sequence[Any] | None) -> None:
        out.append(encode_count(items))
        for item in items or ():
            write_one(out, item)

    return write


def _compact_count(items: Sequence[Any] | None) -> bytes:
    return encode_unsigned_varint(0 if items is None else len(items) + 1)


def _legacy_count(items: Sequence[Any] | None) -> bytes:
    return _INT32.pack(-1 if items is None else len(items))


def _scalar_writer(kind: str, flexible: bool) -> Write:
    if kind in FIXED:
        pack = struct.Struct(">" + FIXED[kind]).pack
        return lambda out, value: out.append(pack(value))
    if kind == "uuid":
        return lambda out, value: out.append((value or NULL_UUID).bytes)
    if kind == "string":
        return _write_compact_string if flexible else _write_legacy_string
    if kind in ("bytes", "records"):
        return _write_compact_bytes if flexible else _write_legacy_bytes
    raise TypeError(f"No writer for the protocol type {kind}.")


def _write_compact_string(out: Frame, value: str | None) -> None:
    out.append(encode_compact_string(value))


def _write_legacy_string(out: Frame, value: str | None) -> None:
    if value is None:
        out.append(b"\xff\xff")
    else:
        encoded = value.encode()
        out.append(_INT16.pack(len(encoded)) + encoded)


def _write_compact_bytes(out: Frame, value: bytes | Sendable | None) -> None:
    if value is None:
        out.append(b"\0")
    else:
        size = len(value) if isinstance(value, bytes) else value.size_bytes
        out.append(encode_unsigned_varint(size + 1))
        out.append(value)


def _write_legacy_bytes(out: Frame, value: bytes | Sendable | None) -> None:
    if value is None:
        out.append(b"\xff\xff\xff\xff")
    else:
        size = len(value) if isinstance(value, bytes) else value.size_bytes
        out.append(_INT32.pack(size))
        out.append(value)
