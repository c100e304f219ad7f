"""One program run by the local stack: started, watched, stopped, and its last words read.

Lives here: everything about processes that brokers and ZooKeeper share. What either of them is told lives
in `stack.py` and `zookeeper_process.py`, their ports in `ports.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from mainstem import die_with_parent
from mainstem.errors import StackError

LOG_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger log file is moved aside at the next start
_POLL_SECONDS: Final = 0.02

# Linux sends the parent-death signal when the *thread* that forked ends, so one thread that lives as long
# as the interpreter does all the forking.
_forks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mainstem-forks")


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that dies with us (Linux); `options` are those of `subprocess.Popen`.

    Raises:
        OSError: the operating system refuses.
    """
    shim = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    return _forks.submit(lambda: subprocess.Popen([*shim, *command], **options)).result()


class ChildProcess:
    """A program of the local stack. Its output goes to `log_path`; it dies with us (Linux).

    `extra_log_paths` are files the program itself writes, which also tell why it stopped.
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
        self._asked_to_stop = False

    def start(self) -> None:
        """Start the program; does not wait for it to be of use.

        Raises:
            StackError: it runs already, or the operating system refuses.
        """
        if self.running:
            raise StackError(f"{self.name} runs already (process {self.pid}).")
        _move_aside_when_large(self.log_path)
        self._log_sizes_at_start = [_size(path) for path in self._log_paths]
        try:
            with self.log_path.open("ab") as log_file:
                self._process = spawn(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    cwd=self._working_directory,
                    # Ctrl-C in a terminal goes to the whole process group: only we get it, so that we
                    # can stop brokers before ZooKeeper.
                    process_group=0,
                )
        except OSError as error:
            raise StackError(f"{self.name} could not be started: {error}.") from error
        self._asked_to_stop = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def exit_code(self) -> int | None:
        """How it ended: the exit code, or minus the signal number; None while it runs or never ran."""
        return None if self._process is None else self._process.poll()

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ran and ended without `stop` or `kill` having been called."""
        return self.exit_code is not None and not self._asked_to_stop

    def ask_to_stop(self) -> None:
        """Send SIGTERM, without waiting."""
        self._asked_to_stop = True
        if self._process is not None:
            self._process.terminate()

    def wait_stopped(self, timeout_seconds: float) -> None:
        """Wait for the end after `ask_to_stop`.

        Raises:
            StackError: it still ran after the timeout, and has been killed.
        """
        if self._process is None:
            return
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StackError(
                f"{self.name} did not stop within {timeout_seconds:.0f} s and was killed; its last log lines "
                f"are in {self.log_path}."
            ) from None

    def kill(self) -> None:
        """Send SIGKILL and wait for the end, which is immediate."""
        self._asked_to_stop = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Poll `ready` until it is true.

        Raises:
            StackError: the program ended meanwhile, or the timeout passed; the message has the cause.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.running:
                raise StackError(self.describe_end())
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} was not ready within {timeout_seconds:.0f} s{self._last_words()}"
                )
            time.sleep(_POLL_SECONDS)

    def describe_end(self) -> str:
        """Why it ended, with what it last said, as text for a person."""
        code = self.exit_code
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"stopped with exit code {code}"
        return f"{self.name} {how}{self._last_words()}"

    def last_log_lines(self, count: int = 10) -> list[str]:
        """The last lines written since the last start."""
        lines: list[str] = []
        for path, size_at_start in zip(self._log_paths, self._log_sizes_at_start, strict=True):
            lines += _lines_since(path, size_at_start)
        return lines[-count:]

    def _last_words(self) -> str:
        lines = self.last_log_lines()
        # A start-up error is one plain sentence on stderr; everything else there is JSON or a traceback.
        if self.exit_code == 1 and lines and not lines[-1].startswith(("{", " ")):
            return f": {lines[-1]}"
        if not lines:
            return " and logged nothing."
        return "; its last log lines were:\n" + "\n".join(f"  {line}" for line in lines)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _move_aside_when_large(path: Path) -> None:
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
