"""A client that sends small requests one after another while something else happens to its broker.

It is a process of its own, so that what the test does meanwhile cannot make it late. A second thread sleeps
for a millisecond at a time: when it wakes up late, the machine stood still (a hypervisor took the CPU away),
and that time is not counted as a wait for the broker.
"""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.support.waiting import let_pass
from tests.support.wire import Connection, fetch, list_offset, produce

ANSWER_SECONDS: Final = 60.0
PAUSE_BETWEEN_ROUNDS_S: Final = 0.002
WITNESS_SLEEP_S: Final = 0.001
PAUSE_S_MIN: Final = 0.005
"""What a sleep may take longer than it should before it counts as a pause of the machine."""
_FORK: Final = multiprocessing.get_context("fork")  # an interpreter of its own would start for a second


class OtherClient:
    """Measures the longest wait for an answer, and samples the memory of the broker with process id `pid`."""

    def __init__(self, address: str, topic: str, pid: int) -> None:
        self._done = _FORK.Event()
        self._figures: Any = _FORK.Array("d", 4, lock=False)
        self._process = _FORK.Process(
            target=_measure, args=(address, topic, pid, self._done, self._figures), daemon=True
        )

    @property
    def longest_wait_ms(self) -> float:
        """The longest wait for the broker since the last reset."""
        return float(self._figures[0])

    @property
    def longest_pause_ms(self) -> float:
        """The longest time since the last reset for which the machine stood still."""
        return float(self._figures[1])

    @property
    def requests(self) -> int:
        return int(self._figures[2])

    @property
    def memory_max_mb(self) -> float:
        return float(self._figures[3])

    def start(self) -> None:
        self._process.start()

    def reset(self) -> None:
        """Forget the longest wait and pause so far."""
        self._figures[0] = self._figures[1] = 0.0

    def stop(self) -> None:
        """End the process. A request that failed fails the test."""
        self._done.set()
        self._process.join()
        assert self._process.exitcode == 0, "the other client was not served; its traceback is above"


class _Witness(threading.Thread):
    """Remembers when the machine stood still."""

    def __init__(self, done: Event) -> None:
        super().__init__(daemon=True)
        self._done = done
        self.pauses: deque[tuple[float, float]] = deque(maxlen=100)

    def run(self) -> None:
        before_s = time.perf_counter()
        while not self._done.is_set():
            let_pass(WITNESS_SLEEP_S, "it measures how late it wakes up")
            now_s = time.perf_counter()
            if now_s - before_s > WITNESS_SLEEP_S + PAUSE_S_MIN:
                self.pauses.append((before_s + WITNESS_SLEEP_S, now_s))
            before_s = now_s

    def paused_s(self, start_s: float, end_s: float) -> float:
        """Seconds between two times for which the machine stood still."""
        return sum(max(0.0, min(end_s, end) - max(start_s, start)) for start, end in list(self.pauses))


def _measure(address: str, topic: str, pid: int, done: Event, figures: Any) -> None:
    batch = encode_batch([Message(b"good", b"key", (), int(time.time() * 1000))])
    witness = _Witness(done)
    witness.start()
    with Connection(address, timeout_seconds=ANSWER_SECONDS) as connection:
        requests: Mapping[str, Callable[[], Any]] = {
            "Produce": lambda: produce(connection, topic, 0, batch).error_code,
            "Fetch": lambda: fetch(connection, topic, 0, 0, max_wait_ms=0).error_code,
            "ListOffsets": lambda: list_offset(connection, topic, 0, -1).error_code,
        }
        while not done.is_set():
            for name, ask in requests.items():
                started_s = time.perf_counter()
                error_code = ask()
                assert error_code == ErrorCode.none, f"{name} number {figures[2]:.0f}: {error_code!r}"
                ended_s = time.perf_counter()
                if ended_s - started_s > PAUSE_S_MIN:
                    let_pass(2 * WITNESS_SLEEP_S, "the witness may wake up after this thread")
                paused_s = witness.paused_s(started_s, ended_s)
                figures[0] = max(figures[0], 1000 * (ended_s - started_s - paused_s))
                figures[1] = max(figures[1], 1000 * paused_s)
                figures[2] += 1
            figures[3] = max(figures[3], memory_mb(pid))
            done.wait(PAUSE_BETWEEN_ROUNDS_S)


def memory_mb(pid: int) -> float:
    """Megabytes of memory that a process uses, without pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", status))) / 1000
