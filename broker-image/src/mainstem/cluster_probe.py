"""Asks one broker whether it serves and who is in its cluster, by one bare request.

Not a client (`client.py` builds those): a probe asks exactly one address once, nothing retries or goes
elsewhere behind our back, and it says nothing about why there was no answer.
"""

from __future__ import annotations

import io
import socket
import struct
from dataclasses import dataclass
from typing import Final

_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """What a broker says of its cluster."""

    cluster_id: str
    broker_ids: frozenset[int]


def ask_cluster(port: int, host: str = "127.0.0.1") -> ClusterAnswer | None:
    """The answer of the broker at `host:port` (Metadata v12 without topics); None when there is none."""
    from kio.schema.metadata.v12.request import MetadataRequest
    from kio.schema.metadata.v12.response import MetadataResponse
    from kio.schema.request_header.v2.header import RequestHeader
    from kio.schema.response_header.v1.header import ResponseHeader
    from kio.serial import entity_reader, entity_writer

    header = RequestHeader(
        request_api_key=MetadataRequest.__api_key__,
        request_api_version=MetadataRequest.__version__,
        correlation_id=1,
        client_id="mainstem-probe",
    )
    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    frame = io.BytesIO()
    entity_writer(RequestHeader)(frame, header)
    entity_writer(MetadataRequest)(frame, request)
    try:
        answer = _exchange((host, port), frame.getvalue())
    except OSError:
        return None
    _, header_bytes = entity_reader(ResponseHeader)(answer, 0)
    response, _ = entity_reader(MetadataResponse)(answer, header_bytes)
    broker_ids = frozenset(int(broker.node_id) for broker in response.brokers)
    return ClusterAnswer(response.cluster_id or "", broker_ids)


def _exchange(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, timeout=_TIMEOUT_SECONDS) as connection:
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
