"""Requests from one broker to another, over real sockets; the other side is played, or a real listener."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.replica.replicas import state_of
from tests.unit.broker.server.peers import frame_of

from mainstem_broker.cluster.znodes import Endpoint, TopicAssignment
from mainstem_broker.errors import PeerUnavailable
from mainstem_broker.protocol.codec import decode_header, decode_request, encode_response
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.protocol.wire import FETCH_KEY
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.listeners import Listener, SocketOptions
from mainstem_broker.server.peers import (
    BUFFER_BYTES_KEPT_MAX,
    BUFFER_BYTES_MIN,
    FETCH_VERSION,
    LeaderPeer,
    Peer,
    _Answers,
)
from mainstem_broker.server.router import Router

METADATA = (3, 12)
QUESTION: dict[str, Any] = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
ANSWER: dict[str, Any] = {
    "throttle_time": 0,
    "brokers": (),
    "cluster_id": "c",
    "controller_id": 7,
    "topics": (),
}

Reply = Callable[[bytes], Awaitable[bytes | None]]
"""From a request's frame to what is sent for it; None hangs up."""


def joined(key: int, version: int, correlation_id: int, body: dict[str, Any]) -> bytes:
    parts = encode_response(key, version, correlation_id, body)
    return b"".join(part for part in parts if isinstance(part, bytes))


def correlation_id_of(frame: bytes) -> int:
    return decode_header(memoryview(frame).toreadonly())[0].correlation_id


async def well(frame: bytes) -> bytes:
    return joined(*METADATA, correlation_id_of(frame), ANSWER)


