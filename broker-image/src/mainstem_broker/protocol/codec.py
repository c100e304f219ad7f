"""Bytes to requests and responses to bytes, for every API key and version that is served.

Chooses the codec of a message: `produce_codec.py` and `fetch_codec.py` for the versions of current clients,
`schema_codec.py` for everything else. Frames and headers are read and written here.

Handlers get requests as entities of one version per API, its *model* version, whatever version the client
spoke: fields that the client's version does not have get the schema's defaults. They return responses as
plain dicts under the schema's field names: a field that the client's version does not have is left out, so
one handler serves all versions. Durations and times are int milliseconds, -1 for none; error codes are ints;
`records` may be a slice of a file, which stays one, so that the connection can send it from the page cache
with `os.sendfile` (R3).

Frames and headers: Kafka protocol guide, "Protocol primitive types"; flexible versions and tagged fields:
KIP-482; the response header of ApiVersions is always version 0: KIP-511.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Final, NamedTuple

from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.protocol import fetch_codec, produce_codec, schema_codec
from mainstem_broker.protocol.primitives import walk_tagged_fields
from mainstem_broker.protocol.wire import FETCH_KEY, PRODUCE_KEY, Body, Entity, Frame, Read, Write

API_VERSIONS_KEY: Final = 18

REQUEST_READERS: Final[Mapping[tuple[int, int], Read]] = {
    **{(PRODUCE_KEY, version): produce_codec.read_produce_request for version in produce_codec.VERSIONS},
    **{(FETCH_KEY, version): fetch_codec.read_fetch_request for version in fetch_codec.VERSIONS},
}
"""The readers that need no schema, by API key and version; so are the tables below."""
RESPONSE_WRITERS: Final[Mapping[tuple[int, int], Write]] = {
    **{(PRODUCE_KEY, version): produce_codec.write_produce_response for version in produce_codec.VERSIONS},
    **{(FETCH_KEY, version): fetch_codec.write_fetch_response for version in fetch_codec.VERSIONS},
}
REQUEST_WRITERS: Final[Mapping[tuple[int, int], Write]] = {
    (FETCH_KEY, version): fetch_codec.write_fetch_request for version in fetch_codec.VERSIONS
}
RESPONSE_READERS: Final[Mapping[tuple[int, int], Read]] = {
    (FETCH_KEY, version): fetch_codec.read_fetch_response for version in fetch_codec.VERSIONS
}

_INT32: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhih")
_SIZE_AND_HEADER: Final = struct.Struct(">ii")
_SIZE_AND_FLEXIBLE_HEADER: Final = struct.Struct(">iib")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Read the part of a request header that versions 1 and 2 share.

    Returns the header and the position just after its client id. Tagged fields, which only flexible
    versions have, come next; `decode_request` skips them.

    Raises:
        InvalidRequestBytes: the frame is too short.
    """
    try:
        api_key, api_version, correlation_id, client_length = _REQUEST_HEADER.unpack_from(frame)
        end = _REQUEST_HEADER.size + max(client_length, 0)
        if end > len(frame):
            raise InvalidRequestBytes("The client id of a request header runs past the end of its frame.")
        # As Kafka, whose clients may be configured in another encoding, or in none.
        client_id = None if client_length < 0 else str(frame[_REQUEST_HEADER.size : end], "utf-8", "replace")
    except struct.error as error:
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
    """(reader, whether the version is flexible, lift to the model version or None if none is needed)."""
    is_flexible = schema_codec.is_flexible(api_key, version)
    read = REQUEST_READERS.get((api_key, version))
    if read is not None:
        return read, is_flexible, None
    return (
        schema_codec.request_reader(api_key, version),
        is_flexible,
        schema_codec.request_lift(api_key, version, model_version),
    )


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> Frame:
    """The whole frame of a response: size prefix, header, body.

    Raises:
        KeyError: `body` has no value for a field without a default.
        TypeError, struct.error: a value is of a wrong type or out of its range.
    """
    frame: Frame = []
    flexible_header, write = _response_writer(api_key, version)
    write(frame, body)
    return _with_head(frame, correlation_id, flexible_header)


async def encode_large_response(
    api_key: int, version: int, correlation_id: int, body: Body, pause: Callable[[], Awaitable[None]]
) -> Frame:
    """As `encode_response`, with calls of `pause` between elements. Not for responses with records."""
    parts: Frame = []
    for _ in schema_codec.response_writer_in_steps(api_key, version)(parts, body):
        await pause()
    frame: Frame = [b"".join(part for part in parts if isinstance(part, bytes))]
    return _with_head(frame, correlation_id, _has_flexible_response_header(api_key, version))


def _with_head(frame: Frame, correlation_id: int, flexible_header: bool) -> Frame:
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


@cache
def _response_writer(api_key: int, version: int) -> tuple[bool, Write]:
    write = RESPONSE_WRITERS.get((api_key, version)) or schema_codec.response_writer(api_key, version)
    return _has_flexible_response_header(api_key, version), write


def _has_flexible_response_header(api_key: int, version: int) -> bool:
    return schema_codec.is_flexible(api_key, version) and api_key != API_VERSIONS_KEY


# --- The client's side of a connection between brokers ---


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    """The whole frame of a request. Raises as `encode_response`."""
    flexible, write = _request_writer(api_key, version)
    parts: Frame = []
    write(parts, body)
    name = client_id.encode()
    header = (
        _REQUEST_HEADER.pack(api_key, version, correlation_id, len(name))
        + name
        + (b"\0" if flexible else b"")
    )
    rest = b"".join(part for part in parts if isinstance(part, bytes))
    return _INT32.pack(len(header) + len(rest)) + header + rest


@cache
def _request_writer(api_key: int, version: int) -> tuple[bool, Write]:
    write = REQUEST_WRITERS.get((api_key, version)) or schema_codec.request_writer(api_key, version)
    return schema_codec.is_flexible(api_key, version), write


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
    read = RESPONSE_READERS.get((api_key, version)) or schema_codec.response_reader(api_key, version)
    return read, _has_flexible_response_header(api_key, version)
