"""Limits of time for clients, whose part the tests play."""

from __future__ import annotations

import pytest

from mainstem_broker.server import connection, health_server, listener_security, tls_handshakes

LIMITS = (
    (connection, "PROGRESS_S"),
    (health_server, "CLIENT_TIMEOUT_S"),
    (health_server, "LOOP_ANSWER_S"),
    (listener_security, "LOGIN_S_MAX"),
    (tls_handshakes, "HANDSHAKE_S_MAX"),
)


@pytest.fixture(autouse=True)
def clients_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a test can take longer than these ten seconds. Tests of a limit set their own."""
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, 600.0)