@asynccontextmanager
async def played(reply: Reply, timeout_s: float = 5) -> AsyncIterator[tuple[Peer, list[int]]]:
    """A peer of a broker that answers by `reply`; the list has an item for each connection that was made."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                answer = await reply(await reader.readexactly(size))
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(lambda: Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port), "test", timeout_s)
    try:
        yield peer, connections
    finally:
        peer.close()
        server.close()


async def test_questions_are_answered_in_turn_over_one_connection() -> None:
    async with played(well) as (peer, connections):
        for _ in range(3):
            assert (await peer.ask(*METADATA, QUESTION)).controller_id == 7
        assert len(connections) == 1


async def hang_up(_: bytes) -> None:
    return None


async def nonsense(frame: bytes) -> bytes:
    return frame_of(struct.pack(">i", correlation_id_of(frame)) + b"\xff" * 9)


async def tiny(_: bytes) -> bytes:
    return struct.pack(">i", 3) + b"abc"


async def huge(_: bytes) -> bytes:
    return struct.pack(">i", 2**31 - 1)


async def to_another(frame: bytes) -> bytes:
    return joined(*METADATA, correlation_id_of(frame) + 1, ANSWER)


@pytest.mark.parametrize("reply", [hang_up, nonsense, tiny, huge, to_another])
async def test_an_answer_that_is_none_ends_the_connection_and_the_next_question_makes_another(
    reply: Reply,
) -> None:
    replies = [reply, well]

    async def first_badly(frame: bytes) -> bytes | None:
        return await replies.pop(0)(frame)

    async with played(first_badly) as (peer, connections):
        with pytest.raises(PeerUnavailable):
            await peer.ask(*METADATA, QUESTION)
        assert (await peer.ask(*METADATA, QUESTION)).cluster_id == "c"
        assert len(connections) == 2


async def test_a_connection_that_was_closed_between_two_questions_is_made_anew() -> None:
    """As by each broker that restarts: uvloop raises RuntimeError for a write to a closed transport."""
    async with played(well) as (peer, connections):
        for number in range(3):
            assert (await peer.ask(*METADATA, QUESTION)).controller_id == 7
            assert len(connections) == number + 1
            assert peer._connection is not None
            transport = peer._connection[0]
            transport.abort()
            assert transport.is_closing()


async def test_an_answer_that_does_not_come_in_time_is_none_and_is_not_taken_for_the_next() -> None:
    may_answer = asyncio.Event()

    async def late(frame: bytes) -> bytes:
        await may_answer.wait()
        return await well(frame)

    async with played(late, timeout_s=0.05) as (peer, connections):
        with pytest.raises(PeerUnavailable, match="TimeoutError"):
            await peer.ask(*METADATA, QUESTION)
        may_answer.set()
        assert (await peer.ask(*METADATA, QUESTION)).cluster_id == "c"
        assert len(connections) == 2


async def test_a_question_that_is_given_up_leaves_no_answer_behind() -> None:
    requested, may_answer = asyncio.Event(), asyncio.Event()

    async def late(frame: bytes) -> bytes:
        requested.set()
        await may_answer.wait()
        return await well(frame)

    async with played(late) as (peer, connections):
        asking = asyncio.create_task(peer.ask(*METADATA, QUESTION))
        await requested.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        may_answer.set()
        await peer.ask(*METADATA, QUESTION)
        assert len(connections) == 2


async def test_a_question_that_is_broken_off_while_the_connection_is_made_is_not_asked() -> None:
    requests: list[bytes] = []

    async def note(frame: bytes) -> bytes:
        requests.append(frame)
        return await well(frame)

    async with played(note) as (peer, _):
        asking = asyncio.create_task(peer.ask(*METADATA, QUESTION))
        await asyncio.sleep(0)
        peer.close()
        with pytest.raises(PeerUnavailable, match="broken off"):
            await asking
        assert requests == []
        assert (await peer.ask(*METADATA, QUESTION)).cluster_id == "c"


async def test_a_broker_that_is_not_registered_or_refuses_is_not_reached(closed_port: int) -> None:
    with pytest.raises(PeerUnavailable, match="not registered"):
        await Peer(lambda: None, "test", 1).ask(*METADATA, QUESTION)
    nowhere = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", closed_port)
    with pytest.raises(PeerUnavailable, match="ConnectionRefusedError"):
        await Peer(lambda: nowhere, "test", 1).ask(*METADATA, QUESTION)


@given(
    frames=st.lists(st.binary(min_size=4, max_size=300), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 60), max_size=30),
)
async def test_an_answer_is_found_however_it_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    answers, pieces = _Answers(), iter(cuts)
    for frame in frames:
        awaited = answers.next(5)
        left = frame_of(frame)
        while left:
            assert not awaited.done()
            left = left[receive(answers, left[: next(pieces, len(left))]) :]
        assert await awaited == frame


async def test_answers_of_every_size_fit_and_what_nobody_asked_for_changes_none() -> None:
    answers = _Answers()
    for size in (4, BUFFER_BYTES_MIN, BUFFER_BYTES_MIN + 1, BUFFER_BYTES_KEPT_MAX + 1, 5):
        frame = bytes(range(251)) * (size // 251 + 1)
        awaited = answers.next(5)
        left = memoryview(frame_of(frame[:size]))
        while left:
            left = left[receive(answers, left) :]
        receive(answers, b"unasked")
        assert await awaited == frame[:size]


def receive(answers: _Answers, some: bytes | memoryview) -> int:
    """As a loop does; how much of `some` there was room for."""
    buffer = answers.get_buffer(-1)
    count = min(len(buffer), len(some))
    buffer[:count] = some[:count]
    buffer.release()
    answers.buffer_updated(count)
    return count


# --- Fetches ---


def leader_over(peer: Peer, wait_ms_max: int = 0) -> LeaderPeer:
    return LeaderPeer(
        peer,
        broker_id=2,
        incarnation=lambda: 0,
        wait_ms_max=wait_ms_max,
        bytes_max=1000,
        partition_bytes_max=500,
    )


def wanted(topic_id: UUID, partition: int = 0, offset: int = 0, epoch: int = 0) -> FetchedFrom:
    return FetchedFrom("t", topic_id, partition, epoch, offset, -1 if offset == 0 else 0, 0)


def everything(
    *items: FetchedFrom,
) -> tuple[dict[TopicIdPartition, FetchedFrom], list[TopicIdPartition], float]:
    """A fetch of these in which all have changed, and which may wait."""
    keyed = {(item.topic_id, item.partition): item for item in items}
    return keyed, list(keyed), math.inf


async def test_a_fetch_says_who_asks_in_which_life_and_what_he_has() -> None:
    received: list[Any] = []

    async def note(frame: bytes) -> bytes:
        view = memoryview(frame).toreadonly()
        header, position = decode_header(view)
        received.append(decode_request(header, view, position, FETCH_VERSION))
        body = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": ()}
        return joined(FETCH_KEY, FETCH_VERSION, header.correlation_id, body)

    one, two = UUID(int=1), UUID(int=2)
    async with played(note) as (peer, _):
        leader = leader_over(peer, wait_ms_max=500)
        asked_for = everything(wanted(one), wanted(one, 1, 5, 3), wanted(two))
        assert list(await leader.fetch(*asked_for)) == []
        await leader.fetch(*asked_for[:2], 0.0061)
    request, hurried = received
    assert (request.max_wait, hurried.max_wait) == (timedelta(milliseconds=500), timedelta(milliseconds=7))
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 0)
    assert [topic.topic_id for topic in request.topics] == [one, two]
    _, requested = request.topics[0].partitions
    assert (requested.partition, requested.fetch_offset, requested.last_fetched_epoch) == (1, 5, 0)
    assert (requested.current_leader_epoch, requested.partition_max_bytes) == (3, 500)


async def test_a_leader_that_fails_as_a_whole_is_not_reached() -> None:
    async def fail(frame: bytes) -> bytes:
        body = {"throttle_time": 0, "error_code": 70, "session_id": 0, "responses": ()}
        return joined(FETCH_KEY, FETCH_VERSION, correlation_id_of(frame), body)

    async with played(fail) as (peer, _):
        with pytest.raises(PeerUnavailable, match="answered error 70"):
            await leader_over(peer).fetch(*everything(wanted(UUID(int=1))))


async def test_a_real_leader_gives_records_divergence_and_errors_by_partition(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    topic_id = UUID(int=1)
    broker.view.set_topic(TopicAssignment("t", topic_id, {0: (1, 2)}), {})
    broker.set_state("t", 0, state_of(1, 0, (1,)))
    broker.append("t", [b"a", b"b"])
    options = SocketOptions(-1, -1, 50, 1 << 20)
    listener = Listener(
        Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0),
        options,
        ConnectionLimits(lambda: broker.context.config),
        broker.context.disk,
    )
    host, port = listener._socket.getsockname()
    listener.listen()
    listener.start(Router(broker.context, "PLAINTEXT", {}).handle)
    leader = leader_over(Peer(lambda: Endpoint("PLAINTEXT", "PLAINTEXT", host, port), "test", 5))
    try:
        (whole,) = await leader.fetch(*everything(wanted(topic_id)))
        assert (whole.error_code, whole.high_watermark, whole.diverging) == (0, 2, None)
        assert b"a" in bytes(whole.records)
        (ahead,) = await leader.fetch(*everything(wanted(topic_id, offset=9)))
        assert ahead == Fetched(topic_id, 0, 0, 2, 0, Divergence(0, 2), b"")
        strange = UUID(int=99)
        now_wanted, named, wait_s_max = everything(wanted(strange))
        (unknown,) = await leader.fetch(now_wanted, [*named, (topic_id, 0)], wait_s_max)
        assert (unknown.topic_id, unknown.error_code, unknown.records) == (strange, 100, b"")
    finally:
        leader.close()
        listener.close()
