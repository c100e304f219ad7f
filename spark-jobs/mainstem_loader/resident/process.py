"""The process of the resident loader: workers that load, a page that tells their states, and the end.

Workers are threads; the work is done by Spark's tasks, as many at a time as there are cores, so memory is
bounded by cores and not by topics. A load that fails is reported and tried again later, while the other
workers go on. What no load can mend ends the process, which Kubernetes starts again: a Spark that is gone,
or a load that never ends.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.load_topic import load_topic
from mainstem_loader.report import LoadReport
from mainstem_loader.resident.configuration import ResidentTopic, topics_of
from mainstem_loader.resident.schedule import Schedule
from mainstem_loader.spark.executors import TaskExecutor

LOAD_SECONDS_MAX: Final = 6 * 3600
CONFIGURATION_PAUSE_S: Final = 2.0
STOP_SECONDS: Final = 20.0
_MESSAGE_CHARACTERS_MAX: Final = 1000

Load = Callable[[ResidentTopic], LoadReport]


class ResidentEnded(LoaderError):
    """The process cannot go on."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A load that rejected too many records: when it ended, in milliseconds since 1970, and its counts."""

    at_ms: int
    run_id: str
    read: int
    rejected: int

    def page(self) -> dict[str, object]:
        """The same in JSON's types."""
        return {"atMs": self.at_ms, "runId": self.run_id, "read": self.read, "rejected": self.rejected}


@dataclass(slots=True)
class TopicState:
    """What the page says of a topic.

    Attributes:
        loaded_up_to_ms: the time up to which everything is loaded, as of the last load that knew it; None
            before. A rewind lowers it.
        started_ms, finished_ms: of the last load that has ended; None before.
        succeeded: whether that load went well: no error, and not too many records rejected.
        message: what became of it, for people.
        run_id, rows, rejected: of the last load that brought records.
        warnings: of the last load that did not fail.
        last_rejection: None, unless the last load that read records rejected too many. Loads that find
            nothing to read, or fail, leave it: the records are still in the dead letters.
        read_ms, gap_records: when the last load ended that read records or passed over deleted ones, and how
            many offsets it passed over; None and 0 before.
    """

    loaded_up_to_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    succeeded: bool = False
    message: str = ""
    run_id: str | None = None
    rows: int = 0
    rejected: int = 0
    warnings: tuple[str, ...] = ()
    last_rejection: Rejection | None = None
    read_ms: int | None = None
    gap_records: int = 0

    def page(self) -> dict[str, object]:
        """The state in JSON's types."""
        return {
            "loadedUpToMs": self.loaded_up_to_ms,
            "startedMs": self.started_ms,
            "finishedMs": self.finished_ms,
            "succeeded": self.succeeded,
            "message": self.message,
            "runId": self.run_id,
            "rows": self.rows,
            "rejected": self.rejected,
            "warnings": list(self.warnings),
            "lastRejection": None if self.last_rejection is None else self.last_rejection.page(),
            "readMs": self.read_ms,
            "gapRecords": self.gap_records,
        }


