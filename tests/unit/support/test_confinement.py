"""Unit tests stay in their process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest
import uvloop
from tests.support.confinement import CONFINEMENT, LeavesItsProcess

from mainstem.local.ports import free_ports


@pytest.fixture
def refused() -> Iterator[Callable[[], list[str]]]:
    """Takes what was refused, so that it does not fail the test."""

    def take() -> list[str]:
        messages = CONFINEMENT.end()
        CONFINEMENT.begin()
        return messages

    yield take
    take()


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"], check=True),
        lambda: os.system("true"),
        os.fork,
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: asyncio.run(asyncio.create_subprocess_exec("true")),
        lambda: uvloop.run(asyncio.create_subprocess_exec("true")),
    ],
    ids=["subprocess", "system", "fork", "posix_spawn", "multiprocessing", "asyncio", "uvloop"],
)
def test_a_process_is_refused_with_where_the_test_belongs(
    start: Callable[[], object], refused: Callable[[], list[str]]
) -> None:
    with pytest.raises(LeavesItsProcess, match="move the test to tests/interop"):
        start()
    assert len(refused()) == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_only_servers_of_the_test_are_reached(
    run: Callable[..., None], refused: Callable[[], list[str]], closed_port: int
) -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        own_port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", own_port)
        assert await reader.read() == b""
        writer.close()
        server.close()
        with pytest.raises(ConnectionRefusedError):  # a port that is held for the test
            await asyncio.open_connection("127.0.0.1", closed_port)
        with pytest.raises(LeavesItsProcess):
            await asyncio.open_connection("127.0.0.1", 9)
        with pytest.raises(LeavesItsProcess):
            await asyncio.start_server(lambda *_: None, "127.0.0.1", 9)

    run(test())
    assert len(refused()) == 2


def test_a_port_that_could_be_anybodys_is_refused(refused: Callable[[], list[str]]) -> None:
    with pytest.raises(LeavesItsProcess, match="which is not port 0"):
        free_ports()
    with socket.socket() as other, pytest.raises(LeavesItsProcess):
        other.connect(("127.0.0.1", 9))
    with socket.socket(socket.AF_UNIX) as other, pytest.raises(LeavesItsProcess):
        other.connect("/run/docker.sock")
    assert len(refused()) == 3


def test_a_pair_of_sockets_is_no_network() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"x")
        assert there.recv(1) == b"x"
