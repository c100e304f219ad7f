"""Runs another program that Linux kills when its parent process ends for any reason.

Usage: `python die_with_parent.py PARENT_PID PROGRAM ARGUMENT...`. The script runs under `python -I -S` for a
few milliseconds before the program replaces it, so it must not import this package.

It is a separate program and not a `preexec_fn`, because code between fork and exec in a process with threads
may deadlock. The parent-death signal survives the exec (prctl(2), PR_SET_PDEATHSIG). Other operating systems
have no such signal: there, a `mainstem up` killed by SIGKILL leaves its children running.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent ended before the call above
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
