"""What the machine was like during a run: pauses, load, and what was left of memory and disk.

A failure on a machine that stood still, or that had no disk left, reads differently.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Final

from tests.support.machine_pauses import Pause

from scripts.needs import free_disk_bytes, free_memory_bytes

Resources = tuple[float, int | None, int]
"""The load, and the bytes of memory and disk that are free; memory is None where nothing tells it."""

_LOOK_S: Final = 1.0
_DISK_BYTES_MIN: Final = 200_000_000
_MEMORY_BYTES_MIN: Final = 500_000_000
"""With less than these, the kernel or a program refuses what a test asks for."""
PAUSE_S_MIN: Final = 0.5
"""Pauses that a summary mentions. A busy machine has shorter ones all the time."""


def describe_pauses(pauses: list[Pause]) -> str:
    """The pauses that may have made a test fail, in one sentence."""
    lengths_s = [end_s - start_s for start_s, end_s in pauses if end_s - start_s >= PAUSE_S_MIN]
    if not lengths_s:
        return f"no pause of the machine over {PAUSE_S_MIN} s"
    return f"{len(lengths_s)} pauses of the machine over {PAUSE_S_MIN} s, the longest {max(lengths_s):.1f} s"


def describe_resources() -> str:
    """Load, free memory and free disk at this moment; only Linux tells the memory."""
    return described(_resources())


def shortages(resources: Resources) -> list[str]:
    """What the machine ran out of, each with what helps: the likely cause of any failure of the run."""
    _, memory, disk = resources
    found = []
    if disk < _DISK_BYTES_MIN:
        folders = f"{Path.cwd()} or {tempfile.gettempdir()}"
        found.append(
            f"the disk was full: {disk / 1e9:.1f} GB were left in {folders}. Make room and run again."
        )
    if memory is not None and memory < _MEMORY_BYTES_MIN:
        found.append(f"memory ran out: {memory / 1e9:.1f} GB were left. End other programs and run again.")
    return found


class ResourceWitness:
    """Notices the highest load and the least memory and disk: a disk that was full may be free at the end."""

    def __init__(self) -> None:
        self._worst = _resources()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resource-witness", daemon=True)
        self._thread.start()

    def stop(self) -> Resources:
        """End; what it noticed."""
        self._is_over.set()
        self._thread.join()
        return self._worst

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self._worst = worst(self._worst, _resources())


def worst(one: Resources, other: Resources) -> Resources:
    """Of each resource what was left when it was scarcest."""
    memories = [memory for memory in (one[1], other[1]) if memory is not None]
    return max(one[0], other[0]), min(memories, default=None), min(one[2], other[2])


def _resources() -> Resources:
    return os.getloadavg()[0], free_memory_bytes(), free_disk_bytes()


def described(resources: Resources) -> str:
    """The three numbers in words."""
    load, memory, disk = resources
    left = "" if memory is None else f", {memory / 1e9:.1f} GB of memory"
    return f"load {load:.1f} on {os.cpu_count()} cores{left} and {disk / 1e9:.1f} GB of disk free"
