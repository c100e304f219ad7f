"""Reading a partition over a bare socket: what the broker can send, where a client's decoding is the limit.

Records are received and not decoded; batch headers are walked, to know the next offset.
"""

from __future__ import annotations

import datetime as dt
import io
import socket
import struct
import time
from typing import Any, Final

from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer

from bench.processes import cpu_seconds, own_cpu_seconds
from bench.system import System
from bench.workloads import Miscounted, Throughput

FETCH_BYTES: Final = 1 << 20
_PREFIX: Final = struct.Struct(">qi")  # of a batch: base offset, and its size without these 12 bytes
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_header: Any = entity_reader(ResponseHeader)
_response: Any = entity_reader(FetchResponse)


def fetch_raw(system: System, topic: str, *, messages: int, message_bytes: int) -> Throughput:
    """Fetch partition 0 from its beginning to offset `messages`, one request after another.

    Raises:
        Miscounted: the broker answers with an error, or with nothing before that offset.
    """
    host, _, port = system.bootstrap_servers.rpartition(":")
    broker_cpu, client_cpu, began = cpu_seconds(system.broker_pid), own_cpu_seconds(), time.perf_counter()
    with socket.create_connection((host, int(port))) as connection:
        offset = 0
        while offset < messages:
            connection.sendall(_request(topic, offset))
            records = _records(_receive(connection))
            if not records:
                raise Miscounted(f"{system.name} gave nothing from offset {offset} of {messages} on.")
            offset = _next_offset(records)
    seconds = time.perf_counter() - began
    broker_cpu, client_cpu = cpu_seconds(system.broker_pid) - broker_cpu, own_cpu_seconds() - client_cpu
    return Throughput(messages, message_bytes, seconds, broker_cpu, client_cpu)


def _request(topic: str, offset: int) -> bytes:
    body = FetchRequest(
        replica_id=-1,
        max_wait=dt.timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(
            FetchTopic(
                topic=topic,
                partitions=(
                    FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES),
                ),
            ),
        ),
        forgotten_topics_data=(),
        rack_id="",
    )
    header = RequestHeader(request_api_key=1, request_api_version=12, correlation_id=0, client_id="bench")
    frame = io.BytesIO()
    frame.write(bytes(4))
    entity_writer(RequestHeader)(frame, header)
    entity_writer(FetchRequest)(frame, body)
    encoded = frame.getvalue()
    return struct.pack(">i", len(encoded) - 4) + encoded[4:]


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    frame = bytearray(size)
    view = memoryview(frame)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("The broker closed the connection.")
        view = view[count:]
    return bytes(frame)


def _records(frame: bytes) -> bytes:
    _, position = _header(frame, 0)
    response, _ = _response(frame, position)
    partition = response.responses[0].partitions[0]
    if partition.error_code != 0:
        raise Miscounted(f"Fetch was answered with {partition.error_code!r}.")
    return partition.records or b""


def _next_offset(records: bytes) -> int:
    position, offset = 0, 0
    while position + _PREFIX.size <= len(records):
        base_offset, size = _PREFIX.unpack_from(records, position)
        if position + _PREFIX.size + size > len(records):
            break  # Apache Kafka cuts the last batch where the limit falls
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + _LAST_OFFSET_DELTA_AT)
        offset = base_offset + delta + 1
        position += _PREFIX.size + size
    return offset
