"""One connection to one broker: a request out, its response in, in the newest version both sides speak.

In scope: framing, headers, version negotiation, through kio's schemas. Out of scope: what a request is for,
which broker to ask, or whether to ask again; a lost connection is an OSError for the caller to judge.
"""

from __future__ import annotations

import io
import socket
import struct
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Self

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from mainstem_loader.errors import LoginRefusedError, UnsupportedBrokerError
from mainstem_loader.kafka.client_security import ClientProperties, encrypted, log_in, mechanism_of

CLIENT_ID: Final = "mainstem-loader"

# A response is at most one fetch (`fetch_bytes`) and one oversized batch; anything longer is not a broker.
RESPONSE_BYTES_MAX: Final = 1 << 30

_FRAME_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request: its key in the protocol, its name, and the versions the loader can speak."""

    key: int
    name: str
    version_min: int
    version_max: int


# Version 0 of ApiVersions is answered by every broker, so the question how to ask it never arises (KIP-511).
API_VERSIONS: Final = Api(18, "ApiVersions", 0, 0)
# From version 13 on, fetch names topics by id, so a topic that is created anew under the same name is
# refused.
FETCH: Final = Api(1, "Fetch", 4, 17)
LIST_OFFSETS: Final = Api(2, "ListOffsets", 2, 7)
SASL_HANDSHAKE: Final = Api(17, "SaslHandshake", 1, 1)
SASL_AUTHENTICATE: Final = Api(36, "SaslAuthenticate", 0, 2)
METADATA: Final = Api(3, "Metadata", 4, 12)
DELETE_RECORDS: Final = Api(21, "DeleteRecords", 0, 2)
OFFSET_FOR_LEADER_EPOCH: Final = Api(23, "OffsetForLeaderEpoch", 2, 4)


class BrokerConnection:
    """A connected socket. Every wait ends after `timeout_ms`.

    Raises:
        OSError: the broker cannot be reached, or the connection broke. The connection is then of no more use.
        UnsupportedBrokerError: the other side is not a broker the loader can speak to.
        LoginRefusedError: the broker does not accept the login.
    """

    def __init__(
        self, host: str, port: int, timeout_ms: int, client_properties: ClientProperties | None = None
    ) -> None:
        self.address = f"{host}:{port}"
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        # Reused: clearing fresh memory for every response took a tenth of a load's time. Safe, because kio
        # copies what it reads.
        self._buffer = bytearray()
        properties = client_properties or {}
        self._socket = socket.create_connection((host, port), timeout=timeout_ms / 1000)
        try:
            self._socket = encrypted(self._socket, host, properties)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._versions = {
                versions.api_key: (versions.min_version, versions.max_version)
                for versions in self.call(API_VERSIONS).api_keys
            }
            if (mechanism := mechanism_of(properties)) is not None:
                self._log_in(properties, mechanism)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _log_in(self, properties: ClientProperties, mechanism: str) -> None:
        answer = self.call(SASL_HANDSHAKE, mechanism=mechanism)
        if answer.error_code.value != 0:
            raise LoginRefusedError(
                f"{self.address} does not take logins by {mechanism}; it takes"
                f" {', '.join(answer.mechanisms) or 'none'}. Set sasl.mechanism."
            )

        def authenticate(message: bytes) -> bytes:
            answer = self.call(SASL_AUTHENTICATE, auth_bytes=message)
            if answer.error_code.value != 0:
                raise LoginRefusedError(
                    f"{self.address} refuses the login of {properties['sasl.username']}; correct"
                    " sasl.username and sasl.password."
                )
            body: bytes = answer.auth_bytes
            return body

        log_in(properties, mechanism, authenticate)

    def schema(self, api: Api) -> ModuleType:
        """kio's request module for the version that `call` uses for `api`; its classes build the request's
        parts.
        """
        module: ModuleType = load_payload_module(api.key, self._version(api), EntityType.request)
        return module

    def call(self, api: Api, **fields: object) -> Any:
        """Send a request and wait for its response.

        Args:
            api: what to ask.
            fields: the request's fields by kio's names; those that the version lacks are left out.

        Returns:
            kio's response entity, of the negotiated version.
        """
        version = self._version(api)
        request_type = getattr(
            load_payload_module(api.key, version, EntityType.request), f"{api.name}Request"
        )
        response_type = getattr(
            load_payload_module(api.key, version, EntityType.response), f"{api.name}Response"
        )
        self._correlation_id += 1
        header_type = request_type.__header_schema__
        header = header_type(
            request_api_key=api.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=CLIENT_ID,
        )
        frame = io.BytesIO(_FRAME_LENGTH.pack(0))
        frame.seek(_FRAME_LENGTH.size)
        entity_writer(header_type)(frame, header)
        entity_writer(request_type)(frame, build(request_type, **fields))
        _FRAME_LENGTH.pack_into(frame.getbuffer(), 0, frame.tell() - _FRAME_LENGTH.size)
        self._socket.sendall(frame.getbuffer())
        response = self._receive()
        try:
            received, position = entity_reader(response_type.__header_schema__)(response, 0)
            body, _ = entity_reader(response_type)(response, position)
        except (SerialError, ValueError, IndexError) as error:
            raise UnsupportedBrokerError(
                f"{self.address} answered {api.name} with something that is not a response to it ({error});"
                " is a Kafka-protocol broker listening there, without TLS?"
            ) from error
        if received.correlation_id != self._correlation_id:
            raise UnsupportedBrokerError(
                f"{self.address} answered another request than {api.name}; is a broker listening there?"
            )
        return body

    def supports(self, api: Api) -> bool:
        """Whether both sides speak a version of `api`."""
        lowest, highest = self._versions.get(api.key, (0, -1))
        return min(highest, api.version_max) >= max(lowest, api.version_min)

    def _version(self, api: Api) -> int:
        if api is API_VERSIONS:
            return api.version_max
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(highest, api.version_max)
        if not self.supports(api):
            raise UnsupportedBrokerError(
                f"{self.address} speaks {api.name} in versions {lowest} to {highest}, the loader in"
                f" {api.version_min} to {api.version_max}; upgrade whichever is older."
            )
        return version

    def _receive(self) -> memoryview:
        (size,) = _FRAME_LENGTH.unpack(self._receive_exactly(_FRAME_LENGTH.size))
        if not 0 < size <= RESPONSE_BYTES_MAX:
            raise UnsupportedBrokerError(
                f"{self.address} announced a response of {size} bytes; is a Kafka-protocol broker listening"
                " there, without TLS?"
            )
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        position = 0
        while position < size:
            count = self._socket.recv_into(view[position:])
            if not count:
                raise ConnectionResetError(f"{self.address} closed the connection")
            position += count
        # kio reads from read-only buffers only.
        return view.toreadonly()


def build(entity_type: Any, **fields: object) -> Any:
    """An entity from those of `fields` that its version has."""
    return entity_type(
        **{name: value for name, value in fields.items() if name in entity_type.__dataclass_fields__}
    )
