"""The removal of files and directories of logs.

In scope: the suffix of files that are to be removed, and unlinking. Out of scope: what is due (`retention`),
names of directories (`directory_names`), and the time (the owner of the loop schedules it).

A file is renamed first and unlinked after `file.delete.delay.ms`. A restart in between recognises the name
and finishes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

DELETED_SUFFIX: Final = ".deleted"

# Takes renamed files or directories and the delay in ms after which to `unlink_all` of them.
ScheduleUnlink = Callable[[Sequence[Path], int], None]


def unlink_all(paths: Iterable[Path]) -> None:
    """Remove files and directories; any thread may call it. What is gone already is no error."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def unlink_now(paths: Sequence[Path], _delay_ms: int) -> None:
    """A `ScheduleUnlink` that does not wait."""
    unlink_all(paths)