class Resident:
    """Loads all topics of a file until it is stopped.

    Args:
        file: see `configuration`.
        load: loads one topic.
        is_alive: whether what loads need is still there; asked after failures.
        workers: how many loads run side by side.
    """

    def __init__(self, file: Path, load: Load, is_alive: Callable[[], bool], workers: int) -> None:
        self._file = file
        self._load = load
        self._is_alive = is_alive
        self._workers = workers
        # Guards all below: workers, the page and the main thread use them.
        self._changed = threading.Condition()
        self._schedule = Schedule()
        self._topics: dict[str, ResidentTopic] = {}
        self._states: dict[str, TopicState] = {}
        self._text = ""
        self._error = ""
        self._is_stopping = False
        self._ended: ResidentEnded | None = None

    def run(self) -> None:
        """Load until `stop` is called. Loads under way may end then, for a while.

        Raises:
            ResidentEnded: the process has to be started again.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workers)]
        self.read_configuration()
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                if self._is_stopping or self._ended is not None:
                    break
                if self._schedule.longest_s(time.monotonic()) > LOAD_SECONDS_MAX:
                    self._ended = ResidentEnded(f"A load has not ended within {LOAD_SECONDS_MAX} s.")
                    break
                self._changed.wait(CONFIGURATION_PAUSE_S)
            self.read_configuration()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            if self._ended is None:
                thread.join(max(deadline - time.monotonic(), 0))
        if self._ended is not None:
            raise self._ended

    def stop(self) -> None:
        """End `run`. May be called from a handler of signals, which must not wait for a lock."""
        self._is_stopping = True

    def read_configuration(self) -> None:
        """Take the file's topics, if it has changed. One that cannot be read changes nothing."""
        try:
            text = self._file.read_text(encoding="utf-8")
            if text == self._text:
                return
            topics = topics_of(text)
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            with self._changed:
                self._error = str(error)
            return
        with self._changed:
            self._text, self._error = text, ""
            self._topics = topics
            for name in self._states.keys() - topics.keys():
                del self._states[name]
            now_ms = time.time_ns() // 1_000_000
            for name, topic in topics.items():
                state = self._states.setdefault(name, TopicState())
                if topic.settings is None:
                    state.started_ms = state.finished_ms = now_ms
                    state.succeeded, state.message = False, topic.error
            loaded = {name: topic for name, topic in topics.items() if topic.settings is not None}
            self._schedule.set_topics(
                {name: topic.freshness_s for name, topic in loaded.items()}, time.monotonic()
            )
            self._changed.notify_all()

    def page(self) -> dict[str, object]:
        """The states of all topics in JSON's types."""
        with self._changed:
            return {
                "error": self._error,
                "topics": {name: state.page() for name, state in sorted(self._states.items())},
            }

    def _work(self) -> None:
        while (name := self._next()) is not None:
            self._load_one(name)

    def _next(self) -> str | None:
        """Wait for a topic that is due. None at the end."""
        with self._changed:
            while not self._is_stopping and self._ended is None:
                now_s = time.monotonic()
                name = self._schedule.take(now_s)
                if name is not None:
                    return name
                wait_s = self._schedule.wait_s(now_s)
                # Never without an end: `stop` does not notify.
                self._changed.wait(
                    CONFIGURATION_PAUSE_S if wait_s is None else min(wait_s, CONFIGURATION_PAUSE_S)
                )
        return None

    def _load_one(self, name: str) -> None:
        with self._changed:
            topic = self._topics.get(name)
        if topic is None:
            return
        started_ms = time.time_ns() // 1_000_000
        try:
            report = self._load(topic)
        except Exception as error:  # noqa: BLE001  # one topic's failure, of whatever kind, is no other's
            message = str(error) if isinstance(error, LoaderError) else f"{type(error).__name__}: {error}"
            self._note_failure(name, started_ms, message[:_MESSAGE_CHARACTERS_MAX])
            return
        self._note(name, started_ms, report)

    def _note_failure(self, name: str, started_ms: int, message: str) -> None:
        _log({"topic": name, "error": message})
        is_alive = self._is_alive()
        with self._changed:
            if (state := self._states.get(name)) is not None:
                state.started_ms, state.finished_ms = started_ms, time.time_ns() // 1_000_000
                state.succeeded, state.message = False, message
            self._schedule.end(name, time.monotonic(), failed=True)
            if not is_alive:
                self._ended = ResidentEnded("Spark has ended; a new process starts it again.")
            self._changed.notify_all()

    def _note(self, name: str, started_ms: int, report: LoadReport) -> None:
        if report.read:
            _log({"topic": name, **report.summary()})
        up_to_ms = report.loaded_up_to_ms
        # Records of an open transaction are no reason to load again at once.
        has_more = report.read > 0 and report.has_more
        with self._changed:
            if (state := self._states.get(name)) is not None:
                if report.warnings and report.warnings != state.warnings:
                    _log({"topic": name, "warnings": report.warnings})
                state.warnings = report.warnings
                state.started_ms, state.finished_ms = started_ms, time.time_ns() // 1_000_000
                if up_to_ms is not None:
                    # Less than before, after a rewind: the table is complete only up to there.
                    state.loaded_up_to_ms = up_to_ms
                state.succeeded = not report.rejected_too_many
                if report.rejected_too_many:
                    state.message = report.rejection()
                elif report.read or not state.message or not state.succeeded:
                    state.message = f"{report.rows} rows loaded, {report.dead_lettered} to the dead letters."
                if report.read or report.gaps:
                    state.read_ms, state.gap_records = state.finished_ms, report.gap_records
                if report.read:
                    state.run_id, state.rows = report.run_id, report.rows
                    state.rejected = report.dead_lettered
                    state.last_rejection = None
                    if report.rejected_too_many:
                        state.last_rejection = Rejection(
                            state.finished_ms, report.run_id, report.read, report.dead_lettered
                        )
            self._schedule.end(name, time.monotonic(), has_more=has_more)
            self._changed.notify_all()


def loading_with(executor: TaskExecutor) -> Load:
    """Loads topics with an executor that all share."""

    def load(topic: ResidentTopic) -> LoadReport:
        assert topic.settings is not None
        return load_topic(topic.settings, executor)

    return load


class _PageServer(ThreadingHTTPServer):
    """Listens on all interfaces, of IPv6 and of IPv4, where the machine has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


@contextmanager
def serve_pages(port: int, page: Callable[[], Mapping[str, object]]) -> Iterator[int]:
    """Serve /status, the page, and /healthz, which answers while the process runs. Yields the port, which is
    a free one for 0.
    """

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            if self.path not in ("/status", "/healthz"):
                self.send_error(404)
                return
            body = json.dumps(page()).encode() if self.path == "/status" else b"ok"
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if self.path == "/status" else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's name
            """Requests are not logged: they come every few seconds."""

    with _PageServer(("", port), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _log(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
