"""Ports that are kept for a server are given to no other, and the server can listen there (R18)."""

from __future__ import annotations

import random
import socket

import pytest

from mainstem.local.ports import _draws, free_ports, hold_free_ports, hold_port, port_is_free


def test_free_ports_are_free_and_below_those_of_outgoing_connections() -> None:
    first = free_ports(3)
    assert all(port_is_free(port) for port in range(first, first + 3))
    assert first + 2 < 32_768


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
        assert hold_port(port) is None


def test_a_kept_port_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, (held,) = hold_free_ports()
    with held:
        draw = _draws.randrange
        first_draws = iter([kept, kept - 2])  # the port itself, and the last of three
        monkeypatch.setattr(_draws, "randrange", lambda *limits: next(first_draws, None) or draw(*limits))
        first = free_ports(3)
        assert kept not in range(first, first + 3)
        assert next(first_draws, None) is None


def test_who_listens_at_a_kept_port_is_reached_and_alone() -> None:
    port, (held,) = hold_free_ports()
    address = ("127.0.0.1", port)
    with held:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for _ in range(2):  # a server that was restarted listens again
            with socket.create_server(address) as server, socket.create_connection(address):
                server.accept()[0].close()
                with pytest.raises(OSError, match="in use"):
                    socket.create_server(address)


def test_programs_with_one_seed_draw_different_ports() -> None:
    drawn = set()
    for _ in range(3):
        random.seed(11)
        drawn.add(free_ports())
    assert len(drawn) > 1
