"""Limits of the operating system for the processes of the local stack."""

from __future__ import annotations

import contextlib
import resource


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, for this process and those it starts.

    Many systems set the soft limit to 1,024 for programs that use select(2). Brokers do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    with contextlib.suppress(ValueError, OSError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
