"""A web server that answers as a schema registry with a login does, within the test's process."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

USER_INFO: Final = "alice:a:secret-of-alice"
"""The password has a colon, as passwords may."""


class GuardedRegistry:
    """Answers every GET with a schema if the login is that of USER_INFO."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.logins: list[str | None] = []
        """The header `Authorization` of each request."""
        self.redirects_to: str | None = None


@contextmanager
def guarded_registry(context: ssl.SSLContext | None = None) -> Iterator[GuardedRegistry]:
    """The server, with TLS if a context is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.logins.append(self.headers.get("Authorization"))
            if registry.redirects_to is not None:
                self.send_response(302)
                self.send_header("Location", registry.redirects_to + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            expected = "Basic " + base64.b64encode(USER_INFO.encode()).decode()
            is_accepted = self.headers.get("Authorization") == expected
            body = {"schema": '"int"'} if is_accepted else {"error_code": 401, "message": "Unauthorized"}
            content = json.dumps(body).encode()
            self.send_response(200 if is_accepted else 401)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry = GuardedRegistry(
        f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    )
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield registry
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
