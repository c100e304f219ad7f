"""A disk that can be made to fail: ext4 in a file, mounted for a test and gone after it.

`fail` aborts the file system's journal, as the kernel does when the device reports errors: from then on every
write is refused, also to files that are open, while what is in the page cache can still be read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self


def can_make_disks() -> bool:
    return os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None and Path("/dev/loop-control").exists()


class FailingDisk:
    """A file system of `size_bytes` at `mount_point`; use as a context manager."""

    def __init__(self, mount_point: Path, size_bytes: int) -> None:
        self.mount_point = mount_point
        self._image = mount_point.with_suffix(".img")
        mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        _run("mkfs.ext4", "-q", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount_point))

    def fail(self) -> None:
        _run("mount", "-o", "remount,abort", str(self.mount_point))

    def repair(self) -> None:
        """Mount it anew. Processes with open files on it keep the failed one."""
        _run("umount", "--lazy", str(self.mount_point))
        self._mount()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a broker that outlives its test by an error of ours must not keep the mount.
        _run("umount", "--lazy", str(self.mount_point))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
