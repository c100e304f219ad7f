"""Connections from this broker to others: requests in the Kafka protocol, one at a time, each with a limit.

Bytes and sockets only; what is asked, and what becomes of the answer, is the caller's business.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Final

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequestBytes,
    PeerUnavailable,
)
from mainstem_broker.protocol.codec import Body, Entity, decode_response, encode_request
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom, Key
from mainstem_broker.replica.partition import Divergence

FETCH_KEY: Final = 1
FETCH_VERSION: Final = 17
"""Topics by id, the follower's life in the request (KIP-903), diverging epochs in the answer (KIP-595)."""
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024

_SIZE: Final = struct.Struct(">i")
_INT32_MAX: Final = 2**31 - 1


class _Answers(asyncio.Protocol):
    """Cuts what comes over a connection into frames; one is awaited at a time.

    Not asyncio's streams: they copy a frame twice more, and take a task's wake-up for its size alone.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._received_bytes = 0
        self._frame_bytes = 0  # of the frame under way, with its size prefix; 0 while that has not come
        self._awaited: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False

    def next(self, timeout_s: float) -> asyncio.Future[bytes]:
        """The next frame, without its size. Fails with EOFError, OSError, TimeoutError or PeerUnavailable."""
        loop = asyncio.get_running_loop()
        self._awaited = loop.create_future()
        if self._is_lost:
            self._awaited.set_exception(EOFError("The connection was closed."))
        else:
            self._timer = loop.call_later(timeout_s, self._fail, TimeoutError("There was no answer."))
        return self._awaited

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._received_bytes += len(data)
        if self._received_bytes >= max(self._frame_bytes, _SIZE.size):
            self._cut()

    def _cut(self) -> None:
        received = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        (size,) = _SIZE.unpack_from(received)
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            self._fail(PeerUnavailable(f"An answer of {size} bytes is no answer."))
            return
        self._frame_bytes = end = _SIZE.size + size
        if len(received) < end:
            self._chunks = [received]
            return
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(received[_SIZE.size : end])
        self._stop_timer()
        # Nobody asked for more than that: what follows belongs to no question.
        self._chunks = []
        self._received_bytes = self._frame_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._fail(exc or EOFError("The connection was closed."))

    def _fail(self, error: Exception) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Peer:
    """A broker at an address that may change: `endpoint` is asked for before each connect."""

    def __init__(self, endpoint: Callable[[], Endpoint | None], client_id: str, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._connection: tuple[asyncio.Transport, _Answers] | None = None
        self._times_closed = 0

    async def ask(self, api_key: int, version: int, body: Body) -> Entity:
        """Send a request, wait for its answer. Not to be called again before it has come.

        Raises:
            PeerUnavailable: no connection in time, it broke or was closed, or no answer in time; it is
                closed then.
        """
        times_closed = self._times_closed
        try:
            transport, answers = self._connection or await self._connect()
            if self._times_closed != times_closed:
                raise PeerUnavailable("The question was broken off while the connection was being made.")
            self._correlation_id += 1
            transport.write(encode_request(api_key, version, self._correlation_id, self._client_id, body))
            frame = await answers.next(self._timeout_s)
            correlation_id, answer = decode_response(api_key, version, frame)
        except (OSError, EOFError, TimeoutError, InvalidRequestBytes) as error:
            self.close()
            raise PeerUnavailable(f"{type(error).__name__} {error}".strip()) from error
        except BaseException:
            self.close()  # an answer that nobody waits for would be taken for the next one's
            raise
        if correlation_id != self._correlation_id:
            self.close()
            raise PeerUnavailable("An answer came to another request than the one that was sent.")
        return answer

    async def _connect(self) -> tuple[asyncio.Transport, _Answers]:
        endpoint = self._endpoint()
        if endpoint is None:
            raise PeerUnavailable("The broker is not registered.")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_s):
            self._connection = await loop.create_connection(_Answers, endpoint.host, endpoint.port)
        return self._connection

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
    ) -> None:
        self._peer = peer
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._wait_ms_max = wait_ms_max
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._life = -1
        self._session_id = 0
        self._session_epoch = 0

    async def fetch(self, wanted: Mapping[Key, FetchedFrom], changed: Collection[Key]) -> Iterable[Fetched]:
        """One fetch within a session (KIP-227), or the first of a new one, which names everything."""
        life = self._incarnation()
        if life != self._life:
            self._session_id = 0
        self._life = life
        is_new = self._session_id == 0
        if is_new:
            self._session_epoch = 0
            body = self._body(wanted.values(), ())
        else:
            body = self._body(
                [wanted[key] for key in changed if key in wanted],
                [key for key in changed if key not in wanted],
            )
        # Until the answer has come, the leader may have taken the fetch or not.
        session_id, self._session_id = self._session_id, 0
        answer = await self._peer.ask(FETCH_KEY, FETCH_VERSION, body | {"session_id": session_id})
        code = answer.error_code.value
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
                partition.error_code.value,
                partition.high_watermark,
                partition.log_start_offset,
                None
                if partition.diverging_epoch.end_offset < 0
                else Divergence(partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset),
                partition.records or b"",
            )
            for topic in answer.responses
            for partition in topic.partitions
        ]

    def _body(self, named: Iterable[FetchedFrom], forgotten: Iterable[Key]) -> Body:
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
            "replica_state": {"replica_id": self._broker_id, "replica_epoch": self._life},
            "max_wait": self._wait_ms_max,
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
