"""A disk that is soon full: a tmpfs of a few megabytes, mounted for a test and gone after it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    return os.geteuid() == 0


@contextmanager
def small_disk(mount_point: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of `size_bytes` at `mount_point`; unmounted, its content lost, when the block ends.

    Raises:
        subprocess.CalledProcessError: the kernel does not allow it (in a container without the right to).
    """
    mount_point.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "mainstem-test", str(mount_point)],
        check=True,
        capture_output=True,
    )
    try:
        yield mount_point
    finally:
        # Lazily: a broker that outlives its test by an error of ours must not keep the mount.
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True, capture_output=True)
