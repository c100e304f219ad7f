"""Bytes to requests and responses to bytes, for every API key and version that kio has a schema for.

Requests are read by kio's native decoder, or by `by_hand.py`, and handed to handlers as entities of one
version per API, its *model* version, whatever version the client spoke: fields that the client's version
lacks have the schema's defaults. Responses are plain dicts under the schema's field names, written by schema
or by hand: a field that the client's version lacks is left out, so one handler serves all versions. Durations
and times are int milliseconds, -1 for none; error codes are ints; `records` may be a slice of a file, which
stays one, so that the connection can send it from the page cache with `os.sendfile` (R3).

Frames and headers: Kafka protocol guide, "Protocol primitive types"; flexible versions and tagged fields:
KIP-482; the response header of ApiVersions is always version 0: KIP-511.

Must not live here: what a request means, or anything that reads records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol.bounds import walk_tagged_fields, walker
from mainstem_broker.protocol.by_hand import READERS, REQUEST_WRITERS, RESPONSE_READERS, RESPONSE_WRITERS
from mainstem_broker.protocol.schema import FIXED, default_of, is_struct, shape_of
from mainstem_broker.protocol.wire import (
    NULL_UUID,
    Body,
    Entity,
    Frame,
    Read,
    Sendable,
    Write,
    encode_compact_string,
    encode_unsigned_varint,
)

API_VERSIONS_KEY: Final = 18


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


_HEADER: Final = struct.Struct(">hhih")


def decode_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Read the part of a request header that versions 1 and 2 share.

    Returns the header and the position just after its client id. Tagged fields, which only flexible
    versions have, come next; `decode_request` skips them.

    Raises:
        InvalidRequestBytes: the frame is too short or the client id is no UTF-8.
    """
    try:
        api_key, api_version, correlation_id, client_length = _HEADER.unpack_from(frame)
        end = _HEADER.size + max(client_length, 0)
        if client_length < -1 or end > len(frame):
            raise InvalidRequestBytes("The client id of a request header runs past the end of its frame.")
        client_id = None if client_length < 0 else str(frame[_HEADER.size : end], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidRequestBytes("The frame holds no request header.") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), end


def decode_request(header: RequestHeader, frame: memoryview, position: int, model_version: int) -> Entity:
    """Read the request after its header, as an entity of `model_version`.

    Raises:
        InvalidRequestBytes: the body does not follow its schema. Bytes after its end are no error: Kafka
            ignores them, and librdkafka sends one too many with Metadata 12 for all topics.
    """
    read, flexible, lift = _request_reader(header.api_key, header.api_version, model_version)
    try:
        if flexible:
            position = walk_tagged_fields(frame, position)
        entity, _ = read(frame, position)
    except Exception as error:  # kio raises many kinds for bytes that do not fit
        raise InvalidRequestBytes(
            f"The body of API key {header.api_key} version {header.api_version} cannot be read: {error}"
        ) from error
    return entity if lift is None else lift(entity)


@cache
def _request_reader(
    api_key: int, version: int, model_version: int
) -> tuple[Read, bool, Callable[[Entity], Entity] | None]:
    schema = load_request_schema(api_key, version)
    by_hand = READERS.get((api_key, version))
    if by_hand is not None:
        return by_hand, schema.__flexible__, None
    model = load_request_schema(api_key, model_version)
    lift = None if _same_fields(schema, model) else _lifter(schema, model)
    walk = walker(schema)
    read: Read = entity_reader(schema)

    def walk_and_read(frame: memoryview, position: int) -> tuple[Entity, int]:
        walk(frame, position)
        return read(frame, position)

    return walk_and_read, schema.__flexible__, lift


# --- Lifting a request to its model version ---


