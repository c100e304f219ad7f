"""Connections from this broker to others: requests in the Kafka protocol, one at a time, each with a limit.

Bytes and sockets only; the caller decides what to request, and uses the answer.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Final

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequestBytes,
    PeerUnavailable,
)
from mainstem_broker.protocol.codec import decode_response, encode_request
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.protocol.wire import FETCH_KEY, Body, Entity
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom
from mainstem_broker.replica.lease import GRANT_FETCH_WAIT_MS
from mainstem_broker.runtime.timeout import Timeout
from mainstem_broker.server.peer_security import PeerSecurity

FETCH_VERSION: Final = 17
"""Topics by id, the follower's incarnation in the request (KIP-903), diverging epochs in the answer
(KIP-595)."""
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
BUFFER_BYTES_MIN: Final = 64 * 1024
BUFFER_BYTES_KEPT_MAX: Final = 4 * 1024 * 1024
"""An answer holds a few batches, of which the largest have 1 MiB; what was larger is given back."""

_SIZE: Final = struct.Struct(">i")
_INT32_MAX: Final = 2**31 - 1


class _Answers(asyncio.BufferedProtocol):
    """Receives frames into one buffer; one is awaited at a time, and its view dies with the next question.

    Not asyncio's streams, nor a protocol that is given bytes: they copy a frame two or three times more.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._filled = 0
        self._end = 0  # of the frame under way, with its size prefix; 0 while that has not come
        self._awaited: asyncio.Future[memoryview] | None = None
        self._timeout = Timeout(lambda: self._fail(TimeoutError("There was no answer.")))
        self._is_lost = False

    def next(self, timeout_s: float) -> asyncio.Future[memoryview]:
        """The next frame, without its size. Fails with EOFError, OSError, TimeoutError or PeerUnavailable."""
        if len(self._buffer) > BUFFER_BYTES_KEPT_MAX:
            self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._awaited = asyncio.get_running_loop().create_future()
        if self._is_lost:
            self._awaited.set_exception(EOFError("The connection was closed."))
        else:
            self._timeout.begin(timeout_s)
        return self._awaited

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._awaited is None or self._awaited.done():
            return memoryview(bytearray(1))  # the last frame may still be read: this must not change it
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._awaited is None or self._awaited.done():
            return  # an answer without a request
        self._filled += nbytes
        if self._end == 0 and self._filled >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer)
            if not 4 <= size <= RESPONSE_BYTES_MAX:
                self._fail(PeerUnavailable(f"An answer of {size} bytes is no answer."))
                return
            self._end = _SIZE.size + size
        if 0 < self._end <= self._filled:
            self._timeout.end()
            frame = memoryview(self._buffer)[_SIZE.size : self._end].toreadonly()
            self._filled = self._end = 0
            self._awaited.set_result(frame)
        elif self._filled == len(self._buffer):
            self._grow()

    def _grow(self) -> None:
        """By what comes, not by what is announced, so that an announcement alone costs nothing."""
        received = self._buffer
        self._buffer = bytearray(min(2 * len(received), self._end))
        self._buffer[: self._filled] = received

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._fail(exc or EOFError("The connection was closed."))
        self._timeout.close()

    def _fail(self, error: Exception) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)


