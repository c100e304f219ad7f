"""A proxy before an S3 server, which can make it a store that ignores the condition `If-None-Match`.

A process of its own, run by path: deltalake waits for a store while it keeps Python's lock, so no thread of
the same process could answer. GET and PUT of `/_control` read and set what it does.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 30.0
CONTROL: Final = "/_control"
_CONDITION: Final = "if-none-match"


class S3Proxy:
    """The proxy as a test holds it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def set_conditions(self, *, kept: bool) -> None:
        """Whether puts keep their conditions from now on; forgets the requests before."""
        body = json.dumps({"kept": kept}).encode()
        request = urllib.request.Request(self.endpoint + CONTROL, data=body, method="PUT")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()

    def paths(self) -> list[str]:
        """What was requested."""
        with urllib.request.urlopen(self.endpoint + CONTROL, timeout=TIMEOUT_S) as answer:
            paths: list[str] = json.load(answer)
        return paths


@contextmanager
def s3_proxy(endpoint: str) -> Iterator[S3Proxy]:
    """A proxy before the server at `endpoint`, which keeps conditions at first."""
    process = subprocess.Popen([sys.executable, __file__, endpoint], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield S3Proxy(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class _Proxy:
    """The proxy's process."""

    def __init__(self, endpoint: str) -> None:
        self._server_address = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._are_conditions_kept = True
        self._paths: list[str] = []

        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815  # http.server's names

        self.listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listener.daemon_threads = True

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = _body_of(request)
        with self._lock:
            if request.path == CONTROL:
                if request.command == "PUT":
                    self._are_conditions_kept = json.loads(body)["kept"]
                    self._paths = []
                report = json.dumps(self._paths).encode()
                _answer(request, 200, [("Content-Type", "application/json")], report)
                return
            self._paths.append(request.path)
        hidden = {"connection", "transfer-encoding", "expect", "content-length"}
        if not self._are_conditions_kept:
            hidden.add(_CONDITION)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in hidden}
        connection = http.client.HTTPConnection(self._server_address, timeout=TIMEOUT_S)
        try:
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            _answer(request, answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()


def _body_of(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes
) -> None:
    of_head = request.command == "HEAD"
    own = {"connection", "transfer-encoding", "date", "server"} | (set() if of_head else {"content-length"})
    request.send_response(status)
    for name, value in headers:
        if name.lower() not in own:
            request.send_header(name, value)
    if not of_head:
        request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if not of_head:
        request.wfile.write(content)


if __name__ == "__main__":
    running = _Proxy(sys.argv[1])
    sys.stdout.write(f"http://127.0.0.1:{running.listener.server_port}\n")
    sys.stdout.flush()
    running.listener.serve_forever()
