"""When the machine stood still: a process that does nothing but sleep notes when it woke up late.

A hypervisor takes the CPUs away now and then, and whoever measures a wait then measures that. The witness is
a process of its own, because a thread would also be late when its own process is busy. It uses hardly any
CPU, so the scheduler wakes it promptly on a machine that is only busy: what a busy machine costs is not
excused.

Run as a program it writes each pause as a line, `START END` in seconds of the monotonic clock, once its
standard input has ended.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SLEEP_S: Final = 0.005
PAUSE_S_MIN: Final = 0.02
"""What a sleep may take longer than it should before it counts: idle machines take a millisecond."""

Pause = tuple[float, float]


class PauseWitness:
    """Watches from `start` to `stop`; then `pauses` has the machine's pauses."""

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C at a terminal is for those that wait for it
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it watches from here on

    def stop(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            lines, _ = process.communicate()
            assert process.returncode == 0, "the witness of pauses failed; its traceback is above"
            self.pauses = [(float(start), float(end)) for start, end in map(str.split, lines.splitlines())]


def paused_s(pauses: Iterable[Pause], start_s: float, end_s: float) -> float:
    """Seconds between two moments for which the machine stood still."""
    return sum(max(0.0, min(end_s, end) - max(start_s, start)) for start, end in pauses)


def main() -> None:
    """Watch until standard input ends."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    before_s = time.monotonic()  # before the word that it watches: a pause may begin with that
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    pauses: list[Pause] = []
    is_over = False
    while not is_over:
        is_over = ended.is_set()  # before the last sleep, so that no pause is missed
        time.sleep(SLEEP_S)
        now_s = time.monotonic()
        if now_s - before_s > SLEEP_S + PAUSE_S_MIN:
            pauses.append((before_s + SLEEP_S, now_s))
        before_s = now_s
    # Written now and not before: nobody reads until the end, and a pipe that is full would be a pause.
    sys.stdout.writelines(f"{start_s} {end_s}\n" for start_s, end_s in pauses)


if __name__ == "__main__":
    main()
