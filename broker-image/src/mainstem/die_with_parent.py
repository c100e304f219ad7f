"""Becomes another program that Linux kills when the process that started it dies, however it dies.

Run as a script: `python die_with_parent.py PARENT_PID PROGRAM ARGUMENT...`. It stays free of this package's
imports, since it runs under `python -I -S` for the few milliseconds before it is replaced.

This is a program of its own, not a `preexec_fn`, because code between fork and exec in a process with
threads may deadlock. The wish survives the exec (prctl(2), PR_SET_PDEATHSIG). Elsewhere than on Linux
there is no such wish, and a `mainstem up` killed by SIGKILL leaves its children running.
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
        if os.getppid() != parent_pid:  # it died before we could ask to be told
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
