"""From a frame to its answer: reads the header, finds the API, calls its handler, writes the response.

The only place that knows both frames and handlers. Keys and versions that are not served close the
connection, as in Kafka, except ApiVersions, by which a client finds out (KIP-511).
"""

from __future__ import annotations

from collections.abc import Awaitable

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.table import APIS, Api
from mainstem_broker.errors import InvalidRequestBytes, UnsupportedVersion
from mainstem_broker.protocol.codec import (
    API_VERSIONS_KEY,
    Entity,
    Frame,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
)
from mainstem_broker.server.connection import Answer, Connection, Hold, Later


class Router:
    """Answers the frames of one listener's connections."""

    def __init__(self, broker: BrokerContext, listener: str) -> None:
        self._broker = broker
        self._listener = listener

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        """The answer to one request.

        Raises:
            InvalidRequestBytes: it is none that this broker serves; the connection has to be closed.
        """
        header, position = decode_header(frame)
        api = APIS.get(header.api_key)
        if api is None:
            raise InvalidRequestBytes(f"API key {header.api_key} is not served here.")
        if not api.min_version <= header.api_version <= api.max_version:
            if header.api_key == API_VERSIONS_KEY:
                return _unsupported_api_versions(header)
            raise InvalidRequestBytes(
                f"{api.name} version {header.api_version} is not served here; {api.min_version} to"
                f" {api.max_version} are."
            )
        request = decode_request(header, frame, position, api.model_for(header.api_version))
        context = RequestContext(header.api_version, header.client_id, connection.peer, self._listener)
        if api.partitions_of is not None and not self._broker.leads_all(
            api.partitions_of(self._broker, request)
        ):
            # A client may have heard of a new topic or leader from another broker a moment before this
            # one did (redpanda#1256 and #7162 tell what a refusal does to clients).
            return Hold(self._broker.catch_up(), lambda: self._answer(api, header, request, context))
        return self._answer(api, header, request, context)

    def _answer(self, api: Api, header: RequestHeader, request: Entity, context: RequestContext) -> Answer:
        body = api.handler(self._broker, request, context)
        if body is None:
            return None
        if isinstance(body, dict):
            return encode_response(header.api_key, header.api_version, header.correlation_id, body)
        assert isinstance(body, Awaitable)
        return Later(
            body,
            lambda made: encode_response(header.api_key, header.api_version, header.correlation_id, made),
        )


def _unsupported_api_versions(header: RequestHeader) -> Frame:
    """In version 0, which every client can read, with the range of this very key."""
    api = APIS[API_VERSIONS_KEY]
    served = {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
    body = {"error_code": UnsupportedVersion.code, "api_keys": (served,)}
    return encode_response(API_VERSIONS_KEY, 0, header.correlation_id, body)
