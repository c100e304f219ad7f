"""From a frame to its answer: reads the header, finds the API, calls its handler, writes the response.

The only place that knows both frames and handlers. Keys and versions that are not served close the
connection, as in Kafka, except ApiVersions, by which a client finds out (KIP-511).
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.api.table import APIS
from mainstem_broker.errors import InvalidRequestBytes, UnsupportedVersion
from mainstem_broker.protocol.codec import (
    API_VERSIONS_KEY,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
)
from mainstem_broker.protocol.wire import Body, Entity, Frame
from mainstem_broker.server.connection import Answer, Connection, Hold, Later
from mainstem_broker.server.metering import metered
from mainstem_broker.server.request_times import RequestTimes


class Router:
    """Answers the frames of one listener's connections; `times` (by API key) is told how long each took."""

    def __init__(self, broker: BrokerContext, listener: str, times: dict[int, RequestTimes]) -> None:
        self._broker = broker
        self._listener = listener
        self._times = times

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        """The answer to one request.

        Raises:
            InvalidRequestBytes: it is none that this broker serves; the connection has to be closed.
        """
        started_s = perf_counter()
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
        model = api.model_for(header.api_version)
        request = decode_request(header, frame, position, model)
        context = RequestContext(header.api_version, header.client_id, connection.peer, self._listener)
        handler = api.handler
        if self._broker.quotas.are_set:
            handler = partial(metered, api, len(frame), connection.mute)
        if api.about_the_cluster or (
            api.partitions_of is not None
            and not self._broker.leads_all(api.partitions_of(self._broker, request))
        ):
            # A client may have heard of a new topic, setting or leader from another broker a moment before
            # this one did (redpanda#1256 and #7162 tell what a refusal does to clients).
            kept = memoryview(bytes(frame))  # what is decoded holds views of the frame

            def then() -> Answer:
                request = decode_request(header, kept, position, model)
                return self._answer(handler, header, request, context, started_s)

            return Hold(self._broker.catch_up(), then)
        return self._answer(handler, header, request, context, started_s)

    def _answer(
        self,
        handler: Handler,
        header: RequestHeader,
        request: Entity,
        context: RequestContext,
        started_s: float,
    ) -> Answer:
        body = handler(self._broker, request, context)
        if body is None:
            return None
        if isinstance(body, dict):
            return self._encoded(header, body, started_s)
        return Later(body, lambda made: self._encoded(header, made, started_s))

    def _encoded(self, header: RequestHeader, body: Body, started_s: float) -> Frame:
        frame = encode_response(header.api_key, header.api_version, header.correlation_id, body)
        self._times_of(header.api_key).observe(perf_counter() - started_s)
        return frame

    def _times_of(self, api_key: int) -> RequestTimes:
        times = self._times.get(api_key)
        if times is None:
            times = self._times[api_key] = RequestTimes()
        return times


def _unsupported_api_versions(header: RequestHeader) -> Frame:
    """In version 0, which every client can read, with the range of this very key."""
    api = APIS[API_VERSIONS_KEY]
    served = {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
    body = {"error_code": UnsupportedVersion.code, "api_keys": (served,)}
    return encode_response(API_VERSIONS_KEY, 0, header.correlation_id, body)
