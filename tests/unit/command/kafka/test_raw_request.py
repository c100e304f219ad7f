"""How long one request waits: not as long for a connection as for an answer."""

from __future__ import annotations

import socket

import pytest

from mainstem.kafka.move_requests import list_request
from mainstem.kafka.raw_request import ask


@pytest.mark.parametrize(("timeout_seconds", "to_connect"), [(30.0, 3.0), (2.0, 2.0)])
def test_an_address_that_cannot_be_reached_is_given_up_sooner_than_one_that_is_slow_to_answer(
    timeout_seconds: float, to_connect: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = socket.socketpair()
    waits = []

    def connect(_address: tuple[str, int], timeout: float) -> socket.socket:
        waits.append(timeout)
        return here

    monkeypatch.setattr("mainstem.kafka.raw_request.socket.create_connection", connect)
    there.close()
    with pytest.raises(OSError, match=r"."):
        ask(("nowhere", 9092), list_request(1.0), client_id="test", timeout_seconds=timeout_seconds)
    assert (waits, here.gettimeout()) == ([to_connect], timeout_seconds)
