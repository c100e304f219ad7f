"""Which days of a table have so many small files that merging them pays. Pure.

Loads that run often leave many small files in each day, and a reader opens every one of them. A merge writes
all files of a day anew, so it pays where small files are a good part of the day, or very many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mainstem_loader.table.day_files import FILE_BYTES
from mainstem_loader.table.parquet_files import FileOfDay

SMALL_FILE_BYTES: Final = FILE_BYTES // 2
SMALL_FILES_MIN: Final = 4
"""Late records make a file or two of an old day, which is not worth writing the day anew."""
SMALL_FILES_MANY: Final = 100
REWRITTEN_PER_SMALL_BYTE_MAX: Final = 4
BATCH_BYTES_MAX: Final = 8 * 1024**3
"""What one commit merges: minutes of work for one core, lost if another job changes the same rows."""


@dataclass(frozen=True, slots=True)
class DayToMerge:
    """A day whose files become fewer. `rows` is 0 if that is not known of each file."""

    day: str
    file_count: int
    size_bytes: int
    rows: int


def days_to_merge(files: Iterable[FileOfDay]) -> list[DayToMerge]:
    """The days that are worth a merge, the oldest first."""
    files_of_day: dict[str, list[FileOfDay]] = defaultdict(list)
    for file in files:
        files_of_day[file.day].append(file)
    return [
        DayToMerge(
            day,
            len(of_day),
            sum(file.size_bytes for file in of_day),
            sum(file.rows for file in of_day) if all(file.rows for file in of_day) else 0,
        )
        for day, of_day in sorted(files_of_day.items())
        if _is_worth_it([file.size_bytes for file in of_day])
    ]


def first_batch(days: Sequence[DayToMerge]) -> list[DayToMerge]:
    """As many days, in their order, as one commit merges; at least one, if there is one."""
    batch: list[DayToMerge] = []
    size_bytes = 0
    for day in days:
        size_bytes += day.size_bytes
        if batch and size_bytes > BATCH_BYTES_MAX:
            break
        batch.append(day)
    return batch


def _is_worth_it(sizes_bytes: Sequence[int]) -> bool:
    small = [size for size in sizes_bytes if size < SMALL_FILE_BYTES]
    if len(small) < SMALL_FILES_MIN:
        return False
    return len(small) >= SMALL_FILES_MANY or sum(sizes_bytes) <= sum(small) * REWRITTEN_PER_SMALL_BYTE_MAX
