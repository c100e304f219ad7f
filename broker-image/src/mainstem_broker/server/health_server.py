"""The HTTP server for probes and Prometheus: GET /livez, /readyz, /status, /metrics (setting `http.port`).

It runs in a thread of its own, so that it can report a blocked event loop. Its content
is collected on the loop, which owns all state; it waits for that no longer than `LOOP_ANSWER_S`. Texts are
made of the values in this thread.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

from mainstem_broker.errors import StartupError
from mainstem_broker.server.health import Health
from mainstem_broker.server.metrics import CONTENT_TYPE, Metrics

LOOP_ANSWER_S: Final = 5.0
"""A loop that takes longer to answer is stuck: the longest thing that it does at once takes milliseconds."""
CLIENT_TIMEOUT_S: Final = 10.0

Value = TypeVar("Value")
Page = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class HealthServer:
    """Listens from the constructor on; `start` answers, `close` ends it."""

    def __init__(self, port: int, health: Health, metrics: Metrics) -> None:
        """Bind the port.

        Raises:
            StartupError: the port cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._metrics = metrics
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = CLIENT_TIMEOUT_S
            server_version = "mainstem"
            sys_version = ""

            def do_GET(self) -> None:  # the name is http.server's
                status, content_type, body = server.page(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name, too
                """Probes come every few seconds: no line for each."""

        try:
            self._server = _Server(("", port), Handler)
        except OSError as error:
            raise StartupError(
                f"Cannot listen on http.port {port} ({error.strerror or error}): stop what listens there, or"
                " change http.port."
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Takes up to half a second, so not on the loop. Safe to call if it was never started."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def page(self, path: str) -> Page:
        """What a path answers; called by the server's threads."""
        try:
            match path:
                case "/livez":
                    self._ask(_turn)
                    return _json({"alive": True})
                case "/readyz":
                    reasons = self._ask(self._unready)
                    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
                    return _json({"ready": not reasons, "reasons": reasons}, status)
                case "/status":
                    return _json(self._ask(self._health.status))
                case "/metrics":
                    return HTTPStatus.OK, CONTENT_TYPE, self._metrics.text(self._ask(self._metrics.snapshot))
                case _:
                    paths = "/livez, /readyz, /status and /metrics"
                    return _json({"error": f"There is no {path} here; {paths} are."}, HTTPStatus.NOT_FOUND)
        except TimeoutError:
            return _json({"error": "the event loop does not answer"}, HTTPStatus.SERVICE_UNAVAILABLE)
        except (CancelledError, RuntimeError):
            return _json({"error": "the broker is stopping"}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _unready(self) -> list[str]:
        return self._health.unready(await self._health.standing())

    def _ask(self, question: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """The answer of a call on the event loop.

        Raises:
            TimeoutError: the loop did not get to it in time.
            RuntimeError: it is closed.
        """
        answering = question()
        try:
            answer = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError:
            answering.close()
            raise
        try:
            return answer.result(LOOP_ANSWER_S)
        except TimeoutError:
            answer.cancel()
            raise


class _Server(ThreadingHTTPServer):
    """Listens on all interfaces, of IPv6 and of IPv4, where the machine has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


async def _turn() -> None:
    """Done in a turn of the loop."""


def _json(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Page:
    return status, "application/json", (json.dumps(content) + "\n").encode()