def _lifter(source: type, model: type) -> Callable[[Entity], Entity]:
    """A function that makes a `model` of a `source`: same names kept, missing ones defaulted."""
    known = {field.name: field for field in fields(source)}
    copied: list[tuple[str, Callable[[Any], Any]]] = []
    constants: dict[str, Any] = {}
    for field in fields(model):
        if field.name in known:
            copied.append((field.name, _value_lifter(known[field.name], field)))
        else:
            constants[field.name] = default_of(field)

    def lift(entity: Entity) -> Entity:
        return model(**constants, **{name: convert(getattr(entity, name)) for name, convert in copied})

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


# --- Writing a response ---


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> Frame:
    """The whole frame of a response: size prefix, header, body.

    Raises:
        KeyError: `body` lacks a field that has no default.
        TypeError, struct.error: a value is of a wrong type or out of its range.
    """
    frame: Frame = []
    flexible_header, write = _response_writer(api_key, version)
    write(frame, body)
    size = 0
    for part in frame:
        size += len(part) if isinstance(part, bytes) else part.size_bytes
    if flexible_header:
        head = _SIZE_AND_FLEXIBLE_HEADER.pack(size + 5, correlation_id, 0)
    else:
        head = _SIZE_AND_HEADER.pack(size + 4, correlation_id)
    first = frame[0]
    assert isinstance(first, bytes)  # no response begins with a records field
    frame[0] = head + first
    return frame


# --- The other side: what one broker asks another ---


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    """The whole frame of a request. Raises as `encode_response`."""
    flexible, write = _request_writer(api_key, version)
    parts: Frame = []
    write(parts, body)
    name = client_id.encode()
    header = _HEADER.pack(api_key, version, correlation_id, len(name)) + name + (b"\0" if flexible else b"")
    rest = b"".join(part for part in parts if isinstance(part, bytes))
    return _INT32.pack(len(header) + len(rest)) + header + rest


@cache
def _request_writer(api_key: int, version: int) -> tuple[bool, Write]:
    schema = load_request_schema(api_key, version)
    return schema.__flexible__, REQUEST_WRITERS.get((api_key, version)) or _struct_writer(schema)


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Entity]:
    """(correlation id, the response), from a frame without its size.

    Raises:
        InvalidRequestBytes: the frame does not follow its schema.
    """
    read, flexible = _response_reader(api_key, version)
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        position = walk_tagged_fields(frame, 4) if flexible else 4
        return correlation_id, read(frame, position)[0]
    except Exception as error:  # as in decode_request
        raise InvalidRequestBytes(f"A response of API key {api_key} cannot be read: {error}") from error


@cache
def _response_reader(api_key: int, version: int) -> tuple[Read, bool]:
    schema = load_response_schema(api_key, version)
    read = RESPONSE_READERS.get((api_key, version)) or entity_reader(schema)
    return read, schema.__flexible__ and api_key != API_VERSIONS_KEY


_SIZE_AND_HEADER: Final = struct.Struct(">ii")
_SIZE_AND_FLEXIBLE_HEADER: Final = struct.Struct(">iib")


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
def _response_writer(api_key: int, version: int) -> tuple[bool, Write]:
    schema = load_response_schema(api_key, version)
    write = RESPONSE_WRITERS.get((api_key, version)) or _joining(_struct_writer(schema))
    return schema.__flexible__ and api_key != API_VERSIONS_KEY, write


@cache
def _struct_writer(schema: type) -> Write:
    """A writer of dicts as `schema`. Neighbouring fields of fixed width are packed by one call."""
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]  # every kio schema has it
    steps: list[Write] = []
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
                steps.append(_fixed_run_writer(run))
                run = []
            steps.append(_field_writer(field, flexible))
    if run:
        steps.append(_fixed_run_writer(run))
    if flexible:
        steps.append(_tagged_fields_writer(sorted(tagged, key=lambda item: item[0])))

    def write(out: Frame, body: Body) -> None:
        for step in steps:
            step(out, body)

    return steps[0] if len(steps) == 1 else write


def _is_fixed(field: Field[Any]) -> bool:
    inner, repeated, _ = shape_of(field)
    return not repeated and not is_struct(inner) and field.metadata.get("kafka_type") in FIXED


_REQUIRED: Final = object()


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


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
