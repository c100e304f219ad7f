"""One request of the Kafka protocol to one address: for what the stock client has no call for.

Nothing retries or goes elsewhere behind our back. Requests and answers are kio's entities.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import Any, Final

_TIMEOUT_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 3.0  # who can't be reached has nothing to think about


def ask(
    address: tuple[str, int], request: Any, *, client_id: str, timeout_seconds: float = _TIMEOUT_SECONDS
) -> Any:
    """The answer to `request`.

    Raises:
        OSError: there is none: nobody listens, or the connection breaks or is silent for too long.
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
    answer = _exchange(address, frame.getvalue(), timeout_seconds)
    schema = load_response_schema(request.__api_key__, request.__version__)
    _, header_bytes = entity_reader(schema.__header_schema__)(answer, 0)
    response, _ = entity_reader(schema)(answer, header_bytes)
    return response


def _exchange(address: tuple[str, int], request: bytes, timeout_seconds: float) -> bytes:
    with socket.create_connection(address, timeout=min(timeout_seconds, _CONNECT_SECONDS)) as connection:
        connection.settimeout(timeout_seconds)
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
