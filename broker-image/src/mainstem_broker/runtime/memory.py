"""How the process keeps its memory: what batches and responses need again and again is not given back.

glibc's malloc maps each block of 128 KiB and more anew, and returns a heap's free end to the kernel. A batch
of some hundred KB then costs a page fault, and a page filled with zeros, for every 4 KiB of it: half the CPU
of a follower. With higher limits the same pages are used again.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

GARBAGE_THRESHOLD: Final = 100_000
"""Allocations between two looks for reference cycles. Requests make none, and each look is a pause."""

# mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024  # the highest that glibc takes
_FREE_BYTES_MAX: Final = 64 * 1024 * 1024


def keep_freed_blocks() -> None:
    """Let malloc use freed blocks again. Does nothing with another C library than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES_MAX)


def collect_rarely() -> None:
    """Exclude the objects of the start from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 50, 50)