class Peer:
    """A broker at an address that may change: `endpoint` is called before each connect."""

    def __init__(
        self,
        endpoint: Callable[[], Endpoint | None],
        client_id: str,
        timeout_s: float,
        security: PeerSecurity | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._security = security
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._connection: tuple[asyncio.Transport, _Answers] | None = None
        self._times_closed = 0
        self._session_ends_s = math.inf

    async def ask(self, api_key: int, version: int, body: Body) -> Entity:
        """Send a request, wait for its answer. Not to be called again before it has come.

        Raises:
            PeerUnavailable: no connection in time, it broke or was closed, or no answer in time; it is
                closed then.
        """
        times_closed = self._times_closed
        try:
            connection = self._connection
            if connection is not None and asyncio.get_running_loop().time() >= self._session_ends_s:
                connection[0].close()
            if connection is None or connection[0].is_closing():
                # Closed by the other side since its last answer, as by a broker that restarts. uvloop raises
                # RuntimeError for a write to it, which would look like a fault of this broker.
                connection = await self._connect()
            if self._times_closed != times_closed:
                raise PeerUnavailable("The question was broken off while the connection was being made.")
            answer = await self._exchange(connection, api_key, version, body)
        except (OSError, EOFError, TimeoutError, InvalidRequestBytes) as error:
            self.close()
            raise PeerUnavailable(f"{type(error).__name__} {error}".strip()) from error
        except BaseException:
            self.close()  # its late answer would be taken for that of the next request
            raise
        return answer

    async def _exchange(
        self, connection: tuple[asyncio.Transport, _Answers], api_key: int, version: int, body: Body
    ) -> Entity:
        transport, answers = connection
        self._correlation_id += 1
        transport.write(encode_request(api_key, version, self._correlation_id, self._client_id, body))
        frame = await answers.next(self._timeout_s)
        correlation_id, answer = decode_response(api_key, version, frame)
        if correlation_id != self._correlation_id:
            raise PeerUnavailable("An answer came to another request than the one that was sent.")
        return answer

    async def _connect(self) -> tuple[asyncio.Transport, _Answers]:
        endpoint = self._endpoint()
        if endpoint is None:
            raise PeerUnavailable("The broker is not registered.")
        loop = asyncio.get_running_loop()
        context = None if self._security is None else self._security.context
        async with asyncio.timeout(self._timeout_s):
            connection = await loop.create_connection(_Answers, endpoint.host, endpoint.port, ssl=context)
        self._connection = connection
        login = None if self._security is None else self._security.login
        if login is not None:
            usable_s = await login.log_in(partial(self._exchange, connection))
            self._session_ends_s = loop.time() + usable_s
        return connection

    def close(self) -> None:
        """Break off the question under way, if there is one; the next one connects anew."""
        self._times_closed += 1
        if self._connection is not None:
            self._connection[0].close()
            self._connection = None


class LeaderPeer:
    """The broker that leads, as `replica/fetcher.py` wants it."""

    def __init__(
        self,
        peer: Peer,
        *,
        broker_id: int,
        incarnation: Callable[[], int],
        wait_ms_max: int,
        bytes_max: int,
        partition_bytes_max: int,
        grant: Callable[[], bool] = lambda: False,
    ) -> None:
        """`grant` says whether the fetch that is sent now grants the leader's lease (`replica/lease.py`)."""
        self._grant = grant
        self._peer = peer
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._wait_ms_max = wait_ms_max
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._last_incarnation = -1
        self._session_id = 0
        self._session_epoch = 0

    async def fetch(
        self,
        positions: Mapping[TopicIdPartition, FetchedFrom],
        changed: Collection[TopicIdPartition],
        wait_s_max: float,
    ) -> Iterable[Fetched]:
        """One fetch within a session (KIP-227), or the first of a new one, which names everything."""
        incarnation = self._incarnation()
        if incarnation != self._last_incarnation:
            self._session_id = 0
        self._last_incarnation = incarnation
        is_new = self._session_id == 0
        if is_new:
            self._session_epoch = 0
            body = self._body(positions.values(), ())
        else:
            body = self._body(
                [positions[key] for key in changed if key in positions],
                [key for key in changed if key not in positions],
            )
        # Until the answer has come, the leader may have taken the fetch or not.
        session_id, self._session_id = self._session_id, 0
        max_wait_ms = math.ceil(min(self._wait_ms_max, 1000 * wait_s_max))
        # As late as possible, and after the previous answer: the leader counts from that.
        if self._grant():
            body["replica_state"]["grants"] = True
            max_wait_ms = min(max_wait_ms, GRANT_FETCH_WAIT_MS)
        answer = await self._peer.ask(
            FETCH_KEY, FETCH_VERSION, body | {"session_id": session_id, "max_wait": max_wait_ms}
        )
        code = answer.error_code
        if code in (FetchSessionIdNotFound.code, InvalidFetchSessionEpoch.code) and not is_new:
            return ()  # the next fetch begins another
        if code != 0:
            raise PeerUnavailable(f"The leader answered error {code}.")
        self._session_id = answer.session_id
        self._session_epoch = self._session_epoch % _INT32_MAX + 1
        return [
            Fetched(
                topic.topic_id,
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.log_start_offset,
                None if partition.diverging is None else Divergence(*partition.diverging),
                partition.records,
            )
            for topic in answer.responses
            for partition in topic.partitions
        ]

    def _body(self, named: Iterable[FetchedFrom], forgotten: Iterable[TopicIdPartition]) -> Body:
        topics = []
        for topic_id, group in groupby(named, key=lambda item: item.topic_id):
            partitions = [
                {
                    "partition": item.partition,
                    "current_leader_epoch": item.leader_epoch,
                    "fetch_offset": item.offset,
                    "last_fetched_epoch": item.last_epoch,
                    "log_start_offset": item.log_start_offset,
                    "partition_max_bytes": self._partition_bytes_max,
                }
                for item in group
            ]
            topics.append({"topic_id": topic_id, "partitions": partitions})
        return {
            "replica_state": {"replica_id": self._broker_id, "replica_epoch": self._last_incarnation},
            "min_bytes": 1,
            "max_bytes": self._bytes_max,
            "isolation_level": 0,
            "session_epoch": self._session_epoch,
            "topics": topics,
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": [index]} for topic_id, index in forgotten
            ],
            "rack_id": "",
        }

    def close(self) -> None:
        self._peer.close()
