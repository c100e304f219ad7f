"""What a process costs, read from Linux's /proc.

In scope: CPU time and memory. Starting and stopping is that of the systems (`mainstem_stack.py`,
`apache_kafka.py`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final[int] = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED: Final = 2


def cpu_seconds(pid: int) -> float:
    """User and system time of every thread of `pid` since it started.

    By the process's own CPU clock, which counts nanoseconds: /proc/PID/stat counts ticks of 10 ms, of which
    reading 200 MB takes a handful.
    """
    return time.clock_gettime(_cpu_clock(pid))


def _cpu_clock(pid: int) -> int:
    # What clock_getcpuclockid(3) makes of a process id on Linux (include/linux/posix-timers_types.h);
    # Python has it for threads of its own alone.
    return ~pid << 3 | _CPUCLOCK_SCHED


def process_tree(pid: int) -> list[int]:
    """`pid` and all processes that it and they have started, as far as they are alive."""
    pids = [pid]
    for parent in pids:  # grows meanwhile
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
    return pids


def own_cpu_seconds() -> float:
    """User and system time of this process, its threads (librdkafka's too) included."""
    times = os.times()
    return times.user + times.system


def machine_cpu_seconds() -> float:
    """CPU time that all programs of this machine used since it started, the hypervisor's share included."""
    # user nice system idle iowait irq softirq steal (proc_stat(5)); guests are in user already.
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / TICKS_PER_SECOND


def memory_mb(pid: int) -> dict[str, float]:
    """`{"rss": …, "pss": …}` of `pid` in MB (10^6 bytes); pss shares pages among those who map them."""
    memory_by_process: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            memory_by_process[name.lower()] = int(rest.split()[0]) * 1024 / 1e6
    return memory_by_process
