"""What the machine was like during a run: pauses, load, and what was left of memory and disk.

A failure on a machine that stood still, or that had no disk left, reads differently.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.support.machine_pauses import Pause

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
    load = os.getloadavg()[0]
    disk_gb = shutil.disk_usage(".").free / 1e9
    meminfo = Path("/proc/meminfo")
    memory = ""
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        memory = f", {int(fields['MemAvailable'].split()[0]) / 1e6:.1f} GB of memory"
    return f"load {load:.1f} on {os.cpu_count()} cores{memory} and {disk_gb:.0f} GB of disk free"
