"""Running programs and telling the time that each stage took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
        output = (finished.stdout + finished.stderr).decode(errors="replace").strip().splitlines()
        raise MachineError("\n  ".join([f"{shown(words)} failed:", *output[-_LAST_LINES:]]))
    return finished.stdout.decode(errors="replace")


def succeeds(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, seconds: float = 30
) -> bool:
    """Whether a program ends with 0 in time; what it says is not of interest."""
    try:
        run(command, environment=environment, timeout_seconds=seconds)
    except MachineError:
        return False
    return True


def shown(words: Sequence[str]) -> str:
    """A command line, short enough for a message."""
    line = " ".join(words)
    return line if len(line) <= 120 else line[:117] + "..."
