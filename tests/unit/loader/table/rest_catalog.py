"""A REST catalog of Iceberg tables that loses answers when it is told to (Iceberg REST specification).

It keeps its tables in a catalog of pyiceberg in a file, and speaks just what a loader asks for.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

_STATUS_OF = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


class RestCatalogServer:
    """A context manager. `commit_faults` holds, for the next commits, what happens to them: "lost 500" and
    "lost connection" commit and do not say so, "repeated" commits and is asked again by something in between,
    "refused 500" does not commit.
    """

    def __init__(self, folder: Path) -> None:
        self.commit_faults: deque[str] = deque()
        self.commits = 0
        self._catalog = SqlCatalog(
            "served", uri=f"sqlite:///{folder}/served.sqlite", warehouse=str(folder / "served")
        )
        self._lock = threading.Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                served.answer(self, "GET")

            def do_HEAD(self) -> None:
                served.answer(self, "HEAD")

            def do_POST(self) -> None:
                served.answer(self, "POST")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._catalog.close()

    def answer(self, request: BaseHTTPRequestHandler, method: str) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        path = [unquote(part) for part in request.path.partition("?")[0].strip("/").split("/")][1:]
        fault = ""
        try:
            if method == "POST" and len(path) == 4:
                fault = self.commit_faults.popleft() if self.commit_faults else ""
                status, answer = self._commit(body, fault)
            else:
                status, answer = self._ask(method, path, body)
        except tuple(_STATUS_OF) as error:
            status = _STATUS_OF[type(error)]
            kind = type(error).__name__.removesuffix("Error").removesuffix("Exception") + "Exception"
            answer = {"error": {"message": str(error), "type": kind, "code": status}}
        if fault == "lost connection":
            request.connection.close()
            request.close_connection = True
            return
        text = b"" if answer is None else json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text if method != "HEAD" else b"")

    def _commit(self, body: bytes, fault: str) -> tuple[int, dict[str, Any] | None]:
        failure = {"error": {"message": "it broke", "type": "InternalServerError", "code": 500}}
        if fault == "refused 500":
            return 500, failure
        with self._lock:
            asked = CommitTableRequest.model_validate_json(body)
            identifier = (*asked.identifier.namespace.root, asked.identifier.name)

            def commit() -> Any:
                table = self._catalog.load_table(identifier)
                return self._catalog.commit_table(table, asked.requirements, asked.updates)

            done = commit()
            self.commits += 1
            if fault == "repeated":
                done = commit()
        if fault == "lost 500":
            return 500, failure
        return 200, json.loads(done.model_dump_json())

    def _ask(self, method: str, path: list[str], body: bytes) -> tuple[int, dict[str, Any] | None]:
        read: Callable[[], dict[str, Any]] = lambda: json.loads(body)  # noqa: E731
        namespace = tuple(path[1].split("\x1f")) if len(path) > 1 else ()
        match method, path:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                with self._lock:
                    self._catalog.create_namespace(tuple(read()["namespace"]))
                return 200, {"namespace": read()["namespace"], "properties": {}}
            case (("GET" | "HEAD"), ["namespaces", _]):
                if not self._catalog.namespace_exists(namespace):
                    raise NoSuchNamespaceError(".".join(namespace))
                return 200, {"namespace": namespace, "properties": {}}
            case "GET", ["namespaces", _, "tables"]:
                found = self._catalog.list_tables(namespace)
                return 200, {"identifiers": [{"namespace": one[:-1], "name": one[-1]} for one in found]}
            case "POST", ["namespaces", _, "tables"]:
                asked = read()
                with self._lock:
                    table = self._catalog.create_table(
                        (*namespace, asked["name"]),
                        schema=Schema.model_validate(asked["schema"]),
                        partition_spec=PartitionSpec.model_validate(asked["partition-spec"]),
                        properties=asked["properties"],
                    )
                return 200, _described(table)
            case "GET", ["namespaces", _, "tables", name]:
                return 200, _described(self._catalog.load_table((*namespace, name)))
        return 404, {"error": {"message": "no such endpoint", "type": "NotFoundException", "code": 404}}


def _described(table: Any) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }
