"""One request of the Kafka protocol to one address, for requests that the stock client cannot send.

Nothing is retried or redirected. Requests and answers are kio's entities.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mainstem.kafka.client_security import log_in, secured

_TIMEOUT_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 3.0  # connecting takes no work of the broker, so a shorter time is enough


def ask(
    address: tuple[str, int],
    request: Any,
    *,
    client_id: str,
    timeout_seconds: float = _TIMEOUT_SECONDS,
    properties: Mapping[str, str] | None = None,
    answer_schema: Any = None,
) -> Any:
    """The answer to `request`; `answer_schema` replaces kio's own.

    Of the client `properties` those of encryption and login count.

    Raises:
        OSError: there is no answer: the port is closed, or the connection breaks or is silent for too long.
        CommandError: the login failed, or a property cannot be used.
    """
    from kio.index import load_response_schema
    from kio.serial import entity_reader, entity_writer

    header = request.__header_schema__
    frame = io.BytesIO()
    entity_writer(header)(
        frame,
        header(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=1,
            client_id=client_id,
        ),
    )
    entity_writer(type(request))(frame, request)
    answer = _exchange(address, frame.getvalue(), timeout_seconds, properties or {})
    schema = answer_schema or load_response_schema(request.__api_key__, request.__version__)
    _, header_bytes = entity_reader(schema.__header_schema__)(answer, 0)
    response, _ = entity_reader(schema)(answer, header_bytes)
    return response


def _exchange(
    address: tuple[str, int], request: bytes, timeout_seconds: float, properties: Mapping[str, str]
) -> bytes:
    with socket.create_connection(address, timeout=min(timeout_seconds, _CONNECT_SECONDS)) as connected:
        connected.settimeout(timeout_seconds)
        with secured(connected, address[0], properties) as connection:
            log_in(partial(_send, connection), properties)
            return _send(connection, request)


def _send(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size_bytes,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size_bytes)


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = connection.recv(size_bytes - len(received))
        if not piece:
            raise ConnectionError("closed in the middle of an answer")
        received += piece
    return bytes(received)


def reason_of(answer: Any) -> str:
    """What a broker says of its refusal, as a sentence."""
    text = getattr(answer, "error_message", None) or answer.error_code.name.replace("_", " ")
    return f"{text.rstrip('.')}."
