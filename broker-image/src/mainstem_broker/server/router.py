"""From a frame to its answer: reads the header, finds the API, calls its handler, writes the response.

The only place that knows both frames and handlers. Keys and versions that are not served close the
connection, as in Kafka, except ApiVersions, by which a client finds out (KIP-511).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from functools import partial
from time import perf_counter
from typing import Any, cast

from mainstem_broker.api.api_table import APIS, Api
from mainstem_broker.api.api_versions import SOFTWARE_VERSION
from mainstem_broker.api.authorization import refusal
from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.api.large_requests import (
    LARGE_REQUEST_BYTES,
    LargeAnswer,
    SlicedAnswer,
    answer_in_slices,
    answer_large,
)
from mainstem_broker.errors import InvalidRequestBytes, UnsupportedVersion
from mainstem_broker.protocol.codec import (
    API_VERSIONS_KEY,
    RequestHeader,
    decode_header,
    decode_request,
    encode_large_response,
    encode_response,
)
from mainstem_broker.protocol.wire import FETCH_KEY, PRODUCE_KEY, Body, Entity, Frame
from mainstem_broker.runtime.turns import Turn
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.login import Login
from mainstem_broker.server.client_software import client_software
from mainstem_broker.server.client_throttling import metered
from mainstem_broker.server.connection import Answer, Connection, Hold, Later
from mainstem_broker.server.request_times import RequestTimes


class Router:
    """Answers the frames of one listener's connections; `times` (by API key) receives the duration of
    each."""

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
        login = connection.login
        if login is not None and login.is_under_way and login.expects_raw_message:
            return self._answer_raw_message(login, frame)
        header, position = decode_header(frame)
        if login is not None and login.is_under_way and not login.allows(header.api_key):
            login.fail(f"API key {header.api_key} came in place of a step of the login.")
            return None
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
        if header.api_key == API_VERSIONS_KEY and header.api_version >= SOFTWARE_VERSION:
            connection.software = client_software(
                request.client_software_name, request.client_software_version
            )
        context = RequestContext(
            header.api_version, header.client_id, connection.peer, self._listener, connection.principal, login
        )
        if self._broker.authorizer is not None:
            refused = refusal(self._broker, api.key, api.access, request, context)
            if refused is not None:
                return self._encoded(header, refused, started_s)
        handler = api.handler
        if self._broker.quotas.are_set:
            handler = partial(metered, api, len(frame), connection.mute)
        for slices in api.slices:
            if len(frame) >= slices.request_bytes_min and hasattr(request, slices.path[0][0]):
                handler = cast(Handler, partial(answer_in_slices, slices, handler))
                break
        else:
            if len(frame) >= LARGE_REQUEST_BYTES and api.key not in (PRODUCE_KEY, FETCH_KEY):
                handler = cast(Handler, partial(answer_large, handler))
        if api.about_the_cluster or (
            api.partitions_of is not None
            and not self._broker.leads_all(api.partitions_of(self._broker, request))
        ):
            # A client may have heard of a new topic, setting or leader from another broker a moment before
            # this one did (redpanda#1256 and #7162 tell what a refusal does to clients).
            kept = memoryview(bytes(frame))  # what is decoded holds views of the frame

            def partitions() -> Iterable[tuple[str, int]]:
                if api.partitions_of is None:
                    return ()
                return api.partitions_of(self._broker, decode_request(header, kept, position, model))

            def then() -> Answer:
                request = decode_request(header, kept, position, model)
                return self._prepared(api, handler, header, request, context, started_s)

            return Hold(self._broker.catch_up_with(partitions), then)
        return self._prepared(api, handler, header, request, context, started_s)

    def _answer_raw_message(self, login: Login, frame: memoryview) -> Answer:
        """After SaslHandshake v0: bytes with their size in front, in both directions (KIP-43)."""
        try:
            answer, _ = login.respond(bytes(frame))
        except LoginFailed:
            return None  # the connection closes
        return [struct.pack(">i", len(answer)) + answer]

    def _prepared(
        self,
        api: Api,
        handler: Handler,
        header: RequestHeader,
        request: Entity,
        context: RequestContext,
        started_s: float,
    ) -> Answer:
        """The answer, after what the API has to do off the event loop, if there is anything."""
        preparing = None if api.prepare is None else api.prepare(self._broker, request, context)
        if preparing is None:
            return self._answer(handler, header, request, context, started_s)
        ready = asyncio.ensure_future(preparing)
        return Hold(ready, lambda: self._answer(handler, header, ready.result(), context, started_s))

    def _answer(
        self,
        handler: Handler,
        header: RequestHeader,
        request: Entity,
        context: RequestContext,
        started_s: float,
    ) -> Answer:
        body: Any = handler(self._broker, request, context)  # of a large request a SlicedAnswer
        if body is None:
            return None
        if isinstance(body, dict):
            return self._encoded(header, body, started_s)
        if isinstance(body, SlicedAnswer):
            encoded = asyncio.ensure_future(self._encoded_in_steps(header, body, started_s))
            return Hold(encoded, encoded.result)
        if isinstance(body, LargeAnswer):
            return Later(self._encoded_in_steps(header, body, started_s), lambda frame: frame)
        return Later(body, lambda made: self._encoded(header, made, started_s))

    def _encoded(self, header: RequestHeader, body: Body, started_s: float) -> Frame:
        frame = encode_response(header.api_key, header.api_version, header.correlation_id, body)
        self._times_of(header.api_key).observe(perf_counter() - started_s)
        return frame

    async def _encoded_in_steps(
        self, header: RequestHeader, answer: SlicedAnswer | LargeAnswer, started_s: float
    ) -> Frame | None:
        body = await answer.body
        if body is None:
            return None
        frame = await encode_large_response(
            header.api_key, header.api_version, header.correlation_id, body, Turn().pause_if_over
        )
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
