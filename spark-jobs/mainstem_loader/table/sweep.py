"""Orphans: files that no commit names, left by loads that were killed or overtaken. They are deleted when
old.

A file may be deleted only if no run can still commit it, and only by the table that it was written for:

- a run commits within `COMMIT_WITHIN_HOURS` of its first file, or not at all (`commits`), and no file is
  swept that is younger than `ORPHAN_HOURS_MIN`, twice as long: an hour's difference of clocks does no harm;
- only names that loads give to files are considered (`parquet_files`), in the dead letter folder only those
  that begin with this table's name, because other tables deliver to it, too;
- only files right in the table's own partitions are considered (`day=...`, `topic=...`), and those that a
  transform has staged (`_staged/...`): another warehouse may lie in a folder below;
- files that left the table by a commit, as after a rewrite by another program, stay as long as orphans do,
  for the readers of older snapshots.
"""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from mainstem_loader.columns import DAY_COLUMN
from mainstem_loader.errors import SettingsError
from mainstem_loader.table.dead_letters import TOPIC_COLUMN
from mainstem_loader.table.delta import open_table
from mainstem_loader.table.delta_store import DeltaSnapshot
from mainstem_loader.table.folder import Folder, shortened
from mainstem_loader.table.formats import Change, CommitConflictError, TableSnapshot
from mainstem_loader.table.parquet_files import STAGED_FOLDER, origin_of_file

COMMIT_WITHIN_HOURS: Final = 12
ORPHAN_HOURS_MIN: Final = 2 * COMMIT_WITHIN_HOURS
# As long as Delta keeps files for readers of older snapshots.
ORPHAN_HOURS: Final = 7 * 24
# Listing a bucket is slow and costs money.
SWEEP_EVERY_HOURS: Final = 24

_SWEPT_AT: Final = "mainstem/swept"
_HOUR_S: Final = 3600


def check_orphan_hours(hours: int) -> None:
    """Refuse an age at which files may still belong to a running load.

    Raises:
        SettingsError: it is below the minimum.
    """
    if hours < ORPHAN_HOURS_MIN:
        raise SettingsError(
            f"Files may be swept after {ORPHAN_HOURS_MIN} hours at the earliest, not {hours}: a load that is"
            " still running could lose its files."
        )


def is_sweep_due(table: TableSnapshot, now_s: float) -> bool:
    """Whether the last sweep of this table was long enough ago."""
    return int(now_s // _HOUR_S) - (table.counter(_SWEPT_AT) or 0) >= SWEEP_EVERY_HOURS


def sweep_orphans(
    folder: Folder,
    dead_letters: Folder,
    table: TableSnapshot,
    table_name: str,
    older_than_hours: int,
    now_s: float | None = None,
) -> int:
    """Delete orphans of one table and of its dead letters, which have to be delivered before.

    Args:
        folder: of the table's files.
        dead_letters: the folder of its dead letter table.
        table: the newest snapshot.
        table_name: how dead letters name it.
        older_than_hours: how old an orphan has to be.
        now_s: seconds since 1970; the clock's by default.

    Returns:
        How many files were deleted.
    """
    check_orphan_hours(older_than_hours)
    now_s = time.time() if now_s is None else now_s
    try:
        table.expire_snapshots(now_s)
    except CommitConflictError:
        pass  # The next sweep does it.
    swept = _sweep(folder, DAY_COLUMN, table, None, now_s, older_than_hours)
    letters = open_table(dead_letters)
    letter_table = None if letters is None else DeltaSnapshot(letters, dead_letters)
    owner = shortened(table_name)
    swept += _sweep(dead_letters, TOPIC_COLUMN, letter_table, owner, now_s, older_than_hours)
    try:
        table.commit(Change(counters={_SWEPT_AT: int(now_s // _HOUR_S)}))
    except CommitConflictError:
        pass  # Another load has swept as well.
    return swept


def _sweep(
    folder: Folder,
    partition_by: str,
    table: TableSnapshot | None,
    owner: str | None,
    now_s: float,
    hours: int,
) -> int:
    # Listed before the log is read: a file that is committed in between is then named.
    old_files = [path for path, modified_s in folder.files() if now_s - modified_s > hours * _HOUR_S]
    orphans = [
        path
        for path in old_files
        if (origin := origin_of_file(path)) is not None
        and (_is_staged(path) or (_is_in_partition(path, partition_by) and origin.table == owner))
    ]
    if not orphans:
        return 0
    named: set[str] = set()
    if table is not None:
        table.refresh()
        named = {_name(path) for path in table.named_files(hours)}
    orphans = [path for path in orphans if _name(path) not in named]
    for path in orphans:
        folder.delete(path)
    return len(orphans)


def _is_in_partition(path: str, partition_by: str) -> bool:
    parent = PurePosixPath(path).parent
    return len(parent.parts) == 1 and parent.name.startswith(f"{partition_by}=")


def _is_staged(path: str) -> bool:
    return path.startswith(f"{STAGED_FOLDER}/")


def _name(path: str) -> str:
    # Names are unique in the warehouse, since they hold the run's id.
    return unquote(PurePosixPath(path).name)
