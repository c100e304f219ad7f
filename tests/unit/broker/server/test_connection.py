from __future__ import annotations

import asyncio
import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.support.waiting import let_pass_async
from tests.unit.broker.server.peers import Peer, Script, frame_of, until

from mainstem_broker.server import connection as module
from mainstem_broker.server.connection import (
    COROUTINES_UNDER_WAY_MAX,
    FRAME_BUFFER_KEPT_BYTES_MAX,
    HEAD_BYTES,
    LARGE_FRAME_BYTES,
    RECEIVE_BUFFER_BYTES,
    REQUESTS_UNDER_WAY_MAX,
    UNSENT_BYTES_MAX,
)

HOUR_S = 3_600


# --- Reading ---


@pytest.mark.parametrize(
    "size",
    [
        RECEIVE_BUFFER_BYTES - 5,
        RECEIVE_BUFFER_BYTES - 4,
        RECEIVE_BUFFER_BYTES,
        3 * RECEIVE_BUFFER_BYTES + 1,
        FRAME_BUFFER_KEPT_BYTES_MAX,
        FRAME_BUFFER_KEPT_BYTES_MAX + 1,
        7 * 1024 * 1024,
    ],
)
async def test_a_frame_larger_than_the_buffer_comes_whole_and_what_follows_too(size: int) -> None:
    large = b"echo " + random.Random(size).randbytes(size // 2 - 5).hex().encode()

    with Peer(Script().handle) as peer:
        sending = asyncio.create_task(peer.send("echo before", large, "echo after", large, "echo end"))
        before, first, after, second, end = await peer.receive(5)
        await sending
        assert (before, after, end) == (b"before", b"after", b"end")
        assert first == second == large[5:]


@pytest.mark.parametrize(
    "size", [*range(HEAD_BYTES - 9, HEAD_BYTES + 1), LARGE_FRAME_BYTES - 1, LARGE_FRAME_BYTES]
)
async def test_what_follows_a_large_frame_is_read_wherever_its_head_ends(size: int) -> None:
    large = b"echo " + bytes(LARGE_FRAME_BYTES)
    next_one = b"echo " + b"x" * (size - 5)

    with Peer(Script().handle) as peer:
        sending = asyncio.create_task(peer.send(large, next_one, "echo after", next_one, large, "echo end"))
        assert await peer.receive(6) == [large[5:], next_one[5:], b"after", next_one[5:], large[5:], b"end"]
        await sending


async def test_a_large_frames_buffer_is_let_go_and_a_common_ones_kept() -> None:
    with Peer(Script().handle) as peer:
        await peer.send(b"echo " + bytes(1_100_000))
        await peer.receive()
        assert len(peer.connection._frame) >= 1_100_000
        await peer.send(b"echo " + bytes(5_000_000))
        await peer.receive()
        assert len(peer.connection._frame) == 0


@settings(max_examples=60)
@given(
    requests=st.lists(
        st.builds(
            lambda size, fill: b"echo " + bytes((fill,)) * size, st.integers(0, 300_000), st.integers(97, 122)
        )
        | st.binary(max_size=20).map(lambda data: b"echo " + data.hex().encode()),
        max_size=12,
    ),
    cuts=st.lists(st.integers(1, 10) | st.integers(1, 400_000), max_size=20),
)
async def test_any_frames_in_any_pieces_are_answered_once_and_in_order(
    requests: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(frame_of, requests))

    async def send(peer: Peer) -> None:
        position = 0
        for cut in cuts:
            await peer.send_raw(stream[position : position + cut])
            await asyncio.sleep(0)
            position += cut
        await peer.send_raw(stream[position:])

    script = Script()
    with Peer(script.handle) as peer:
        sending = asyncio.create_task(send(peer))
        answers = await peer.receive(len(requests))
        await sending
        assert answers == [request[5:] for request in requests]
        assert script.handled == requests
        await peer.receive_nothing()


@settings(max_examples=100)
@given(st.lists(st.binary(min_size=1, max_size=400), max_size=6))
async def test_no_bytes_make_a_connection_do_anything_but_serve_or_close(pieces: list[bytes]) -> None:
    handled: list[bytes] = []

    def handle(_: module.Connection, frame: memoryview) -> None:
        handled.append(bytes(frame))

    with Peer(handle, request_bytes_max=1000) as peer:
        loop_errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
        for piece in pieces:
            if not peer.connection.is_closed:
                await peer.send_raw(piece)
                await asyncio.sleep(0)
        await peer.settle()
        stream, expected = b"".join(pieces), []
        while len(stream) >= 4:
            (size,) = struct.unpack_from(">i", stream)
            if not 0 < size <= 1000:
                assert peer.connection.is_closed
                break
            if len(stream) < 4 + size:
                break
            expected.append(stream[4 : 4 + size])
            stream = stream[4 + size :]
        assert handled == expected
        assert loop_errors == []


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
async def test_a_size_that_cannot_be_closes_the_connection_and_is_logged_with_the_bound(size: int) -> None:
    with Peer(Script().handle, request_bytes_max=1000) as peer, capture_logs() as logs:
        await peer.send_raw(frame_of(b"echo first") + struct.pack(">i", size) + b"rest")
        assert await peer.receive_end() in (b"", frame_of(b"first"))
        (line,) = logs
        assert line["event"] == "connection closed"
        assert f"announces {size} bytes, and socket.request.max.bytes is 1000" in line["reason"]


async def test_a_frame_of_the_largest_size_is_taken() -> None:
    with Peer(Script().handle, request_bytes_max=1000) as peer:
        await peer.send(b"echo " + b"x" * 995)
        assert await peer.receive() == [b"x" * 995]


# --- Order ---


async def test_a_request_without_an_answer_leaves_no_gap() -> None:
    """Produce with acks=0, at once or after a wait."""

    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("none", "echo 0", "later a", "none", "echo 1")
        assert await peer.receive() == [b"0"]
        await peer.settle()
        script.later["a"].set_result(None)
        assert await peer.receive() == [b"1"]
        await peer.receive_nothing()


@settings(max_examples=40)
@given(
    words=st.lists(st.sampled_from(["echo", "later", "none", "hold"]), max_size=14),
    order=st.randoms(use_true_random=False),
)
async def test_whatever_is_slow_the_order_of_answers_is_that_of_requests(
    words: list[str], order: random.Random
) -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send(*(f"{word} {number}" for number, word in enumerate(words)))
        await peer.settle()
        while waiting := script.waiting():
            script.let_go(order.choice(waiting))
            await peer.settle()
        expected = [
            f"after {number}" if word == "hold" else str(number)
            for number, word in enumerate(words)
            if word != "none"
        ]
        assert await peer.receive(len(expected)) == [text.encode() for text in expected]
        assert [request.decode().split()[1] for request in script.handled] == [
            str(number) for number in range(len(words))
        ]
        assert not peer.connection.is_closed


async def test_requests_behind_a_held_one_are_not_handled_before_it() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("echo 0", "hold a", "echo 1", "hold b", "echo 2")
        assert await peer.receive() == [b"0"]
        await peer.receive_nothing()
        assert script.handled == [b"echo 0", b"hold a"]
        script.gates["a"].set_result(None)
        assert await peer.receive(2) == [b"after a", b"1"]
        assert script.handled[2:] == [b"echo 1", b"hold b"]
        await peer.send("echo 3")
        await peer.receive_nothing()
        script.gates["b"].set_result(None)
        assert await peer.receive(3) == [b"after b", b"2", b"3"]


async def test_a_client_behind_a_held_request_is_not_read_from_whatever_else_is_answered() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("later a", "hold b")
        await peer.settle()
        assert not peer.is_read_from()
        script.let_go("a")
        assert await peer.receive() == [b"a"]
        await peer.send("echo c")
        await peer.settle()
        assert not peer.is_read_from()
        assert len(peer.connection._held) == 0
        script.let_go("b")
        assert await peer.receive(2) == [b"after b", b"c"]
        assert peer.is_read_from()


async def test_a_hold_that_fails_lets_the_request_go_on() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("hold a", "echo 1")
        await peer.settle()
        script.gates["a"].set_exception(TimeoutError())
        assert await peer.receive(2) == [b"after a", b"1"]


# --- Muting ---


async def test_a_muted_connection_answers_and_handles_nothing_more_until_its_time_is_over() -> None:
    """KIP-219: the answer goes out first."""

    handled: list[bytes] = []

    def handle(connection: module.Connection, frame: memoryview) -> module.Answer:
        handled.append(bytes(frame))
        if bytes(frame) == b"mute":
            connection.mute(HOUR_S)
        return [frame_of(bytes(frame))]

    with Peer(handle) as peer:
        await peer.send("mute", "behind", "it")
        assert await peer.receive(1) == [b"mute"]
        await peer.send("later")
        await peer.settle()
        assert handled == [b"mute"]
        peer.connection._end_mute()
        assert await peer.receive(3) == [b"behind", b"it", b"later"]


async def test_the_longest_of_several_mutes_counts_and_none_makes_a_connection_idle() -> None:
    with Peer(Script().handle) as peer:
        await peer.settle()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for duration_s in (0.01, 0.2, 0.05):
            peer.connection.mute(duration_s)
        assert peer.connection.last_active_s >= begun_s + 0.2
        await peer.send("echo late")
        assert await peer.receive(1) == [b"late"]
        assert loop.time() - begun_s > 0.19  # uvloop counts whole milliseconds


async def test_a_request_that_is_held_while_its_connection_is_muted_is_answered_and_those_behind_wait() -> (
    None
):
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def handle(_connection: module.Connection, frame: memoryview) -> module.Answer:
        answer: module.Answer = [frame_of(bytes(frame))]
        return module.Hold(ready, lambda: answer) if bytes(frame) == b"hold" else answer

    with Peer(handle) as peer:
        await peer.send("hold", "behind")
        await peer.settle()
        peer.connection.mute(HOUR_S)
        ready.set_result(None)
        assert await peer.receive(1) == [b"hold"]
        await peer.receive_nothing()
        peer.connection._end_mute()
        assert await peer.receive(1) == [b"behind"]


async def test_a_muted_connection_can_be_closed() -> None:
    with Peer(Script().handle) as peer:
        await peer.settle()
        peer.connection.mute(0.05)
        await peer.send("echo lost")
        peer.connection.close()
        await let_pass_async(0.1, "it would be heard again after 0.05 s")
        assert peer.connection.is_closed


# --- Writing ---


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(random.Random(7).randbytes(4 * 1024 * 1024))
    return path


async def test_a_slice_and_the_bytes_around_it_come_at_once(segment: Path) -> None:
    """A client would be woken for each packet."""

    with Peer(Script(segment).handle) as peer:
        for size_bytes in (100, 20_000):
            await peer.send(f"slices 0:{size_bytes}")
            received = await asyncio.get_running_loop().sock_recv(peer.socket, 100_000)
            assert len(received) == 4 + 1 + size_bytes + 1


async def test_a_slice_larger_than_the_socket_takes_is_sent_in_parts(segment: Path) -> None:
    content = segment.read_bytes()

    with Peer(Script(segment).handle, send_buffer_bytes=4096) as peer:
        await peer.send("slices 3:1000000", "echo end")
        received = bytearray()
        while len(received) < 4 + 1 + 1_000_000 + 1 + 7:
            received += await asyncio.get_running_loop().sock_recv(peer.socket, 100_000)
        assert received[4:] == b"<" + content[3:1_000_003] + b"|" + frame_of(b"end")
        assert peer.connection._unsent_bytes == 0


@pytest.mark.parametrize(("size_bytes", "sent_bytes"), [(200_000, 4 + 1 + 99_950), (200, 0)])
async def test_a_file_that_was_cut_short_closes_the_connection(
    segment: Path, size_bytes: int, sent_bytes: int
) -> None:
    with Peer(Script(segment).handle) as peer:
        os.truncate(segment, 50 + min(size_bytes // 2, 99_950))
        await peer.send(f"slices 50:{size_bytes}")
        assert len(await peer.receive_end()) == sent_bytes
        assert peer.connection.is_closed


async def test_a_client_that_does_not_read_is_not_read_from_until_it_does() -> None:
    answer_bytes = 1_000_000
    count = 60

    script = Script()
    with Peer(script.handle, send_buffer_bytes=65536) as peer:
        connection = peer.connection
        for _ in range(count):
            await peer.send(f"bytes {answer_bytes}")
            await peer.settle()
        handled = len(script.handled)
        assert handled < count, "requests are left in the socket"
        assert not peer.is_read_from()
        assert connection._unsent_bytes <= UNSENT_BYTES_MAX + 2 * answer_bytes
        answers = await peer.receive(count)
        assert all(len(answer) == answer_bytes for answer in answers)
        assert len(script.handled) == count
        assert peer.is_read_from()
        assert connection._unsent_bytes == 0


@pytest.mark.parametrize(
    ("follower", "most"), [("later", COROUTINES_UNDER_WAY_MAX), ("echo", REQUESTS_UNDER_WAY_MAX)]
)
async def test_a_client_with_too_many_requests_under_way_is_not_read_from(follower: str, most: int) -> None:
    """Also when only the first is slow: its answer holds back all others, and they are kept."""

    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("later first")
        for number in range(3 * REQUESTS_UNDER_WAY_MAX):
            await peer.send(f"{follower} {number}")
            await asyncio.sleep(0)
        await peer.settle()
        assert peer.connection.requests_under_way == most
        script.later["first"].set_result([frame_of(b"first")])
        while len(script.handled) < 3 * REQUESTS_UNDER_WAY_MAX + 1 or script.waiting():
            for name in script.waiting():
                script.let_go(name)
            await peer.settle()
        answers = await peer.receive(3 * REQUESTS_UNDER_WAY_MAX + 1)
        assert answers[1:] == [str(number).encode() for number in range(3 * REQUESTS_UNDER_WAY_MAX)]


async def test_a_client_that_does_not_read_makes_the_broker_answer_no_more_than_it_may_keep() -> None:
    """All requests come in one packet, and are not handled because they are there."""
    answer_bytes, count = 300_000, 100
    script = Script()
    with Peer(script.handle, send_buffer_bytes=65536) as peer:
        await peer.send(*[f"bytes {answer_bytes}"] * count)
        await peer.settle()
        assert len(script.handled) < 10
        assert peer.connection._unsent_bytes <= UNSENT_BYTES_MAX + answer_bytes
        answers = await peer.receive(count)
        assert [len(answer) for answer in answers] == [answer_bytes] * count
        assert peer.connection._unsent_bytes == 0


async def test_an_answer_that_waits_for_a_large_one_leaves_when_the_socket_takes_that_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other event comes: the client waits for both answers and sends nothing."""
    monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 1_000)
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("pending large", "pending small")
        await until(lambda: len(script.handled) == 2)
        script.pending["small"].set_result([frame_of(b"small")])
        script.pending["large"].set_result([frame_of(bytes(2_000))])
        assert await peer.receive(2) == [bytes(2_000), b"small"]


async def test_answers_that_wait_behind_a_slow_one_count_as_unsent() -> None:
    answer_bytes, count = 300_000, 20
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("later first", *[f"bytes {answer_bytes}"] * count)
        await peer.settle()
        assert len(script.handled) < 10
        script.let_go("first")
        assert len(await peer.receive(1 + count)) == 1 + count


async def test_requests_that_take_long_let_other_connections_have_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.0)
    script = Script()
    with Peer(script.handle) as greedy, Peer(script.handle) as modest:
        await asyncio.gather(greedy.send(*["echo greedy"] * 50), modest.send("echo modest"))
        assert await modest.receive() == [b"modest"]
        assert len(await greedy.receive(50)) == 50
        assert script.handled.index(b"echo modest") < 50


async def test_a_frame_takes_memory_as_its_bytes_come() -> None:
    with Peer(Script().handle, request_bytes_max=100_000_000) as peer:
        await peer.send_raw(struct.pack(">i", 90_000_000) + bytes(1_000))
        await peer.settle()
        assert len(peer.connection._frame) <= 4096


# --- The end ---


async def test_the_end_of_the_peer_closes_once() -> None:
    with Peer(Script().handle) as peer, capture_logs() as logs:
        peer.socket.close()
        await peer.settle()
        assert peer.connection.is_closed
        peer.connection.close()
        assert peer.closed == [peer.connection]
        assert logs == [], "clients come and go without a word"


async def test_closing_cancels_the_requests_under_way_and_those_just_begun() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("never a", "never b")
        await peer.settle()
        await peer.send("never c", "hold d", "close")
        await peer.settle()
        assert not peer.connection.is_closed, "close is behind the held one"
        peer.connection.close()
        await peer.settle()
        assert script.cancelled == ["a", "b", "c"] or sorted(script.cancelled) == ["a", "b", "c"]
        assert script.gates["d"].cancelled()
        assert peer.connection._tasks == set()


@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_a_request_abandoned_before_it_began_leaves_no_coroutine_behind() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("never a", "bad")
        await peer.receive_end()
        await peer.settle()
        assert script.cancelled == ["a"]


@pytest.mark.parametrize("word", ["bad", "bug", "bug-later", "hold-bug x"])
async def test_a_request_that_cannot_be_answered_closes_its_connection_and_nothing_is_read_out_of_step(
    word: str,
) -> None:
    script = Script()
    loop_errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    with Peer(script.handle) as peer, Peer(script.handle) as other, capture_logs() as logs:
        await peer.send("echo 1", "later a", word, "echo 2")
        await peer.settle()
        for gate in script.gates.values():
            gate.set_result(None)
        received = await peer.receive_end()
        assert received in (b"", frame_of(b"1"))
        assert peer.connection.is_closed
        await other.send("echo still here")
        assert await other.receive() == [b"still here"]
        assert loop_errors == []
        assert [line["event"] for line in logs] == (
            ["connection closed"] if word == "bad" else ["request failed", "connection closed"]
        )


async def test_a_failed_request_closes_also_when_a_later_answer_is_ready_first() -> None:
    script = Script()
    loop_errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    with Peer(script.handle) as peer:
        await peer.send("later a", "later b")
        await peer.settle()
        script.later["b"].set_result([frame_of(b"B")])
        script.later["a"].set_exception(RuntimeError("ours"))
        assert await peer.receive_end() == b""
        assert loop_errors == []


async def test_a_peer_that_is_gone_while_answers_are_written_is_let_go() -> None:
    with Peer(Script().handle, send_buffer_bytes=4096) as peer:
        await peer.send("bytes 5000000")
        await peer.settle()
        peer.socket.close()
        await peer.settle()
        assert peer.connection.is_closed


# --- Answers that others settle ---


async def test_answers_that_are_settled_by_others_go_out_in_the_order_of_the_requests() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("pending a", "pending b", "echo c", "pending d")
        await until(lambda: len(script.handled) == 4)
        for name in ("d", "b", "a"):
            script.pending[name].set_result([frame_of(name.encode())])
        assert await peer.receive(4) == [b"a", b"b", b"c", b"d"]
        await peer.send("pending alone")
        await until(lambda: "alone" in script.pending)
        script.pending["alone"].set_result([frame_of(b"alone")])
        assert await peer.receive(1) == [b"alone"]


async def test_who_settles_an_answer_hears_nothing_of_a_connection_that_cannot_send_it(
    tmp_path: Path,
) -> None:
    """The file behind a later answer is shorter than it was: its disk has failed, say."""
    path = tmp_path / "records"
    path.write_bytes(b"short")

    script = Script(path)
    with Peer(script.handle) as peer:
        await peer.send("pending a", "slices 0:100")
        await until(lambda: len(script.handled) == 2)
        with capture_logs() as logs:
            script.pending["a"].set_result([frame_of(b"a")])
            await until(lambda: peer.connection.is_closed)
        assert any(entry["event"] == "request failed" for entry in logs)


async def test_answers_under_way_are_cancelled_when_their_connection_closes() -> None:
    script = Script()
    with Peer(script.handle) as peer:
        await peer.send("pending a", "pending b")
        await until(lambda: len(script.handled) == 2)
        peer.connection.close()
        await until(lambda: all(pending.cancelled() for pending in script.pending.values()))
