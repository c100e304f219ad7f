"""How files leave: names that say "to be removed", and the removal.

Lives here: naming and unlinking. Must not: what is due to leave (`retention`), and when exactly it does (the
owner of the loop schedules that).

Whatever is deleted is renamed first and unlinked after `file.delete.delay.ms`. A restart in between finds the
name and finishes.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

DELETED_SUFFIX: Final = ".deleted"
DELETED_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"  # kept for a person to look at, as Kafka does

_FILE_NAME_BYTES_MAX: Final = 255

# Takes renamed files or directories and the delay in ms after which to `unlink_all` of them.
ScheduleUnlink = Callable[[Sequence[Path], int], None]


def unlink_all(paths: Sequence[Path]) -> None:
    """Remove files and directories; any thread may call it. What is gone already is no error."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def unlink_now(paths: Sequence[Path], _delay_ms: int) -> None:
    """A `ScheduleUnlink` that does not wait."""
    unlink_all(paths)


def unique_directory_name(name: str, suffix: str) -> str:
    """`name` with a unique part and `suffix`, the topic cut where it would be too long for a file name."""
    suffix = f".{uuid.uuid4().hex}{suffix}"
    return name[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix
