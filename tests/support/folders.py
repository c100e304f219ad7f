"""The one root under which everything lies that the tests of a process write outside their `tmp_path`.

A state machine or an example of Hypothesis wants a new folder many times in one test, where `tmp_path` is one
for all of them. Programs under test make temporary files, too. All of that lies in the base directory of the
run, as `tmp_path` does: two runs on one machine never meet, and what a run left is deleted with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOCKET_PATH_BYTES_MAX: Final = 107
"""The longest path of a Unix socket (unix(7): `sun_path` has 108 bytes, the last one is 0)."""
ROOM_FOR_A_SOCKET_BYTES: Final = 40
"""What programs add to the temporary folder: `/pymp-abcdefgh/listener-abcdefgh` of multiprocessing has 32."""


@contextmanager
def temporary_files_in(root: Path) -> Iterator[None]:
    """Let this process and those that it starts make their temporary files in `root`.

    Raises:
        ValueError: paths of sockets in `root` would be too long.
    """
    if len(os.fsencode(root)) + ROOM_FOR_A_SOCKET_BYTES > SOCKET_PATH_BYTES_MAX:
        raise ValueError(
            f"Sockets in {root} would have paths of more than {SOCKET_PATH_BYTES_MAX} bytes, which the system"
            " refuses. Choose a shorter folder with --basetemp."
        )
    folder_before, variable_before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(root)
    try:
        yield
    finally:
        tempfile.tempdir = folder_before
        if variable_before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable_before


def new_folder() -> Path:
    """An empty folder under the root of the run. Who makes many deletes them."""
    return Path(tempfile.mkdtemp())


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that is deleted at the end of the `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
