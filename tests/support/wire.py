"""The Kafka protocol without a client: one socket, requests as written here, answers as they come.

A stock client hides what the broker said (it retries, falls back, drops fields); tests of the protocol
itself send requests with this, whole or spoilt.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import socket
import struct
import typing
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from tests.support.waiting import PATIENCE_SECONDS

ANSWER_SECONDS: Final = PATIENCE_SECONDS
API_KEYS: Final[dict[str, int]] = {name: key for key, name in api_key_map.items()}


def request(name: str, version: int, **fields: object) -> Any:
    """A kio request, nested parts given as dicts, durations as milliseconds.

    >>> request("list_offsets", 7, replica_id=-1, isolation_level=0, topics=[
    ...     {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}])
    """
    return _build(load_request_schema(API_KEYS[name], version), fields)


def _build(entity_type: Any, fields: dict[str, object]) -> Any:
    hints = typing.get_type_hints(entity_type)
    kafka_types = {
        field.name: field.metadata.get("kafka_type", "") for field in dataclasses.fields(entity_type)
    }
    return entity_type(
        **{name: _value(hints[name], kafka_types[name], value) for name, value in fields.items()}
    )


def _value(hint: Any, kafka_type: str, value: object) -> object:
    if kafka_type.startswith("timedelta"):
        return dt.timedelta(milliseconds=typing.cast("float", value))
    inner = next((part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)), hint)
    if typing.get_origin(inner) is tuple:
        inner = typing.get_args(inner)[0]
    # `tuple[T, ...] | None` nests one deeper.
    for part in typing.get_args(hint):
        if typing.get_origin(part) is tuple:
            inner = typing.get_args(part)[0]
    if isinstance(value, list):
        return tuple(_build(inner, item) if isinstance(item, dict) else item for item in value)
    if isinstance(value, dict):
        return _build(inner, value)
    return value


def encode_request(message: Any, correlation_id: int, client_id: str | None = "tests") -> bytes:
    """Header and body of a kio request, without the frame's length."""
    header_type = message.__header_schema__
    buffer = io.BytesIO()
    entity_writer(header_type)(
        buffer,
        header_type(
            request_api_key=message.__api_key__,
            request_api_version=message.__version__,
            correlation_id=correlation_id,
            client_id=client_id,
        ),
    )
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def decode_response(payload: bytes, api_key: int, version: int) -> tuple[int, Any]:
    """Correlation id and body of an answer to a request of that key and version.

    Raises:
        AssertionError: bytes are left over after the body, so some field was shifted.
    """
    response_type = load_response_schema(api_key, version)
    header, size = entity_reader(response_type.__header_schema__)(payload, 0)
    body, body_size = entity_reader(response_type)(payload, size)
    assert size + body_size == len(payload), f"{len(payload) - size - body_size} bytes follow {body}"
    return int(header.correlation_id), body


class Connection:
    """A blocking connection to one broker.

    Raises (from every method):
        TimeoutError: the broker said nothing for `ANSWER_SECONDS`.
        ConnectionError: the broker closed the connection.
    """

    def __init__(
        self, address: str, timeout_seconds: float = ANSWER_SECONDS, *, client_id: str = "tests"
    ) -> None:
        self._client_id = client_id
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._asked: list[tuple[int, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Send a request and wait for its answer (which must be the next to come)."""
        self.send(name, version, **fields)
        return self.receive()

    def send(self, name: str, version: int, **fields: Any) -> None:
        """Send a request that has an answer."""
        self._correlation_id += 1
        self.send_frame(
            encode_request(request(name, version, **fields), self._correlation_id, self._client_id)
        )
        self._asked.append((self._correlation_id, API_KEYS[name], version))

    def receive(self) -> Any:
        """The answer to the oldest request that still waits for one: answers come in order."""
        expected, api_key, version = self._asked.pop(0)
        correlation_id, body = decode_response(self.receive_frame(), api_key, version)
        assert correlation_id == expected, f"answer {correlation_id} came where {expected} was due"
        return body

    def send_frame(self, payload: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def is_closed_by_broker(self) -> bool:
        """Wait for the broker to close; whatever it sends before that is thrown away."""
        try:
            while self._socket.recv(65_536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError(f"The broker closed the connection after {len(data)} of {size} bytes.")
            data += part
        return bytes(data)


def produce(
    connection: Connection,
    topic: str,
    partition: int,
    records: bytes | None,
    *,
    acks: int = 1,
    version: int = 9,
) -> Any:
    """Produce to one partition; its part of the answer (`.error_code`, `.base_offset`, …)."""
    answer = connection.ask("produce", version, **produce_fields(topic, partition, records, acks=acks))
    return answer.responses[0].partition_responses[0]


def produce_fields(topic: str, partition: int, records: bytes | None, *, acks: int = 1) -> dict[str, Any]:
    """The fields of a Produce request (versions 3 to 12) for one partition."""
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 5_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


def fetch(connection: Connection, topic: str, partition: int, offset: int, **options: int) -> Any:
    """Fetch (version 12) from one partition; its part of the answer (`.records`, `.high_watermark`, …)."""
    answer = connection.ask("fetch", 12, **fetch_fields([(topic, partition, offset)], **options))
    assert answer.error_code == ErrorCode.none
    return answer.responses[0].partitions[0]


def fetch_fields(
    positions: list[tuple[str, int, int]],
    *,
    version: int = 12,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
) -> dict[str, Any]:
    """The fields of a Fetch request (versions 4 to 12) without a session, a topic per position."""
    fields: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "partition_max_bytes": partition_max_bytes,
                    }
                ],
            }
            for topic, partition, offset in positions
        ],
    }
    if version >= 7:
        fields |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    if version >= 11:
        fields["rack_id"] = ""
    return fields


def list_offset(
    connection: Connection, topic: str, partition: int, timestamp: int, *, version: int = 7
) -> Any:
    """ListOffsets of one partition; its part of the answer (`.offset`, `.timestamp`, `.leader_epoch`)."""
    answer = connection.ask(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
    )
    return answer.topics[0].partitions[0]
