"""Running programs and telling the time that each stage took."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

_LAST_LINES: Final = 15


class MachineError(Exception):
    """Something that the machine needs could not be made; the message says what to do."""


class Stages:
    """Names what is being done and, when all is over, how long each part took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._times: list[tuple[str, float]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Print `name` now and its seconds when it is over."""
        say(f"{name} ...")
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self._times.append((name, seconds))
            say(f"{name}: {seconds:.1f} s")

    def summary(self) -> str:
        """A table of the stages, of which some went side by side, and of the whole."""
        rows = [*self._times, ("all", time.monotonic() - self._began)]
        return "\n".join(f"  {seconds:7.1f} s  {name}" for name, seconds in rows)


def say(line: str) -> None:
    """One line for the person who waits."""
    sys.stdout.write(f"e2e: {line}\n")
    sys.stdout.flush()


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    standard_input: bytes | None = None,
    timeout_seconds: float = 1800,
) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        MachineError: it is not installed, failed (with its last lines), or took too long.
    """
    words = [str(word) for word in command]
    try:
        finished = subprocess.run(
            words,
            env=os.environ | dict(environment or {}),
            cwd=folder,
            input=standard_input,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise MachineError(f"{words[0]} is not installed.") from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{shown(words)} did not end within {timeout_seconds:.0f} s.") from error
    if finished.returncode:
        raise _failure(words, finished.stdout + finished.stderr)
    return finished.stdout.decode(errors="replace")


def fan_out(
    write: Callable[[IO[bytes]], None], sinks: Sequence[Sequence[str]], *, environment: Mapping[str, str]
) -> None:
    """Give what `write` writes to the standard input of each of `sinks`, at the pace of the slowest.

    Raises:
        MachineError: one of them failed (with its last lines).
    """
    inside = os.environ | dict(environment)
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in sinks]
        processes = [
            subprocess.Popen(sink, env=inside, stdin=subprocess.PIPE, stdout=log, stderr=log)
            for sink, log in zip(sinks, logs, strict=True)
        ]
        try:
            write(cast(IO[bytes], _Tee(processes)))
        finally:
            for process in processes:
                process.communicate()  # ends its input
        for words, process, log in zip(sinks, processes, logs, strict=True):
            if process.returncode:
                log.seek(0)
                raise _failure(words, log.read())


class _Tee:
    """A file that is written to several processes."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def write(self, block: bytes) -> int:
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has failed, which its exit code says
                process.stdin.write(block)
        return len(block)


def succeeds(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, seconds: float = 30
) -> bool:
    """Whether a program ends with 0 in time; what it says is not of interest."""
    try:
        run(command, environment=environment, timeout_seconds=seconds)
    except MachineError:
        return False
    return True


def _failure(words: Sequence[str], output: bytes) -> MachineError:
    lines = output.decode(errors="replace").strip().splitlines()
    return MachineError("\n  ".join([f"{shown(words)} failed:", *lines[-_LAST_LINES:]]))


def shown(words: Sequence[str]) -> str:
    """A command line, short enough for a message."""
    line = " ".join(words)
    return line if len(line) <= 120 else line[:117] + "..."
