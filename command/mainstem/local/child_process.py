"""One program run by the local stack: its start, its exit, and the errors in its log.

Everything that brokers and ZooKeeper have in common as processes belongs here. Their arguments are in
`stack.py` and `zookeeper_process.py`, their ports in `ports.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstem.errors import StackError
from mainstem.local import die_with_parent

LOG_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger log file is renamed at the next start
_ERROR_LINES_MAX: Final = 200
_ERROR_LEVELS: Final = frozenset({"error", "critical"})
_POLL_SECONDS: Final = 0.02

# Linux sends the parent-death signal when the *thread* that forked ends. One thread that lives as long as
# the interpreter therefore does all the forking.
_forks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mainstem-forks")


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that is killed when this process ends (Linux only).

    Args:
        options: keyword arguments of `subprocess.Popen`.

    Raises:
        OSError: the operating system refuses.
    """
    shim = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    return _forks.submit(lambda: subprocess.Popen([*shim, *command], **options)).result()


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """An exit that nobody requested. `cause` is a phrase such as `killed by SIGKILL`."""

    name: str
    cause: str
    log_path: Path

    def __str__(self) -> str:
        verb = "was " if self.cause.startswith("killed") else ""
        return f"{self.name} {verb}{self.cause.rstrip('.')}. Log: {self.log_path}"


class ChildProcess:
    """A program of the local stack, which is killed when this process ends (Linux only).

    Its output goes to `log_path`. `extra_log_paths` are log files that the program writes itself.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        working_directory: Path | None = None,
        extra_log_paths: Sequence[Path] = (),
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = list(command)
        self._working_directory = working_directory
        self._log_paths = [*extra_log_paths, log_path]
        self._log_sizes_at_start = [0] * len(self._log_paths)
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_requested = False

    def start(self) -> None:
        """Start the program; returns before it is ready.

        Raises:
            StackError: it is running already, or the operating system refuses.
        """
        if self.running:
            raise StackError(f"{self.name} is already running (process {self.pid}).")
        _rename_when_large(self.log_path)
        self._log_sizes_at_start = [_size(path) for path in self._log_paths]
        try:
            with self.log_path.open("ab") as log_file:
                self._process = spawn(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    cwd=self._working_directory,
                    # Ctrl-C in a terminal goes to the whole process group. Only this process receives it, so
                    # that it can stop the brokers before ZooKeeper.
                    process_group=0,
                )
        except OSError as error:
            raise StackError(f"{self.name} could not be started: {error}.") from error
        self._stop_requested = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id while the program runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the signal number; None while the program runs or was never started."""
        return None if self._process is None else self._process.poll()

    @property
    def exited_unexpectedly(self) -> bool:
        """Whether the program should run and does not: it ended without `request_stop` or `kill`, or
        `abort_start` ended it."""
        return self.exit_code is not None and not self._stop_requested

    def request_stop(self) -> None:
        """Send SIGTERM, without waiting."""
        self._stop_requested = True
        if self._process is not None:
            self._process.terminate()

    def wait_stopped(self, timeout_seconds: float) -> None:
        """Wait for the exit after `request_stop`.

        Raises:
            StackError: it was still running after the timeout, and has been killed.
        """
        if self._process is None:
            return
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StackError(
                f"{self.name} did not stop within {timeout_seconds:.0f} s and was killed. "
                f"Log: {self.log_path}"
            ) from None

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit, which is immediate."""
        self._stop_requested = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def abort_start(self) -> None:
        """Send SIGKILL to a program that did not become ready, and wait for the exit.

        The program should still run: its exit counts as unexpected, so that a supervisor starts it again.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Poll `ready` until it is true.

        Raises:
            StackError: the program ended, or the timeout passed; the message has the cause.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.running:
                raise StackError(str(self.exit()))
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} was not ready within {timeout_seconds:.0f} s. Log: {self.log_path}"
                )
            time.sleep(_POLL_SECONDS)

    def exit(self) -> ProcessExit:
        """How the program ended, with the last error in its log."""
        code = self.exit_code
        if code is not None and code < 0:
            return ProcessExit(self.name, f"killed by {signal.Signals(-code).name}", self.log_path)
        last_error = last_error_in(self.last_log_lines(_ERROR_LINES_MAX))
        detail = "" if last_error is None else f": {last_error}"
        return ProcessExit(self.name, f"stopped with exit code {code}{detail}", self.log_path)

    def last_log_lines(self, count: int = 10) -> list[str]:
        """The last lines written since the last start."""
        lines: list[str] = []
        for path, size_at_start in zip(self._log_paths, self._log_sizes_at_start, strict=True):
            lines += _lines_since(path, size_at_start)
        return lines[-count:]


def last_error_in(lines: Sequence[str]) -> str | None:
    """The last error among log lines: plain text, or the event of a JSON line of level error.

    Indented lines belong to stack traces, whose last line says what happened.
    """
    for line in reversed(lines):
        if not line.strip() or line[0].isspace():
            continue
        if not line.startswith("{"):
            return line
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in _ERROR_LEVELS:
            reason = entry.get("reason") or entry.get("error") or ""
            return f"{entry.get('event', line)}: {reason}" if reason else str(entry.get("event", line))
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _rename_when_large(path: Path) -> None:
    if _size(path) > LOG_BYTES_MAX:
        path.replace(path.with_name(path.name + ".1"))


def _lines_since(path: Path, position: int, bytes_max: int = 65_536) -> list[str]:
    size = _size(path)
    if size == 0:
        return []
    start = max(position if position <= size else 0, size - bytes_max)
    with path.open("rb") as log_file:
        log_file.seek(start)
        return log_file.read().decode(errors="replace").splitlines()
