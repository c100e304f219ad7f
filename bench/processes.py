"""What a process costs, read from Linux's /proc, and free ports for the ones that are started.

Lives here: CPU time, memory and ports. Starting and stopping is `brokers`.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final[int] = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of every thread of `pid` since it started, in steps of one tick (10 ms)."""
    # The command name, in parentheses, may itself hold spaces and parentheses: count from its end.
    # Fields 14 and 15 of proc_pid_stat(5) are then the 12th and 13th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


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
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name.lower()] = int(rest.split()[0]) * 1024 / 1e6
    return found


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that nothing listens on at this moment."""
    with ExitStack() as held:
        listeners = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
